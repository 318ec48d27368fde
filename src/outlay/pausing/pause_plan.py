"""Whether a command runs or waits now: its plan, and how far its run is by its log. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outlay.budget.report import budget_report
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.reliability import RESTART
from outlay.policy.pauses import pause_cost_of
from outlay.policy.policies import Policy, decide
from outlay.policy.situation import Action, JobTerms, PauseCost, PolicyDecision, Situation
from outlay.units import Rate

_NO_WORK = (ph.PAUSED, ph.RECOVERY, ph.WASTED_PROGRESS, *RESTART)
_UNMEASURED = "its speed is not measured yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePlan:
    """When a command may be paused.

    Attributes:
        deadline_ns: When it is to be done, UTC nanoseconds.
        work_ns: How long it trains, where its log does not tell; None if that is not stated.
        steps: The number of steps after which it is done; None if only its budget tells.
        most_pauses: It is not paused more often.
        stopped: What the machine costs per hour while it is paused; None: its full price.
    """

    policy: Policy
    deadline_ns: int
    work_ns: int | None = None
    steps: int | None = None
    most_pauses: int = 10
    stopped: Rate | None = None

    def frees_at(self, rate: Rate) -> bool:
        """Return whether a pause of a machine at ``rate`` frees any money."""
        return self.stopped is not None and self.stopped.micros_per_hour < rate.micros_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTimes:
    """What a pause takes on top of that of the command itself; None if it was never measured.

    Attributes:
        start_ns: From the order of a machine to the start of its command.
        end_ns: From the end of the command until the machine is verified gone.
    """

    start_ns: int | None = 0
    end_ns: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """How far a run is, as a plan needs it.

    Attributes:
        begun_ns: Its first start; the present if there was none.
        done_ns: Work that will not be repeated, as machine time; ``left_ns`` likewise, None if
            its speed is not known.
        setup_left_ns: Of a start that is under way.
        rate: Of its last attempt; None before the first.
        ended_ns: When its last attempt ended; None before the first, and after it completed.
    """

    begun_ns: int
    done_ns: int = 0
    left_ns: int | None = None
    pause: PauseCost = field(default_factory=PauseCost)
    setup_left_ns: int = 0
    pauses: int = 0
    rate: Rate | None = None
    ended_ns: int | None = None
    is_done: bool = False

    def with_machine(self, times: MachineTimes) -> RunProgress:
        """Return it with a pause that also ends its machine and has another."""
        assumed = self.pause.assumed
        if times.start_ns is None or times.end_ns is None:
            assumed = (*assumed, "renting and ending a machine takes no time: none was measured")
        pause = replace(
            self.pause,
            start_ns=self.pause.start_ns + (times.start_ns or 0),
            save_ns=self.pause.save_ns + (times.end_ns or 0),
            assumed=assumed,
        )
        return replace(self, pause=pause)


def progress_of(view: RunView | None, plan: PausePlan, now_ns: int) -> RunProgress:
    """Return how far a run is by its log; None: it has none yet."""
    if view is None:
        return RunProgress(begun_ns=now_ns, left_ns=plan.work_ns)
    timeline, last = view.timeline, view.timeline.attempts[-1]
    done_ns, left_ns = _work(view, plan)
    pause = pause_cost_of(timeline)
    price = last.header.price
    return RunProgress(
        begun_ns=timeline.start_ns,
        done_ns=done_ns,
        left_ns=left_ns,
        pause=pause,
        setup_left_ns=_setup_left_ns(view, pause, now_ns),
        pauses=sum(attempt.paused for attempt in timeline.attempts),
        rate=None if price is None else price.rate,
        ended_ns=None if last.completed else last.last_sign_ns,
        is_done=last.completed,
    )


def _work(view: RunView, plan: PausePlan) -> tuple[int, int | None]:
    """Return the work done and left, as machine time.

    While nothing runs, steps that are in no checkpoint are still to be done.
    """
    timeline = view.timeline
    phases = timeline.before(timeline.end_ns)
    worked_ns = sum(ns for phase, ns in phases.items() if phase not in _NO_WORK)
    ran, target = _steps(timeline.last_step()), plan.steps or _steps_of_budget(view)
    kept = ran if timeline.alive else _steps(timeline.committed_step())
    if not ran:
        return worked_ns, None if plan.work_ns is None else max(0, plan.work_ns - worked_ns)
    done_ns = worked_ns * kept // ran
    if target is not None:
        return done_ns, worked_ns * max(0, target - kept) // ran
    return done_ns, None if plan.work_ns is None else max(0, plan.work_ns - done_ns)


def _steps(last: int | None) -> int:
    return 0 if last is None else last + 1


def _steps_of_budget(view: RunView) -> int | None:
    report = budget_report(view)
    ahead = None if report is None else report.forecast
    return None if ahead is None else ahead.at_step


def _setup_left_ns(view: RunView, pause: PauseCost, now_ns: int) -> int:
    last = view.timeline.attempt_timelines[-1]
    if not view.timeline.alive or last.last_step_before(None) is not None:
        return 0
    return max(0, pause.start_ns - (now_ns - last.start_ns))


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """Goes on as it is: there is no news."""

    name: str = "no news"
    bounds: None = None

    def choose(self, at: Situation) -> PolicyDecision:
        """Change nothing."""
        return PolicyDecision(action=at.doing, reason="no news of its price")

    def worst_case_ratio(self, job: JobTerms) -> float | None:
        """Return None: it has none."""
        del job
        return None


def decide_now(
    plan: PausePlan, run: RunProgress, doing: Action, news: tuple[Rate, Rate] | None, now_ns: int
) -> PolicyDecision:
    """Return whether it runs or waits now.

    Only two readings of the price that lead to the same decision change what it does, or the
    deadline. ``news`` has both, None if there are not two.
    """
    if run.left_ns is None:
        return PolicyDecision(action=Action.RUN, reason=_UNMEASURED)
    decisions = [decide(plan.policy, _at(plan, run, doing, p, now_ns)) for p in news or ()]
    if len({decision.action for decision in decisions}) != 1:
        return decide(_Unchanged(), _at(plan, run, doing, _ANY, now_ns))
    decision = decisions[-1]
    if doing is Action.RUN and decision.action is Action.WAIT:
        return _allowed(plan, run, decision)
    return decision


_ANY = Rate.parse("1 USD/h")
"""Without news only the deadline decides, and only that there is a price matters."""


def _at(
    plan: PausePlan, run: RunProgress, doing: Action, price: Rate | None, now_ns: int
) -> Situation:
    assert run.left_ns is not None
    job = JobTerms(
        work_ns=max(1, run.done_ns + run.left_ns),
        time_ns=max(1, plan.deadline_ns - run.begun_ns),
        pause=run.pause,
    )
    return Situation(
        job=job,
        work_left_ns=max(1, run.left_ns),  # Its program says when it is done.
        time_left_ns=plan.deadline_ns - now_ns,
        price=price,
        doing=doing,
        setup_left_ns=run.setup_left_ns,
    )


def _allowed(plan: PausePlan, run: RunProgress, pause: PolicyDecision) -> PolicyDecision:
    """Return the pause, or why there is none."""
    if run.pauses >= plan.most_pauses:
        reason = f"it was paused {run.pauses} times already"
    elif run.rate is not None and not plan.frees_at(run.rate):
        kept = "its full price" if plan.stopped is None else plan.stopped
        reason = f"a pause frees nothing: the machine costs {kept} meanwhile"
    else:
        return pause
    return PolicyDecision(action=Action.RUN, reason=reason)


def longest_pause_ns(plan: PausePlan, run: RunProgress, now_ns: int) -> int:
    """Return how long it can wait from now on and still be done in time; 0 if it cannot."""
    return max(0, plan.deadline_ns - now_ns - (run.left_ns or 0) - run.pause.restart_ns)
