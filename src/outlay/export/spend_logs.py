"""The spend logs that screens show when none is named: those known here, and shared books."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from outlay.decoding import BadDocument, read_toml
from outlay.errors import InvalidValue
from outlay.guard.rental.watch import known_logs
from outlay.guard.spend_log import is_url, named_log, open_book
from outlay.store.home import settings_path


class _SpendLogsFile(msgspec.Struct, frozen=True):
    """``spend_logs`` of ``outlay.toml``."""

    spend_logs: list[str] = []


def shown_logs(
    given: Sequence[str] | None, environ: Mapping[str, str] = os.environ
) -> tuple[str | Path, ...]:
    """Return the spend logs to show: those ``given``, else every one known on this machine.

    Known are those with rentals, those in ``outlay.toml``, and the book in OUTLAY_SPEND_LOG.

    Raises:
        InvalidValue: A URL is none, or one in ``outlay.toml`` has a password.
    """
    if given:
        return tuple(map(_full_name, given))
    return tuple(dict.fromkeys((*known_logs(), *shared_logs(environ))))


def shared_logs(environ: Mapping[str, str] = os.environ) -> tuple[str | Path, ...]:
    """Return the spend logs in ``outlay.toml``, and the book in OUTLAY_SPEND_LOG.

    Raises:
        InvalidValue: A URL is none, or one in ``outlay.toml`` has a password.
    """
    stated = environ.get("OUTLAY_SPEND_LOG", "")
    named = [_full_name(each, in_file=True) for each in _settings()]
    return tuple(dict.fromkeys([*named, *([_full_name(stated)] if is_url(stated) else [])]))


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
