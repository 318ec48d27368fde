"""What a question put to the guard appends to the log, and its answer. Pure.

Each function takes the books as they stand under the lock; what it raises writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypedDict

from outlay.errors import InvalidValue
from outlay.guard.books import Books, Hold, Paid
from outlay.guard.entries import (
    SCHEMA,
    Captured,
    Corrected,
    Extended,
    Held,
    Noted,
    Rental,
    Voided,
    amount_of,
)
from outlay.guard.errors import BudgetGuardExceeded, KeyReused
from outlay.guard.policy import Ceilings, Override, Standing, shortfalls
from outlay.guard.posting import Posting
from outlay.guard.scopes import WHOLE, lab_of, scopes_of
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

    ``ceiling`` is None where it can't be understood; spend is recorded all the same.
    """

    ts: str
    currency: str
    ceiling: Money | None
    override: Override | None

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
    """What is to be set aside: for what, from which lab, under which key, by whom."""

    hold: str
    op_label: str
    lab: str
    amount: Money
    key: str
    by: str
    rental: Rental | None


def authorize(books: Books, moment: Moment, ceilings: Ceilings, ask: Ask) -> Posting[Hold]:
    """Set money aside, or return what the same key was granted before.

    Raises:
        BudgetGuardExceeded: It does not fit.
        KeyReused: The key stands for something else.
    """
    if ask.key in books.grants:
        return Posting((), _same_grant(books, ask))
    day = moment.day(books)
    _refuse_what_does_not_fit(books, ceilings, ask.lab, day, ask.amount)
    held = Held(
        **moment.stamp(ask.op_label),
        estimated=amount_of(ask.amount.micros),
        hold=ask.hold,
        lab=ask.lab,
        day=day,
        key=ask.key,
        rental=ask.rental,
        by=ask.by,
        caps=_caps(ceilings, ask.lab, day),
    )
    hold = Hold(
        id=ask.hold,
        op_label=ask.op_label,
        lab=ask.lab,
        day=day,
        amount=ask.amount,
        ts=held.ts,
        by=ask.by,
        rental=ask.rental,
    )
    return Posting((*_raised(books, moment), held), hold)


def extend(
    books: Books, moment: Moment, ceilings: Ceilings, hold_id: str, more: Money
) -> Posting[Hold]:
    """Set more aside for an open hold; it counts on the hold's own day.

    Raises:
        BudgetGuardExceeded: It does not fit.
        UnknownHold, HoldResolved: There is no such open hold.
    """
    hold = books.hold(hold_id)
    _refuse_what_does_not_fit(books, ceilings, hold.lab, hold.day, more)
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


def record(books: Books, moment: Moment, spend: Spend) -> Posting[Captured]:
    """Record spend: it settles a hold, or stands alone.

    Raises:
        UnknownHold, HoldResolved: The hold that was named is not open.
        KeyReused: The key stands for something else.
    """
    if spend.key in books.grants:
        return Posting((), _same_capture(books, spend))
    hold = books.oldest_open(spend.op_label) if spend.hold is None else books.hold(spend.hold)
    captured = Captured(
        **moment.stamp(spend.op_label),
        actual=amount_of(spend.actual.micros),
        estimated=amount_of(hold.amount.micros) if hold else None,
        hold=hold.id if hold else "",
        lab=hold.lab if hold else lab_of(spend.op_label),
        day=hold.day if hold else moment.day(books),
        key=spend.key,
        basis=spend.basis,
    )
    return Posting((*_raised(books, moment), captured), captured)


def void(books: Books, moment: Moment, hold_id: str, reason: str) -> Posting[None]:
    """Release an open hold.

    Raises:
        UnknownHold, HoldResolved: There is no such open hold.
    """
    hold = books.hold(hold_id)
    voided = Voided(
        **moment.stamp(hold.op_label),
        estimated=amount_of(hold.amount.micros),
        actual=Decimal(0),
        hold=hold.id,
        reason=reason,
    )
    return Posting((*_raised(books, moment), voided), None)


def correct(
    books: Books, moment: Moment, op_label: str, difference: Money, reason: str
) -> Posting[None]:
    """Add a difference to what a label's last capture says, in its lab and on its day.

    Raises:
        InvalidValue: More would be taken back than was spent there.
    """
    paid = books.last_paid.get(op_label, Paid(lab_of(op_label), moment.day(books)))
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


def _refuse_what_does_not_fit(
    books: Books, ceilings: Ceilings, lab: str, day: str, asked: Money
) -> None:
    if short := shortfalls(books, ceilings, lab=lab, day=day, asked=asked):
        raise BudgetGuardExceeded("; ".join(_refusal(row, asked) for row in short))


def _refusal(row: Standing, asked: Money) -> str:
    return (
        f"{row.scope}: {row.captured} spent + {row.held} held + {asked} asked "
        f"> {row.limit} ({row.remaining} free)"
    )


def _raised(books: Books, moment: Moment) -> tuple[Noted, ...]:
    """Return the line that says so when the next one states a looser ceiling than the last."""
    if moment.ceiling is None:
        return ()
    override, now, before = moment.override, moment.ceiling.micros, books.ceiling_micros
    if before is None and override is not None and override.loosens:
        before = override.over.micros
    if before is None or now <= before:
        return ()
    by = override.variable if override else "ceiling_usd"
    detail = {"from": str(amount_of(before)), "to": str(amount_of(now)), "by": by}
    return (Noted(**moment.stamp(""), event="ceiling-raised", detail=detail),)


def _caps(ceilings: Ceilings, lab: str, day: str) -> dict[str, Decimal]:
    limits = {scope: ceilings.of(scope) for scope in scopes_of(lab, day) if scope != WHOLE}
    return {str(scope): amount_of(cap.micros) for scope, cap in limits.items() if cap is not None}


def _same_grant(books: Books, ask: Ask) -> Hold:
    before = books.grants[ask.key]
    asked_before = (before.op_label, before.lab, before.estimated)
    asked_now = (ask.op_label, ask.lab, amount_of(ask.amount.micros))
    if not isinstance(before, Held) or asked_before != asked_now:
        raise KeyReused(ask.key, f"{before.op_label} in lab {before.lab}, {before.estimated}")
    return books.granted(ask.key)


def _same_capture(books: Books, spend: Spend) -> Captured:
    before = books.grants[spend.key]
    same = (before.op_label, before.actual) == (spend.op_label, amount_of(spend.actual.micros))
    if not isinstance(before, Captured) or not same:
        raise KeyReused(spend.key, f"{before.op_label}, {before.actual or before.estimated}")
    return before
