"""A sweep without its harness: settling, reattaching to and cancelling its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.guard.errors import SpendLogUnusable
from outlay.sweep.engines.base import Ended, Engine, Task, TaskStanding, engine_named, is_local
from outlay.sweep.errors import SweepInUse
from outlay.sweep.plan.launch import LOG_NAME
from outlay.sweep.run.harness import Harness
from outlay.sweep.run.settlement import SweepRecorder
from outlay.sweep.run.stops import STOPPED, forget_stop, is_stoppable, requested_stops
from outlay.sweep.run.sweep_guard import guard_of
from outlay.sweep.state.manifest import Journal, SweepManifest, read_manifest
from outlay.sweep.state.setup import lock_sweep

# Attempts of an earlier harness.


def settle_earlier(harness: Harness) -> tuple[Finding, ...]:
    """Settle earlier attempts that have ended, reattach to the others, and void unused holds.

    Returns findings about runs that are no longer in the grid.
    """
    manifest = harness.manifest
    for run in harness.tasks.plan.runs:
        state = manifest.state(run.id)
        if state.status == "running":
            engine = harness.engines[run.entry.engine]
            ended = engine.reattach(task_of(manifest, run.id))
            if ended is None:
                harness.adopt(run, state.ticket, state.hold)
            else:
                harness.settle_earlier(run.id, ended)
    findings = _settle_removed(harness)
    if harness.guard is not None:
        used = {state.hold for state in manifest.states.values() if state.hold}
        harness.guard.void_unused(used)
    return findings


def _settle_removed(harness: Harness) -> tuple[Finding, ...]:
    planned = {run.id for run in harness.tasks.plan.runs}
    manifest = harness.manifest
    running = [run for run in manifest.runs if manifest.state(run).status == "running"]
    removed = [run for run in running if run not in planned]
    if not removed:
        return ()
    found = Detached(manifest, harness.options.clock)
    try:
        found.poll(removed)
    finally:
        found.close()
    still_running = [
        Finding(
            source=harness.tasks.plan.grid.source,
            message=f"{run} is no longer in the grid and still runs; `outlay sweep cancel` ends it",
            severity="warning",
        )
        for run in found.standing
    ]
    return (*found.findings, *still_running)


# Jobs that run without a harness.
#
# Needs the sweep's directory and the cluster; neither the grid nor the submitting process.

_CANCEL_TIMEOUT_NS: Final = 60 * 10**9
_POLL_INTERVAL_S: Final = 0.5


@dataclass(slots=True)
class Detached:
    """A sweep without a harness, and the attempts that still run.

    Attributes:
        owned: Whether this process holds the lock, and so records the ends that it finds.
        standing: The cluster's status of each run that still runs.
        findings: Why the cluster could not be queried.
        stopping: The runs that a person asked to stop.
    """

    manifest: SweepManifest
    clock: Clock
    owned: bool = True
    engines: dict[str, Engine | None] = field(default_factory=dict)
    standing: dict[str, TaskStanding] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    stopping: set[str] = field(default_factory=set)
    _journal: Journal | None = None

    def running(self) -> list[str]:
        """Return the runs without a recorded end that are not processes of a harness."""
        return [
            name
            for name, run in self.manifest.runs.items()
            if self.manifest.state(name).status == "running" and not is_local(run.engine)
        ]

    def poll(self, runs: Iterable[str] | None = None) -> None:
        """Update the status of attempts, by default of all ``running()``.

        Ends are recorded, unless another process runs the sweep and does that.
        """
        for run in self.running() if runs is None else runs:
            engine = self._engine_of(run)
            if engine is None:
                continue
            task = task_of(self.manifest, run)
            ended = engine.reattach(task)
            if ended is not None and ended.never_ran and not self.owned:
                self.standing[run] = TaskStanding(text="not in the queue yet", queued=True)
            elif ended is None:
                self.standing[run] = engine.standing(task.ticket)
            else:
                self._settle_or_report(run, ended)

    def _settle_or_report(self, run: str, ended: Ended) -> None:
        """Settle an attempt; if its book is away, that is a finding, and left to the next poll."""
        try:
            self._settle(run, ended)
        except SpendLogUnusable as error:
            if not self.manifest.about.get("book"):
                raise
            message = f"{run} has ended, and its cost is not recorded yet: {error}"
            self.findings.append(Finding(source=error.path, message=message, severity="warning"))

    def cancel(self, runs: Iterable[str] | None = None) -> int:
        """Cancel running attempts and wait up to a minute; return how many were cancelled."""
        running = self.running()
        chosen = running if runs is None else [run for run in runs if run in running]
        engines = {run: self._engine_of(run) for run in chosen}
        cancelled = {run: engine for run, engine in engines.items() if engine is not None}
        for run, engine in cancelled.items():
            engine.cancel(self.manifest.state(run).ticket)
        deadline_ns = self.clock.monotonic_ns() + _CANCEL_TIMEOUT_NS
        waiting = dict(cancelled)
        while waiting and self.clock.monotonic_ns() < deadline_ns:
            for engine in self._usable():
                engine.wait(_POLL_INTERVAL_S)
            for run, engine in list(waiting.items()):
                ended = engine.poll(self.manifest.state(run).ticket)
                if ended is not None:
                    self._settle_or_report(run, ended)
                    del waiting[run]
        return len(cancelled)

    def stop(self, runs: Iterable[str]) -> int:
        """Stop runs without a harness; return how many are not started again or were cancelled."""
        chosen = set(runs)
        self.poll(run for run in self.running() if run in chosen)
        self.stopping |= chosen
        cancelled = self.cancel(chosen)
        idle = [run for run in self.stopping if is_stoppable(self.manifest.state(run))]
        for run in idle:
            recorder = SweepRecorder(self.manifest, self._opened_journal())
            recorder.record(run, STOPPED.status, reason=STOPPED.reason)
        for run in self.stopping:
            if self.manifest.state(run).status != "running":
                forget_stop(self.manifest.root, run)
        return cancelled + len(idle)

    def _opened_journal(self) -> Journal:
        if self._journal is None:
            self._journal = Journal(self.manifest.root)
        return self._journal

    def _settle(self, run: str, ended: Ended) -> None:
        manifest = self.manifest
        if self.owned:
            self._opened_journal()
        guard = None
        if self.owned and manifest.state(run).hold:
            guard = guard_of(manifest, self.clock)
        recorder = SweepRecorder(manifest, self._journal, guard)
        remote = not self.owned or not is_local(manifest.runs[run].engine)
        stopped = STOPPED if run in self.stopping else None
        verdict = recorder.judge(run, ended, stopped, remote=remote)
        recorder.settle_again(run, ended, verdict, remote=remote)

    def _engine_of(self, run: str) -> Engine | None:
        """Return a run's engine; None, and a finding, where it cannot be loaded here."""
        name = self.manifest.runs[run].engine
        if name not in self.engines:
            try:
                self.engines[name] = engine_named(name, self.manifest.root)
            except OutlayError as error:
                self.engines[name] = None
                message = f"{run} and others may still run, which cannot be checked here: {error}"
                self.findings.append(Finding(source=name, message=message, severity="warning"))
        return self.engines[name]

    def _usable(self) -> list[Engine]:
        return [engine for engine in self.engines.values() if engine is not None]

    def close(self) -> None:
        """Rewrite the manifest if an end was recorded, and close the engines."""
        if self._journal is not None:
            self._journal.close()
            self.manifest.write()
        for engine in self._usable():
            engine.close()


