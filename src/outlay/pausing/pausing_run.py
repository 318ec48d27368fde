"""A guarded command that is paused and resumed: waits, starts attempts, and ends them by notice.

It has no state of its own. The run's log and the spend log say how far it is, so that it goes on
after it was killed at any moment. Each attempt is a command of ``outlay.guard.supervise``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from outlay.clock import SYSTEM, Clock, utc_text
from outlay.errors import NotARun, OutlayError
from outlay.files import open_own
from outlay.goodput.follower import GoodputFollower, RunView
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.captures import cost_of_attempt, run_part
from outlay.guard.entries import Noted
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import Terms
from outlay.guard.supervise import HOLD_NOTE, CommandOutcome, Supervisor
from outlay.handlers import handling
from outlay.ledger import SUPERVISOR, Note, SegmentId
from outlay.ledger.attempts import SegmentLife
from outlay.locks import FileLock, FileLocked
from outlay.pausing.machines import AttemptMachine, MachineHere, MachineUnavailable
from outlay.pausing.pause_plan import (
    PausePlan,
    RunProgress,
    decide_now,
    longest_pause_ns,
    progress_of,
)
from outlay.pausing.price_readings import PriceUnreadable, PriceWatch, ReadPrice
from outlay.policy.situation import Action, PolicyDecision
from outlay.proc.identity import has_ended
from outlay.proc.orphaned_tree import running_trees
from outlay.rates import cost_at_most
from outlay.record.supervision import KEPT, UNAVAILABLE, WAITS
from outlay.store import outlay_home
from outlay.units import Money, Rate

LOCK_NAME: Final = "pausing.lock"
EVENT: Final = "price-decision"
"""The event of a note in the spend log that has a decision and its reason."""
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_LONGEST_END_S: Final = 120
_TICK_S: Final = 0.1
_DELAYS: Final = {"wait": WAITS, "unavailable": UNAVAILABLE, "kept": KEPT}


class AlreadyPausing(OutlayError):
    """Another process starts and pauses the command of a run."""

    def __init__(self, run_dir: Path, holder: str) -> None:
        super().__init__(
            f"{run_dir}: {holder} already starts and pauses this run. Expected one at a time: end "
            "that process, or name another directory with --dir."
        )


class StillRunning(OutlayError):
    """A command of an earlier start does not end."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(
            f"{run_dir}: a command that was started before still runs, although the process that "
            "started it is gone. Nothing was started; try again once it has ended."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PausableCommand:
    """The command of a run, and whose money pays for it.

    Attributes:
        terms: Of each attempt; their rate is that of its start.
        poll_ns: Time between two readings of the price.
    """

    label: str
    lab: str | None
    run_dir: Path
    command: Sequence[str]
    terms: Terms
    poll_ns: int
    max_age_ns: int


