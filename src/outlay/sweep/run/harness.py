"""The harness: starts runs while there is room, enforces their limits, records their ends.

One thread, one loop. It writes every fact to the journal before it acts on it, so that it may be
killed at any instruction and the next harness continues from there.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from outlay.clock import SYSTEM, Clock
from outlay.guard.errors import BudgetGuardExceeded, SpendLogUnusable
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import End, GiveNotice
from outlay.handlers import handling
from outlay.ledger import gpu_count_of
from outlay.record.facts import queued_at
from outlay.record.supervision import Supervision
from outlay.sweep.engines.base import Ended, Engine, Task
from outlay.sweep.engines.ports import lost_port
from outlay.sweep.errors import SweepNotRecorded
from outlay.sweep.plan.launch import LOG_NAME, Place
from outlay.sweep.plan.plan import NOTICE_NS, PlannedRun, at_rung
from outlay.sweep.run.attempt_log import begin_log, supervised
from outlay.sweep.run.devices import MachineResources, Tasks
from outlay.sweep.run.outside_budget import OutsideBudget
from outlay.sweep.run.settlement import SweepRecorder
from outlay.sweep.run.stops import STOPPED, forget_stop, is_stoppable, requested_stops
from outlay.sweep.run.sweep_guard import SweepGuard
from outlay.sweep.search.halving import Decisions
from outlay.sweep.search.study import Study
from outlay.sweep.state.manifest import Journal, ManifestRun, SweepManifest
from outlay.sweep.state.outcomes import RunVerdict
from outlay.sweep.state.setup import add_runs

if TYPE_CHECKING:
    from outlay.sweep.aggregate.aggregator import RungWatch

# A running attempt, until it is cancelled, timed out or out of money.

CANCELLED: Final = RunVerdict("cancelled", "the sweep was cancelled")
NO_MONEY: Final = RunVerdict("cancelled", "the ceiling left no more money for it")


@dataclass(slots=True, kw_only=True)
class ActiveAttempt:
    """A running attempt.

    Attributes:
        started_ns: On the monotonic clock.
        funds: The hold that pays for it, if the sweep has a ceiling.
        log: Its supervisor's segment; None for a remote one, which supervises itself.
        log_size: The size of the run's output before this attempt, in bytes.
        budget: Its budget, if the harness enforces it.
        stopped: The verdict once it was told to end.
        noticed_ns: Its elapsed time when it was told to end.
    """

    run: PlannedRun
    ticket: str
    engine: Engine
    started_ns: int
    place: Place
    funds: Leaseholder | None = None
    log: Supervision | None = None
    log_size: int = 0
    budget: OutsideBudget | None = None
    stopped: RunVerdict | None = None
    noticed_ns: int = 0

    def enforce_limits(self, now_ns: int, *, asked: int) -> None:
        """SIGTERM on cancel, timeout or no money; SIGKILL after the notice.

        ``asked`` counts the requests to end the sweep; two force it.
        """
        if self.log is not None:
            self.log.beat()
        elapsed_ns = now_ns - self.started_ns
        if self.stopped is None:
            reason = CANCELLED if asked else self._reason_to_stop(elapsed_ns)
            if reason is not None:
                self._give_notice(reason, elapsed_ns)
        if self.stopped is not None and (asked > 1 or self._notice_is_over(elapsed_ns)):
            self.engine.cancel(self.ticket, force=True)

    def _give_notice(self, reason: RunVerdict, elapsed_ns: int) -> None:
        self.stopped = reason
        self.noticed_ns = elapsed_ns
        if self.funds is not None:
            self.funds.give_notice(elapsed_ns)
        self.engine.cancel(self.ticket)

    def stop(self, reason: RunVerdict, now_ns: int) -> None:
        """Tell it to end, unless it was told before."""
        if self.stopped is None:
            self._give_notice(reason, now_ns - self.started_ns)

    def _notice_is_over(self, elapsed_ns: int) -> bool:
        if self.funds is not None and not self.engine.remote:
            return isinstance(self.funds.renew(elapsed_ns), End)
        stop_ns: int = getattr(self.run.entry.options, "stop_ns", NOTICE_NS)
        return elapsed_ns >= self.noticed_ns + max(stop_ns, NOTICE_NS)

    def _reason_to_stop(self, elapsed_ns: int) -> RunVerdict | None:
        """Return the verdict if the time or the money is used up; extends the hold if it can."""
        if self.engine.remote:
            return None  # A job enforces its own time limit, which is paid for in advance.
        timeout = self.run.entry.timeout
        if timeout is not None and elapsed_ns >= timeout.ns:
            return RunVerdict("error", f"timeout: not done after {timeout}")
        if self.budget is not None and (reached := self.budget.verdict(elapsed_ns)):
            return reached
        if self.funds is not None and isinstance(self.funds.renew(elapsed_ns), GiveNotice):
            return NO_MONEY
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt that has ended, and may not be settled yet."""

    run: PlannedRun
    ended: Ended
    verdict: RunVerdict
    remote: bool
    port_lost: bool


