"""Registering runs in the store and listing them; runs are found by inbox notice or directory.

Registering is idempotent: a row is derived from the run's log alone. The log of a run that has
ended is read again only if

- a notice in the inbox says that the run was started again, or
- the log's size or mtime differs from the row's. Only the ``CHECKED`` runs last seen alive are
  compared: a stat for each of ten thousand runs would cost more than the list. A change of an older
  log without a notice is found by ``outlay import runs DIR``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from outlay.clock import SYSTEM, Clock, parse_moment, utc_text
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.files import FileStamp, stamp_of
from outlay.ledger import read_identity, segment_paths
from outlay.ledger.segments import id_from_name
from outlay.runs.accounting.imported_jobs import SACCT, withdraw_imported
from outlay.runs.figures import FIGURES, line_of, table_html
from outlay.runs.inbox import InboxNotice, notices
from outlay.store import open_store, outlay_home
from outlay.store.run_row import RunRow
from outlay.store.runs import (
    RunFilter,
    count_runs,
    delete_runs,
    end_replaced,
    outdated_runs,
    register,
    unstorable,
)
from outlay.store.runs import list_runs as stored_runs
from outlay.units import Rate
from outlay.units.money import sum_by_unit
from outlay.units.shown import counted

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from outlay.runs.reading import RunReading


ReadRun = Callable[[Path, int], "RunReading"]
"""Reads the run in a directory at an instant."""

FIGURES_VERSION = 9
"""Increment when the derivation of a row changes: older rows are derived again."""

CHECKED = 500
_NOTICE_KEPT_NS = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Collected:
    """The figures of the runs that were read, and findings about those that could not be."""

    figures: list[RunRow]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class RunList(Sequence[RunRow]):
    """Registered runs, the latest started first.

    A part of it is such a list, too.

    Attributes:
        left_out: How many more match than ``limit``, or a part, allows.
        findings: Problems in the logs of these runs, and runs that could not be read.
    """

    rows: tuple[RunRow, ...]
    left_out: int
    findings: tuple[Finding, ...]

    @overload
    def __getitem__(self, index: int) -> RunRow: ...
    @overload
    def __getitem__(self, index: slice) -> RunList: ...
    def __getitem__(self, index: int | slice) -> RunRow | RunList:
        if not isinstance(index, slice):
            return self.rows[index]
        rows = self.rows[index]
        return replace(self, rows=rows, left_out=self.left_out + len(self) - len(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        now_ns = SYSTEM.wall_ns()
        return "\n".join(
            [f"<{counted(len(self), 'run')}>", *(line_of(r, now_ns) for r in self.rows)]
        )

    def _repr_html_(self) -> str:
        """Return the list as a table for a notebook."""
        return table_html(self.rows, SYSTEM.wall_ns())

    def to_pandas(self) -> Any:
        """Return a data frame: a row for each run, a column for each figure of the catalogue.

        Raises:
            OutlayError: pandas is not installed.
        """
        return data_frame([{f.name: f.cell(row) for f in FIGURES} for row in self.rows])


def data_frame(rows: Iterable[Mapping[str, object]]) -> Any:
    """Return rows as a data frame of pandas.

    Raises:
        OutlayError: pandas is not installed.
    """
    try:
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise OutlayError("to_pandas needs pandas: pip install pandas") from None
    return pd.DataFrame(list(rows))


def list_runs(
    directory: str | Path | None = None,
    *,
    status: str | None = None,
    model: str | None = None,
    user: str | None = None,
    tag: str | None = None,
    since: str | datetime | None = None,
    limit: int | None = None,
    clock: Clock = SYSTEM,
) -> RunList:
    """Return registered runs, refreshed from their logs, the latest started first.

    Args:
        directory: The runs in or below this directory instead, registered or not.
        status: Only runs with this status: ``running``, ``dead``, ``completed``, ``failed``, …
        model: Only runs of this model.
        user: Only runs of this user.
        tag: Only runs with this tag: ``"team=nlp"``, or ``"team"`` for any value.
        since: Only runs seen alive since an instant, or within a duration: ``"7d"``.
        limit: At most this many; None for all.
        clock: The clock to use.

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
    if directory is not None:
        return _runs_below(Path(directory), wanted, limit, now_ns)
    engine = open_store()
    collected = refresh_registered(engine, now_ns)
    rows = tuple(stored_runs(engine, wanted, limit=limit))
    left_out = 0 if limit is None or len(rows) < limit else count_runs(engine, wanted) - len(rows)
    return RunList(rows, left_out, (*collected.findings, *findings_in(rows)))