class PausingRun:
    """Runs a command to its end, paused and resumed by a plan.

    ``read_price`` reads the price of its offer; ``say`` prints a message for the user.

    Args:
        machine: Where its attempts run; default: here.
    """

    def __init__(
        self,
        guard: BudgetGuard,
        what: PausableCommand,
        plan: PausePlan,
        read_price: ReadPrice,
        *,
        machine: AttemptMachine | None = None,
        clock: Clock = SYSTEM,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._guard = guard
        self._what = what
        self._plan = plan
        self._read_price = read_price
        self._machine = MachineHere() if machine is None else machine
        self._clock = clock
        self._say = say
        self._watch = PriceWatch(max_age_ns=what.max_age_ns)
        self._follower = GoodputFollower(what.run_dir)
        self._pause_hold: Hold | None = None
        self._problem = ""
        self._said_no_room = False
        self._noted: dict[str, str] = {}  # The last reason of each action, while it lasts.
        self._delays: list[Note] = []  # Since the last attempt, for the log of the next one.

    def run(self, environ: Mapping[str, str]) -> CommandOutcome | None:
        """Run it to its end; None if that was reached before.

        Raises:
            AlreadyPausing: Another process does this.
            PriceUnreadable: No price was ever known.
            BudgetGuardExceeded: The room only pays for stopping; nothing was started.
        """
        with self._alone():
            self._end_earlier()
            self._delays = self._unrecorded_delays()
            with handling(_ENDING, _raise_exit):
                try:
                    outcome = self._run_attempts(environ)
                finally:
                    is_free = self._machine.end(is_last=True)
            self._release_pause()
        # A machine that may still cost money keeps its hold.
        return outcome if is_free or outcome is None else replace(outcome, recorded=False)

    def _run_attempts(self, environ: Mapping[str, str]) -> CommandOutcome | None:
        while not self._progress().is_done:
            rate, decision = self._wait_for_start()
            try:
                there = self._machine.start(rate, self._needed_ns())
            except MachineUnavailable as error:
                self._note_once("unavailable", str(error), rate)
                self._noted.pop("wait", None)
                self._clock.sleep(self._what.poll_ns / 1e9)
                continue
            self._noted.clear()
            outcome = self._attempt(rate, decision, {**environ, **there})
            if not outcome.paused_because:
                return outcome
        return None

    def _needed_ns(self) -> int:
        """Return how long a machine may be needed: until the deadline, or if late, amply."""
        run, now_ns = self._progress(), self._clock.wall_ns()
        whole_ns = (run.left_ns or 0) + run.pause.restart_ns
        return max(self._plan.deadline_ns - now_ns, whole_ns * 3 // 2)

    # -- what is known ----------------------------------------------------------------------

    def _view(self) -> RunView | None:
        try:
            return self._follower.view(self._clock.wall_ns())
        except NotARun:
            return None

    def _progress(self) -> RunProgress:
        return progress_on(self._machine, self._view(), self._plan, self._clock.wall_ns())

    def _decide(self, doing: Action) -> tuple[PolicyDecision, RunProgress]:
        """Read the price once more, and return what to do."""
        self._watch = self._watch.read(self._read_price, self._clock.wall_ns())
        if (problem := self._watch.problem) and problem != self._problem:
            self._say(f"no news of its price: {problem}")
        self._problem = problem
        run, now_ns = self._progress(), self._clock.wall_ns()
        return decide_now(self._plan, run, doing, self._watch.news, now_ns), run

    def _note(self, action: str, reason: str, rate: Rate | None) -> None:
        detail = {
            "action": action, "reason": reason, "price": str(rate or "unknown"),
            "dir": self._dir, "at_ns": str(self._clock.wall_ns()),
        }  # fmt: skip
        self._guard.note(EVENT, self._what.label, detail=detail)
        if action in _DELAYS:
            self._delays.append(_delay(detail))

    @property
    def _dir(self) -> str:
        return os.fsencode(self._what.run_dir.resolve()).decode(errors="replace")

    def _unrecorded_delays(self) -> list[Note]:
        """Return the delays that the spend log has and the run's log does not.

        They are those of a process that was killed before it started an attempt.
        """
        view = self._view()
        accounts = () if view is None else view.account.segments.values()
        recorded = {(note.t_ns, note.text) for account in accounts for note in account.notes}
        delays = [
            _delay(line.detail)
            for line in self._guard.log.lines()
            if isinstance(line, Noted) and line.event == EVENT
            and line.detail.get("dir") == self._dir and line.detail["action"] in _DELAYS
        ]  # fmt: skip
        return [note for note in delays if (note.t_ns, note.text) not in recorded]

    def _note_once(
        self, action: str, reason: str, rate: Rate | None, said: str | None = None
    ) -> None:
        """Note and say what may be decided again and again, once until something changes."""
        if self._noted.get(action) != reason:
            self._note(action, reason, rate)
            self._say(f"{action}: {reason}" if said is None else said)
        self._noted[action] = reason

    # -- waiting ----------------------------------------------------------------------------

    def _wait_for_start(self) -> tuple[Rate, PolicyDecision]:
        """Return when it is to start, with its rate and why."""
        while True:
            is_free = self._machine.end()
            decision, run = self._decide(Action.WAIT)
            if not is_free:
                self._note_once("kept", "its machine is not verified gone", run.rate)
            elif decision.action is not Action.WAIT:
                rate = self._rate_now(run)
                said = f"starting it at {rate}: {decision.reason}"
                self._note_once("run", decision.reason, rate, said)
                return rate, decision
            elif self._watch.news is not None:
                said = self._waiting_text(decision)
                self._note_once("wait", decision.reason, self._watch.known, said)
                self._noted.pop("run", None)
            self._clock.sleep(min(self._what.poll_ns, decision.review_ns or 10**18) / 1e9)

    def _waiting_text(self, decision: PolicyDecision) -> str:
        if decision.review_ns is None:
            return f"waiting: {decision.reason}"
        latest = utc_text(self._clock.wall_ns() + decision.review_ns)
        return f"waiting: {decision.reason}; it starts at {latest} at the latest"

    def _rate_now(self, run: RunProgress) -> Rate:
        """Return the latest price; if none can be read, the one that was last known."""
        if self._watch.latest is not None:
            return self._watch.latest.price
        rate = self._watch.known or run.rate
        if rate is None:
            raise PriceUnreadable(self._what.label, self._watch.problem)
        self._say(f"its price cannot be read ({self._watch.problem}): counting {rate}")
        return rate

    # -- an attempt -------------------------------------------------------------------------

    def _attempt(
        self, rate: Rate, decision: PolicyDecision, environ: Mapping[str, str]
    ) -> CommandOutcome:
        what, terms = self._what, replace(self._what.terms, rate=rate)
        watcher = _PauseWatcher(self._due, what.poll_ns / 1e9, self._say)
        supervisor = Supervisor(
            self._guard, what.label, terms, lab=what.lab, run_dir=what.run_dir,
            stopped_price=self._plan.stopped, because=decision.reason, delays=self._delays,
            pause_due=lambda: watcher.reason, clock=self._clock, say=self._say,
            open_hold=self._open_hold(terms),
        )  # fmt: skip
        self._delays = []
        with watcher:
            return supervisor.run(what.command, environ)

    def _open_hold(self, terms: Terms) -> Callable[[], Leaseholder] | None:
        """Return what opens the hold of an attempt that also pays for the time since the last."""
        run = self._progress()
        if run.ended_ns is None or not self._paid_while_stopped:
            return None
        ended_ns, stopped = run.ended_ns, self._plan.stopped
        assert stopped is not None

        def opened() -> Leaseholder:
            spent = cost_at_most(stopped, max(0, self._clock.wall_ns() - ended_ns))
            hold = self._hold_after_pause(spent + terms.opening(), terms.rate)
            holder = Leaseholder.taking_over(self._guard, hold, terms, spent=spent)
            self._release_pause(unless=hold)
            return holder

        return opened

    def _hold_after_pause(self, amount: Money, rate: Rate) -> Hold:
        """Return a new hold, so that that of the longest pause can go; if it fits beside it."""
        try:
            return self._hold(amount, rate)
        except BudgetGuardExceeded:
            if self._pause_hold is None:
                raise
            return self._pause_hold

    def _hold(self, amount: Money, rate: Rate) -> Hold:
        what = self._what
        return self._guard.authorize(what.label, amount, lab=what.lab, rate=rate)

    @property
    def _paid_while_stopped(self) -> bool:
        return self._plan.stopped is not None and self._plan.stopped.micros_per_hour > 0

    def _due(self) -> str:
        """Return why it is to be paused now; the money for the pause is then held."""
        self._machine.look_after()
        decision, run = self._decide(Action.RUN)
        if decision.action is not Action.WAIT or not self._hold_pause(run):
            return ""
        self._note("pause", decision.reason, self._watch.known)
        return decision.reason

    def _hold_pause(self, run: RunProgress) -> bool:
        """Hold what the longest pause can cost; False if that does not fit."""
        stopped = self._plan.stopped
        if stopped is None or not self._paid_while_stopped or self._pause_hold is not None:
            return True
        amount = cost_at_most(stopped, longest_pause_ns(self._plan, run, self._clock.wall_ns()))
        try:
            self._pause_hold = self._hold(amount, stopped)
        except BudgetGuardExceeded as error:
            if not self._said_no_room:
                self._say(f"no pause, since the machine may cost {amount} meanwhile: {error}")
            self._said_no_room = True
            return False
        return True

    def _release_pause(self, *, unless: Hold | None = None) -> None:
        """Release the hold of a pause that is over, or was none."""
        if self._pause_hold is not None and self._pause_hold != unless:
            self._guard.void(self._pause_hold, "the pause is over")
        self._pause_hold = None

    # -- after this process was killed -------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        run_dir = self._what.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        file = open_own(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            lock = FileLock(file, holder=f"process {os.getpid()}\n")
        except FileLocked as error:
            raise AlreadyPausing(run_dir, error.holder.strip() or "another process") from None
        try:
            yield
        finally:
            lock.release()

    def _end_earlier(self) -> None:
        """Wait until the keeper of an earlier start has ended its command; settle its hold."""
        until_ns = self._clock.monotonic_ns() + _LONGEST_END_S * 10**9
        said = False
        while self._runs_still():
            if self._clock.monotonic_ns() > until_ns:
                raise StillRunning(self._what.run_dir)
            if not said:
                self._say("waiting until the command of an earlier start has ended")
                said = True
            self._clock.sleep(_TICK_S)
        self._settle_earlier()

    def _runs_still(self) -> bool:
        run_dir = str(self._what.run_dir)
        trees = running_trees(outlay_home() / "kept")
        return any(tree.about.get("run_dir") == run_dir for tree in trees)

    def _settle_earlier(self) -> None:
        view = self._view()
        named = {} if view is None else _lives_of_holds(view)
        for hold in self._guard.holds():
            if hold.op_label != self._what.label or hold.rental is not None:
                continue
            if (life := named.get(hold.id)) is not None and view is not None:
                self._settle(hold, view.identity.run_id, life.segment)
            elif self._is_pause(hold):
                self._pause_hold = hold
            elif has_ended(hold.by):
                self._say(f"hold {hold.id} of a process that was killed is open: see reconcile")

    def _settle(self, hold: Hold, run_id: str, segment: SegmentId) -> None:
        """Capture the cost of an attempt whose supervisor was killed, by its log."""
        cost = cost_of_attempt(self._what.run_dir, segment, 0, self._guard.unit)
        actual = cost if cost is not None and cost.unit == self._guard.unit else hold.amount
        part = run_part(run_id, segment)
        self._guard.record_actual(self._what.label, actual, hold=hold, part=part)
        self._say(f"{actual} recorded for an attempt whose supervisor was killed")

    def _is_pause(self, hold: Hold) -> bool:
        stopped = self._plan.stopped
        return (
            self._paid_while_stopped
            and self._pause_hold is None
            and stopped is not None
            and hold.rate == stopped.micros_per_hour
            and has_ended(hold.by)
        )


def _delay(detail: Mapping[str, str]) -> Note:
    """Return a decision of the spend log not to start it yet, as its run's log has it."""
    return Note(t_ns=int(detail["at_ns"]), text=f"{_DELAYS[detail['action']]}{detail['reason']}")


def _raise_exit(number: int, _: FrameType | None) -> NoReturn:
    """End this process as a signal does, but end its machine before."""
    raise SystemExit(128 + number)


def progress_on(
    machine: AttemptMachine, view: RunView | None, plan: PausePlan, now_ns: int
) -> RunProgress:
    """Return how far a run is, with what a pause takes on its machine."""
    lives = {} if view is None else _lives_of_holds(view)
    return progress_of(view, plan, now_ns).with_machine(machine.times(lives))


def _lives_of_holds(view: RunView) -> dict[str, SegmentLife]:
    """Return the life of the supervisor of each hold that the run's log names."""
    return {
        note.text.removeprefix(HOLD_NOTE).split(",")[0]: account.life
        for segment, account in view.account.segments.items()
        if segment.rank == SUPERVISOR
        for note in account.notes
        if note.text.startswith(HOLD_NOTE)
    }


class _PauseWatcher:
    """A thread that asks every ``every_s`` whether the command is to be paused.

    Attributes:
        reason: Why it is; empty until then.
    """

    def __init__(self, due: Callable[[], str], every_s: float, say: Callable[[str], None]) -> None:
        self.reason = ""
        self._due = due
        self._every_s = every_s
        self._say = say
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="outlay-price", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self.reason and not self._stopped.wait(self._every_s):
            try:
                self.reason = self._due()
            except (OutlayError, OSError) as error:
                self._say(f"nothing is decided: {error}")
