"""Evaluation of alert rules: a pure function of rules, evidence and marks of the last round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, assert_never

import msgspec

from outlay.alerts.evidence import Evidence
from outlay.alerts.rules import WatchRule
from outlay.cost.thresholds import percent_used
from outlay.prices.alerts import AlertKind
from outlay.runs.collect import silence_text
from outlay.runs.reading import RunReading
from outlay.store.run_row import RunRow
from outlay.units.quantity import duration_text

Severity = Literal["warning", "error"]


class RaisedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert whose condition holds now.

    Attributes:
        key: Identifies the alert: it is sent once until it clears.
        subject: The run's directory, the model, the spend log or the machine.
        implied: A higher threshold of the same subject holds, too: this one is not sent.
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
    """A run's GPU busy time at an instant, and whether they were idle in the window before it."""

    t_ns: int
    busy_ns: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The active alerts, and the marks for the next evaluation."""

    alerts: tuple[RaisedAlert, ...]
    marks: Mapping[str, BusyMark]


def evaluate_rules(
    rules: Sequence[WatchRule], evidence: Evidence, marks: Mapping[str, BusyMark]
) -> Evaluation:
    """Return the active alerts; ``marks`` are those of the last evaluation."""
    found: dict[str, RaisedAlert] = {}
    new_marks: dict[str, BusyMark] = {}
    for rule in rules:
        if rule.when == "gpus_idle":
            new_marks |= _marked(rule, evidence, marks)
        for alert in _alerts(rule, evidence, new_marks):
            found[alert.key] = _merged(found.get(alert.key), alert)
    return Evaluation(tuple(found.values()), new_marks)


def _merged(known: RaisedAlert | None, alert: RaisedAlert) -> RaisedAlert:
    """Merge alerts of the same key: one that is sent wins, targets are joined."""
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
        case "unclaimed":
            yield from _unclaimed(rule, evidence)
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


def _alert(
    rule: WatchRule,
    subject: str,
    text: str,
    *,
    key: str = "",
    severity: Severity = "warning",
    value: float | None = None,
    limit: float | None = None,
) -> RaisedAlert:
    return RaisedAlert(
        key=key or f"{rule.terms} {subject}", when=rule.when, text=text, subject=subject,
        severity=severity, value=value, limit=limit, to=rule.to,
    )  # fmt: skip


def _thresholds(rule: WatchRule, subject: str, used: float, sentence: str) -> Iterator[RaisedAlert]:
    """Yield an alert for each reached threshold; only the highest is sent."""
    reached = [percent for percent in rule.percents if used >= float(percent)]
    for percent in reached:
        key = f"{rule.when} {percent.normalize():f}% {subject}"
        severity: Severity = "error" if percent >= Decimal(100) else "warning"
        limit = float(percent)
        found = _alert(rule, subject, sentence, key=key, severity=severity, value=used, limit=limit)
        yield msgspec.structs.replace(found, implied=percent != reached[-1])


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
            text = (
                f"{each.model} will have cost {whole} when its runs stop (estimated); "
                f"its budget is {each.limit}"
            )
            value, limit = float(whole.amount), float(each.limit.amount)
            yield _alert(rule, each.model, text, value=value, limit=limit)


def _burn(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    assert rule.rate is not None
    for burn in evidence.now.burn:
        limit = rule.rate.per_hour.as_kind(burn.kind)
        if burn.currency == limit.currency and burn.per_hour > limit:
            text = f"{burn} are burnt now, more than {rule.rate} ({evidence.now.text})"
            value = float(burn.per_hour.amount)
            yield _alert(rule, burn.kind, text, value=value, limit=float(limit.amount))


def _silent(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    live: list[RunRow] = [run.figures for run in evidence.live.runs]
    for run in (*live, *evidence.dead):
        silent_ns = evidence.t_ns - run.last_seen_ns
        if silent_ns >= rule.lasting.ns:
            yield _lasting(rule, run.dir, silence_text(run), silent_ns, severity="error")


def _stalls(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for run in evidence.live.runs:
        at_ns = _last_step_ns(run)
        if at_ns is not None and (passed_ns := evidence.t_ns - at_ns) >= rule.lasting.ns:
            passed = duration_text(passed_ns)
            text = f"{run.figures.name} is alive and has not finished a step for {passed}"
            yield _lasting(rule, run.figures.dir, text, passed_ns)


def _last_step_ns(run: RunReading) -> int | None:
    """Return when the last attempt finished its last step, else began; None without any step."""
    last = run.view.timeline.attempts[-1]
    if not run.view.account.work.steps:
        return None  # A command that records no steps.
    ends = (run.view.account.segments[rank] for rank in last.ranks)
    steps = (int(each.steps.end[-1]) for each in ends if each.step_count)
    return max(steps, default=last.header.t_ns)


def _goodput(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    (least,) = rule.percents
    for run in evidence.live.runs:
        share, figures = run.figures.goodput, run.figures
        if share is None or figures.wall_ns < rule.lasting.ns or share * 100 >= float(least):
            continue
        text = f"{figures.name} was productive for {share:.0%} of its time, below {least} %"
        yield _alert(rule, figures.dir, text, value=share * 100, limit=float(least))


def _mark_key(rule: WatchRule, run: RunReading) -> str:
    return f"{rule.terms} {run.figures.dir}"


def _marked(
    rule: WatchRule, evidence: Evidence, marks: Mapping[str, BusyMark]
) -> dict[str, BusyMark]:
    """Return marks of runs with GPU measurements; a mark is renewed after ``rule.lasting``."""
    (least,) = rule.percents
    found = {}
    for run in evidence.live.runs:
        figures = run.figures
        if not (figures.gpu_busy_ns or figures.energy_mj):
            continue  # Its GPUs are not measured.
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
            idle = f"were idle for {rule.lasting} or more while its process is alive"
            text = f"the GPUs of {run.figures.name} {idle}"
            yield _alert(rule, run.figures.dir, text, limit=float(rule.percents[0]))


def _without_run(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for machine in evidence.machines:
        passed_ns = evidence.t_ns - machine.since_ns
        if not machine.has_run and passed_ns >= rule.lasting.ns:
            rate = f" at {machine.rate}" if machine.rate else ""
            passed = duration_text(passed_ns)
            text = f"{machine.name} is paid for{rate}, and had no run for {passed}"
            yield _lasting(rule, machine.name, text, passed_ns, severity="error")


def _unclaimed(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for machine in evidence.now.unclaimed:
        passed_ns = evidence.t_ns - machine.since_ns
        if passed_ns >= rule.lasting.ns:
            rate = "".join(f" at {each}" for each in machine.burn)
            claim = f"outlay team claim {machine.source}/{machine.id}"
            text = f"{machine.shown}{rate} is claimed by nobody; `{claim}` says whose it is"
            subject = f"{machine.source}/{machine.id}"
            yield _lasting(rule, subject, text, passed_ns, severity="error")


def _lasting(
    rule: WatchRule, subject: str, text: str, passed_ns: int, severity: Severity = "warning"
) -> RaisedAlert:
    """Return an alert about a condition that has lasted for ``passed_ns``."""
    value, limit = passed_ns / 1e9, rule.lasting.seconds
    return _alert(rule, subject, text, severity=severity, value=value, limit=limit)


def _price_drops(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    (least,) = rule.percents
    for change in evidence.price_changes:
        series = change.series
        if change.kind is AlertKind.SURGE or -change.change_percent < float(least):
            continue
        if rule.gpu and rule.gpu.casefold() not in series.gpu.casefold():
            continue
        key = f"{rule.terms} {series.provider} {series.gpu} {series.label} {change.at_ns}"
        prices = f"from {change.previous}/h to {change.current}/h"
        text = f"{series.gpu} at {series.provider} fell {prices}"
        value = float(change.current.amount)
        yield _alert(rule, series.gpu, text, key=key, value=value, limit=float(least))


def _overdue(rule: WatchRule, evidence: Evidence) -> Iterator[RaisedAlert]:
    for each in evidence.overdue:
        rental = each.hold.rental
        assert rental is not None
        text = (
            f"{each.hold.resource or rental.name} ({each.hold.op_label}) should have ended at "
            f"{rental.deadline} and is still billed at {rental.rate}"
        )
        key = f"overdue {each.hold.id}"
        yield _alert(rule, str(each.log_path), text, key=key, severity="error")


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
