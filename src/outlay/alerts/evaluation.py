"""Which rules hold now: a pure function of the rules, the evidence and what was seen before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, assert_never

import msgspec

from outlay.alerts.evidence import Evidence, MachineEvidence
from outlay.alerts.rules import WatchRule
from outlay.clock import utc_text
from outlay.cost.compare import percent_used
from outlay.prices.alerts import AlertKind
from outlay.runs.collect import total_burn
from outlay.runs.reading import RunReading
from outlay.units.quantity import duration_text

Severity = Literal["warning", "error"]


class RaisedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that holds now and that somebody asked to be told of.

    Attributes:
        key: What tells it apart: the same key is the same alert until it clears.
        subject: The run's directory, the model, the spend log or the machine.
        implied: A higher threshold of the same subject holds, too: nobody is told of this one.
    """

    key: str
    when: str
    text: str
    subject: str
    severity: Severity = "warning"
    value: float | None = None
    limit: float | None = None
    to: tuple[str, ...] = ()
    implied: bool = False


class BusyMark(msgspec.Struct, frozen=True):
    """How long a run's GPUs had been busy at an instant, and whether they idled before it."""

    t_ns: int
    busy_ns: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The alerts that hold, and the marks that the next evaluation needs."""

    alerts: tuple[RaisedAlert, ...]
    marks: Mapping[str, BusyMark]


def evaluate_rules(
    rules: Sequence[WatchRule], evidence: Evidence, marks: Mapping[str, BusyMark]
) -> Evaluation:
    """Return every alert that holds by the evidence; ``marks`` are those of the last evaluation."""
    found: dict[str, RaisedAlert] = {}
    new_marks: dict[str, BusyMark] = {}
    for rule in rules:
        if rule.when == "gpus_idle":
            new_marks |= _marked(rule, evidence, marks)
        for alert in _alerts(rule, evidence, new_marks):
            found[alert.key] = _merged(found.get(alert.key), alert)
    return Evaluation(tuple(found.values()), new_marks)


def _merged(known: RaisedAlert | None, alert: RaisedAlert) -> RaisedAlert:
    """Return what two rules of the same terms say about a subject: one alert, told to both."""
    if known is None:
        return alert
    if known.implied != alert.implied:
        return alert if known.implied else known
    return msgspec.structs.replace(alert, to=tuple(dict.fromkeys((*known.to, *alert.to))))


def _alerts(
    rule: WatchRule, evidence: Evidence, marks: Mapping[str, BusyMark]
) -> Iterator[RaisedAlert]:
    match rule.when:
        case "budget":
            yield from _budgets(rule, evidence)
        case "forecast":
            yield from _forecasts(rule, evidence)
        case "burn":
            yield from _burn(rule, evidence)
        case "silent":
            yield from _silent(rule, evidence)
        case "stall":
            yield from _stalls(rule, evidence)
        case "goodput":
            yield from _goodput(rule, evidence)
        case "gpus_idle":
            yield from _idle(rule, evidence, marks)
        case "no_run":
            yield from _without_run(rule, evidence)
        case "price_drop":
            yield from _price_drops(rule, evidence)
        case "overdue":
            yield from _overdue(rule, evidence)
        case "ceiling":
            yield from _ceilings(rule, evidence)
        case "digest":
            return
        case _:
            assert_never(rule.when)


def _thresholds(rule: WatchRule, subject: str, used: float, sentence: str) -> Iterator[RaisedAlert]:
    """Yield an alert for each threshold that is reached; the highest one is told."""
    reached = [percent for percent in rule.percents if used >= float(percent)]
    for percent in reached:
        yield RaisedAlert(
            key=f"{rule.when} {percent.normalize():f}% {subject}",
            when=rule.when,
            text=sentence,
            subject=subject,
            severity="error" if percent >= Decimal(100) else "warning",
            value=used,
            limit=float(percent),
            to=rule.to,
            implied=percent != reached[-1],
        )


def _budgets(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for run in evidence.live.runs:
        if run.budget_used:
            limit, share = run.budget_used
            text = f"{run.figures.name} has used {share:.0%} of its budget ({limit})"
            yield from _thresholds(rule, run.figures.dir, share * 100, text)
    for stop in evidence.stops:
        yield from _thresholds(rule, stop.dir, 100.0, stop.text)
    for each in evidence.budgets:
        used = percent_used(each.spent, each.limit)
        text = f"{each.spent} of the {each.limit} for {each.model} are spent"
        yield from _thresholds(rule, each.model, used, text)


def _forecasts(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for each in evidence.budgets:
        whole = each.spent + each.to_come
        if whole > each.limit:
            yield RaisedAlert(
                key=f"forecast {each.model}", when=rule.when, subject=each.model, to=rule.to,
                text=f"{each.model} will have cost {whole} when its runs stop (estimated); "
                f"its budget is {each.limit}",
                value=float(whole.amount), limit=float(each.limit.amount),
            )  # fmt: skip


def _burn(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    assert rule.rate is not None
    limit = rule.rate.per_hour
    for burn in total_burn(run.figures for run in evidence.live.runs):
        if burn.money.currency == limit.currency and burn.money > limit:
            yield RaisedAlert(
                key=f"{rule.terms} {burn.kind}", when=rule.when, subject=burn.kind,
                text=f"live runs burn {burn}, more than {limit}/h",
                value=float(burn.money.amount), limit=float(limit.amount), to=rule.to,
            )  # fmt: skip


def _silent(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    lives = [(r.figures.dir, r.figures.name, r.figures.last_seen_ns) for r in evidence.live.runs]
    for directory, name, at_ns in (
        *lives,
        *((r.dir, r.name, r.last_seen_ns) for r in evidence.dead),
    ):
        silent_ns = evidence.t_ns - at_ns
        if silent_ns >= rule.lasting.ns:
            yield RaisedAlert(
                key=f"{rule.terms} {directory}", when=rule.when, subject=directory,
                severity="error",
                text=f"{name} gave no sign of life since {utc_text(at_ns)} and recorded no end",
                value=silent_ns / 1e9, limit=rule.lasting.seconds, to=rule.to,
            )  # fmt: skip


def _stalls(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for run in evidence.live.runs:
        at_ns = _last_step_ns(run)
        if at_ns is not None and evidence.t_ns - at_ns >= rule.lasting.ns:
            passed = duration_text(evidence.t_ns - at_ns)
            yield RaisedAlert(
                key=f"{rule.terms} {run.figures.dir}", when=rule.when, subject=run.figures.dir,
                text=f"{run.figures.name} is alive and has not finished a step for {passed}",
                value=(evidence.t_ns - at_ns) / 1e9, limit=rule.lasting.seconds, to=rule.to,
            )  # fmt: skip


def _last_step_ns(run: RunReading) -> int | None:
    """Return when the last attempt finished its last step, or began; None without any step."""
    last = run.view.timeline.attempts[-1]
    if not run.view.account.work.steps:
        return None  # A command that records none.
    ends = (run.view.account.segments[rank] for rank in last.ranks)
    steps = (int(each.steps.end[-1]) for each in ends if each.step_count)
    return max(steps, default=last.header.t_ns)


def _goodput(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    (least,) = rule.percents
    for run in evidence.live.runs:
        share, figures = run.figures.goodput, run.figures
        if share is None or figures.wall_ns < rule.lasting.ns or share * 100 >= float(least):
            continue
        yield RaisedAlert(
            key=f"{rule.terms} {figures.dir}", when=rule.when, subject=figures.dir,
            text=f"{figures.name} was productive for {share:.0%} of its time, below {least} %",
            value=share * 100, limit=float(least), to=rule.to,
        )  # fmt: skip


def _mark_key(rule: WatchRule, run: RunReading) -> str:
    return f"{rule.terms} {run.figures.dir}"


def _marked(
    rule: WatchRule, evidence: Evidence, marks: Mapping[str, BusyMark]
) -> dict[str, BusyMark]:
    """Return the marks of runs whose GPUs are measured; a mark is renewed after the rule's time."""
    (least,) = rule.percents
    found = {}
    for run in evidence.live.runs:
        figures = run.figures
        if not (figures.gpu_busy_ns or figures.energy_mj):
            continue  # Nobody looks at its GPUs.
        now = BusyMark(figures.last_seen_ns, figures.gpu_busy_ns)
        before = marks.get(_mark_key(rule, run), now)
        passed_ns = now.t_ns - before.t_ns
        if passed_ns >= rule.lasting.ns > 0:
            busy = (now.busy_ns - before.busy_ns) / passed_ns
            before = msgspec.structs.replace(now, idle=busy * 100 < float(least))
        found[_mark_key(rule, run)] = before
    return found


