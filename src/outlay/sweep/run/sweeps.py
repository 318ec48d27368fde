"""Starting, resuming and cancelling a sweep: the entry points of the commands."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outlay.clock import Clock
from outlay.errors import Finding, InvalidValue, choices
from outlay.files import make_private
from outlay.ledger.segments import own_segments
from outlay.proc.identity import end_marked
from outlay.sweep.engines.base import Engine, engine_named, is_local
from outlay.sweep.errors import NotCancelled, RunElsewhere
from outlay.sweep.grid.files import keep_grid, kept_grid, plan_file
from outlay.sweep.plan.plan import PlannedRun, SweepPlan
from outlay.sweep.run.detached import detached, settle_earlier, task_of
from outlay.sweep.run.devices import Tasks, check_fit, inherited_environment
from outlay.sweep.run.harness import Harness, SweepOptions
from outlay.sweep.run.stops import is_stoppable, request_stops
from outlay.sweep.run.sweep_guard import book_room, check_same_log, guard_of
from outlay.sweep.state.manifest import Journal, SweepManifest, counts, read_manifest
from outlay.sweep.state.setup import (
    Holder,
    check_predictable,
    create,
    holder_of,
    lock_sweep,
    match_plan,
    root_for,
    suggested_points,
    unfinished_runs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A sweep after it was run, and whether a signal ended it early."""

    manifest: SweepManifest
    cancelled: bool
    findings: tuple[Finding, ...] = ()

    @property
    def root(self) -> Path:
        """The sweep's directory."""
        return self.manifest.root

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs by status."""
        return counts(self.manifest)

    def of_status(self, *statuses: str) -> list[str]:
        """Return the runs with one of these statuses."""
        return [run for run in self.manifest.runs if self.manifest.state(run).status in statuses]


def start(
    plan: SweepPlan,
    output_dir: Path | None,
    options: SweepOptions,
    runs: Sequence[PlannedRun] | None = None,
) -> Result:
    """Run a new sweep to its end, or only some of its runs.

    Raises:
        InvalidValue, InvalidGrid: It cannot be started; nothing was written.
        SweepNotRecorded, EngineBroken, Refused: It could not continue, or its book can't be used.
    """
    # Refuses a book that can't be used.
    unit = book_room(plan, options.clock).room.unit if plan.grid.book else None
    check_predictable(plan, finished=False, unit=unit)
    root = root_for(plan, output_dir, options.clock.wall_ns())
    engines = _engines(plan, root, options)
    environ = inherited_environment()
    cwd = Path(plan.grid.work_dir or Path.cwd()).expanduser().absolute()
    make_private(root)
    with lock_sweep(root):
        plan = keep_grid(plan, root)
        manifest = create(plan, root, environ, options.clock, cwd=cwd)
        if (guard := guard_of(manifest, options.clock)) is not None:
            guard.begin()
        tasks = Tasks(plan, root, cwd, environ)
        with _harness(tasks, manifest, engines, options) as harness:
            harness.run(list(plan.runs if runs is None else runs), searches=runs is None)
    return Result(manifest=manifest, cancelled=harness.cancelled)


def resume(
    root: Path,
    options: SweepOptions,
    *,
    grid: Path | None,
    retry_failed: bool,
    retry_stopped: bool = False,
) -> Result:
    """Resume a sweep: run what is not done, as the grid now states it.

    Raises:
        NotASweep: There is none.
        SweepInUse: Another process runs it.
        InvalidValue, InvalidGrid: It cannot be resumed; nothing was written.
        SweepNotRecorded, EngineBroken, Refused: It could not continue.
    """
    root = root.absolute()
    read_manifest(root)
    with lock_sweep(root):
        manifest = read_manifest(root, options.clock)
        environ = inherited_environment()
        suggested = suggested_points(manifest)
        stated = plan_file(grid or kept_grid(root, manifest.about["grid_path"]), root, suggested)
        unit = book_room(stated, options.clock).room.unit if stated.grid.book else None
        check_predictable(stated, finished=bool(manifest.elapsed_of("completed")), unit=unit)
        engines = _engines(stated, root, options)
        check_same_log(manifest, stated, options.clock)
        plan, removed = match_plan(stated, manifest, environ)
        tasks = Tasks(plan, root, Path(manifest.about["work_dir"]), environ)
        with _harness(tasks, manifest, engines, options) as harness:
            findings = settle_earlier(harness)
            harness.run(
                unfinished_runs(
                    plan, manifest, retry_failed=retry_failed, retry_stopped=retry_stopped
                )
            )
    return Result(manifest=manifest, cancelled=harness.cancelled, findings=removed + findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The process that was signalled, or the number of jobs cancelled without one."""

    harness: int | None = None
    jobs: int = 0


def cancel(root: Path, runs: Sequence[str] = ()) -> Cancelled:
    """Cancel a sweep: signal the process that runs it, or cancel its jobs if there is none.

    Without ``runs`` all of them are cancelled.

    Raises:
        NotASweep: There is no sweep.
        InvalidValue: It has no such run, or a local one, which only ends with the whole sweep.
        RunElsewhere: The process that runs it is another machine's or another user's.
        NotCancelled: Some may still run, and cannot be cancelled from here.
    """
    manifest = read_manifest(root)
    _check_runs(manifest, runs)
    holder = holder_of(root)
    if holder is not None and runs:
        return Cancelled(jobs=_cancel_jobs(root.absolute(), manifest, runs))
    if holder is not None and _interrupt(root, holder):
        return Cancelled(harness=holder.pid)
    for run in runs or manifest.runs:
        state = manifest.state(run)
        if state.status == "running" and is_local(manifest.runs[run].engine):
            end_marked(state.ticket)
    with detached(root) as sweep:
        if sweep is None or not sweep.running():
            return Cancelled()
        sweep.poll()
        jobs = sweep.cancel(runs or None)
        if sweep.findings:
            raise NotCancelled(sweep.findings)
        return Cancelled(jobs=jobs)


