"""Registering runs in the store, and listing them: those that left a notice, those in directories.

Any number of times with the same result: what is registered is derived from the run's own log. The
log of a run that has ended is opened again only when it may have changed:

- a notice in the inbox says that the run was started again, or
- the log's size or time differ from what the row was derived from. That is looked up for the
  ``CHECKED`` runs that were last seen alive: ten thousand look-ups would cost more than the list.
  A change of an older log that left no notice here is found by ``outlay import runs DIR``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, overload

from outlay.clock import SYSTEM, Clock, parse_moment, utc_text
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.files import FileStamp, stamp_of
from outlay.ledger.price import Kind
from outlay.runs.directories import InboxNotice, notices
from outlay.runs.slurm.imported_jobs import SACCT, withdraw_imported
from outlay.store import open_store, outlay_home
from outlay.store.runs import RunFilter, RunRow, count_runs, delete_runs, outdated_runs, register
from outlay.store.runs import list_runs as stored_runs
from outlay.units import Money
from outlay.units.shown import kind_suffix

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from outlay.runs.figures import RunFigures

ReadFigures = Callable[[Path, int], "RunFigures"]
"""Returns how the run in a directory stands at an instant."""

FIGURES_VERSION = 4
"""Raised when what is derived from a log changes: rows of an earlier one are derived anew."""

CHECKED = 500
_LARGEST = 2**63
_NOTICE_KEPT_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Collected:
    """The runs that were read, and what could not be."""

    figures: list[RunFigures]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class RunList(Sequence[RunRow]):
    """Registered runs, the latest started first.

    Attributes:
        left_out: How many more there are that the limit left out.
        findings: What is wrong in the logs of these runs, and which runs could not be read.
    """

    rows: tuple[RunRow, ...]
    left_out: int
    findings: tuple[Finding, ...]

    @overload
    def __getitem__(self, index: int) -> RunRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RunRow, ...]: ...
    def __getitem__(self, index: int | slice) -> RunRow | tuple[RunRow, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


def list_runs(
    *,
    status: str | None = None,
    model: str | None = None,
    user: str | None = None,
    tag: str | None = None,
    since: str | datetime | None = None,
    limit: int | None = None,
    clock: Clock = SYSTEM,
) -> RunList:
    """Return registered runs as they stand now, the latest started first.

    Args:
        status: Only runs with this status: ``running``, ``dead``, ``completed``, ``failed``, …
        model: Only runs of this model.
        user: Only runs of this user.
        tag: Only runs with this tag: ``"team=nlp"``, or ``"team"`` for any value.
        since: Only runs seen alive since an instant, or since so long ago: ``"7d"``.
        limit: At most this many; None for all.
        clock: What time it is.

    Raises:
        InvalidValue: An argument cannot be used.
        StoreUnavailable: The store cannot be opened.
    """
    now_ns = clock.wall_ns()
    name, equals, value = (tag or "").partition("=")
    if tag is not None and not name:
        raise InvalidValue("tag", tag, 'a tag such as "team=nlp", or "team" for any value')
    if limit is not None and limit < 1:
        raise InvalidValue("limit", limit, "1 or more, or None for all")
    wanted = RunFilter(
        status=status,
        model=model,
        user=user,
        tag=name or None,
        tag_value=value if equals else None,
        since_ns=None if since is None else parse_moment(since, name="since", now_ns=now_ns),
    )
    engine = open_store()
    collected = refresh_registered(engine, now_ns)
    rows = tuple(stored_runs(engine, wanted, limit=limit))
    left_out = 0 if limit is None or len(rows) < limit else count_runs(engine, wanted) - len(rows)
    return RunList(rows, left_out, (*collected.findings, *findings_in(rows)))


def findings_in(runs: Iterable[RunRow | RunFigures]) -> list[Finding]:
    """Return what is wrong in the logs of several runs; which one it is stands in front."""
    return [
        replace(finding, source=f"{run.dir}: {finding.source}")
        for run in runs
        for finding in run.findings
    ]


@dataclass(frozen=True, slots=True)
class Burn:
    """What runs cost per hour together, of one currency and one kind."""

    kind: Kind
    money: Money

    def __str__(self) -> str:
        return f"{self.money}/h{kind_suffix(self.kind)}"


def sum_burns(burns: Iterable[Burn]) -> list[Burn]:
    """Return the sums of amounts; each currency, and cash and showback, by itself."""
    totals: dict[tuple[Kind, str], int] = {}
    for burn in burns:
        key = burn.kind, burn.money.currency
        totals[key] = totals.get(key, 0) + burn.money.micros
    return [Burn(kind, Money(micros, unit)) for (kind, unit), micros in sorted(totals.items())]


def total_burn(running: Iterable[RunFigures]) -> list[Burn]:
    """Return what the runs cost per hour together."""
    return sum_burns(
        Burn(figures.kind, Money(figures.burn_micros_per_hour, figures.cost.currency))
        for figures in running
        if figures.cost is not None and figures.burn_micros_per_hour is not None
    )


def dead_runs(rows: Iterable[RunRow]) -> list[Finding]:
    """Return the runs that died without recording an end."""
    return [
        Finding(
            source=row.dir,
            message=f"{row.name} gave no sign of life since {utc_text(row.last_seen_ns)} "
            "and recorded no end (killed or crashed)",
            severity="warning",
        )
        for row in rows
    ]


def find_runs(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield every directory at or below the roots that holds a run log, each once."""
    seen: set[Path] = set()
    for root in roots:
        for ledger in sorted([root / "ledger", *root.rglob("ledger")]):
            run_dir = ledger.parent.resolve()
            if run_dir not in seen and log_stamp(run_dir) is not None:
                seen.add(run_dir)
                yield run_dir