def _idle(
    rule: WatchRule, evidence: Evidence, marks: Mapping[str, BusyMark]
) -> Iterator[RaisedAlert]:
    for run in evidence.live.runs:
        mark = marks.get(_mark_key(rule, run))
        if mark is not None and mark.idle:
            yield RaisedAlert(
                key=_mark_key(rule, run), when=rule.when, subject=run.figures.dir,
                text=f"the GPUs of {run.figures.name} were idle for {rule.lasting} or more "
                "while its process lives",
                limit=float(rule.percents[0]), to=rule.to,
            )  # fmt: skip


def _without_run(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for machine in evidence.machines:
        if not machine.has_run and evidence.t_ns - machine.since_ns >= rule.lasting.ns:
            yield RaisedAlert(
                key=f"{rule.terms} {machine.name}", when=rule.when, subject=machine.name,
                severity="error", text=_no_run_text(machine, evidence.t_ns),
                value=(evidence.t_ns - machine.since_ns) / 1e9, limit=rule.lasting.seconds,
                to=rule.to,
            )  # fmt: skip


def _no_run_text(machine: MachineEvidence, now_ns: int) -> str:
    rate = f" at {machine.rate}" if machine.rate else ""
    passed = duration_text(now_ns - machine.since_ns)
    return f"{machine.name} is paid for{rate}, and no run was seen on it for {passed}"


def _price_drops(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    (least,) = rule.percents
    for change in evidence.price_changes:
        series = change.series
        if change.kind is AlertKind.SURGE or -change.change_percent < float(least):
            continue
        if rule.gpu and rule.gpu.casefold() not in series.gpu.casefold():
            continue
        yield RaisedAlert(
            key=f"{rule.terms} {series.provider} {series.gpu} {series.label} {change.at_ns}",
            when=rule.when, subject=series.gpu, to=rule.to,
            text=f"{series.gpu} at {series.provider} fell from {change.previous}/h "
            f"to {change.current}/h",
            value=float(change.current.amount), limit=float(least),
        )  # fmt: skip


def _overdue(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for each in evidence.overdue:
        rental = each.hold.rental
        assert rental is not None
        yield RaisedAlert(
            key=f"overdue {each.hold.id}", when=rule.when, subject=str(each.log_path),
            severity="error", to=rule.to,
            text=f"{each.hold.resource or rental.name} ({each.hold.op_label}) should have ended at "
            f"{rental.deadline} and bills on at {rental.rate}",
        )  # fmt: skip


def _ceilings(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for guard in evidence.live.guards:
        for standing in guard.standings:
            committed = standing.captured + standing.held
            used = percent_used(committed, standing.limit)
            text = (
                f"{committed} of the {standing.limit} for {standing.scope} are spent or held "
                f"({guard.log_path})"
            )
            subject = f"{guard.log_path} {standing.scope}"
            yield from _thresholds(rule, subject, used, text)
