"""The guard's decisions: what each request appends to the log, and its answer. Pure.

They take the fold as it is under the lock; if one raises, nothing is written. What each raises is
stated by the method of ``BudgetGuard`` that calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypedDict

import msgspec

from outlay.errors import Finding, InvalidValue
from outlay.guard.balance import (
    ACCEPTED,
    RAISED,
    Books,
    Ceilings,
    Hold,
    ScopeStanding,
    namesakes_text,
    room,
    shortfalls,
    stated_day,
)
from outlay.guard.chain import MissingLine
from outlay.guard.entries import (
    SCHEMA,
    WHOLE,
    Answer,
    AnyEntry,
    AnyLine,
    Captured,
    Corrected,
    Decision,
    Extended,
    Held,
    Noted,
    Rental,
    RunPart,
    Simple,
    Voided,
    amount_of,
    lab_of,
    micros_of,
    scopes_of,
    timestamp,
)
from outlay.guard.errors import (
    BudgetGuardExceeded,
    KeyReused,
    NamesakeListed,
    RentalAlive,
    RentalUnattended,
    UnknownHold,
)
from outlay.rates import cost_at_most
from outlay.units import Duration, Money, Rate


class Stamp(TypedDict):
    """The fields that all lines of one moment share."""

    v: int
    ts: str
    op_label: str
    currency: str
    ceiling: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The time of a decision, and the limits in force.

    Attributes:
        currency: Of the ceiling and of every line.
        limits: None if they can't be parsed; spend is recorded all the same.
    """

    wall_ns: int
    currency: str
    limits: Ceilings | None

    @property
    def ts(self) -> str:
        """The time as lines state it."""
        return timestamp(self.wall_ns)

    @property
    def ceilings(self) -> Ceilings:
        """The limits in force, without which no money is held."""
        assert self.limits is not None
        return self.limits

    def day(self, books: Books) -> str:
        """Return the UTC day on which money counts: never before the log's latest."""
        return max(self.ts[:10], books.latest_day)

    def stamp(self, op_label: str) -> Stamp:
        """Return the shared fields of a line about an operation."""
        ceiling = None if self.limits is None else amount_of(self.limits.whole.micros)
        return {
            "v": SCHEMA,
            "ts": self.ts,
            "op_label": op_label,
            "currency": self.currency,
            "ceiling": ceiling,
        }


