"""What a question put to the guard appends to the log, and its answer. Pure.

Each function takes the books as they stand under the lock; what it raises writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypedDict

from outlay.errors import Finding, InvalidValue
from outlay.guard.balance import (
    ACCEPTED,
    RAISED,
    Books,
    Ceilings,
    Hold,
    PayingScope,
    ScopeStanding,
    room,
    shortfalls,
    stated_day,
)
from outlay.guard.chain import MissingLine
from outlay.guard.entries import (
    SCHEMA,
    WHOLE,
    AnyLine,
    Captured,
    Corrected,
    Extended,
    Held,
    Noted,
    Posting,
    Rental,
    RunPart,
    Simple,
    Voided,
    amount_of,
    lab_of,
    micros_of,
    scopes_of,
)
from outlay.guard.errors import (
    BudgetGuardExceeded,
    KeyReused,
    RentalAlive,
    RentalUnattended,
    UnknownHold,
)
from outlay.units import Money


class Stamp(TypedDict):
    """What every line of one moment carries."""

    v: int
    ts: str
    op_label: str
    currency: str
    ceiling: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a question is asked, and under which ceiling.

    Attributes:
        currency: Of the ceiling and of every line.
        ceiling: None where it can't be understood; spend is recorded all the same.
        by: What set the ceiling: ``ceiling_usd``, a variable, or ``manifest.json``.
        over: The caller's ceiling where a variable sets another one.
    """

    wall_ns: int
    ts: str
    currency: str
    ceiling: Money | None
    by: str
    over: Money | None

    def day(self, books: Books) -> str:
        """Return the UTC day that counts: never before one that the log has seen."""
        return max(self.ts[:10], books.latest_day)

    def stamp(self, op_label: str) -> Stamp:
        """Return what a line about an operation carries."""
        ceiling = None if self.ceiling is None else amount_of(self.ceiling.micros)
        return {
            "v": SCHEMA,
            "ts": self.ts,
            "op_label": op_label,
            "currency": self.currency,
            "ceiling": ceiling,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is to be set aside: for what, from which lab, under which key, by whom.

    Attributes:
        least: Where there is no room for ``amount``: take what there is, if it is this much.
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
    ceilings: Ceilings,
    ask: Ask,
    *,
    unattended: Mapping[str, str] | None = None,
) -> Posting[Hold]:
    """Set money aside, or return what the same key was granted before.

    ``unattended`` says why a rental is an error, by its hold; each blocks its own lab.

    Raises:
        RentalUnattended: Something rented in the same lab is overdue or unwatched.
        BudgetGuardExceeded: It does not fit.
        KeyReused: The key stands for something else.
    """
    if ask.key in books.grants:
        return Posting((), _same_grant(books, ask))
    day = moment.day(books)
    for hold_id, why in (unattended or {}).items():
        if (other := books.open[hold_id]).lab == ask.lab:
            raise RentalUnattended(ask.lab, hold_id, other.op_label, why)
    amount = _fitting(books, moment, ceilings, (ask.lab, day), ask.amount, ask.least)
    held = Held(
        **moment.stamp(ask.op_label),
        estimated=amount_of(amount.micros),
        hold=ask.hold,
        lab=ask.lab,
        day=day,
        key=ask.key,
        rental=ask.rental,
        by=ask.by,
        caps=_caps(ceilings, ask.lab, day),
    )
    return Posting((*_raised(books, moment), held), Hold.opened_by(held))


