"""The spend logs that screens show when none is named: those known here, and shared books.

Also the teams of members, which books have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from outlay.cost.spending import Spending
from outlay.decoding import BadDocument, read_toml
from outlay.errors import Finding, InvalidValue
from outlay.guard.away.polled_log import PolledLog
from outlay.guard.index.head_file import used_logs
from outlay.guard.rental.watch import known_logs
from outlay.guard.spend_log import is_url, named_log, open_book
from outlay.membership import Membership
from outlay.store.home import settings_path
from outlay.sweep.state.manifest import is_sweep


class _SpendLogsFile(msgspec.Struct, frozen=True):
    """``spend_logs`` of ``outlay.toml``."""

    spend_logs: list[str] = []


def shown_logs(
    given: Sequence[str] | None, environ: Mapping[str, str] = os.environ
) -> tuple[str | Path, ...]:
    """Return the spend logs to show: those ``given``, else every one known on this machine.

    Known are the ``local_logs``, those in ``outlay.toml``, and the book in OUTLAY_SPEND_LOG.

    Raises:
        InvalidValue: A URL is none, or one in ``outlay.toml`` has a password.
    """
    if given:
        return tuple(map(_full_name, given))
    return tuple(dict.fromkeys((*local_logs(), *shared_logs(environ))))


def local_logs() -> tuple[Path, ...]:
    """Return the logs in files under which this machine has rented, or that were used on it.

    Without the logs of sweeps, each of which its own sweep shows.
    """
    used = (path for path in used_logs() if not is_sweep(path.parent))
    return tuple(dict.fromkeys((*known_logs(), *used)))


def shared_logs(environ: Mapping[str, str] = os.environ) -> tuple[str | Path, ...]:
    """Return the spend logs in ``outlay.toml``, and the book in OUTLAY_SPEND_LOG.

    Raises:
        InvalidValue: A URL is none, or one in ``outlay.toml`` has a password.
    """
    stated = environ.get("OUTLAY_SPEND_LOG", "")
    named = [_full_name(each, in_file=True) for each in _settings()]
    return tuple(dict.fromkeys([*named, *([_full_name(stated)] if is_url(stated) else [])]))


def with_teams(
    spending: Spending, logs: Iterable[PolledLog]
) -> tuple[Spending, tuple[Finding, ...]]:
    """Return spending with the teams of members, as books have them, where no tag states one.

    The findings are about books that can't be asked.
    """
    found, findings = dict[Membership, None](), list[Finding]()
    for log in logs:
        if log.book is not None:
            polled = log.ask("memberships", log.book.memberships)
            found |= dict.fromkeys(polled.value or ())
            findings += polled.findings(log.shown)
    return spending.with_teams(tuple(found)), tuple(findings)


def _settings() -> list[str]:
    path = settings_path()
    try:
        return read_toml(path, _SpendLogsFile).spend_logs
    except FileNotFoundError:
        return []
    except (OSError, BadDocument) as error:
        expected = 'a file with spend_logs = ["postgresql://…"]'
        raise InvalidValue(str(path), str(error), expected) from None


def _full_name(name: str, *, in_file: bool = False) -> str | Path:
    if is_url(name):
        book = open_book(name).name
        return book.handed_on() if in_file else name
    return Path(named_log(Path(name).expanduser())).absolute()
