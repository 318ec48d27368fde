"""A sweep whose harness is gone: settling, reattaching to and cancelling its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.sweep.engines.base import Ended, Engine, Task, TaskStanding, engine_named
from outlay.sweep.engines.names import is_local
from outlay.sweep.errors import SweepInUse
from outlay.sweep.plan.launch import LOG_NAME
from outlay.sweep.run.harness import Harness
from outlay.sweep.run.money import SweepGuard, SweepRecorder
from outlay.sweep.state.journal import Journal
from outlay.sweep.state.manifest import SweepManifest, read_manifest
from outlay.sweep.state.setup import SweepLock
from outlay.units import Money

# Attempts of an earlier harness, which died: reattached to, or settled.


def settle_earlier(harness: Harness) -> tuple[Finding, ...]:
    """Find out how earlier attempts ended, reattach to the others, and void unused holds.

    Returns what the user should know of runs that the grid no longer has.
    """
    manifest = harness.manifest
    for run in harness.tasks.plan.runs:
        state = manifest.state(run.id)
        if state.status == "running":
            engine = harness.engines[run.settings.engine]
            ended = engine.reattach(task_of(manifest, run.id))
            if ended is None:
                harness.adopt(run, state.ticket, state.hold)
            else:
                harness.settle_earlier(run.id, ended)
    findings = _settle_left_out(harness)
    if harness.guard is not None:
        used = {state.hold for state in manifest.states.values() if state.hold}
        harness.guard.void_unused(used)
    return findings


def _settle_left_out(harness: Harness) -> tuple[Finding, ...]:
    """Settle attempts of runs that the grid no longer has."""
    planned = {run.id for run in harness.tasks.plan.runs}
    manifest = harness.manifest
    running = [run for run in manifest.runs if manifest.state(run).status == "running"]
    left_out = [run for run in running if run not in planned]
    if not left_out:
        return ()
    found = Detached(manifest, harness.clock)
    try:
        found.look(left_out)
    finally:
        found.close()
    going = [
        Finding(
            source=harness.tasks.plan.grid.source,
            message=f"{run} is no longer in the grid and still runs; `outlay sweep cancel` ends it",
            severity="warning",
        )
        for run in found.standing
    ]
    return (*found.findings, *going)


# A sweep whose jobs run without a harness: learning how they ended, and cancelling them.
#
# Everything comes from the sweep's directory and from the cluster; neither the grid nor the
# process that submitted is needed.

_PATIENCE_NS: Final = 60 * 10**9
_LOOK_EVERY_S: Final = 0.5


@dataclass(slots=True)
class Detached:
    """The attempts of a sweep that nobody watches, and how they stand.

    Attributes:
        owned: Whether nobody else runs the sweep, so that ends are ours to write down.
        standing: What the cluster says of each run that still runs.
        findings: Why the cluster could not be asked.
    """

    manifest: SweepManifest
    clock: Clock
    owned: bool = True
    engines: dict[str, Engine | None] = field(default_factory=dict)
    standing: dict[str, TaskStanding] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _journal: Journal | None = None

    def going_on(self) -> list[str]:
        """Return the runs whose attempt has no end yet and may run without us."""
        return [
            name
            for name, run in self.manifest.runs.items()
            if self.manifest.state(name).status == "running" and not is_local(run.engine)
        ]

    def look(self, runs: Iterable[str] | None = None) -> None:
        """Find out how attempts ended, by default of all that may run without us.

        Ends are written down, unless somebody runs the sweep who will do that.
        """
        for run in self.going_on() if runs is None else runs:
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
                self._settle(run, ended)

    def end(self, runs: Iterable[str] | None = None) -> int:
        """Cancel what is still running and wait a while; return how many were cancelled."""
        going_on = self.going_on()
        chosen = going_on if runs is None else [run for run in runs if run in going_on]
        engines = {run: self._engine_of(run) for run in chosen}
        cancelled = {run: engine for run, engine in engines.items() if engine is not None}
        for run, engine in cancelled.items():
            engine.cancel(self.manifest.state(run).ticket)
        until_ns = self.clock.monotonic_ns() + _PATIENCE_NS
        waiting = dict(cancelled)
        while waiting and self.clock.monotonic_ns() < until_ns:
            for engine in self._usable():
                engine.wait(_LOOK_EVERY_S)
            for run, engine in list(waiting.items()):
                ended = engine.poll(self.manifest.state(run).ticket)
                if ended is not None:
                    self._settle(run, ended)
                    del waiting[run]
        return len(cancelled)

    def _settle(self, run: str, ended: Ended) -> None:
        manifest, ceiling = self.manifest, self.manifest.about.get("ceiling")
        if self.owned and self._journal is None:
            self._journal = Journal(manifest.root)
        guard = None
        if self.owned and ceiling and manifest.state(run).hold:
            amount = Money.parse(ceiling, name="ceiling")
            guard = SweepGuard(manifest.root, amount, self.clock)
        recorder = SweepRecorder(manifest, self._journal, guard)
        remote = not self.owned or not is_local(manifest.runs[run].engine)
        recorder.settle_earlier(run, ended, remote=remote)

    def _engine_of(self, run: str) -> Engine | None:
        """Return a run's engine; None, and a finding, where it cannot be had here."""
        name = self.manifest.runs[run].engine
        if name not in self.engines:
            try:
                self.engines[name] = engine_named(name, self.manifest.root)
            except OutlayError as error:
                self.engines[name] = None
                message = (
                    f"{run} and others of it may still run, which cannot be checked here: {error}"
                )
                self.findings.append(Finding(source=name, message=message, severity="warning"))
        return self.engines[name]

    def _usable(self) -> list[Engine]:
        return [engine for engine in self.engines.values() if engine is not None]

    def close(self) -> None:
        """Bring the manifest up to date where something was learned, and close."""
        if self._journal is not None:
            self._journal.close()
            self.manifest.write()
        for engine in self._usable():
            engine.close()


@contextmanager
def detached(root: Path, clock: Clock = SYSTEM) -> Iterator[Detached | None]:
    """Lock a sweep that nobody runs.

    None when somebody does, and sees to all of this, or when it is not ours to write in.
    """
    root = root.absolute()
    read_manifest(root)
    try:
        lock = SweepLock(root)
    except (SweepInUse, OSError):
        yield None
        return
    with lock:
        taken = Detached(read_manifest(root, clock), clock)
        try:
            yield taken
        finally:
            taken.close()


def catch_up(root: Path, clock: Clock = SYSTEM) -> Detached:
    """Return a sweep as it stands, with what its jobs did since somebody looked.

    While somebody runs it, or where it is not ours to write in, what is learned is not written.
    """
    looked = Detached(read_manifest(root), clock)
    if not looked.going_on():
        return looked
    with detached(root, clock) as taken:
        if taken is None:
            looked = Detached(read_manifest(root.absolute(), clock), clock, owned=False)
            looked.look()
            looked.close()
            return looked
        taken.look()
        return taken


def task_of(manifest: SweepManifest, run: str) -> Task:
    """Return an attempt as another process may find it again."""
    gpus, directory = manifest.runs[run].gpus_at_most, manifest.root / run
    return Task(
        name=run, ticket=manifest.state(run).ticket, command=(), env={},
        cwd=Path(manifest.about["work_dir"]), directory=directory, log=directory / LOG_NAME,
        gpus=gpus, nodes=gpus // (manifest.runs[run].world_size or 1),
    )  # fmt: skip
