"""A sweep's summary: the figures of every run, from its log or else from CSV files."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import msgspec

from outlay.account.columns import Work
from outlay.budget.display import read_document
from outlay.budget.limits import (
    COMM,
    ENERGY,
    FLOPS,
    NS_PER_MINUTE,
    TIME,
    TOKENS,
    cost_in,
)
from outlay.decoding import BadDocument, Decoder, csv_records, open_csv, read_file
from outlay.errors import Finding, NotARun
from outlay.files import write_whole
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.phases import PAUSED
from outlay.ledger import SUPERVISOR, segment_paths
from outlay.runs.reading import RunReading
from outlay.sweep.aggregate.losing import LosingRun, losing_runs
from outlay.sweep.aggregate.rows import RunFacts, Seen, SweepRow, in_time, labelled
from outlay.sweep.errors import IncompleteRuns
from outlay.sweep.run.sweep_guard import head_of
from outlay.sweep.search.results import SearchResults, search_results
from outlay.sweep.state.manifest import ManifestRun, read_manifest
from outlay.sweep.state.outcomes import RunState
from outlay.units.quantity import MILLIJOULES_PER_WH


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """A sweep's summary.

    Attributes:
        head: The hash of the last line of its spend log; "" without a ceiling.
    """

    name: str
    rows: tuple[SweepRow, ...]
    head: str = ""

    @property
    def search(self) -> SearchResults | None:
        """What its search found; None if it has no rungs."""
        return search_results((row.run, row.state) for row in self.rows)

    @property
    def losing(self) -> list[LosingRun]:
        """The open runs that are unlikely to pass the best."""
        return losing_runs(self.rows)

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The rows as plain data."""
        return [row.cells for row in self.rows]


def aggregate(root: Path, now_ns: int, *, allow_missing: bool = False) -> Aggregate:
    """Return the summary of a sweep.

    Raises:
        NotASweep: There is none.
        IncompleteRuns: Completed runs lack what is required; names all of it.
    """
    manifest = read_manifest(root)
    rows, missing = [], []
    directories = [root / run.run_dir for run in manifest.runs.values()]
    read = zip(directories, read_ledgers(directories, now_ns), strict=True)
    for (name, run), (directory, facts) in zip(manifest.runs.items(), read, strict=True):
        rows.append(_row(run, manifest.state(name), directory, facts))
        missing += [Finding(source=name, message=text) for text in rows[-1].problems]
    if missing and not allow_missing:
        raise IncompleteRuns(missing)
    return Aggregate(name=manifest.about["name"], rows=labelled(rows), head=head_of(root))


def _row(run: ManifestRun, state: RunState, directory: Path, facts: RunFacts | None) -> SweepRow:
    problems: list[str] = []
    if facts is None or not facts.trained:
        written = read_artefacts(directory)
        problems = [f"{name} is missing" for name in missing_files(directory)]
        if written is None:
            problems.append("there is no run log of the training either (see `outlay.run`)")
        facts = _combined(written, facts)
    document = read_document(directory) or {}
    return SweepRow(
        run=run, state=state, facts=facts, totals=_totals(document), budget=document,
        problems=tuple(problems) if state.status == "completed" else (),
    )  # fmt: skip


def _combined(written: RunFacts | None, watched: RunFacts | None) -> RunFacts | None:
    """Return the figures of the CSV files, with the time and cost of the supervisor's log."""
    if written is None or watched is None:
        return written or watched
    return msgspec.structs.replace(written, row=watched.row, phase_micros=watched.phase_micros)


