"""The data directory of the cost module and its JSON files.

If it exists, its files are imported and kept up to date, so that other programs can still read
them: rows have no other keys than there, and what else outlay knows of them is in a file beside,
such as ``cost_history.outlay.json``. The store is the source of truth: on a conflict its value wins
and is written to the file.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

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
    """A cost file cannot be parsed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}. Repair it or move it away first; "
            "it was left as it is."
        )


def data_directory(data_dir: Path | str | None) -> Path | None:
    """Return the directory whose files are kept up to date, or None.

    Args:
        data_dir: The user's directory, used if it contains one of the files; None means
            ``~/.context/training``, used if it exists.
    """
    if data_dir is None:
        with suppress(RuntimeError):  # Path.home() fails for a user without a home.
            default = Path.home() / ".context" / "training"
            return default if default.is_dir() else None
        return None
    named = Path(data_dir).expanduser()
    return named if any((named / name).is_file() for name in _NAMES) else None


def price_file(directory: Path) -> Path:
    """Return the path of a directory's price history: in it, or in its ``prices`` directory."""
    here = directory / PRICES
    return here if here.is_file() else directory / _BELOW / PRICES


def log_imported(count: int, noun: str, directory: Path) -> None:
    """Log the number of imported items, if any."""
    if count:
        _log.warning("outlay imported %s from %s", counted(count, noun), directory)


@contextmanager
def update_files(directory: Path) -> Iterator[None]:
    """Log errors of file updates instead of raising them: the store has all the data."""
    try:
        yield
    except (OutlayError, OSError) as error:
        _log.warning("the files in %s are not kept up to date: %s", directory, error)


def read_json(path: Path, kind: type[T]) -> T | None:
    """Parse a file; None if it does not exist.

    Raises:
        CorruptCosts: It has other contents.
    """
    try:
        return read_document(path, kind)
    except FileNotFoundError:
        return None
    except (OSError, BadDocument) as error:
        raise CorruptCosts(path, str(error)) from None


def write_json(path: Path, values: object) -> None:
    """Replace a file atomically, unless its contents are the same."""
    content = msgspec.json.format(msgspec.json.encode(values), indent=2)
    with suppress(OSError):
        if path.read_bytes() == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, synced=True)


Row = dict[str, Any]


def own_file(path: Path) -> Path:
    """Return the file beside one of the cost module's, with what that cannot express."""
    return path.with_suffix(".outlay.json")


def read_own(path: Path) -> dict[str, Row]:
    """Return outlay's own keys of the rows of a file, by the name of the row.

    Raises:
        CorruptCosts: The file beside it cannot be read.
    """
    return read_json(own_file(path), dict[str, Row]) or {}


def with_own(row: Row, own: Row) -> Row:
    """Return a row with outlay's own keys, also those of its metrics."""
    nested = {"metrics": row["metrics"] | own["metrics"]} if "metrics" in own else {}
    return row | own | nested


def write_rows(
    path: Path, rows: Mapping[str, Row], own_keys: Collection[str], *, as_list: bool = False
) -> None:
    """Write rows without outlay's own keys, and those to the file beside it."""
    shared, own = {}, {}
    for name, row in rows.items():
        shared[name], own[name] = _split(row, own_keys)
    write_json(path, list(shared.values()) if as_list else shared)
    kept = {name: row for name, row in own.items() if row}
    if kept or own_file(path).exists():
        write_json(own_file(path), kept)


def _split(row: Row, own_keys: Collection[str]) -> tuple[Row, Row]:
    """Return the keys of the cost module's rows, and outlay's own."""
    if not isinstance(row, dict):  # Another program's.
        return row, {}
    shared = {key: value for key, value in row.items() if key not in own_keys}
    own = {key: value for key, value in row.items() if key in own_keys}
    if isinstance(row.get("metrics"), dict):
        shared["metrics"], nested = _split(row["metrics"], own_keys)
        own |= {"metrics": nested} if nested else {}
    return shared, own