def noting_raise(books: Books, moment: Moment, decision: Decision[Answer]) -> Decision[Answer]:
    """Return a decision that first notes a ceiling above that of the last line, if there is one."""
    limits, before = moment.limits, books.ceiling_micros
    if before is None and limits is not None and limits.over is not None:
        before = limits.over.micros
    if not decision.entries or limits is None or before is None or limits.whole.micros <= before:
        return decision
    after = amount_of(limits.whole.micros)
    detail = {"from": str(amount_of(before)), "to": str(after), "by": limits.by}
    raised = Noted(**moment.stamp(""), event=RAISED, detail=detail)
    return Decision((raised, *decision.entries), decision.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequest:
    """A request to hold money.

    Attributes:
        least: If ``amount`` does not fit, hold what fits, but no less than this.
    """

    hold: str
    op_label: str
    lab: str
    amount: Money
    least: Money | None
    key: str
    by: str
    rental: Rental | None


def authorize(
    books: Books,
    moment: Moment,
    request: HoldRequest,
    *,
    unattended: Mapping[str, str],
) -> Decision[Hold]:
    """Open a hold, or return the one that the same key was granted before.

    ``unattended`` maps the holds of unattended rentals to the reason; each blocks its own lab.
    """
    if request.key and (granted := books.grant(request.key)):
        return Decision((), _earlier_grant(granted, request))
    day, lab = moment.day(books), request.lab
    for hold_id, why in unattended.items():
        if (other := books.hold(hold_id)).lab == lab:
            raise RentalUnattended(lab, hold_id, other.op_label, why)
    for each in books.with_namesakes():
        if each.lab == lab:
            raise NamesakeListed(namesakes_text(each))
    amount = _fitting(books, moment, (lab, day), request.amount, request.least)
    held = Held(
        **moment.stamp(request.op_label),
        estimated=amount_of(amount.micros),
        hold=request.hold,
        lab=lab,
        day=day,
        key=request.key,
        rental=request.rental,
        by=request.by,
        caps=_caps(moment.ceilings, lab, day),
    )
    return Decision((held,), Hold.opened_by(held))


def extend(
    books: Books, moment: Moment, hold_id: str, more: Money, least: Money | None
) -> Decision[Hold]:
    """Extend an open hold; the extension counts on the hold's own day.

    If ``more`` does not fit, what fits is held, but no less than ``least``.
    """
    hold = books.hold(hold_id)
    more = _fitting(books, moment, (hold.lab, hold.day), more, least)
    extended = Extended(
        **moment.stamp(hold.op_label),
        estimated=amount_of(more.micros),
        hold=hold.id,
        caps=_caps(moment.ceilings, hold.lab, hold.day),
    )
    grown = replace(hold, amount=hold.amount + more)
    return Decision((extended,), grown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """An actual spend; ``hold`` is None for the label's oldest open one."""

    op_label: str
    actual: Money
    hold: str | None
    key: str
    basis: str
    part: RunPart | None = None


def record(books: Books, moment: Moment, spend: Spend) -> Decision[Captured]:
    """Capture spend, and resolve its hold if there is one."""
    if spend.key and (granted := books.grant(spend.key)):
        return Decision((), _earlier_capture(granted, spend))
    if spend.hold is None:
        hold = books.oldest_open(spend.op_label)
    else:
        hold = _settleable(books, spend.hold)
    captured = Captured(
        **moment.stamp(spend.op_label),
        actual=amount_of(spend.actual.micros),
        estimated=amount_of(hold.amount.micros) if hold else None,
        hold=hold.id if hold else "",
        lab=hold.lab if hold else lab_of(spend.op_label),
        day=hold.day if hold else moment.day(books),
        key=spend.key,
        basis=spend.basis,
        part=spend.part,
    )
    return Decision((captured,), captured)


def void(books: Books, moment: Moment, hold_id: str, reason: str) -> Decision[None]:
    """Release an open hold."""
    voided = _voided(moment, _settleable(books, hold_id), reason)
    return Decision((voided,), None)


def _voided(moment: Moment, hold: Hold, reason: str) -> Voided:
    return Voided(
        **moment.stamp(hold.op_label),
        estimated=amount_of(hold.amount.micros),
        actual=Decimal(0),
        hold=hold.id,
        reason=reason,
    )


def _settleable(books: Books, hold_id: str) -> Hold:
    hold = books.hold(hold_id)
    if hold.lives:
        raise RentalAlive(hold.id, hold.op_label)
    return hold


def settle_rental(
    books: Books,
    moment: Moment,
    seen: Hold,
    *,
    cost: Money,
    proof: str,
    basis: str = "estimated",
) -> Decision[Money | None]:
    """Record that a rental is gone, and its cost; the answer is None if that was done before.

    ``seen`` is the hold with the id under which the vendor listed the rental. A hold that an
    earlier version resolved while the rental still ran gets a correction for the rest.

    Raises:
        UnknownHold: No rental has that hold.
    """
    hold = books.rental(seen.id)
    if hold is None:
        raise UnknownHold(seen.id)
    is_open = books.is_open(hold.id)
    if not is_open and hold.state in ("gone", "reappeared"):
        return Decision((), None)
    gone = _gone(moment, hold, proof, resource=seen.resource)
    if is_open:
        captured = Captured(
            **moment.stamp(hold.op_label), actual=amount_of(cost.micros),
            estimated=amount_of(hold.amount.micros), hold=hold.id, lab=hold.lab, day=hold.day,
            basis=basis,
        )  # fmt: skip
        return Decision((gone, captured), cost)
    rest = cost.micros - (books.paid_for(hold.id) or 0)
    if rest <= 0:  # Its settlement covered all of it.
        return Decision((gone,), Money(0, cost.currency))
    corrected = _late_cost(moment, hold, rest)
    return Decision((gone, corrected), Money(rest, cost.currency))


def _late_cost(moment: Moment, hold: Hold, micros: int) -> Corrected:
    return Corrected(
        **moment.stamp(hold.op_label), actual=amount_of(micros), hold=hold.id, lab=hold.lab,
        day=hold.day, reason=f"hold {hold.id} was settled while what it paid for still ran",
    )  # fmt: skip


REOPENED = Duration(600 * 10**9)
"""The time that the new hold of a rental which came back pays for, as far as there is room."""


def reopen_rental(
    books: Books, moment: Moment, hold_id: str, *, new: str, by: str, resource: str
) -> Decision[Hold]:
    """Correct the cost of a rental that came back after its end, and open a hold for the rest.

    What runs is paid for whether or not it fits, so that the new hold is never refused: it holds
    what fits, perhaps nothing, and counts its cost beyond that. If this was done before, the answer
    is the hold of then.

    Raises:
        UnknownHold: No rental has that hold.
    """
    hold = books.rental(hold_id)
    if hold is None or hold.rental is None:
        raise UnknownHold(hold_id)
    name = hold.rental.name
    here = [each for each in books.open_rentals() if each.rental and each.rental.name == name]
    if here or hold.state != "gone":
        return Decision((), here[-1] if here else hold)
    rental = msgspec.structs.replace(
        hold.rental, started=moment.ts, deadline=moment.ts,
        ordered=hold.rental.ordered or hold.rental.started,
    )  # fmt: skip
    day, stamp = moment.day(books), moment.stamp(hold.op_label)
    cost = hold.rental.cost_until(moment.wall_ns)
    late = cost.micros - (books.paid_for(hold_id) or 0)
    held = Held(
        **stamp, estimated=amount_of(_as_fits(books, moment, rental, hold.lab, max(late, 0))),
        hold=new, lab=hold.lab, day=day, by=by, rental=rental,
        caps={} if moment.limits is None else _caps(moment.limits, hold.lab, day),
    )  # fmt: skip
    created = {"resource": resource, "how": "came back"}
    entries: tuple[AnyEntry, ...] = (
        Noted(**stamp, hold=hold_id, event="reappeared", detail={"as": new}),
        *([_late_cost(moment, hold, late)] if late > 0 else []),
        held,
        Noted(**stamp, hold=new, event="created", detail=created),
        Noted(**stamp, hold=new, event="listed"),
    )
    answer = Hold.opened_by(held).noted("created", created, moment.ts)
    return Decision(entries, answer.noted("listed", {}, moment.ts))


def _as_fits(books: Books, moment: Moment, rental: Rental, lab: str, late: int) -> int:
    """Return what a rental costs in a while, or as much as fits after ``late``, in micro-units."""
    wanted = cost_at_most(Rate.parse(rental.rate), REOPENED.ns).micros
    if moment.limits is None:
        return 0
    left = room(books, moment.limits, lab=lab, day=moment.day(books), at_ns=moment.wall_ns)
    return min(wanted, left.micros - late) if left.micros > late else 0


def release_rental(books: Books, moment: Moment, hold_id: str, proof: str) -> Decision[None]:
    """Release the hold of a rental that was never created."""
    hold = books.hold(hold_id)
    return Decision((_gone(moment, hold, proof), _voided(moment, hold, proof)), None)


def _gone(moment: Moment, hold: Hold, proof: str, **detail: str) -> Noted:
    details = {"proof": proof, **detail}
    return Noted(**moment.stamp(hold.op_label), hold=hold.id, event="gone", detail=details)


def correct(
    books: Books,
    moment: Moment,
    op_label: str,
    difference: Money,
    *,
    reason: str,
    expected: Money | None,
) -> Decision[None]:
    """Add a difference to a label's spend, in the lab and on the day of its last capture.

    Nothing is added if the total spend is not ``expected``.
    """
    if expected is not None and expected.micros != books.captured():
        return Decision((), None)
    lab, day = books.last_paid(op_label) or (lab_of(op_label), moment.day(books))
    spent = min(books.captured(scope) for scope in scopes_of(lab, day))
    if spent + difference.micros < 0:
        there = Money(spent, difference.currency)
        raise InvalidValue("difference_usd", str(difference), f"no more than was spent, {there}")
    actual = amount_of(difference.micros)
    corrected = Corrected(**moment.stamp(op_label), actual=actual, lab=lab, day=day, reason=reason)
    return Decision((corrected,), None)


def note(
    moment: Moment, op_label: str, event: str, *, hold: str, detail: dict[str, str]
) -> Decision[None]:
    """Append a note."""
    noted = Noted(**moment.stamp(op_label), hold=hold, event=event, detail=detail)
    return Decision((noted,), None)


def take_watch(books: Books, moment: Moment, hold: Hold, watcher: str) -> Decision[bool]:
    """Note a rental's new watcher, unless another one was noted since ``hold`` was read."""
    rental = books.rental(hold.id)
    current = "" if rental is None else rental.watcher
    if current != hold.watcher:
        return Decision((), current == watcher)
    stamp = moment.stamp(hold.op_label)
    noted = Noted(**stamp, hold=hold.id, event="watched", detail={"watcher": watcher})
    return Decision((noted,), answer=True)


def accept(
    books: Books, moment: Moment, missing: tuple[MissingLine, ...], *, by: str, reason: str
) -> Noted:
    """Return the note with which a person accepts a log as it is now."""
    if not missing and books.latest_day <= moment.ts[:10]:
        raise InvalidValue("accept", "a log in order", "one that is refused; `verify` checks it")
    detail = {"by": by, "reason": reason, "found": "; ".join(one.problem for one in missing)}
    if given_up := " ".join(sorted({one.hash for one in missing if one.hash})):
        detail["instead_of"] = given_up
    return Noted(**moment.stamp(""), event=ACCEPTED, detail=detail)


def set_ceiling(
    moment: Moment, before: Money, after: Money, *, by: str, reason: str
) -> Decision[None]:
    """Append the note of a person's change of the ceiling."""
    if after == before:
        raise InvalidValue("ceiling", str(after), "another ceiling than the one in force")
    event = RAISED if after > before else "ceiling-lowered"
    detail = {
        "from": str(amount_of(before.micros)), "to": str(amount_of(after.micros)), "by": by,
        "reason": reason,
    }  # fmt: skip
    changed = replace(moment, limits=replace(moment.ceilings, whole=after))
    noted = Noted(**changed.stamp(""), event=event, detail=detail)
    return Decision((noted,), None)


def recheck_decisions(
    lines: Iterable[tuple[int, AnyLine]], *, source: str, today: str
) -> Iterator[Finding]:
    """Yield a finding for each line that the limits stated in it do not allow.

    The lines are in order and consistent; those dated after ``today`` are warnings.
    """
    books = Books()
    for number, line in lines:
        if stated_day(line) > today:
            message = f"it is dated {stated_day(line)}, which lies ahead"
            yield Finding(source=source, line=number, message=message, severity="warning")
        for message in _violations(books, line):
            yield Finding(source=source, line=number, message=message)
        books.apply(line)


def _violations(books: Books, line: AnyLine) -> Iterator[str]:
    if isinstance(line, Simple):
        return
    ceiling, before = line.ceiling, books.ceiling_micros
    raised = isinstance(line, Noted) and line.event == RAISED
    if ceiling is not None and before is not None and not raised and micros_of(ceiling) > before:
        yield f"its ceiling is {ceiling} after one of {amount_of(before)}, which nobody raised"
    if isinstance(line, Held):
        if line.day < books.latest_day:
            yield f"it counts on {line.day}, after {books.latest_day} had begun"
        if line.rental is None or line.estimated:  # A rental that came back may hold nothing.
            yield from _overruns(books, line, line.lab, line.day)
    elif isinstance(line, Extended):
        hold = books.hold(line.hold)
        yield from _overruns(books, line, hold.lab, hold.day)


def _overruns(books: Books, line: Held | Extended, lab: str, day: str) -> Iterator[str]:
    """Yield every scope in which the line exceeds the limits stated in it."""
    for scope in scopes_of(lab, day):
        limit = line.ceiling if scope == WHOLE else line.caps.get(str(scope))
        total = books.captured(scope) + books.held(scope) + micros_of(line.estimated)
        if limit is not None and total > micros_of(limit):
            yield (
                f"it should have been refused: {scope} came to {amount_of(total)} {line.currency} "
                f"of {limit}"
            )


def _fitting(
    books: Books, moment: Moment, scope: tuple[str, str], asked: Money, least: Money | None
) -> Money:
    """Return the amount to grant: ``asked``, or what fits if that is at least ``least``.

    ``scope`` is the lab and the day. Rentals count their cost by now.
    """
    (lab, day), at_ns, ceilings = scope, moment.wall_ns, moment.ceilings
    if least is not None:
        left = room(books, ceilings, lab=lab, day=day, at_ns=at_ns)
        if least <= left < asked:
            return left
    if short := shortfalls(books, ceilings, lab=lab, day=day, asked=asked, at_ns=at_ns):
        raise BudgetGuardExceeded("; ".join(_refusal(row, asked) for row in short))
    return asked


def _refusal(row: ScopeStanding, asked: Money) -> str:
    return (
        f"{row.scope}: {row.captured} spent + {row.held} held + {asked} asked "
        f"> {row.limit} ({row.remaining} free)"
    )


def _caps(ceilings: Ceilings, lab: str, day: str) -> dict[str, Decimal]:
    limits = {scope: ceilings.of(scope) for scope in scopes_of(lab, day) if scope != WHOLE}
    return {str(scope): amount_of(cap.micros) for scope, cap in limits.items() if cap is not None}


def _earlier_grant(before: Held | Captured, request: HoldRequest) -> Hold:
    most = amount_of(request.amount.micros)
    least = most if request.least is None else amount_of(request.least.micros)
    same = (before.op_label, before.lab) == (request.op_label, request.lab)
    granted = before.estimated
    fits = granted is not None and least <= granted <= most
    if not isinstance(before, Held) or not same or not fits:
        what = f"{before.op_label} in project {before.lab}, {before.estimated}"
        raise KeyReused(request.key, what)
    return Hold.opened_by(before)


def _earlier_capture(before: Held | Captured, spend: Spend) -> Captured:
    same = (before.op_label, before.actual) == (spend.op_label, amount_of(spend.actual.micros))
    if not isinstance(before, Captured) or not same:
        raise KeyReused(spend.key, f"{before.op_label}, {before.actual or before.estimated}")
    return before
