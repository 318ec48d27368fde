"""The harness: starts what is to be run, as much at once as there is room for, to the last run.

One thread, one loop. Everything it knows is in the journal before it acts on it, so that it may be
killed at any instruction and the next one goes on from there.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from outlay.clock import SYSTEM, Clock
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.lease import Terms
from outlay.sweep.engines.base import Ended, Engine, Task
from outlay.sweep.engines.ports import Ports, was_taken
from outlay.sweep.errors import SweepNotRecorded
from outlay.sweep.journal import Journal, Status
from outlay.sweep.launch import LOG_NAME
from outlay.sweep.manifest import Manifest
from outlay.sweep.money import Funds, Treasury, rate_of
from outlay.sweep.outcomes import Verdict, judge
from outlay.sweep.plan import Plan, PlannedRun
from outlay.sweep.prediction import NOTICE_NS, Prediction, at_most, measured
from outlay.sweep.recording import record, record_end
from outlay.sweep.run_ends import logged_end
from outlay.sweep.tasks import Tasks
from outlay.units import Money

TICK_S = 0.2
MOST_PORTS = 4
"""Ports that a run is tried on before it counts as failed, if others keep taking them."""
_LAST_WORDS_BYTES = 1 << 18
"""How much of what a failed run printed is searched for the reason."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CANCELLED = Verdict("cancelled", "the sweep was cancelled")
NO_MONEY = Verdict("cancelled", "the ceiling left no more money for it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a sweep is run.

    Attributes:
        jobs: How many runs at once; None leaves that to the engine.
        detach: Whether to leave once everything is submitted; for engines whose tasks go on.
        devices: The GPUs to share out; None leaves CUDA_VISIBLE_DEVICES alone.
        cwd: Where programs are started.
        environ: What runs inherit.
    """

    jobs: int | None = None
    detach: bool = False
    devices: tuple[str, ...] | None = None
    cwd: Path
    environ: Mapping[str, str]


@dataclass(slots=True)
class Active:
    """One attempt that goes on; its part of the log begins after ``logged`` bytes."""

    run: PlannedRun
    ticket: str
    engine: Engine
    started_ns: int
    port: int | None
    devices: tuple[str, ...]
    funds: Funds | None = None
    stopped: Verdict | None = None
    kill_ns: int | None = None
    logged: int = 0


@dataclass(slots=True)
class Harness:
    """Runs the runs of one sweep.

    Attributes:
        plan: What there is to run, under the ids of the manifest.
        engines: An engine by each name that the plan uses.
        treasury: The guard, where the sweep has a ceiling.
        watch: Called at every look, for showing how things stand.
        ended: Called with the directory of a run whose attempt has ended.
    """

    plan: Plan
    manifest: Manifest
    journal: Journal
    engines: Mapping[str, Engine]
    options: Options
    treasury: Treasury | None = None
    clock: Clock = SYSTEM
    watch: Callable[[Harness], None] = lambda _: None
    ended: Callable[[Path], None] = lambda _: None
    active: dict[str, Active] = field(default_factory=dict)
    _queue: deque[PlannedRun] = field(default_factory=deque)
    _deferred: list[tuple[PlannedRun, str]] = field(default_factory=list)
    _tried: dict[str, int] = field(default_factory=dict)
    _ports_lost: dict[str, int] = field(default_factory=dict)
    _free: list[str] = field(default_factory=list)
    _ports: Ports = field(default_factory=Ports)
    _tasks: Tasks = field(init=False)
    _asked: int = 0
    _left_alone: bool = False
    _unwritten: SweepNotRecorded | None = None

    def __post_init__(self) -> None:
        options = self.options
        self._tasks = Tasks(self.plan, self.manifest.root, options.cwd, options.environ)

    def run(self, runs: list[PlannedRun]) -> None:
        """Run these to their ends.

        Raises:
            SweepNotRecorded: The journal cannot be written; nothing more was started.
            EngineBroken, SpendLogUnusable: Nothing can be started any more.
        """
        self.take(runs)
        with self._signals():
            while self.step():
                pass
        if self._unwritten is not None:
            raise self._unwritten
        self.manifest.write()

    def take(self, runs: Iterable[PlannedRun]) -> None:
        """Take in what is to be run; the next step begins with it."""
        self._queue.extend(runs)
        self._free = list(self.options.devices or ())

    def step(self) -> bool:
        """Start what there is room for and look once; False when nothing is left to do."""
        if not (self._queue or self.active or self._deferred):
            return False
        self._launch_what_fits()
        self._look()
        return (bool(self.active) or not self._is_stopping()) and not self._may_leave()

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for the end."""
        return self._asked > 0

    def _may_leave(self) -> bool:
        """Say whether what goes on may be left to itself, all of it being with its scheduler."""
        if self._is_stopping() or not (self.options.detach or self._left_alone):
            return False
        return not self._queue and all(engine.all_submitted() for engine in self.engines.values())

    def _is_stopping(self) -> bool:
        return self.cancelled or self._unwritten is not None

    # -- starting ---------------------------------------------------------------------------

    def _launch_what_fits(self) -> None:
        while self._queue and self._has_room(self._queue[0]) and not self._is_stopping():
            needed = self._devices_of(self._queue[0])
            if needed is None:
                return
            run = self._queue.popleft()
            try:
                self._launch(run, needed)
            except BudgetGuardExceeded as refusal:
                self._deferred.append((run, str(refusal)))
            except SweepNotRecorded as error:
                self._unwritten = error
        if not self.active and not self._queue and not self._is_stopping():
            for left_out, why in self._deferred:
                self._record(left_out, "skipped", reason=why)
            self._deferred.clear()

    def _has_room(self, run: PlannedRun) -> bool:
        engine = self.engines[run.settings.engine]
        return len(self.active) < engine.allow(self.options.jobs)

    def _devices_of(self, run: PlannedRun) -> tuple[str, ...] | None:
        """Return the GPUs for a run; None when it has to wait for them."""
        if not self._shares_devices(run):
            return ()
        if len(self._free) < run.world_size:
            return None
        return tuple(self._free[: run.world_size])

    def _shares_devices(self, run: PlannedRun) -> bool:
        if self.options.devices is None or self.engines[run.settings.engine].remote:
            return False
        return "CUDA_VISIBLE_DEVICES" not in run.env

    def _launch(self, run: PlannedRun, devices: tuple[str, ...]) -> None:
        engine = self.engines[run.settings.engine]
        ticket = engine.new_ticket(run.id)
        funds = self._fund(run, ticket)
        port = None if engine.remote else self._ports.reserve()
        given = devices if self._shares_devices(run) else None
        task = self._tasks.make(run, ticket, port, given)
        if engine.remote and funds is not None:
            # Nobody may be there to end it when its money is used up, so that it ends itself.
            task = replace(task, most_ns=funds.stop_ns() or task.most_ns)
        try:
            self._begin(run, task, funds)
        except SweepNotRecorded:
            if port is not None:
                self._ports.release(port)
            if funds is not None:
                funds.void("its start could not be written down")
            raise
        self._free = [device for device in self._free if device not in devices]
        self._tried[run.id] = self._tried.get(run.id, 0) + 1
        started_ns = self.clock.monotonic_ns()
        self.active[ticket] = Active(run, ticket, engine, started_ns, port, devices, funds)
        self.active[ticket].logged = task.log.stat().st_size if task.log.exists() else 0
        engine.submit(task)

    def _fund(self, run: PlannedRun, ticket: str) -> Funds | None:
        if self.treasury is None:
            return None
        prediction = self.prediction_of(run)
        if self.engines[run.settings.engine].remote:
            prediction = at_most(rate_of(run), prediction, run.settings.timeout)
        return self.treasury.open(run, prediction, ticket)

    def prediction_of(self, run: PlannedRun) -> Prediction:
        """Return what a run should take: what limits it, else what finished runs took."""
        if run.prediction.cost is not None:
            return run.prediction
        finished = [
            state.elapsed_ns
            for state in self.manifest.states.values()
            if state.status == "completed"
        ]
        return measured(rate_of(run), finished)

    def _begin(self, run: PlannedRun, task: Task, funds: Funds | None) -> None:
        """Write the start down, without secrets and without where the sweep lies."""
        command, env = self._tasks.without_secrets(task)
        hold = "" if funds is None else funds.hold.id
        self._record(run, "running", ticket=task.ticket, command=command, env=env, hold=hold)

    # -- looking ----------------------------------------------------------------------------

    def _look(self) -> None:
        engines = {active.run.settings.engine for active in self.active.values()}
        for name in engines:
            self.engines[name].wait(TICK_S / len(engines))
        for active in list(self.active.values()):
            ended = active.engine.poll(active.ticket)
            if ended is None:
                self._mind(active)
            else:
                self._finish(active, ended)
        with suppress(SweepNotRecorded):
            self.manifest.catch_up()
        self.watch(self)

    def _mind(self, active: Active) -> None:
        """End what must end: cancelled, out of time, out of money."""
        since_ns = self.clock.monotonic_ns() - active.started_ns
        if active.stopped is None:
            reason = self._reason_to_stop(active, since_ns)
            if reason is not None:
                active.stopped = reason
                active.kill_ns = since_ns + self._notice_ns(active)
                active.engine.cancel(active.ticket)
        due = active.kill_ns is not None and since_ns >= active.kill_ns
        if active.stopped is not None and (due or self._asked > 1):
            active.engine.cancel(active.ticket, force=True)

    def _reason_to_stop(self, active: Active, elapsed_ns: int) -> Verdict | None:
        if self.cancelled:
            return CANCELLED
        if active.engine.remote:
            return None  # A job keeps its own time, which was paid for when it was submitted.
        timeout = active.run.settings.timeout
        if timeout is not None and elapsed_ns >= timeout.ns:
            return Verdict("error", f"timeout: not done after {timeout}")
        if active.funds is not None:
            active.funds.keep_up(elapsed_ns)
            stop_ns = active.funds.stop_ns()
            if stop_ns is not None and elapsed_ns >= stop_ns:
                return NO_MONEY
        return None

    @staticmethod
    def _notice_ns(active: Active) -> int:
        if active.funds is None:
            return NOTICE_NS
        return active.funds.terms.notice.ns // 2

    # -- ending -----------------------------------------------------------------------------

    def _finish(self, active: Active, ended: Ended) -> None:
        run = active.run
        del self.active[active.ticket]
        if active.port is not None:
            self._ports.release(active.port)
        self._free += active.devices
        verdict = judge(ended, active.stopped, self._logged_end(run))
        port_lost = verdict.status == "error" and self._lost_its_port(active)
        if port_lost:
            verdict = Verdict("error", f"its port {active.port} was taken ({verdict.reason})")
        cost = self._cost(run, ended)
        if active.funds is not None:
            if ended.how == "not_started":
                active.funds.void("it could not be started")
            elif cost is not None:
                active.funds.settle(cost)
        self._record_end(run, verdict, ended, cost)
        self.ended(self.manifest.root / run.id)
        again = verdict.status in ("error", "preempted")
        if again and self._may_try_again(run, port_lost=port_lost):
            self._queue.appendleft(run)
        if not self._is_stopping():
            self._queue.extendleft(run for run, _ in reversed(self._deferred))
            self._deferred.clear()

    def _lost_its_port(self, active: Active) -> bool:
        if active.port is None:
            return False
        path = self.manifest.root / active.run.id / LOG_NAME
        with suppress(OSError), path.open("rb") as log:
            log.seek(max(active.logged, path.stat().st_size - _LAST_WORDS_BYTES))
            return was_taken(log.read().decode(errors="replace"), active.port)
        return False

    def _may_try_again(self, run: PlannedRun, *, port_lost: bool) -> bool:
        """Say whether a failed run is started once more; a lost port is not its own failure."""
        lost = self._ports_lost.get(run.id, 0) + port_lost
        if port_lost and lost < MOST_PORTS:
            self._ports_lost[run.id] = lost
            self._tried[run.id] -= 1
            return True
        return self._tried[run.id] <= run.settings.retries

    def adopt(self, run: PlannedRun, ticket: str, hold: str) -> None:
        """Go on with an attempt that another process submitted."""
        engine = self.engines[run.settings.engine]
        funds = self.treasury.join(run, hold) if self.treasury is not None and hold else None
        started_ns = self.clock.monotonic_ns()
        self._tried[run.id] = 1
        self.active[ticket] = Active(run, ticket, engine, started_ns, None, (), funds)

    def settle_earlier(self, run: PlannedRun, ended: Ended, hold: str) -> None:
        """Write down how an attempt of an earlier harness ended."""
        known = ended.how == "exited" or self.engines[run.settings.engine].remote
        cost = self._cost(run, ended) if known else None
        if self.treasury is not None and hold:
            self.treasury.settle_lost(hold, run.id, cost)
        self._record_end(run, judge(ended, None, self._logged_end(run)), ended, cost)

    def _record_end(
        self, run: PlannedRun, verdict: Verdict, ended: Ended, cost: Money | None
    ) -> None:
        try:
            record_end(self.manifest, self.journal, run.id, verdict, ended, cost)
        except SweepNotRecorded as error:
            self._unwritten = error

    def _cost(self, run: PlannedRun, ended: Ended) -> Money | None:
        rate = rate_of(run)
        return None if rate is None else Terms(rate=rate).cost(ended.elapsed_ns)

    def _logged_end(self, run: PlannedRun) -> str | None:
        return logged_end(self.manifest.root / run.id, self.clock.wall_ns())

    def _record(self, run: PlannedRun, status: Status, **facts: object) -> None:
        record(self.manifest, self.journal, run.id, status, **facts)

    # -- being told to end ------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Take Ctrl-C as a wish: once to cancel, twice to force."""

        def remember(number: int, frame: FrameType | None) -> None:
            del frame
            remote = all(engine.remote for engine in self.engines.values())
            if number == signal.SIGHUP and remote:
                self._left_alone = True  # The terminal is gone; what a cluster runs need not end.
            else:
                self._asked += 1

        before = {number: signal.signal(number, remember) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def inherited_environment() -> dict[str, str]:
    """Return what runs inherit: ours, but for what belongs to this process alone."""
    own = ("OUTLAY_HOLD", "OUTLAY_RUN_DIR", "OUTLAY_SUPERVISED")
    return {name: value for name, value in os.environ.items() if name not in own}
