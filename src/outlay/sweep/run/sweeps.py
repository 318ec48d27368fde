"""Starting a sweep from its grid, resuming and cancelling one: what the commands call."""

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
from outlay.ledger import SUPERVISOR, segment_paths
from outlay.ledger.segments import id_from_name
from outlay.proc.identity import end_marked
from outlay.sweep.engines.base import Engine, engine_named
from outlay.sweep.engines.names import is_local
from outlay.sweep.errors import NotCancelled, RunElsewhere
from outlay.sweep.grid.files import plan_file
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.run.detached import detached, settle_earlier, task_of
from outlay.sweep.run.devices import Tasks, check_fit, inherited_environment
from outlay.sweep.run.harness import Harness, SweepOptions
from outlay.sweep.run.money import SweepGuard
from outlay.sweep.state.journal import Journal
from outlay.sweep.state.manifest import SweepManifest, counts, read_manifest
from outlay.sweep.state.setup import (
    Holder,
    SweepLock,
    check_predictable,
    create,
    holder_of,
    match_plan,
    root_for,
    to_do,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a sweep stands after it was run.

    Attributes:
        cancelled: Whether somebody ended it early.
        findings: What the user should know beside that.
    """

    manifest: SweepManifest
    cancelled: bool
    findings: tuple[Finding, ...] = ()

    @property
    def root(self) -> Path:
        """The sweep's directory."""
        return self.manifest.root

    @property
    def counts(self) -> dict[str, int]:
        """How many runs have each status."""
        return counts(self.manifest)

    def of_status(self, *statuses: str) -> list[str]:
        """Return the runs that stand so."""
        return [run for run in self.manifest.runs if self.manifest.state(run).status in statuses]


def start(plan: SweepPlan, output_dir: Path | None, options: SweepOptions) -> Result:
    """Run a new sweep to its end.

    Raises:
        InvalidValue, InvalidGrid: It cannot be started as it is; nothing was written.
        SweepNotRecorded, EngineBroken, Refused: It could not continue.
    """
    check_predictable(plan, finished=False)
    root = root_for(plan, output_dir, options.clock.wall_ns())
    engines = _engines(plan, root, options)
    environ = inherited_environment()
    cwd = Path(plan.grid.work_dir or Path.cwd()).expanduser().absolute()
    root.mkdir(parents=True, exist_ok=True)
    with SweepLock(root):
        manifest = create(plan, root, environ, options.clock, cwd=cwd)
        if plan.grid.ceiling is not None:
            SweepGuard(root, plan.grid.ceiling, options.clock).begin()
        tasks = Tasks(plan, root, cwd, environ)
        with _harness(tasks, manifest, engines, options) as harness:
            harness.run(list(plan.runs))
    return Result(manifest=manifest, cancelled=harness.cancelled)


def resume(root: Path, options: SweepOptions, *, grid: Path | None, retry_failed: bool) -> Result:
    """Resume a sweep: run what is not done, as the grid now states it.

    Raises:
        NotASweep: There is none.
        SweepInUse: It is being run.
        InvalidValue, InvalidGrid: It cannot be resumed as it is; nothing was written.
        SweepNotRecorded, EngineBroken, Refused: It could not continue.
    """
    root = root.absolute()
    read_manifest(root)
    with SweepLock(root):
        manifest = read_manifest(root, options.clock)
        environ = inherited_environment()
        stated = plan_file(grid or Path(manifest.about["grid_path"]))
        check_predictable(stated, finished=bool(manifest.elapsed_of("completed")))
        engines = _engines(stated, root, options)
        plan, left_out = match_plan(stated, manifest, environ)
        tasks = Tasks(plan, root, Path(manifest.about["work_dir"]), environ)
        with _harness(tasks, manifest, engines, options) as harness:
            findings = settle_earlier(harness)
            harness.run(to_do(plan, manifest, retry_failed=retry_failed))
    return Result(
        manifest=manifest, cancelled=harness.cancelled, findings=left_out + findings
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What was ended: the process that runs the sweep, or so many jobs without one."""

    harness: int | None = None
    jobs: int = 0


def cancel(root: Path, runs: Sequence[str] = ()) -> Cancelled:
    """Cancel a sweep: signal the process that runs it, or end what still runs without one.

    Without ``runs`` all of them end.

    Raises:
        NotASweep: There is no sweep.
        InvalidValue: It has no such run, or one that ends with its sweep alone.
        RunElsewhere: The process that runs it is another machine's or another user's.
        NotCancelled: Something may still run, and cannot be ended from here.
    """
    manifest = read_manifest(root)
    for run in runs:
        if run not in manifest.runs:
            raise InvalidValue("RUN", run, choices(manifest.runs))
    holder = holder_of(root)
    if holder is not None and runs:
        return Cancelled(jobs=_cancel_beside(root.absolute(), manifest, runs))
    if holder is not None and _interrupted(root, holder):
        return Cancelled(harness=holder.pid)
    for run in runs or manifest.runs:
        state = manifest.state(run)
        if state.status == "running" and is_local(manifest.runs[run].engine):
            end_marked(state.ticket)
    with detached(root) as taken:
        if taken is None or not taken.going_on():
            return Cancelled()
        taken.look()
        jobs = taken.end(runs or None)
        if taken.findings:
            raise NotCancelled(taken.findings)
        return Cancelled(jobs=jobs)


def _cancel_beside(root: Path, manifest: SweepManifest, runs: Sequence[str]) -> int:
    """Cancel jobs of a sweep that somebody runs, who learns of it from the cluster."""
    going_on = [run for run in runs if manifest.state(run).status == "running"]
    for run in going_on:
        if is_local(manifest.runs[run].engine):
            raise InvalidValue("RUN", run, "a run on a cluster: a local one ends with its sweep")
    cancelled = 0
    for run in going_on:
        engine = engine_named(manifest.runs[run].engine, root)
        try:
            if engine.reattach(task_of(manifest, run)) is None:
                engine.cancel(manifest.state(run).ticket)
                cancelled += 1
        finally:
            engine.close()
    return cancelled


def _interrupted(root: Path, holder: Holder) -> bool:
    """Tell the process that runs a sweep to end it; False when it is gone already."""
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
    used = {run.settings.engine for run in plan.runs}
    engines = {name: engine_named(name, root) for name in sorted(used)}
    for name, engine in engines.items():
        if options.detach and not engine.remote:
            expected = "a sweep of which a cluster keeps every run, such as engine: slurm"
            raise InvalidValue("--detach", f"engine: {name}", expected)
    check_fit(plan, options.devices, [name for name, engine in engines.items() if engine.remote])
    return engines


@contextmanager
def _harness(
    tasks: Tasks, manifest: SweepManifest, engines: dict[str, Engine], options: SweepOptions
) -> Iterator[Harness]:
    journal, figures = Journal(manifest.root), FiguresKeeper(options.clock)
    ceiling = tasks.plan.grid.ceiling
    try:
        yield Harness(
            manifest=manifest, journal=journal, engines=engines, tasks=tasks,
            guard=None if ceiling is None else SweepGuard(manifest.root, ceiling, options.clock),
            options=options, ended=figures.keep,
        )  # fmt: skip
    finally:
        for engine in engines.values():
            engine.close()
        journal.close()
        figures.close()


# Keeping the figures of runs as they end, so that the first summary need not read their logs.
#
# What is kept is a cache beside the log, checked against it by every reader.


class FiguresKeeper:
    """Reads logs in a thread of its own: the harness has money to watch meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outlay-figures")

    def keep(self, run_dir: Path) -> None:
        """Have the figures of a run that has ended written beside its log, if it recorded one.

        What its supervisor recorded is two lines, and read as fast as what would be kept of it.
        """
        written = map(id_from_name, segment_paths(run_dir))
        if all(segment is None or segment.rank == SUPERVISOR for segment in written):
            return
        # Whatever goes wrong there is told by the summary, which then reads the log itself.
        self._thread.submit(_keep, run_dir, self._clock.wall_ns())

    def close(self) -> None:
        """Wait until everything is written."""
        self._thread.shutdown()


def _keep(run_dir: Path, now_ns: int) -> None:
    # Here, since it loads NumPy, which sweeps of programs without a log never need.
    from outlay.sweep.aggregate.reading import read_ledger

    read_ledger(run_dir, now_ns)
