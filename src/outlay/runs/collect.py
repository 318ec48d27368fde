"""Registering runs in the store: those that left a notice, and those found in directories.

Any number of times with the same result: what is registered is derived from the run's own log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from sqlalchemy import Engine

from outlay.errors import Finding, OutlayError
from outlay.runs.figures import RunFigures, RunFollower, is_run
from outlay.runs.inbox import notices
from outlay.store.runs import RunRow, list_runs, register


@dataclass(frozen=True, slots=True)
class Collected:
    """The runs that were read, and what could not be."""

    figures: list[RunFigures]
    findings: list[Finding]


def find_runs(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield every directory at or below the roots that holds a run log, each once."""
    seen: set[Path] = set()
    for root in roots:
        for ledger in sorted([root / "ledger", *root.rglob("ledger")]):
            run_dir = ledger.parent.resolve()
            if run_dir not in seen and is_run(run_dir):
                seen.add(run_dir)
                yield run_dir


def collect(engine: Engine, run_dirs: Iterable[Path], now_ns: int) -> Collected:
    """Read the runs and register them; one that cannot be read does not stop the others."""
    figures: list[RunFigures] = []
    findings: list[Finding] = []
    for run_dir in run_dirs:
        try:
            figures.append(RunFollower(run_dir).refresh(now_ns))
        except (OutlayError, OSError) as error:
            findings.append(Finding(source=str(run_dir), message=str(error)))
    rows = [row_of(of_run, now_ns) for of_run in figures]
    register(engine, [row for row in rows if _unstorable(row) is None])
    refused = [(row.dir, why) for row in rows if (why := _unstorable(row)) is not None]
    findings += [
        Finding(source=where, message=f"cannot be registered: {why}") for where, why in refused
    ]
    return Collected(figures, findings)


def refresh_registered(engine: Engine, now_ns: int) -> Collected:
    """Register the runs that left a notice, and look again at those that were not over.

    A run leaves its notice before its first record: one whose log is not there yet keeps it.
    """
    waiting, unreadable = notices()
    settled = [n for n in waiting if is_run(n.run_dir) or _is_gone(n.run_dir)]
    registered = list_runs(engine, findings=unreadable)
    open_dirs = [Path(row.dir) for row in registered if row.ended_ns is None]
    dirs = dict.fromkeys([*(notice.run_dir for notice in settled), *open_dirs])
    collected = collect(engine, [d for d in dirs if is_run(d)], now_ns)
    for notice in settled:
        notice.path.unlink(missing_ok=True)
    return replace(collected, findings=[*unreadable, *collected.findings])


def _is_gone(directory: Path) -> bool:
    """Say whether a directory is known not to be there; one that cannot be looked at may be."""
    try:
        directory.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _unstorable(row: RunRow) -> str | None:
    """Say why a row has no place in the store, for one that would take all others down with it."""
    for name in (field.name for field in fields(row)):
        value = getattr(row, name)
        if isinstance(value, int) and abs(value) >= _LARGEST:
            return f"its {name} of {value} is more than a database holds"
        if isinstance(value, str) and not _is_storable(value):
            return f"its {name} is no text that a database holds"
    return None


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # A path need not be Unicode.
        return False


_LARGEST = 2**63
_SHARED = sorted({f.name for f in fields(RunRow)} & {f.name for f in fields(RunFigures)})


def row_of(figures: RunFigures, now_ns: int) -> RunRow:
    """Return what the store keeps of a run."""
    cost = figures.cost
    return RunRow(
        **{name: getattr(figures, name) for name in _SHARED},
        cost_micros=None if cost is None else cost.micros,
        currency=None if cost is None else cost.currency,
        updated_ns=now_ns,
    )