def extend(
    books: Books,
    moment: Moment,
    ceilings: Ceilings,
    hold_id: str,
    more: Money,
    least: Money | None = None,
) -> Posting[Hold]:
    """Set more aside for an open hold; it counts on the hold's own day.

    Where there is no room for ``more``, what there is is taken if it is ``least`` or more.

    Raises:
        BudgetGuardExceeded: It does not fit.
        UnknownHold, HoldResolved: There is no such open hold.
    """
    hold = books.hold(hold_id)
    more = _fitting(books, moment, ceilings, (hold.lab, hold.day), more, least)
    extended = Extended(
        **moment.stamp(hold.op_label),
        estimated=amount_of(more.micros),
        hold=hold.id,
        caps=_caps(ceilings, hold.lab, hold.day),
    )
    grown = replace(hold, amount=hold.amount + more)
    return Posting((*_raised(books, moment), extended), grown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What was really spent; ``hold`` is None for the label's oldest open one."""

    op_label: str
    actual: Money
    hold: str | None
    key: str
    basis: str
    part: RunPart | None = None


def record(books: Books, moment: Moment, spend: Spend) -> Posting[Captured]:
    """Record spend: it settles a hold, or stands alone.

    Raises:
        UnknownHold, HoldResolved: The hold that was named is not open.
        RentalAlive: It pays for something rented that was not seen to be gone.
        KeyReused: The key stands for something else.
    """
    if spend.key in books.grants:
        return Posting((), _same_capture(books, spend))
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
    return Posting((*_raised(books, moment), captured), captured)


def void(books: Books, moment: Moment, hold_id: str, reason: str) -> Posting[None]:
    """Release an open hold.

    Raises:
        UnknownHold, HoldResolved: There is no such open hold.
        RentalAlive: It pays for something rented that was not seen to be gone.
    """
    voided = _voided(moment, _settleable(books, hold_id), reason)
    return Posting((*_raised(books, moment), voided), None)


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
    books: Books, moment: Moment, seen: Hold, *, cost: Money, proof: str
) -> Posting[Money | None]:
    """Write down that a rental is gone, and what it cost; None where somebody did that before.

    ``seen`` is the hold with the id under which the vendor listed the thing. One that was resolved
    while the thing still ran, by an earlier version, is corrected by what it cost beyond that.

    Raises:
        UnknownHold: Nothing rented was ever paid for by that hold.
    """
    hold = books.rentals.get(seen.id)
    if hold is None:
        raise UnknownHold(seen.id)
    if hold.id not in books.open and hold.state == "gone":
        return Posting((), None)
    gone = _gone(moment, hold, proof, resource=seen.resource)
    if hold.id in books.open:
        paid: Captured | Corrected = Captured(
            **moment.stamp(hold.op_label), actual=amount_of(cost.micros),
            estimated=amount_of(hold.amount.micros), hold=hold.id, lab=hold.lab, day=hold.day,
            basis="estimated",
        )  # fmt: skip
        return Posting((*_raised(books, moment), gone, paid), cost)
    rest = cost.micros - books.paid_for.get(hold.id, 0)
    if rest <= 0:
        return Posting((*_raised(books, moment), gone), Money(0, cost.currency))
    paid = Corrected(
        **moment.stamp(hold.op_label), actual=amount_of(rest), lab=hold.lab, day=hold.day,
        reason=f"hold {hold.id} was settled while what it paid for still ran",
    )  # fmt: skip
    return Posting((*_raised(books, moment), gone, paid), Money(rest, cost.currency))


def release_rental(books: Books, moment: Moment, hold_id: str, proof: str) -> Posting[None]:
    """Release the hold of a rental that never came to be."""
    hold = books.hold(hold_id)
    lines = (_gone(moment, hold, proof), _voided(moment, hold, proof))
    return Posting((*_raised(books, moment), *lines), None)


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
) -> Posting[None]:
    """Add a difference to what a label's last capture says, in its lab and on its day.

    Nothing is added where something else than ``expected`` is spent in all.

    Raises:
        InvalidValue: More would be taken back than was spent there.
    """
    if expected is not None and expected.micros != books.captured():
        return Posting((), None)
    paid = books.last_paid.get(op_label, PayingScope(lab_of(op_label), moment.day(books)))
    spent = min(books.captured(scope) for scope in scopes_of(paid.lab, paid.day))
    if spent + difference.micros < 0:
        there = Money(spent, difference.currency)
        raise InvalidValue("difference_usd", str(difference), f"no more than was spent, {there}")
    corrected = Corrected(
        **moment.stamp(op_label),
        actual=amount_of(difference.micros),
        lab=paid.lab,
        day=paid.day,
        reason=reason,
    )
    return Posting((*_raised(books, moment), corrected), None)


def note(books: Books, moment: Moment, noted: Noted) -> Posting[None]:
    """Write down something that moves no money."""
    return Posting((*_raised(books, moment), noted), None)


def accept(
    books: Books, moment: Moment, missing: tuple[MissingLine, ...], *, by: str, reason: str
) -> Noted:
    """Return the line with which a person takes a log for what it is now."""
    if not missing and books.latest_day <= moment.ts[:10]:
        raise InvalidValue("accept", "a log in order", "one that is refused; `verify` checks it")
    detail = {"by": by, "reason": reason, "found": "; ".join(one.problem for one in missing)}
    if given_up := " ".join(sorted({one.hash for one in missing if one.hash})):
        detail["instead_of"] = given_up
    return Noted(**moment.stamp(""), event=ACCEPTED, detail=detail)