def _runs_below(directory: Path, wanted: RunFilter, limit: int | None, now_ns: int) -> RunList:
    dirs = sorted(find_runs([directory]), key=started_ns, reverse=True)
    if wanted == RunFilter():  # Then only those are read that are listed.
        found, left_out = read_runs(dirs[:limit], now_ns), len(dirs) - len(dirs[:limit])
        rows = found.figures
    else:
        found = read_runs(dirs, now_ns)
        matching = [row for row in found.figures if _is_wanted(row, wanted)]
        rows, left_out = matching[:limit], len(matching) - len(matching[:limit])
    rows = sorted(rows, key=lambda run: -run.started_ns)
    return RunList(tuple(rows), left_out, (*found.findings, *findings_in(rows)))


def _is_wanted(row: RunRow, wanted: RunFilter) -> bool:
    """Return whether a run matches what ``list_runs`` filters by."""
    equal = ((wanted.status, row.status), (wanted.model, row.model), (wanted.user, row.user))
    if any(asked not in (None, value) for asked, value in equal):
        return False
    if wanted.tag is not None and wanted.tag not in row.tags:
        return False
    if wanted.tag_value is not None and row.tags[wanted.tag or ""] != wanted.tag_value:
        return False
    return wanted.since_ns is None or row.last_seen_ns >= wanted.since_ns


def findings_in(runs: Iterable[RunRow]) -> list[Finding]:
    """Return the findings of several runs, each prefixed with its run's directory."""
    return [
        replace(finding, source=f"{run.dir}: {finding.source}")
        for run in runs
        for finding in run.findings
    ]


def total_burn(running: Iterable[RunRow]) -> list[Rate]:
    """Return the total hourly cost of running runs, one rate per unit."""
    burns = (run.burn for run in running if run.burn is not None)
    return sum_by_unit(burn.unit.rate(burn.micros) for burn in burns)


def elsewhere_text(row: RunRow) -> str:
    """Return as of when the figures of a run are whose log is on another host."""
    return f"as of {utc_text(row.as_of_ns)}: its log is on {row.log_host}, not reachable from here"


def silence_text(row: RunRow) -> str:
    """Return since when a run gave no sign of life."""
    seen = utc_text(row.last_seen_ns)
    return f"{row.name} gave no sign of life since {seen} and recorded no end"


DEAD_SHOWN_NS = 7 * 86_400 * 10**9
"""So long a run that died is said to be wrong; the list of runs has it for ever."""


def dead_runs(rows: Iterable[RunRow]) -> list[Finding]:
    """Return a finding for each run that died without recording an end."""
    return [
        Finding(
            source=row.dir,
            message=f"{silence_text(row)} (killed or crashed)",
            severity="warning",
        )
        for row in rows
    ]


