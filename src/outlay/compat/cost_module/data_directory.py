"""The directory of the cost module whose classes these are: where it is, and its JSON files.

Where it exists its files are taken over, and kept up to date: programs that read them go on reading
them. The store is the truth: of two answers its own is kept, and written to the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.errors import OutlayError
from outlay.files import write_whole
from outlay.units.shown import counted

HISTORY: Final = "cost_history.json"
BUDGETS: Final = "budgets.json"
RECOMMENDATIONS: Final = "recommendations.json"
PRICES: Final = "price_history.json"
_BELOW: Final = "prices"
_NAMES: Final = (HISTORY, BUDGETS, RECOMMENDATIONS, PRICES, f"{_BELOW}/{PRICES}")
_log = logging.getLogger(__name__)
T = TypeVar("T")


class CorruptCosts(OutlayError):
    """A cost file is not what its name says."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}. Repair it or move it away first; "
            "it was left as it is."
        )


def data_directory(data_dir: Path | str | None) -> Path | None:
    """Return the directory whose files are kept up to date; None where there is none.

    Args:
        data_dir: A directory that a user named, which counts where one of the files is in it; None
            for ``~/.context/training``, which counts where it exists.
    """
    if data_dir is None:
        with suppress(RuntimeError):  # A user without a home has no such directory either.
            default = Path.home() / ".context" / "training"
            return default if default.is_dir() else None
        return None
    named = Path(data_dir).expanduser()
    return named if any((named / name).is_file() for name in _NAMES) else None


def price_file(directory: Path) -> Path:
    """Return where a directory has its price history: in it, or in ``prices`` below it."""
    here = directory / PRICES
    return here if here.is_file() else directory / _BELOW / PRICES


def report_taken(count: int, noun: str, directory: Path) -> None:
    """Say how many things were taken over from a directory, if any were."""
    if count:
        what = counted(count, noun)
        _log.warning("outlay took over %s from %s", what, directory)


@contextmanager
def beside_the_store(directory: Path) -> Iterator[None]:
    """Keep files up to date in what is done here; where one refuses, that is logged.

    The store has everything, and the caller's work goes on.
    """
    try:
        yield
    except (OutlayError, OSError) as error:
        _log.warning("the files in %s are not kept up to date: %s", directory, error)


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return what a file holds; None where there is none.

    Raises:
        CorruptCosts: It holds something else.
    """
    try:
        return read_document(path, kind)
    except FileNotFoundError:
        return None
    except (OSError, BadDocument) as error:
        raise CorruptCosts(path, str(error)) from None


def write_json(path: Path, values: object) -> None:
    """Write a file whole, unless it holds that already: a reader sees the old one or the new."""
    content = msgspec.json.format(msgspec.json.encode(values), indent=2)
    with suppress(OSError):
        if path.read_bytes() == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, synced=True)