def set_ceiling(
    books: Books, moment: Moment, before: Money, after: Money, *, by: str, reason: str
) -> Posting[None]:
    """Write down that a person sets another ceiling, and why."""
    if after == before:
        raise InvalidValue("ceiling", str(after), "another ceiling than the one in force")
    event = RAISED if after > before else "ceiling-lowered"
    detail = {
        "from": str(amount_of(before.micros)), "to": str(amount_of(after.micros)), "by": by,
        "reason": reason,
    }  # fmt: skip
    stated = replace(moment, ceiling=after)
    return Posting(
        (*_raised(books, moment), Noted(**stated.stamp(""), event=event, detail=detail)), None
    )


def judge_again(
    lines: Iterable[tuple[int, AnyLine]], *, source: str, today: str
) -> Iterator[Finding]:
    """Yield what should not be in a log: under the policy that each line itself states.

    The lines are in order and don't contradict each other; those of days after ``today`` lie ahead.
    """
    books = Books()
    for number, line in lines:
        if stated_day(line) > today:
            message = f"it is dated {stated_day(line)}, which lies ahead"
            yield Finding(source=source, line=number, message=message, severity="warning")
        for message in _unjustified(books, line):
            yield Finding(source=source, line=number, message=message)
        books.apply(line)


def _unjustified(books: Books, line: AnyLine) -> Iterator[str]:
    """Yield why a line should not have been written after those before it."""
    if isinstance(line, Simple):
        return
    ceiling, before = line.ceiling, books.ceiling_micros
    raised = isinstance(line, Noted) and line.event == RAISED
    if ceiling is not None and before is not None and not raised and micros_of(ceiling) > before:
        yield f"its ceiling is {ceiling} after one of {amount_of(before)}, which nobody raised"
    if isinstance(line, Held):
        if line.day < books.latest_day:
            yield f"it counts on {line.day}, after {books.latest_day} had begun"
        yield from _overruns(books, line, line.lab, line.day)
    elif isinstance(line, Extended):
        hold = books.hold(line.hold)
        yield from _overruns(books, line, hold.lab, hold.day)


def _overruns(books: Books, line: Held | Extended, lab: str, day: str) -> Iterator[str]:
    """Yield every scope that the line takes past the limit which it was judged by."""
    for scope in scopes_of(lab, day):
        limit = line.ceiling if scope == WHOLE else line.caps.get(str(scope))
        total = books.captured(scope) + books.held(scope) + micros_of(line.estimated)
        if limit is not None and total > micros_of(limit):
            yield (
                f"it should have been refused: {scope} came to {amount_of(total)} {line.currency} "
                f"of {limit}"
            )


def _fitting(
    books: Books,
    moment: Moment,
    ceilings: Ceilings,
    place: tuple[str, str],
    asked: Money,
    least: Money | None,
) -> Money:
    """Return what is granted: all that was asked, or what room there is down to the least.

    ``place`` is the lab and the day. A rental counts what it has cost by ``moment``.
    """
    (lab, day), at_ns = place, moment.wall_ns
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


def _raised(books: Books, moment: Moment) -> tuple[Noted, ...]:
    """Return the line that says so when the next one states a looser ceiling than the last."""
    if moment.ceiling is None:
        return ()
    now, before = moment.ceiling.micros, books.ceiling_micros
    if before is None and moment.over is not None:
        before = moment.over.micros
    if before is None or now <= before:
        return ()
    detail = {"from": str(amount_of(before)), "to": str(amount_of(now)), "by": moment.by}
    return (Noted(**moment.stamp(""), event=RAISED, detail=detail),)


def _caps(ceilings: Ceilings, lab: str, day: str) -> dict[str, Decimal]:
    limits = {scope: ceilings.of(scope) for scope in scopes_of(lab, day) if scope != WHOLE}
    return {str(scope): amount_of(cap.micros) for scope, cap in limits.items() if cap is not None}


def _same_grant(books: Books, ask: Ask) -> Hold:
    before = books.grants[ask.key]
    most = amount_of(ask.amount.micros)
    least = most if ask.least is None else amount_of(ask.least.micros)
    same = (before.op_label, before.lab) == (ask.op_label, ask.lab)
    granted = before.estimated
    fits = granted is not None and least <= granted <= most
    if not isinstance(before, Held) or not same or not fits:
        raise KeyReused(ask.key, f"{before.op_label} in project {before.lab}, {before.estimated}")
    return books.granted(ask.key)


def _same_capture(books: Books, spend: Spend) -> Captured:
    before = books.grants[spend.key]
    same = (before.op_label, before.actual) == (spend.op_label, amount_of(spend.actual.micros))
    if not isinstance(before, Captured) or not same:
        raise KeyReused(spend.key, f"{before.op_label}, {before.actual or before.estimated}")
    return before
