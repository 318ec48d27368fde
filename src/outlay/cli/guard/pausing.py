"""``outlay guard run | rent --offers``: a command that is paused and resumed by a price."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from outlay.cli.guard.options import read_rate, say
from outlay.cli.guard.pausing_options import POLICIES, PausingOptions
from outlay.cli.output import print_json, print_sentence
from outlay.clock import SYSTEM, as_utc, utc_text, wall_ns_of
from outlay.errors import InvalidValue, NotARun, choices
from outlay.goodput.follower import read_view
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.gate import read_hold
from outlay.guard.lease import Terms
from outlay.guard.rental.rental import split_command
from outlay.guard.supervise import CommandOutcome
from outlay.pausing.expectation import PriceReplay, job_of, replay
from outlay.pausing.machines import AttemptMachine, AttemptRental, MachineHere, RentalTerms
from outlay.pausing.pause_plan import PausePlan, RunProgress, decide_now
from outlay.pausing.pausing_run import PausableCommand, PausingRun, progress_on
from outlay.pausing.price_readings import (
    PriceReading,
    PriceUnreadable,
    ReadPrice,
    price_in_file,
    price_of_command,
    price_of_offer,
    stored_history,
)
from outlay.policy.policies import AlwaysOn, DoubleThreshold, FixedThreshold, Policy
from outlay.policy.price_history import HISTORY_DAYS, before, bounds_of, double_threshold_for
from outlay.policy.simulation import PriceChange
from outlay.policy.situation import Action, PolicyDecision
from outlay.units import Duration, Rate
from outlay.units.quantity import duration_text
from outlay.units.shown import counted

_HISTORY: Final = Duration.parse("90d")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShown:
    """What a plan would do, as ``--json`` prints it."""

    offer: str
    price: str
    price_age_s: float
    policy: str
    action: str
    reason: str
    deadline: str
    work_left_s: float | None
    pause_s: float
    assumed: tuple[str, ...]
    frees: bool
    worst_case_ratio: float | None
    worst_case_holds: str
    replay: PriceReplay | None


def run_with_pauses(
    guard: BudgetGuard,
    options: PausingOptions,
    terms: Terms,
    *,
    label: str,
    lab: str | None,
    run_dir: Path,
    command: Sequence[str],
    as_json: bool,
    rental: RentalTerms | None = None,
) -> CommandOutcome | None:
    """Show the plan; with ``--act`` run the command to its end, and return how that was.

    ``rental`` says how its machine is rented; None: it runs here.
    """
    read, history = _reader(guard, options), _history(guard, options)
    now_ns = SYSTEM.wall_ns()
    plan = _plan(guard, options, history, now_ns)
    machine: AttemptMachine = MachineHere()
    if rental is not None:
        plan = replace(plan, stopped=guard.unit.rate(0))  # It is ended.
        machine = AttemptRental(guard, rental, terms, os.environ, run_dir=run_dir, say=say)
    run = _progress(machine, run_dir, plan, now_ns)
    if run.left_ns is None and plan.steps is None:
        raise InvalidValue("--work", None, "--work 20h or --steps N: how long it trains")
    _refuse_past(plan, run, now_ns)
    if options.act and rental is None:
        _refuse_useless(guard, plan)
    reading = _first_reading(read, run, act=options.act)
    if isinstance(machine, AttemptRental) and reading is not None:
        machine.check(reading.price)
    if reading is not None:
        shown = _shown(options, plan, run, reading, history, now_ns)
        if as_json and not options.act:
            print_json(shown)
        else:
            for line in _lines(shown, plan, is_rented=rental is not None):
                (say if options.act else print_sentence)(line)
    if not options.act:
        return None
    what = PausableCommand(
        label=label, lab=lab, run_dir=run_dir, command=command, terms=terms,
        poll_ns=Duration.parse(options.poll, name="--poll").ns,
        max_age_ns=Duration.parse(options.max_age, name="--max-age").ns,
    )  # fmt: skip
    return PausingRun(guard, what, plan, read, machine=machine, say=say).run(os.environ)


def _first_reading(read: ReadPrice, run: RunProgress, *, act: bool) -> PriceReading | None:
    """Return the present price; None if a run that has started goes on without it."""
    try:
        return read()
    except PriceUnreadable as error:
        if not act or run.rate is None:
            raise
        say(f"its price cannot be read ({error.reason}); the last one was {run.rate}")
        return None


def _progress(machine: AttemptMachine, run_dir: Path, plan: PausePlan, now_ns: int) -> RunProgress:
    try:
        view = read_view(run_dir, now_ns)
    except NotARun:
        view = None
    return progress_on(machine, view, plan, now_ns)


def _refuse_past(plan: PausePlan, run: RunProgress, now_ns: int) -> None:
    if plan.deadline_ns <= now_ns and run.ended_ns is None and not run.is_done:
        expected = "an instant in the future, such as 2026-12-01T08:00"
        raise InvalidValue("--deadline", utc_text(plan.deadline_ns), expected)


def _refuse_useless(guard: BudgetGuard, plan: PausePlan) -> None:
    """Refuse to pause where a pause frees nothing."""
    if read_hold(os.environ) is not None or guard.rental_here(os.environ) is not None:
        expected = "another machine: this one is rented, and paid for while it is paused"
        raise InvalidValue("--act", "a pause that frees nothing", expected)
    if plan.stopped is None:
        expected = "--pay-per-use or --stopped-price: a machine that is kept costs its full price"
        raise InvalidValue("--act", "a pause that frees nothing", expected)


def _reader(guard: BudgetGuard, options: PausingOptions) -> ReadPrice:
    assert options.offers is not None
    if options.price_file is not None and options.price_command is not None:
        raise InvalidValue("--price-command", options.price_command, "one of it and --price-file")
    if options.price_file is not None:
        return partial(price_in_file, options.price_file, guard.unit)
    if options.price_command is not None:
        words = split_command(options.price_command, name="--price-command")
        return partial(price_of_command, words, guard.unit)
    return partial(price_of_offer, options.offers, guard.unit, os.environ, fetch=options.act)


def _history(guard: BudgetGuard, options: PausingOptions) -> list[PriceChange]:
    assert options.offers is not None
    since_ns = SYSTEM.wall_ns() - _HISTORY.ns
    return stored_history(options.offers, guard.unit, os.environ, since_ns=since_ns)


def _plan(
    guard: BudgetGuard, options: PausingOptions, history: Sequence[PriceChange], now_ns: int
) -> PausePlan:
    return PausePlan(
        policy=_policy(guard, options, history, now_ns),
        deadline_ns=_deadline(options.deadline),
        work_ns=None if options.work is None else Duration.parse(options.work, name="--work").ns,
        steps=options.steps,
        most_pauses=options.pauses,
        stopped=_stopped(guard, options),
    )


def _policy(
    guard: BudgetGuard, options: PausingOptions, history: Sequence[PriceChange], now_ns: int
) -> Policy:
    low, high = (
        None if text is None else read_rate(text, guard, name=name)
        for text, name in ((options.lowest, "--lowest"), (options.highest, "--highest"))
    )
    name = options.policy or POLICIES[0]
    if options.below is not None:
        if options.policy is not None:
            raise InvalidValue("--policy", options.policy, "either --policy or --below")
        below = read_rate(options.below, guard, name="--below")
        return FixedThreshold(below=below, bounds=bounds_of(before(history, now_ns), low, high))
    if name == "always-on":
        return AlwaysOn(bounds=bounds_of(before(history, now_ns), low, high))
    if name != "double-threshold":
        raise InvalidValue("--policy", name, choices(POLICIES))
    policy = double_threshold_for(history, now_ns, low=low, high=high)
    if policy is None:
        expected = (
            "--below, or --lowest and --highest, since no prices of the offer are stored that "
            f"moved in the last {HISTORY_DAYS} days"
        )
        raise InvalidValue("--policy", name, expected)
    return policy


def _stopped(guard: BudgetGuard, options: PausingOptions) -> Rate | None:
    if options.pay_per_use:
        if options.stopped_price is not None:
            expected = "either --stopped-price or --pay-per-use"
            raise InvalidValue("--stopped-price", options.stopped_price, expected)
        return guard.unit.rate(0)
    if options.stopped_price is None:
        return None
    return read_rate(options.stopped_price, guard, name="--stopped-price")


def _deadline(text: str | None) -> int:
    expected = "an instant such as 2026-12-01T08:00; without a zone it is UTC"
    if text is None:
        raise InvalidValue("--deadline", None, expected)
    try:
        return wall_ns_of(as_utc(datetime.fromisoformat(text)))
    except ValueError:
        raise InvalidValue("--deadline", text, expected) from None


# What is printed before it starts.


def _shown(
    options: PausingOptions,
    plan: PausePlan,
    run: RunProgress,
    reading: PriceReading,
    history: Sequence[PriceChange],
    now_ns: int,
) -> PlanShown:
    assert options.offers is not None
    job, price = job_of(plan, run, now_ns), reading.price
    now: PolicyDecision = decide_now(plan, run, Action.WAIT, (price, price), now_ns)
    return PlanShown(
        offer=options.offers,
        price=str(price),
        price_age_s=(now_ns - reading.at_ns) / 1e9,
        policy=plan.policy.name,
        action=str(now.action),
        reason=now.reason,
        deadline=utc_text(plan.deadline_ns),
        work_left_s=None if run.left_ns is None else run.left_ns / 1e9,
        pause_s=run.pause.total_ns / 1e9,
        assumed=run.pause.assumed if run.rate else ("a pause costs no time: no start is recorded",),
        frees=plan.frees_at(price),
        worst_case_ratio=None if job is None else plan.policy.worst_case_ratio(job),
        worst_case_holds=_premise(plan.policy),
        replay=None if job is None else replay(plan, history, job),
    )


def _premise(policy: Policy) -> str:
    """Return for which prices the worst case of a policy holds; empty if it has none."""
    if policy.bounds is None:
        return ""
    found = f"for prices from {policy.bounds.low} to {policy.bounds.high}"
    if isinstance(policy, (FixedThreshold, DoubleThreshold)):
        found += f" that hold for {duration_text(policy.unit_ns)}"
    return found


def _lines(shown: PlanShown, plan: PausePlan, *, is_rented: bool) -> list[str]:
    left = "unknown" if shown.work_left_s is None else _seconds(shown.work_left_s)
    doing = "run" if shown.action == Action.RUN else "wait"
    return [
        f"{shown.offer}: {shown.price}, {_seconds(shown.price_age_s)} old; {shown.policy}: it "
        f"would {doing} now, since {shown.reason}",
        f"work left: {left}; deadline: {shown.deadline}; a pause costs {_seconds(shown.pause_s)}"
        + "".join(f"; assumed: {each}" for each in shown.assumed),
        _PAUSED_RENTED if is_rented else _paused_line(shown, plan),
        _replay_line(shown),
    ]


_PAUSED_RENTED: Final = (
    "while paused it costs nothing: its machine is ended, and is paid for until verified gone"
)


def _paused_line(shown: PlanShown, plan: PausePlan) -> str:
    if plan.stopped is None:
        cost = "its full price: paused, machine kept"
    else:
        cost = str(plan.stopped) if plan.stopped.micros_per_hour else "nothing: pay per use"
    return f"while paused it costs {cost}" + ("" if shown.frees else "; a pause frees nothing")


def _replay_line(shown: PlanShown) -> str:
    ratio = shown.worst_case_ratio
    worst = "no worst case is known" if ratio is None else (
        f"at worst {ratio:.2f} x the best possible, {shown.worst_case_holds}"
    )  # fmt: skip
    found = shown.replay
    if found is None:
        return f"no stored prices to replay it on; {worst}"
    late = f"; late in {found.late}" if found.late else ""
    return (
        f"replayed from {counted(found.starts, 'start')} in {found.days:,.0f} days of stored "
        f"prices: would have cost {found.cost} instead of {found.always_on}, done "
        f"{duration_text(found.later_ns)} later{late}; {worst}"
    )


def _seconds(seconds: float) -> str:
    return duration_text(max(0, round(seconds * 1e9)))