def _look(root: Path, clock: Clock, *, owned: bool) -> Detached:
    """Return a sweep as it is now.

    Requests are read first: one that is forgotten since is in the journal.
    """
    stopping = set(requested_stops(root))
    return Detached(read_manifest(root, clock), clock, owned=owned, stopping=stopping)


@contextmanager
def detached(root: Path, clock: Clock = SYSTEM) -> Iterator[Detached | None]:
    """Lock a sweep that no process runs.

    Yields None if one does, which then records the ends, or if the directory is not writable.
    """
    root = root.absolute()
    read_manifest(root)
    try:
        lock = lock_sweep(root)
    except (SweepInUse, OSError):
        yield None
        return
    with lock:
        sweep = _look(root, clock, owned=True)
        try:
            yield sweep
        finally:
            sweep.close()


def catch_up(root: Path, clock: Clock = SYSTEM) -> Detached:
    """Return a sweep with the current status of its jobs.

    Ends are not recorded while another process runs it, or if the directory is not writable.
    """
    found = Detached(read_manifest(root), clock)
    if not found.running():
        return found
    with detached(root, clock) as owned:
        if owned is None:
            found = _look(root.absolute(), clock, owned=False)
            found.poll()
            found.close()
            return found
        owned.poll()
        return owned


def task_of(manifest: SweepManifest, run: str) -> Task:
    """Return the task by which an engine reattaches to a run's attempt."""
    gpus, directory = manifest.runs[run].gpus_at_most, manifest.root / run
    return Task(
        name=run, ticket=manifest.state(run).ticket, command=(), env={},
        cwd=Path(manifest.about["work_dir"]), directory=directory, log=directory / LOG_NAME,
        gpus=gpus, nodes=gpus // (manifest.runs[run].world_size or 1),
    )  # fmt: skip