# The harness.

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TICK_S: Final = 0.2
_SETTLE_AGAIN_NS: Final = 2 * 10**9
_GIVE_UP_NS: Final = 60 * 10**9
"""How long a book may be away once all else is done."""
_WATCH_NS: Final = 10**9
MOST_GUESSES: Final = 4
"""How many configurations a search tries at once on a cluster, unless `--jobs` states it."""
MOST_PORTS: Final = 4
"""How many ports a run is tried on, if others keep binding them, before it counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of a sweep that are not in the grid.

    Attributes:
        jobs: How many runs at once; None for one here, and for all on a cluster.
        detach: Whether to return once everything is submitted; for remote engines.
        devices: The GPUs to allocate; None leaves CUDA_VISIBLE_DEVICES alone.
        watch: Called after every poll, for a progress display.
    """

    jobs: int | None = None
    detach: bool = False
    devices: tuple[str, ...] | None = None
    watch: Callable[[Harness], None] = lambda _: None
    clock: Clock = SYSTEM


@dataclass(slots=True, repr=False)  # signal.signal() makes a repr of a handler's object.
class Harness:
    """Runs the runs of one sweep.

    Attributes:
        engines: By name, all that the plan uses.
        tasks: Of a plan with the manifest's ids.
        guard: None for a sweep without a ceiling.
        ended: Called with a run's directory after each of its attempts.
        active: The running attempts, by ticket.
        asked: How many signals asked for the end: one cancels, two force it.
    """

    manifest: SweepManifest
    journal: Journal
    engines: Mapping[str, Engine]
    tasks: Tasks
    options: SweepOptions = SweepOptions()
    guard: SweepGuard | None = None
    ended: Callable[[Path], None] = lambda _: None
    active: dict[str, ActiveAttempt] = field(default_factory=dict)
    asked: int = 0
    _terminal_closed: bool = False
    _queue: deque[PlannedRun] = field(default_factory=deque)
    _deferred: list[tuple[PlannedRun, str]] = field(default_factory=list)
    _running: Counter[str] = field(default_factory=Counter)
    _starts: Counter[str] = field(default_factory=Counter)
    _lost_ports: Counter[str] = field(default_factory=Counter)
    _resources: MachineResources = field(init=False)
    _recorder: SweepRecorder = field(init=False)
    _unwritten: SweepNotRecorded | None = None
    _unsettled: list[EndedAttempt] = field(default_factory=list)
    _book_error: SpendLogUnusable | None = None
    _asked_ns: int = 0
    _idle_ns: int | None = None
    _study: Study | None = None
    _promoted: set[tuple[str, int]] = field(default_factory=set)
    _reported: bool = True
    _watched_ns: int = 0
    _stops_ns: int | None = None
    _rung_watch: RungWatch | None = None

    def __post_init__(self) -> None:
        if self.tasks.plan.searches:
            self._study = Study(self.tasks.plan)
        self._resources = MachineResources(self.options.devices)
        self._recorder = SweepRecorder(self.manifest, self.journal, self.guard)

    def run(self, runs: list[PlannedRun], *, searches: bool = True) -> None:
        """Run these until all have ended, and without ``searches`` nothing that follows from them.

        Raises:
            SweepNotRecorded: The journal cannot be written; nothing more was started.
            EngineBroken, SpendLogUnusable: No run can be started any more.
        """
        self.enqueue(runs)
        self._study = self._study if searches else None
        with handling(_SIGNALS, self._on_signal):
            while self.step():
                pass
        if not self._is_stopping():  # After a detach, no process is left to start these.
            self._skip_deferred()
        for name in list(self.manifest.states):
            with self._stopping_on_failure():
                self._recorder.correct_late(name)
        if self._unwritten is not None:
            raise self._unwritten
        self.manifest.write()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Count the signal; a closed terminal does not end runs that are all remote."""
        del frame
        if number == signal.SIGHUP and all(engine.remote for engine in self.engines.values()):
            self._terminal_closed = True
        else:
            self.asked += 1

    def enqueue(self, runs: Iterable[PlannedRun]) -> None:
        """Queue runs."""
        self._queue.extend(runs)

    def step(self) -> bool:
        """Start what fits and poll once; False when nothing is left to do."""
        self._stop_as_requested()
        self._decide()
        if not (self._queue or self._is_busy or self._may_suggest()):
            return False
        self._settle_again()
        self._launch_what_fits()
        with suppress(SweepNotRecorded):  # After the launches; the journal has everything.
            self.manifest.catch_up()
        self._poll()
        self._give_up_settling()
        return (
            bool(self.active or self._unsettled) or not self._is_stopping()
        ) and not self._may_detach()

    @property
    def _is_busy(self) -> bool:
        """Whether an attempt runs, is not settled yet, or waits for money."""
        return bool(self.active or self._deferred or self._unsettled)

    @property
    def cancelled(self) -> bool:
        """Whether a signal asked for the end."""
        return self.asked > 0

    def _may_detach(self) -> bool:
        """Say whether to detach: wanted, and every run is with its scheduler."""
        if self._is_stopping() or not (self.options.detach or self._terminal_closed):
            return False
        return not self._queue and all(engine.all_submitted() for engine in self.engines.values())

    def _is_stopping(self) -> bool:
        return self.cancelled or self._unwritten is not None

    # -- starting ---------------------------------------------------------------------------

    def _launch_what_fits(self) -> None:
        while not self._is_stopping():
            self._suggest()
            if not (self._queue and self._has_room(self._queue[0])):
                break
            run = self._queue.popleft()
            try:
                with self._stopping_on_failure():
                    self._launch(run)
            except BudgetGuardExceeded as refusal:
                self._deferred.append((run, str(refusal)))
            except SpendLogUnusable as refusal:
                if self.guard is None or not self.guard.is_shared:
                    raise
                self._deferred.append((run, str(refusal)))
        waits = self.active or self._queue or self._unsettled
        if not waits and not self._is_stopping():
            self._skip_deferred()

    def _skip_deferred(self) -> None:
        for run, refusal in self._deferred:
            with self._stopping_on_failure():
                self._recorder.record(run.id, "skipped", reason=refusal)
        self._deferred.clear()

    def _has_room(self, run: PlannedRun) -> bool:
        """Say whether a run fits into the number of jobs and the free GPUs.

        Local engines share one number of jobs; each remote engine has its own.
        """
        name = run.entry.engine
        engine = self.engines[name]
        running = sum(
            count
            for other, count in self._running.items()
            if other == name or not (engine.remote or self.engines[other].remote)
        )
        if running >= engine.allow(self.options.jobs):
            return False
        return engine.remote or self._resources.has_gpus_for(run)

    # -- searching --------------------------------------------------------------------------

    def _decide(self) -> None:
        """Queue the runs that go on to their next rung, and end those that do not."""
        study = self._study
        if study is None or self._is_stopping():
            return
        if self._reported:
            self._reported = False
            self._obey(study.decide(self.manifest.states, idle=False), study)
        if not (self._queue or self._is_busy or self._may_suggest()):
            self._obey(study.decide(self.manifest.states, idle=True), study)

    def _obey(self, found: Decisions, study: Study) -> None:
        for run, reason in found.pruned.items():
            self._prune(run, reason)
        for run, rung in found.promoted.items():
            if (run, rung) not in self._promoted:
                self._promoted.add((run, rung))
                self._starts[run] = self._lost_ports[run] = 0
                self._queue.append(self._at_rung(study.runs[run], rung))

    def _at_rung(self, run: PlannedRun, rung: int) -> PlannedRun:
        spent = self.manifest.runs[run.id].cost(self.manifest.state(run.id))
        return at_rung(run, rung, spent)

    def _prune(self, run: str, reason: str) -> None:
        """Record that a run does not go on; one that is running is told to end first."""
        verdict = RunVerdict("pruned", reason)
        if not self._tell_to_end(run, verdict):
            self._withdraw(run)
            with self._stopping_on_failure():
                self._recorder.record(run, verdict.status, reason=reason)

    def _tell_to_end(self, run: str, verdict: RunVerdict) -> bool:
        """Tell the running attempt of a run to end; False if there is none."""
        for active in self.active.values():
            if active.run.id == run:
                active.stop(verdict, self.options.clock.monotonic_ns())
                return True
        return any(attempt.run.id == run for attempt in self._unsettled)

    def _withdraw(self, run: str) -> bool:
        """Start no attempt of a run; say whether one was about to be."""
        waiting = [*self._queue, *(one for one, _ in self._deferred)]
        self._queue = deque(queued for queued in self._queue if queued.id != run)
        self._deferred = [(one, why) for one, why in self._deferred if one.id != run]
        return any(one.id == run for one in waiting)

    def _stop_as_requested(self) -> None:
        """Stop the runs that a person asked to stop."""
        now_ns = self.options.clock.monotonic_ns()
        if self._stops_ns is not None and now_ns < self._stops_ns + _WATCH_NS:
            return
        self._stops_ns, root = now_ns, self.manifest.root
        for run in requested_stops(root):
            if self._tell_to_end(run, STOPPED):
                continue  # Until its end is recorded, the request stays.
            withdrawn = self._withdraw(run)
            if run in self.manifest.runs and (withdrawn or is_stoppable(self.manifest.state(run))):
                with self._stopping_on_failure():
                    self._recorder.record(run, STOPPED.status, reason=STOPPED.reason)
                self._reported = True
            forget_stop(root, run)

    def _may_suggest(self) -> bool:
        """Say whether configurations are still to be chosen, and money is not what is missing."""
        study = self._study
        return study is not None and study.next_entry is not None and not self._deferred

    def _suggest(self) -> None:
        """Choose the next configuration if there is room for it, by all results so far."""
        study = self._study
        if self._queue or study is None or not self._may_suggest():
            return
        entry = study.next_entry
        assert entry is not None
        like = next(run for run in study.runs.values() if run.entry.name == entry.name)
        at_once = self.options.jobs or (MOST_GUESSES if self.engines[entry.engine].remote else 1)
        if self._running[entry.engine] >= at_once or not self._has_room(like):
            return
        runs = study.suggest(entry, self.manifest.states)
        with self._stopping_on_failure():
            added = replace(self.tasks.plan, runs=tuple(runs))
            add_runs(self.manifest, added, self.tasks.environ)
            self._queue.extend(runs)

    def _watch_rungs(self) -> None:
        """Record which running attempts have passed a rung, if they are not paused there."""
        now_ns = self.options.clock.monotonic_ns()
        if self._study is None or now_ns < self._watched_ns + _WATCH_NS:
            return
        self._watched_ns = now_ns
        for active in self.active.values():
            static = self.manifest.runs[active.run.id]
            if static.rungs and not static.resumable:
                passed = self._rungs_passed(static)
                with self._stopping_on_failure():
                    if self._recorder.record_passed(static.id, passed):
                        self._reported = True

    def _rungs_passed(self, run: ManifestRun) -> int:
        # Imported here: it loads NumPy, which other sweeps do not need.
        from outlay.sweep.aggregate.aggregator import RungWatch

        self._rung_watch = self._rung_watch or RungWatch()
        limits, now_ns = run.limits_by_rung[:-1], self.options.clock.wall_ns()
        return self._rung_watch.passed(self.manifest.root / run.id, limits, now_ns)

    # -- launching --------------------------------------------------------------------------

    def _launch(self, run: PlannedRun) -> None:
        engine = self.engines[run.entry.engine]
        ticket = engine.new_ticket(run.id)
        funds = self._fund(run, ticket)
        place = self.tasks.place(run)
        if not engine.remote:
            place = self._resources.allocate(run, place)
        task = self.tasks.make(run, ticket, place)
        if engine.remote and funds is not None:
            # It ends itself when its money is used up: this harness may have detached.
            lease = funds.lease
            task = replace(task, most_ns=lease.stop_ns or task.most_ns, kill_ns=lease.kill_ns)
        try:
            submitted_ns = self._record_start(run, task, funds)
        except SweepNotRecorded:
            self._resources.release(place)
            if funds is not None:
                funds.void("its start could not be recorded")
            raise
        if engine.remote:
            task = replace(task, env={**task.env, **queued_at(submitted_ns)})
        log_size = task.log.stat().st_size if task.log.exists() else 0
        log = None if engine.remote else self._begin_log(run, task)
        spent_ns = self.manifest.state(run.id).elapsed_ns
        budget = OutsideBudget.of(
            run, task.directory, spent_ns=spent_ns, since_ns=self.options.clock.wall_ns()
        )
        self._add(
            ActiveAttempt(
                run=run, ticket=ticket, engine=engine, started_ns=self.options.clock.monotonic_ns(),
                place=place, funds=funds, log=log, log_size=log_size, budget=budget,
            )
        )  # fmt: skip
        engine.submit(task)

    def _begin_log(self, run: PlannedRun, task: Task) -> Supervision:
        gpus = gpu_count_of(run.charged_gpus)
        what = supervised(run.id, task.directory, run.entry.price, gpus, task.command)
        return begin_log(what, task.env, self.options.clock)

    def _add(self, active: ActiveAttempt) -> None:
        self._starts[active.run.id] += 1
        self._running[active.run.entry.engine] += 1
        self.active[active.ticket] = active

    def _fund(self, run: PlannedRun, ticket: str) -> Leaseholder | None:
        if self.guard is None:
            return None
        is_predicted = run.prediction.ns is not None
        finished_ns = () if is_predicted else self.manifest.elapsed_of("completed")
        remote = self.engines[run.entry.engine].remote
        return self.guard.open(run, ticket, finished_ns, remote=remote)

    def _record_start(self, run: PlannedRun, task: Task, funds: Leaseholder | None) -> int:
        command, env = self.tasks.without_secrets(task)
        hold = "" if funds is None else funds.hold.id
        return self._recorder.record(
            run.id, "running", ticket=task.ticket, command=command, env=env, hold=hold,
            rung=run.rung,
        )  # fmt: skip

    # -- polling ----------------------------------------------------------------------------

    def _poll(self) -> None:
        engines = {active.run.entry.engine for active in self.active.values()}
        for name in engines:
            self.engines[name].wait(TICK_S / len(engines))
        finished: list[tuple[ActiveAttempt, Ended]] = []
        for active in list(self.active.values()):
            ended = active.engine.poll(active.ticket)
            if ended is None:
                now_ns = self.options.clock.monotonic_ns()
                active.enforce_limits(now_ns, asked=self.asked)
            else:
                self._remove(active)
                finished.append((active, ended))
        try:
            if finished and self._may_start_first(ended for _, ended in finished):
                self._launch_what_fits()
        finally:
            for active, ended in finished:
                self._finish(active, ended)
        self._watch_rungs()
        self.options.watch(self)

    def _may_start_first(self, finished: Iterable[Ended]) -> bool:
        """Say whether the next runs may start before these ends are recorded.

        Nothing waits for the records then; not where money, results or a retry decide what starts.
        """
        if self.guard is not None or self._study is not None:
            return False
        return all(ended.returncode == 0 and not ended.asked for ended in finished)

    # -- ending -----------------------------------------------------------------------------

    def _remove(self, active: ActiveAttempt) -> None:
        del self.active[active.ticket]
        self._running[active.run.entry.engine] -= 1
        self._resources.release(active.place)

    def _finish(self, active: ActiveAttempt, ended: Ended) -> None:
        run, remote, stopped = active.run, active.engine.remote, active.stopped
        if stopped is None and ended.asked and run.id in requested_stops(self.manifest.root):
            stopped = STOPPED  # Not noticed yet.
        verdict = self._recorder.judge(run.id, ended, stopped, remote=remote)
        port, output = active.place.port, self.manifest.root / run.id / LOG_NAME
        port_lost = verdict.status == "error" and lost_port(output, active.log_size, port)
        if port_lost:
            verdict = RunVerdict("error", f"its port {port} was taken ({verdict.reason})")
        hold = None if active.funds is None else active.funds.hold
        attempt = EndedAttempt(
            run=run, ended=ended, verdict=verdict, remote=remote, port_lost=port_lost
        )
        try:
            with self._stopping_on_failure():
                self._recorder.settle(
                    run.id, ended, verdict, remote=remote, log=active.log, hold=hold
                )
        except SpendLogUnusable as error:
            if self.guard is None or not self.guard.is_shared:
                raise
            self._put_off(attempt, error)
        else:
            self._conclude(attempt)

    def _put_off(self, attempt: EndedAttempt, error: SpendLogUnusable) -> None:
        """Settle an attempt later: its book is away. In the journal it still runs until then."""
        self._unsettled.append(attempt)
        self._book_error, self._asked_ns = error, self.options.clock.monotonic_ns()

    def _settle_again(self) -> None:
        """Settle attempts whose book was away, as another harness would."""
        if self.options.clock.monotonic_ns() < self._asked_ns + _SETTLE_AGAIN_NS:
            return
        while self._unsettled:
            attempt = self._unsettled.pop(0)
            try:
                with self._stopping_on_failure():
                    self._recorder.settle_again(
                        attempt.run.id, attempt.ended, attempt.verdict, remote=attempt.remote
                    )
            except SpendLogUnusable as error:
                self._put_off(attempt, error)
                return
            self._conclude(attempt)

    def _give_up_settling(self) -> None:
        """Wait for a book that is away, for a while, once all else is done.

        Raises:
            SpendLogUnusable: It did not come back; the next harness settles what is left.
        """
        if not self._unsettled or self.active or (self._queue and not self._is_stopping()):
            self._idle_ns = None
            return
        now_ns = self.options.clock.monotonic_ns()
        self._idle_ns = now_ns if self._idle_ns is None else self._idle_ns
        if self._is_stopping() or now_ns >= self._idle_ns + _GIVE_UP_NS:
            assert self._book_error is not None
            raise self._book_error
        self.options.clock.sleep(TICK_S)

    def _conclude(self, attempt: EndedAttempt) -> None:
        """Queue what may run after an attempt is settled."""
        run = attempt.run
        self._reported = True
        if attempt.verdict == STOPPED:
            forget_stop(self.manifest.root, run.id)
        self.ended(self.manifest.root / run.id)
        failed = attempt.verdict.status in ("error", "preempted")
        if failed and self._may_retry(run, port_lost=attempt.port_lost):
            self._queue.appendleft(run)
        if not self._is_stopping():
            self._queue.extendleft(run for run, _ in reversed(self._deferred))
            self._deferred.clear()

    def _may_retry(self, run: PlannedRun, *, port_lost: bool) -> bool:
        """Say whether a failed run is started again; a lost port does not count as a start."""
        if port_lost and self._lost_ports[run.id] + 1 < MOST_PORTS:
            self._lost_ports[run.id] += 1
            self._starts[run.id] -= 1
            return True
        starts = self._starts[run.id]
        if run.rungs:  # Its search counts those of earlier harnesses, too.
            starts = self.manifest.state(run.id).tries - self._lost_ports[run.id]
        return starts <= run.entry.retries

    def adopt(self, run: PlannedRun, ticket: str, hold: str) -> None:
        """Reattach to an attempt that another process submitted."""
        funds = self.guard.join(run, hold) if self.guard is not None and hold else None
        self._add(
            ActiveAttempt(
                run=run, ticket=ticket, engine=self.engines[run.entry.engine], funds=funds,
                started_ns=self.options.clock.monotonic_ns(), place=self.tasks.place(run),
            )
        )  # fmt: skip

    def settle_earlier(self, run: str, ended: Ended) -> None:
        """Settle an attempt whose harness died."""
        remote = self.engines[self.manifest.runs[run].engine].remote
        with self._stopping_on_failure():
            self._recorder.settle_earlier(run, ended, remote=remote)

    @contextmanager
    def _stopping_on_failure(self) -> Iterator[None]:
        """Start nothing more once the journal cannot be written."""
        try:
            yield
        except SweepNotRecorded as error:
            self._unwritten = error