def find_runs(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield every directory at or below the roots that contains a run log, each once."""
    seen: set[Path] = set()
    for root in roots:
        for ledger in sorted([root / "ledger", *root.rglob("ledger")]):
            run_dir = ledger.parent.resolve()
            if run_dir not in seen and log_stamp(run_dir) is not None:
                seen.add(run_dir)
                yield run_dir


def log_stamp(run_dir: Path | str) -> FileStamp | None:
    """Return the size and mtime of a run's log without opening it; None if there is no log."""
    return stamp_of(f"{run_dir}/ledger", suffix=".jsonl")


def started_ns(run_dir: Path) -> int:
    """Return when a run was first started, from its segment file names; 0 if unknown."""
    return min(starts_ns(run_dir), default=0)


def starts_ns(run_dir: Path) -> list[int]:
    """Return the starts of a run's processes, from its segment file names."""
    return [segment.start_ns for path in segment_paths(run_dir) if (segment := id_from_name(path))]


def read_runs(run_dirs: Iterable[Path], now_ns: int, read: ReadRun | None = None) -> Collected:
    """Read the logs of runs; one that cannot be read becomes a finding.

    ``read`` replaces ``read_run`` for callers that cache followers of logs.
    """
    from outlay.runs.reading import read_run, stored_row  # A list of ended runs reads no log.

    found = Collected([], [])
    for run_dir in run_dirs:
        try:
            found.figures.append(stored_row((read or read_run)(run_dir, now_ns)))
        except (OutlayError, OSError) as error:
            found.findings.append(Finding(source=str(run_dir), message=str(error)))
    return found


def collect(
    engine: Engine, run_dirs: Iterable[Path], now_ns: int, read: ReadRun | None = None
) -> Collected:
    """Read the runs and register them; one that cannot be read becomes a finding."""
    # Stamped before reading: a record appended meanwhile changes the stamp, so it is read again.
    stamps = {str(run_dir): log_stamp(run_dir) for run_dir in run_dirs}
    if not stamps:
        return Collected([], [])
    collected = read_runs(map(Path, stamps), now_ns, read)
    rows = [stamped(run, stamps.get(run.dir), now_ns) for run in collected.figures]
    register(engine, [row for row in rows if unstorable(row) is None])
    end_replaced(engine, {row.dir: row.run_id for row in rows})
    for row in rows:
        if (why := unstorable(row)) is not None:
            message = f"cannot be registered: {why}"
            collected.findings.append(Finding(source=row.dir, message=message))
    if (outlay_home() / SACCT).is_dir():
        withdrawn, changed = withdraw_imported(map(Path, stamps))
        delete_runs(engine, withdrawn)
        collect(engine, changed, now_ns)
    return collected


def refresh_registered(engine: Engine, now_ns: int, read: ReadRun | None = None) -> Collected:
    """Register the runs in the inbox, and read runs again whose log may have changed.

    A run writes its notice before its first record: a notice without a log stays in the inbox.
    """
    waiting, unreadable = notices()
    settled = [notice for notice in waiting if _is_settled(notice, now_ns)]
    noticed = [n.run_dir for n in settled if log_stamp(n.run_dir) is not None]
    in_doubt = outdated_runs(engine, figures_version=FIGURES_VERSION, newest=CHECKED)
    changed = [Path(row.own_dir) for row in in_doubt if _may_have_changed(row)]
    collected = collect(engine, dict.fromkeys([*noticed, *changed]), now_ns, read)
    for notice in settled:
        notice.path.unlink(missing_ok=True)
    return replace(collected, findings=[*unreadable, *collected.findings])


def _may_have_changed(row: RunRow) -> bool:
    if row.log_host:  # Registered from here, too, if this host sees the same file system.
        identity = read_identity(Path(row.own_dir))
        return identity is not None and identity.run_id == row.run_id
    stamp = log_stamp(row.dir)
    if stamp is None:
        return False  # The log is gone; the row stays.
    if row.status == "running" or (row.figures_version or 0) < FIGURES_VERSION:
        return True
    return stamp != (row.log_bytes, row.log_mtime_ns)


def _is_settled(notice: InboxNotice, now_ns: int) -> bool:
    """Return whether a notice can be removed from the inbox.

    True if the log of its attempt exists, if the directory is gone, or if no such log appeared for
    a day: the process ended before its first record.
    """
    if log_stamp(notice.run_dir) is None:
        return _is_gone(notice.run_dir)
    if notice.started_ns <= max(starts_ns(notice.run_dir), default=notice.started_ns):
        return True
    return now_ns - notice.started_ns > _NOTICE_KEPT_NS


def _is_gone(directory: Path) -> bool:
    """Return whether a directory is known not to exist; False if it cannot be examined."""
    try:
        directory.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def stamped(row: RunRow, stamp: FileStamp | None, now_ns: int) -> RunRow:
    """Return the figures of a run for the store, with the stamp of its log when it was read."""
    return msgspec.structs.replace(
        row,
        updated_ns=now_ns,
        log_bytes=None if stamp is None else stamp.size_bytes,
        log_mtime_ns=None if stamp is None else stamp.mtime_ns,
        figures_version=FIGURES_VERSION,
    )
