"""What has to be true before a launch: checked by machine where it can be, asked for elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outlay.clock import utc_text, wall_ns_of
from outlay.errors import InvalidValue
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.documents import (
    ALERT_PERCENT,
    AUTO_TERMINATION,
    HEADROOM_PERCENT,
    alert_of,
    needed_for,
)
from outlay.guard.entries import Noted, parse_timestamp
from outlay.guard.lease import Terms
from outlay.guard.policy import Standing
from outlay.guard.reap import Census
from outlay.guard.scopes import WHOLE, Scope, lab_of
from outlay.guard.stale import why_stale
from outlay.units import Money, Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the checklist.

    Attributes:
        name: What to confirm it by.
        passed: None when a machine can't tell, so that a person has to.
        text: What was found, or what to look at.
    """

    name: str
    passed: bool | None
    text: str

    def confirmed(self, names: Iterable[str]) -> Check:
        """Return the check, passed if a person confirmed what no machine could tell."""
        if self.passed is not None or self.name not in names:
            return self
        return Check(name=self.name, passed=True, text=f"{self.text} (confirmed)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What is about to be launched."""

    label: str
    estimate: Money
    rate: Rate | None = None
    lab: str | None = None


def preflight(
    guard: BudgetGuard, flight: Flight, *, now_ns: int, census: Census | None = None
) -> tuple[Check, ...]:
    """Return every check, in the order of the checklist. Launches and writes nothing."""
    lab = lab_of(flight.label, flight.lab)
    standings = {row.scope: row for row in guard.standings(lab=lab)}
    lab_row = standings.get(Scope("lab", lab))
    cap = lab_row.limit if lab_row else standings[WHOLE].limit
    paces = [row for row in standings.values() if row.scope.kind in ("day", "month")]
    return (
        _log(guard),
        _ceiling(guard),
        _headroom(standings[WHOLE], flight.estimate),
        _lab(lab, lab_row, flight.estimate),
        *(_fits(row, flight.estimate) for row in paces),
        _stale(guard, now_ns),
        _others(census),
        _alert(lab, cap),
        _timer(flight, cap),
        Check(
            name="instance-type",
            passed=None,
            text="the instance has the GPUs, and the price, that the estimate assumes",
        ),
        Check(name="start", passed=True, text=f"start {utc_text(now_ns)}"),
    )


def _log(guard: BudgetGuard) -> Check:
    verification = guard.verify()
    doubts = "; ".join(str(finding) for finding in verification.findings)
    text = f"the spend log's {verification.lines} lines are as they were written"
    return Check(name="log", passed=verification.sound, text=doubts or text)


def _ceiling(guard: BudgetGuard) -> Check:
    raised = [finding for finding in guard.findings() if finding.severity == "warning"]
    text = f"the ceiling is {guard.ceilings.whole}"
    if not raised:
        return Check(name="ceiling", passed=True, text=text)
    return Check(name="ceiling", passed=None, text=f"{text}, and {raised[-1].message}: on purpose?")


def _headroom(whole: Standing, estimate: Money) -> Check:
    needed = needed_for(estimate)
    text = f"{whole.remaining} remaining; the estimate and {HEADROOM_PERCENT} % are {needed}"
    return Check(name="headroom", passed=whole.remaining >= needed, text=text)


def _lab(lab: str, row: Standing | None, estimate: Money) -> Check:
    if row is None:
        return Check(name="lab", passed=True, text=f"lab {lab} has no cap of its own")
    return _fits(row, estimate)


def _fits(row: Standing, estimate: Money) -> Check:
    text = f"{row.scope} has {row.remaining} of {row.limit} left; the estimate is {estimate}"
    return Check(name=row.scope.kind, passed=row.remaining >= estimate, text=text)


def _stale(guard: BudgetGuard, now_ns: int) -> Check:
    stale = [hold for hold in guard.holds() if why_stale(hold, now_ns)]
    names = ", ".join(f"{hold.id} ({hold.op_label}, {hold.amount})" for hold in stale)
    text = f"settle these with `outlay guard reconcile`: {names}" if stale else "no stale holds"
    return Check(name="stale-holds", passed=not stale, text=text)


def _others(census: Census | None) -> Check:
    if census is None:
        text = "the vendor's console shows no other instance running"
        return Check(name="others", passed=None, text=text)
    if census.findings:
        return Check(name="others", passed=None, text=f"{census.findings[0]}; look at the console")
    names = ", ".join(f"{row.name or row.id} ({row.state})" for row in census.rows)
    text = f"already running: {names}" if names else "the vendor runs nothing else"
    return Check(name="others", passed=not names, text=text)


def _alert(lab: str, cap: Money) -> Check:
    share = f"{ALERT_PERCENT} % of {cap}, lab {lab}"
    text = f"the vendor's budget alert is set at {alert_of(cap)} ({share})"
    return Check(name="alert", passed=None, text=text)


def _timer(flight: Flight, cap: Money) -> Check:
    text = f"the vendor's auto-termination is set at {AUTO_TERMINATION}"
    if flight.rate is None:
        return Check(name="auto-termination", passed=None, text=text)
    cost = Terms(rate=flight.rate).cost(AUTO_TERMINATION.ns)
    if cost > cap:
        text = f"{AUTO_TERMINATION} at {flight.rate} are {cost}, more than {cap}: set it shorter"
        return Check(name="auto-termination", passed=False, text=text)
    text += f" ({cost} at {flight.rate}, within {cap})"
    return Check(name="auto-termination", passed=None, text=text)


def cost_since_start(guard: BudgetGuard, label: str, rate: Rate, *, now_ns: int) -> Money:
    """Return what an operation cost by now: the time since its last preflight, at a rate.

    Raises:
        InvalidValue: No preflight of this label recorded a start, or it lies ahead.
    """
    starts = [
        line.detail["start"]
        for line in guard.log.lines()
        if isinstance(line, Noted)
        and (line.event, line.op_label) == ("preflight", label)
        and "start" in line.detail
    ]
    if not starts:
        raise InvalidValue("label", label, "an operation whose start a preflight recorded")
    elapsed_ns = now_ns - wall_ns_of(parse_timestamp(starts[-1]))
    if elapsed_ns < 0:
        raise InvalidValue("label", label, f"a start in the past; it is {starts[-1]}")
    return Terms(rate=rate).cost(elapsed_ns)


def postflight(guard: BudgetGuard, label: str, *, census: Census | None) -> tuple[Check, ...]:
    """Return whether everything of a label was ended and settled."""
    books = guard.log.books()
    open_holds = [hold for hold in books.open.values() if hold.op_label == label]
    names = ", ".join(f"{hold.id} ({hold.amount})" for hold in open_holds)
    settled = Check(
        name="settled",
        passed=not open_holds,
        text=f"still open: {names}" if open_holds else f"nothing of {label} is held any more",
    )
    rented = [hold for hold in books.rentals.values() if hold.op_label == label]
    not_gone = [hold.id for hold in rented if hold.state != "gone"]
    proofs = Check(
        name="gone",
        passed=(not not_gone) if rented else None,
        text=f"not seen to be gone: {', '.join(not_gone)}"
        if not_gone
        else "everything rented was seen to be gone"
        if rented
        else "the vendor's console shows the instance terminated",
    )
    return (settled, proofs) if census is None else (settled, proofs, _others(census))
