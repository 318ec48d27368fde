"""The harness: starts what is to be run, as much at once as there is room for, to the last run.

One thread, one loop. Everything it knows is in the journal before it acts on it, so that it may
be killed at any instruction and the next one continues from there.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.gate import Leaseholder
from outlay.handlers import handling
from outlay.ledger import gpu_count_of
from outlay.record.supervision import Supervision
from outlay.sweep.engines.base import Ended, Engine, Task
from outlay.sweep.errors import SweepNotRecorded
from outlay.sweep.plan.launch import LOG_NAME
from outlay.sweep.plan.plan import PlannedRun
from outlay.sweep.run import attempt_log
from outlay.sweep.run.attempts import Active, StartCounter, lost_its_port
from outlay.sweep.run.devices import MachineResources, Tasks
from outlay.sweep.run.money import SweepGuard, SweepRecorder
from outlay.sweep.state.journal import Journal
from outlay.sweep.state.manifest import SweepManifest
from outlay.sweep.state.outcomes import RunVerdict

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Interrupts:
    """What signals have asked for so far.

    Attributes:
        asked: How often the end was asked for: once to cancel, twice to force.
        terminal_closed: Whether the terminal is gone; what runs elsewhere continues without us.
    """

    asked: int = 0
    terminal_closed: bool = False

    def handling_signals(self, *, remote: bool) -> AbstractContextManager[None]:
        """Count SIGINT, SIGTERM and SIGHUP; where all is ``remote``, SIGHUP ends nothing."""

        def remember(number: int, frame: FrameType | None) -> None:
            del frame
            if number == signal.SIGHUP and remote:
                self.terminal_closed = True
            else:
                self.asked += 1

        return handling(_SIGNALS, remember)


TICK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """How a sweep is run: what its user may say beside the grid.

    Attributes:
        jobs: How many runs at once; None for one here, and for all on a cluster.
        detach: Whether to leave once everything is submitted; for engines whose tasks outlive us.
        devices: The GPUs to share out; None leaves CUDA_VISIBLE_DEVICES alone.
        watch: Called at every look, for showing how things stand.
    """

    jobs: int | None = None
    detach: bool = False
    devices: tuple[str, ...] | None = None
    watch: Callable[[Harness], None] = lambda _: None
    clock: Clock = SYSTEM


@dataclass(slots=True)
class Harness:
    """Runs the runs of one sweep.

    Attributes:
        engines: An engine by each name that the plan uses.
        tasks: Makes what an engine starts, of a plan under the ids of the manifest.
        guard: The guard, where the sweep has a ceiling.
        ended: Called with the directory of a run whose attempt has ended.
        active: The running attempts, by ticket.
    """

    manifest: SweepManifest
    journal: Journal
    engines: Mapping[str, Engine]
    tasks: Tasks
    options: SweepOptions = SweepOptions()
    guard: SweepGuard | None = None
    ended: Callable[[Path], None] = lambda _: None
    active: dict[str, Active] = field(default_factory=dict)
    interrupts: Interrupts = field(default_factory=Interrupts)
    _queue: deque[PlannedRun] = field(default_factory=deque)
    _deferred: list[tuple[PlannedRun, str]] = field(default_factory=list)
    _going: Counter[str] = field(default_factory=Counter)
    _starts: StartCounter = field(default_factory=StartCounter)
    _resources: MachineResources = field(init=False)
    _recorder: SweepRecorder = field(init=False)
    _unwritten: SweepNotRecorded | None = None

    def __post_init__(self) -> None:
        self._resources = MachineResources(self.options.devices)
        self._recorder = SweepRecorder(self.manifest, self.journal, self.guard)

    @property
    def clock(self) -> Clock:
        """The clock that everything here is timed by."""
        return self.options.clock

    def run(self, runs: list[PlannedRun]) -> None:
        """Run these to their ends.

        Raises:
            SweepNotRecorded: The journal cannot be written; nothing more was started.
            EngineBroken, SpendLogUnusable: Nothing can be started any more.
        """
        self.enqueue(runs)
        remote = all(engine.remote for engine in self.engines.values())
        with self.interrupts.handling_signals(remote=remote):
            while self.step():
                pass
        if not self._is_stopping():  # Nobody stays to start these when others have ended.
            self._skip_deferred()
        for name in list(self.manifest.states):
            with self._noting_failure():
                self._recorder.correct_late(name)
        if self._unwritten is not None:
            raise self._unwritten
        self.manifest.write()

    def enqueue(self, runs: Iterable[PlannedRun]) -> None:
        """Queue runs; the next step starts with them."""
        self._queue.extend(runs)

    def step(self) -> bool:
        """Start what there is room for and look once; False when nothing is left to do."""
        if not (self._queue or self.active or self._deferred):
            return False
        self._launch_what_fits()
        with suppress(SweepNotRecorded):  # Now that no run waits for us; the journal has it all.
            self.manifest.catch_up()
        self._look()
        return (bool(self.active) or not self._is_stopping()) and not self._may_leave()

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for the end."""
        return self.interrupts.asked > 0

    def _may_leave(self) -> bool:
        """Say whether we may leave: every run is with its scheduler."""
        if self._is_stopping() or not (self.options.detach or self.interrupts.terminal_closed):
            return False
        return not self._queue and all(engine.all_submitted() for engine in self.engines.values())

    def _is_stopping(self) -> bool:
        return self.cancelled or self._unwritten is not None

    # -- starting ---------------------------------------------------------------------------

    def _launch_what_fits(self) -> None:
        while self._queue and self._has_room(self._queue[0]) and not self._is_stopping():
            run = self._queue.popleft()
            try:
                with self._noting_failure():
                    self._launch(run)
            except BudgetGuardExceeded as refusal:
                self._deferred.append((run, str(refusal)))
        if not self.active and not self._queue and not self._is_stopping():
            self._skip_deferred()

    def _skip_deferred(self) -> None:
        """Write down which runs do not fit under the ceiling."""
        for left_out, why in self._deferred:
            with self._noting_failure():
                self._recorder.note(left_out.id, "skipped", reason=why)
        self._deferred.clear()

    def _has_room(self, run: PlannedRun) -> bool:
        """Say whether a run need not wait for others: for their GPUs, or to be one of so many.

        Those of this machine are counted together, and those of a cluster by themselves.
        """
        name = run.settings.engine
        engine = self.engines[name]
        beside = sum(
            count
            for other, count in self._going.items()
            if other == name or not (engine.remote or self.engines[other].remote)
        )
        if beside >= engine.allow(self.options.jobs):
            return False
        return engine.remote or self._resources.has_gpus_for(run)

    def _launch(self, run: PlannedRun) -> None:
        engine = self.engines[run.settings.engine]
        ticket = engine.new_ticket(run.id)
        funds = self._fund(run, ticket)
        place = self.tasks.place(run)
        if not engine.remote:
            place = self._resources.allocate(run, place)
        task = self.tasks.make(run, ticket, place)
        if engine.remote and funds is not None:
            # Nobody may be there to end it when its money is used up, so that it ends itself.
            lease = funds.lease
            most_ns = lease.stop_ns or task.most_ns
            task = replace(task, most_ns=most_ns, kill_ns=lease.kill_ns)
        try:
            self._begin(run, task, funds)
        except SweepNotRecorded:
            self._resources.release(place)
            if funds is not None:
                funds.void("its start could not be written down")
            raise
        log_size = _size(task.log)
        log = None if engine.remote else self._begin_log(run, task)
        self._add(
            Active(
                run=run, ticket=ticket, engine=engine, started_ns=self.clock.monotonic_ns(),
                place=place, funds=funds, log=log, log_size=log_size,
            )
        )  # fmt: skip
        engine.submit(task)

    def _begin_log(self, run: PlannedRun, task: Task) -> Supervision:
        what = attempt_log.supervised(
            run.id, task.directory, run.settings.price, gpu_count_of(run.charged_gpus), task.command
        )  # fmt: skip
        return attempt_log.begin(what, task.env, self.clock)

    def _add(self, active: Active) -> None:
        self._starts.count(active.run)
        self._going[active.run.settings.engine] += 1
        self.active[active.ticket] = active

    def _fund(self, run: PlannedRun, ticket: str) -> Leaseholder | None:
        if self.guard is None:
            return None
        foreseen = run.prediction.cost is not None
        finished_ns = () if foreseen else self.manifest.elapsed_of("completed")
        remote = self.engines[run.settings.engine].remote
        return self.guard.open(run, ticket, finished_ns, remote=remote)

    def _begin(self, run: PlannedRun, task: Task, funds: Leaseholder | None) -> None:
        """Write the start down, without secrets and without where the sweep lies."""
        command, env = self.tasks.without_secrets(task)
        hold = "" if funds is None else funds.hold.id
        self._recorder.note(
            run.id, "running", ticket=task.ticket, command=command, env=env, hold=hold
        )  # fmt: skip

    # -- looking ----------------------------------------------------------------------------

    def _look(self) -> None:
        engines = {active.run.settings.engine for active in self.active.values()}
        for name in engines:
            self.engines[name].wait(TICK_S / len(engines))
        for active in list(self.active.values()):
            ended = active.engine.poll(active.ticket)
            if ended is None:
                active.enforce_limits(self.clock.monotonic_ns(), asked=self.interrupts.asked)
            else:
                self._finish(active, ended)
        self.options.watch(self)

    # -- ending -----------------------------------------------------------------------------

    def _finish(self, active: Active, ended: Ended) -> None:
        run, remote = active.run, active.engine.remote
        del self.active[active.ticket]
        self._going[run.settings.engine] -= 1
        self._resources.release(active.place)
        verdict = self._recorder.judge(run.id, ended, active.stopped, remote=remote)
        port_lost = verdict.status == "error" and self._lost_its_port(active)
        if port_lost:
            reason = f"its port {active.place.port} was taken ({verdict.reason})"
            verdict = RunVerdict("error", reason)
        hold = None if active.funds is None else active.funds.hold
        with self._noting_failure():
            self._recorder.settle(
                run.id, ended, verdict, remote=remote, log=active.log, hold=hold
            )  # fmt: skip
        self.ended(self.manifest.root / run.id)
        failed = verdict.status in ("error", "preempted")
        if failed and self._starts.may_try_again(run, port_lost=port_lost):
            self._queue.appendleft(run)
        if not self._is_stopping():
            self._queue.extendleft(run for run, _ in reversed(self._deferred))
            self._deferred.clear()

    def _lost_its_port(self, active: Active) -> bool:
        port = active.place.port
        log = self.manifest.root / active.run.id / LOG_NAME
        return port is not None and lost_its_port(log, active.log_size, port)

    def adopt(self, run: PlannedRun, ticket: str, hold: str) -> None:
        """Reattach to an attempt that another process submitted."""
        funds = self.guard.join(run, hold) if self.guard is not None and hold else None
        self._add(
            Active(
                run=run, ticket=ticket, engine=self.engines[run.settings.engine],
                started_ns=self.clock.monotonic_ns(), place=self.tasks.place(run), funds=funds,
            )
        )  # fmt: skip

    def settle_earlier(self, run: str, ended: Ended) -> None:
        """Settle an attempt whose harness died."""
        remote = self.engines[self.manifest.runs[run].engine].remote
        with self._noting_failure():
            self._recorder.settle_earlier(run, ended, remote=remote)

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Start nothing more once the journal cannot be written."""
        try:
            yield
        except SweepNotRecorded as error:
            self._unwritten = error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