def _totals(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the totals in the run's own ``budget.json``."""
    if not document:
        return {}
    stated = dict(totals_in(document))
    for name in document.get("unmeasured") or ():
        stated.pop(name, None)  # Its zero was not measured.
    return stated | {"steps_per_epoch": document.get("steps_per_epoch")}


# What a search compares of a run.


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBy:
    """The last value of a run's target metric, and whether it saved its work at this rung."""

    value: float | None
    saved: bool = False


def judged_by(run_dir: Path, metadata: Mapping[str, Any], now_ns: int, *, starts: int) -> JudgedBy:
    """Return by what a run's search compares it, from its log, else from its CSV files.

    ``starts`` is how often it was started at this rung.
    """
    metric = str(metadata.get("target_metric") or "")
    try:
        run = RunReading(GoodputFollower(run_dir).view(now_ns, alive=False))
    except NotARun:
        run = None
    saved = run is not None and _has_saved(run, starts)
    if run is not None and run.metrics.get(metric):
        return JudgedBy(value=run.metrics[metric][-1].value, saved=saved)
    written = read_artefacts(run_dir)
    seen = [] if written is None else in_time(written.metrics.get(metric, ()))
    return JudgedBy(value=seen[-1].value if seen else None, saved=saved)


def _has_saved(run: RunReading, starts: int) -> bool:
    """Say whether one of the last attempts committed a checkpoint."""
    last = {rank for one in run.view.timeline.attempts[-max(starts, 1) :] for rank in one.ranks}
    shown = run.view.account.shown()
    return any(s.checkpoints for s in shown if s.life.segment in last)


class RungWatch:
    """Follows the logs of running attempts, and counts the rungs that they have passed."""

    def __init__(self) -> None:
        self._followers: dict[Path, GoodputFollower] = {}

    def passed(self, run_dir: Path, limits: Sequence[Mapping[str, float]], now_ns: int) -> int:
        """Return how many rungs a run has passed by now, whatever its metric was."""
        follower = self._followers.setdefault(run_dir, GoodputFollower(run_dir))
        try:
            used = _used(_facts(RunReading(follower.view(now_ns, alive=True))))
        except NotARun:
            return 0
        return sum((used.get(key) or 0) >= limit for one in limits for key, limit in one.items())


def _used(facts: RunFacts) -> dict[str, float | None]:
    """Return what a run has used, by the key of the limit."""
    row = facts.row
    used: dict[str, float | None] = {
        TIME.key: facts.busy_ns / NS_PER_MINUTE,
        TOKENS.key: None if row is None else row.tokens,
        COMM.key: facts.comm_bytes,
        ENERGY.key: facts.energy_wh,
        FLOPS.key: facts.flops,
    }
    if row is not None and row.cost is not None:
        used[cost_in(row.cost.currency).key] = float(row.cost.amount)
    return used


# A run's figures from the documented CSV files and ``budget.json``.

REQUIRED: Final = ("timings.csv", "comms.csv", "budget.json")
_KNOWN: Final = ("timings.csv", "comms.csv", "energy.csv", "fidelity.csv", "memory.csv")
_MINUTES: Final = ("time_minutes", "elapsed_minutes")
_PLACES: Final = ("step", "global_step")
_PLACE_COLUMNS: Final = {*_MINUTES, *_PLACES, "epoch", "timestamp", "time", "split"}


def missing_files(run_dir: Path) -> list[str]:
    """Return the required files that a run does not have."""
    return [name for name in REQUIRED if not (run_dir / name).is_file()]


def read_artefacts(run_dir: Path) -> RunFacts | None:
    """Return a run's figures from its files, or None where it has none."""
    if len(missing_files(run_dir)) == len(REQUIRED):
        return None
    problems: list[str] = []
    timings = list(_rows(run_dir / "timings.csv", problems))
    comms = _rows(run_dir / "comms.csv", problems)
    moved = [sent for row in comms if (sent := _number(row, "bytes_total")) is not None]
    times = [ms for row in timings if (ms := _number(row, "t_step_ms")) is not None]
    pairs = ((_number(row, "ips_step"), _number(row, "t_step_ms")) for row in timings)
    totals = totals_in(read_document(run_dir))
    energy = _energy_mj(run_dir / "energy.csv", problems)
    if energy is None:
        energy = _whole(totals.get("energy_Wh"), times=MILLIJOULES_PER_WH) or None
    return RunFacts(
        source="csv",
        work=Work(steps=len(times), step_ns=round(sum(times) * 1e6)),
        items=sum(ips * ms / 1000 for ips, ms in pairs if ips is not None and ms is not None),
        comm_bytes=round(sum(moved)) if moved else None,
        energy_mj=energy,
        fidelity_mean=_mean(run_dir / "fidelity.csv", "grad_cos", problems),
        metrics=_metrics(run_dir, problems),
        problems=problems,
    )


def _rows(path: Path, problems: list[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a file, none if it is missing; damage is added to ``problems``."""
    try:
        yield from csv_records(open_csv(path))
    except FileNotFoundError:
        return
    except (OSError, BadDocument) as error:
        problems.append(f"{path.name}: cannot be read: {error}")


def _number(row: dict[str, str], column: str) -> float | None:
    try:
        number = float(row.get(column) or "nan")
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def totals_in(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the totals in a ``budget.json``; empty where they are not a mapping."""
    totals = None if document is None else document.get("totals")
    return totals if isinstance(totals, Mapping) else {}


def _whole(value: object, *, times: int = 1) -> int | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(value * times)


def _mean(path: Path, column: str, problems: list[str]) -> float | None:
    values = [v for row in _rows(path, problems) if (v := _number(row, column)) is not None]
    return sum(values) / len(values) if values else None


def _energy_mj(path: Path, problems: list[str]) -> int | None:
    """Return the energy of all GPUs; a cumulative counter that falls was reset by a resume."""
    last: dict[str, float] = {}
    total = 0.0
    for row in _rows(path, problems):
        joules = _number(row, "energy_J_cum")
        if joules is not None:
            before = last.get(row.get("gpu_id") or "", 0.0)
            total += joules - before if joules >= before else joules
            last[row.get("gpu_id") or ""] = joules
    return round(total * 1000) if last else None


def _metrics(run_dir: Path, problems: list[str]) -> dict[str, list[Seen]]:
    """Return the metrics of evaluation files: the numeric columns of every other CSV file."""
    found: dict[str, list[Seen]] = {}
    for path in sorted(run_dir.glob("*.csv")):
        if path.name in _KNOWN:
            continue
        for row in _rows(path, problems):
            place = _place(row)
            for column in row:
                value = None if column in _PLACE_COLUMNS else _number(row, column)
                if value is not None:
                    found.setdefault(column, []).append(Seen(value, *place))
    return found


def _place(row: dict[str, str]) -> tuple[int | None, int | None, float | None]:
    minutes = next((m for name in _MINUTES if (m := _number(row, name)) is not None), None)
    step = next((s for name in _PLACES if (s := _number(row, name)) is not None), None)
    return (
        None if minutes is None else round(minutes * 60e9),
        None if step is None else round(step),
        _number(row, "epoch"),
    )


# A run's figures from its log; from a cache beside it while the log is unchanged.

CACHE: Final = "outlay_facts.json"
_VERSION: Final = 8
MANY_LOGS: Final = 100
"""So many logs without a cache are worth a process that reads them."""


class _Cached(msgspec.Struct, frozen=True):
    """Figures, and the name, size and mtime of the files that they are of."""

    version: int
    files: list[tuple[str, int, int]]
    facts: RunFacts


_decoder = Decoder[_Cached](_Cached)


def read_ledgers(run_dirs: Sequence[Path], now_ns: int) -> list[RunFacts | None]:
    """Return the figures of many runs, as ``read_ledger`` does."""
    read = partial(read_ledger, now_ns=now_ns)
    # Where threads run, a fork may inherit a lock that one of them holds.
    if sys.platform == "linux" and threading.active_count() == 1:
        uncached = sum(not (run_dir / CACHE).exists() for run_dir in run_dirs)
        processes = min(len(os.sched_getaffinity(0)), uncached // MANY_LOGS)
        if processes > 1:
            with (
                contextlib.suppress(OSError, BrokenProcessPool),  # Too few processes or memory.
                ProcessPoolExecutor(processes, get_context("fork")) as pool,
            ):
                return list(pool.map(read, run_dirs, chunksize=MANY_LOGS // 5))
    return [read(run_dir) for run_dir in run_dirs]


def read_ledger(run_dir: Path, now_ns: int) -> RunFacts | None:
    """Return a run's figures, or None where it has no log."""
    paths = segment_paths(run_dir)
    if not paths:
        return None
    files = [(p.name, (s := p.stat()).st_size, s.st_mtime_ns) for p in paths]
    cached = _read_cache(run_dir)
    if cached is not None and cached.version == _VERSION and cached.files == files:
        return cached.facts
    facts = _fold(run_dir, now_ns)
    if facts is not None:
        with contextlib.suppress(OSError):  # A read-only directory is read each time.
            cache = msgspec.json.encode(_Cached(_VERSION, files, facts))
            write_whole(run_dir / CACHE, cache, private=True)  # Like the log: it names the user.
    return facts


def _read_cache(run_dir: Path) -> _Cached | None:
    try:
        return _decoder.decode(read_file(run_dir / CACHE))
    except (OSError, BadDocument):
        return None


def _fold(run_dir: Path, now_ns: int) -> RunFacts | None:
    try:
        return _facts(RunReading(GoodputFollower(run_dir).view(now_ns, alive=False)))
    except NotARun:
        return None


def _facts(run: RunReading) -> RunFacts:
    row, account, work = run.figures, run.view.account, run.view.account.work
    leading = [s for s in account.shown() if s.life.segment.rank <= 0]
    stops = [event for event in account.budget_events() if event.event == "stopped"]
    return RunFacts(
        source="ledger",
        row=row,
        work=sum((segment.work for segment in leading), Work()),
        items=work.samples or work.tokens,
        comm_bytes=work.comm_bytes or None,
        flops=work.flops or None,
        trained=any(s.rank != SUPERVISOR for a in run.view.timeline.attempts for s in a.ranks),
        stop_reason=str(stops[-1].data.get("text", "")) if stops else "",
        metrics={
            name: [
                Seen(
                    point.value,
                    point.t_ns - row.started_ns,
                    point.step,
                    paused_ns=_paused_ns(run, point.t_ns),
                )
                for point in series
            ]
            for name, series in run.metrics.items()
            if series
        },
        phase_micros={name: money.micros for name, money in run.breakdown.cost_by_phase.items()},
        paused_ns=_paused_ns(run, run.view.timeline.end_ns),
    )


def _paused_ns(run: RunReading, until_ns: int) -> int:
    """Return how long a run was paused up to an instant."""
    return sum(
        max(min(gap.end_ns, until_ns) - gap.start_ns, 0)
        for gap in run.view.timeline.intervals
        if gap.timeline is None and not gap.idle and gap.gap == PAUSED
    )