def _check_runs(manifest: SweepManifest, runs: Sequence[str]) -> None:
    for run in runs:
        if run not in manifest.runs:
            raise InvalidValue("RUN", run, choices(manifest.runs))


def stop(root: Path, runs: Sequence[str]) -> Cancelled:
    """Stop runs of a sweep for good: a resume does not start them again unless asked to.

    The process that runs the sweep finds the request within a second or two; without one, jobs are
    cancelled here.

    Raises:
        NotASweep: There is no sweep.
        InvalidValue: It has no such run, or one that has ended.
        NotCancelled: Some may still run, and cannot be stopped from here.
    """
    manifest = read_manifest(root)
    _check_runs(manifest, runs)
    for run in runs:
        state = manifest.state(run)
        if state.status != "running" and not is_stoppable(state):
            raise InvalidValue("RUN", run, f"a run that has not ended; it is {state.status}")
    request_stops(root, runs)
    if (holder := holder_of(root)) is not None:
        return Cancelled(harness=holder.pid, jobs=len(runs))
    for run in runs:
        if manifest.state(run).status == "running" and is_local(manifest.runs[run].engine):
            end_marked(manifest.state(run).ticket)  # The next harness settles it, and stops it.
    with detached(root) as sweep:
        if sweep is None:  # A harness has just begun, and finds the request.
            return Cancelled(jobs=len(runs))
        stopped = sweep.stop(runs)
        if sweep.findings:
            raise NotCancelled(sweep.findings)
        return Cancelled(jobs=stopped)


def _cancel_jobs(root: Path, manifest: SweepManifest, runs: Sequence[str]) -> int:
    """Cancel jobs of a sweep while its harness runs, which finds out from the cluster."""
    running = [run for run in runs if manifest.state(run).status == "running"]
    for run in running:
        if is_local(manifest.runs[run].engine):
            expected = "a run on a cluster; a single local one is ended by: outlay sweep stop"
            raise InvalidValue("RUN", run, expected)
    engines: dict[str, Engine] = {}
    cancelled = 0
    try:
        for run in running:
            name = manifest.runs[run].engine
            if name not in engines:
                engines[name] = engine_named(name, root)
            if engines[name].reattach(task_of(manifest, run)) is None:
                engines[name].cancel(manifest.state(run).ticket)
                cancelled += 1
    finally:
        for engine in engines.values():
            engine.close()
    return cancelled


def _interrupt(root: Path, holder: Holder) -> bool:
    """SIGINT the process that runs a sweep; False if it is gone already."""
    try:
        if not holder.is_here:
            raise RunElsewhere(str(root), str(holder))
        os.kill(holder.pid, signal.SIGINT)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise RunElsewhere(str(root), str(holder)) from None
    return True


def _engines(plan: SweepPlan, root: Path, options: SweepOptions) -> dict[str, Engine]:
    if options.detach and plan.searches:
        expected = "a grid whose results decide nothing: its search starts runs from this process"
        raise InvalidValue("--detach", "a grid with a search", expected)
    used = {run.entry.engine for run in plan.runs}
    engines = {name: engine_named(name, root) for name in sorted(used)}
    for name, engine in engines.items():
        if options.detach and not engine.remote:
            expected = "a sweep with remote engines only, such as engine: slurm"
            raise InvalidValue("--detach", f"engine: {name}", expected)
    check_fit(plan, options.devices, [name for name, engine in engines.items() if engine.remote])
    return engines


@contextmanager
def _harness(
    tasks: Tasks, manifest: SweepManifest, engines: dict[str, Engine], options: SweepOptions
) -> Iterator[Harness]:
    guard = guard_of(manifest, options.clock)
    journal, figures = Journal(manifest.root), FiguresKeeper(options.clock)
    try:
        yield Harness(
            manifest=manifest, journal=journal, engines=engines, tasks=tasks,
            guard=guard, options=options, ended=figures.keep,
        )  # fmt: skip
    finally:
        for engine in engines.values():
            engine.close()
        journal.close()
        figures.close()


# A cache of each run's figures, so that the first summary need not read the logs.
#
# It is written beside the log, and every reader checks it against the log.


class FiguresKeeper:
    """Computes the figures of ended runs in a thread, so that the harness is not delayed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outlay-figures")

    def keep(self, run_dir: Path) -> None:
        """Cache the figures of a run that has ended, if the training recorded a log.

        A log with the supervisor's segment alone is as fast to read as the cache.
        """
        if not own_segments(run_dir):
            return
        # Errors are left to the summary, which then reads the log itself.
        self._thread.submit(_read_figures, run_dir, self._clock.wall_ns())

    def close(self) -> None:
        """Wait until everything is written."""
        self._thread.shutdown()


def _read_figures(run_dir: Path, now_ns: int) -> None:
    # Imported here: it loads NumPy, which sweeps of programs without a log do not need.
    from outlay.sweep.aggregate.aggregator import read_ledger

    read_ledger(run_dir, now_ns)