def log_stamp(run_dir: Path | str) -> FileStamp | None:
    """Return the stamp of a run's log without opening it; None when no run log can be seen."""
    return stamp_of(f"{run_dir}/ledger", suffix=".jsonl")


def started_ns(run_dir: Path) -> int:
    """Return when a run was first started, by its segments' names; 0 where they do not say."""
    return min(_starts_ns(run_dir), default=0)


def _starts_ns(run_dir: Path) -> list[int]:
    """Return when each process of a run started, by its segment's name."""
    # Here, so that a list for which no log is opened does not load what reads logs.
    from outlay.ledger.segments import id_from_name, segment_paths

    return [segment.start_ns for path in segment_paths(run_dir) if (segment := id_from_name(path))]


def read_runs(run_dirs: Iterable[Path], now_ns: int, read: ReadFigures | None = None) -> Collected:
    """Read the logs of runs; one that cannot be read does not stop the others.

    ``read`` is for those who follow logs that they have read before.
    """
    from outlay.runs.figures import read_figures

    found = Collected([], [])
    for run_dir in run_dirs:
        try:
            found.figures.append((read or read_figures)(run_dir, now_ns))
        except (OutlayError, OSError) as error:
            found.findings.append(Finding(source=str(run_dir), message=str(error)))
    return found


def collect(
    engine: Engine, run_dirs: Iterable[Path], now_ns: int, read: ReadFigures | None = None
) -> Collected:
    """Read the runs and register them; one that cannot be read does not stop the others."""
    # A record that is written while the log is read makes another stamp: it will be read again.
    stamps = {str(run_dir): log_stamp(run_dir) for run_dir in run_dirs}
    if not stamps:
        return Collected([], [])
    collected = read_runs(map(Path, stamps), now_ns, read)
    rows = [row_of(run, stamps.get(run.dir), now_ns) for run in collected.figures]
    register(engine, [row for row in rows if _unstorable(row) is None])
    for row in rows:
        if (why := _unstorable(row)) is not None:
            message = f"cannot be registered: {why}"
            collected.findings.append(Finding(source=row.dir, message=message))
    if (outlay_home() / SACCT).is_dir():
        withdrawn, changed = withdraw_imported(map(Path, stamps))
        delete_runs(engine, withdrawn)
        collect(engine, changed, now_ns)
    return collected


def refresh_registered(engine: Engine, now_ns: int, read: ReadFigures | None = None) -> Collected:
    """Register the runs that left a notice, and read again what may have changed.

    A run leaves its notice before its first record: one whose log is not there yet keeps it.
    """
    waiting, unreadable = notices()
    settled = [notice for notice in waiting if _is_settled(notice, now_ns)]
    noticed = [n.run_dir for n in settled if log_stamp(n.run_dir) is not None]
    in_doubt = outdated_runs(engine, figures_version=FIGURES_VERSION, newest=CHECKED)
    changed = [Path(row.dir) for row in in_doubt if _may_have_changed(row)]
    collected = collect(engine, dict.fromkeys([*noticed, *changed]), now_ns, read)
    for notice in settled:
        notice.path.unlink(missing_ok=True)
    return replace(collected, findings=[*unreadable, *collected.findings])


def _may_have_changed(row: RunRow) -> bool:
    """Say whether a run's log would give another row; one that is gone gives none."""
    stamp = log_stamp(row.dir)
    if stamp is None:
        return False
    if row.status == "running" or (row.figures_version or 0) < FIGURES_VERSION:
        return True
    return stamp != (row.log_bytes, row.log_mtime_ns)


def _is_settled(notice: InboxNotice, now_ns: int) -> bool:
    """Say whether a notice has done its part.

    It has when the log of the attempt that left it is there, when the directory is gone, or when no
    such log came for a day: the process ended before its first record.
    """
    if log_stamp(notice.run_dir) is None:
        return _is_gone(notice.run_dir)
    if notice.started_ns <= max(_starts_ns(notice.run_dir), default=notice.started_ns):
        return True
    return now_ns - notice.started_ns > _NOTICE_KEPT_NS


def _is_gone(directory: Path) -> bool:
    """Say whether a directory is known not to be there; one that cannot be looked at may be."""
    try:
        directory.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _unstorable(row: RunRow) -> str | None:
    """Say why a row has no place in the store, for one that would take all others down with it."""
    for name in RunRow.__struct_fields__:
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


def row_of(figures: RunFigures, stamp: FileStamp | None, now_ns: int) -> RunRow:
    """Return what the store keeps of a run whose log had this stamp when it was read."""
    from outlay.ledger import exact_gpus  # Loaded already, by what read the log.

    cost = figures.cost
    known = {field.name for field in fields(figures)}
    shared = {n: getattr(figures, n) for n in RunRow.__struct_fields__ if n in known}
    return RunRow(
        **shared | {"gpus": math.ceil(exact_gpus(figures.gpus))},
        cost_micros=None if cost is None else cost.micros,
        currency=None if cost is None else cost.currency,
        assumed_micros=0 if figures.assumed is None else figures.assumed.micros,
        updated_ns=now_ns,
        log_bytes=None if stamp is None else stamp.size_bytes,
        log_mtime_ns=None if stamp is None else stamp.mtime_ns,
        figures_version=FIGURES_VERSION,
    )
