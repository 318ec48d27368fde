"""A sweep whose harness is gone: how its jobs ended, going on with them, ending them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.sweep.engines.base import Ended, Engine, Task, TaskStanding, engine_named
from outlay.sweep.errors import SweepInUse
from outlay.sweep.plan.launch import LOG_NAME
from outlay.sweep.run.harness import Harness, settle_attempt
from outlay.sweep.run.money import Treasury, gpus_in
from outlay.sweep.state.journal import Journal
from outlay.sweep.state.manifest import Recording, SweepManifest, read_manifest
from outlay.sweep.state.setup import SweepLock
from outlay.units import Money

# Attempts of an earlier harness, which died: gone on with, or their books closed.


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
                harness.settle_earlier(run, ended, state.hold)
    findings = _settle_left_out(harness)
    if harness.treasury is not None:
        used = {state.hold for state in manifest.states.values() if state.hold}
        harness.treasury.void_unused(used)
    return findings


def _settle_left_out(harness: Harness) -> tuple[Finding, ...]:
    """Close the books on attempts of runs that the grid no longer has."""
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
            message=f"{run} is no longer in the grid and goes on; `outlay sweep cancel` ends it",
            severity="warning",
        )
        for run in found.standing
    ]
    return (*found.findings, *going)


# A sweep whose jobs go on without a harness: learning how they ended, and ending them.
#
# Everything comes from the sweep's directory and from the cluster; neither the grid nor the
# process that submitted is needed.

LOCAL: Final = ("process", "torchrun")
_PATIENCE_NS: Final = 60 * 10**9
_LOOK_EVERY_S: Final = 0.5


@dataclass(slots=True)
class Detached:
    """The attempts of a sweep that nobody watches, and how they stand.

    Attributes:
        owned: Whether nobody else runs the sweep, so that ends are ours to write down.
        standing: What the cluster says of each run that goes on.
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
        """Return the runs whose attempt has no end yet and may go on without us."""
        return [
            run
            for run, static in self.manifest.runs.items()
            if self.manifest.state(run).status == "running" and not is_local(static)
        ]

    def look(self, runs: Iterable[str] | None = None) -> None:
        """Find out how attempts ended, and reattach to those still running.

        Ends are written down, unless somebody runs the sweep who will do that.

        Args:
            runs: Which runs to look after; None for those that may go on without us.
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
        told = {run: engine for run, engine in engines.items() if engine is not None}
        for run, engine in told.items():
            engine.cancel(self.manifest.state(run).ticket)
        until_ns = self.clock.monotonic_ns() + _PATIENCE_NS
        waiting = dict(told)
        while waiting and self.clock.monotonic_ns() < until_ns:
            for engine in self._usable():
                engine.wait(_LOOK_EVERY_S)
            for run, engine in list(waiting.items()):
                ended = engine.poll(self.manifest.state(run).ticket)
                if ended is not None:
                    self._settle(run, ended)
                    del waiting[run]
        return len(told)

    def _settle(self, run: str, ended: Ended) -> None:
        manifest, treasury = self.manifest, None
        ceiling = manifest.about.get("ceiling")
        if self.owned and ceiling and manifest.state(run).hold:
            amount = Money.parse(ceiling, name="ceiling")
            treasury = Treasury(manifest.root, amount, self.clock)
        remote = not self.owned or not is_local(manifest.runs[run])
        verdict, priced = settle_attempt(manifest, run, ended, treasury, remote=remote)
        if self.owned and self._journal is None:
            self._journal = Journal(manifest.root)
        Recording(manifest, self._journal).end(run, verdict, ended, priced)

    def _engine_of(self, run: str) -> Engine | None:
        """Return a run's engine; None, and a finding, where it cannot be had here."""
        name = self.manifest.runs[run].get("engine", LOCAL[0])
        if name not in self.engines:
            try:
                self.engines[name] = engine_named(name, self.manifest.root)
            except OutlayError as error:
                self.engines[name] = None
                message = f"{run} and others of it may go on; nobody here can tell: {error}"
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
    try:
        taken = Detached(read_manifest(root, clock), clock)
        try:
            yield taken
        finally:
            taken.close()
    finally:
        lock.release()


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


def is_local(static: Mapping[str, Any]) -> bool:
    """Say whether a run is a process of this machine, which ends with its harness."""
    return static.get("engine", LOCAL[0]) in LOCAL


def task_of(manifest: SweepManifest, run: str) -> Task:
    """Return an attempt as another process may find it again."""
    static, directory = manifest.runs[run], manifest.root / run
    gpus = gpus_in(static)
    return Task(
        name=run, ticket=manifest.state(run).ticket, command=(), env={},
        cwd=Path(manifest.about["work_dir"]), directory=directory, log=directory / LOG_NAME,
        gpus=gpus, nodes=gpus // (static.get("world_size") or 1),
    )  # fmt: skip
