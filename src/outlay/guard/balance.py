"""What a spend log adds up to, and whether more may be set aside. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import NamedTuple, assert_never

from outlay.clock import wall_ns_of
from outlay.errors import Finding
from outlay.guard.entries import (
    BUFFER,
    WHOLE,
    AnyLine,
    Captured,
    Corrected,
    Extended,
    Held,
    Noted,
    Rental,
    Scope,
    Sealed,
    Simple,
    Voided,
    day_of,
    lab_of,
    micros_of,
    parse_timestamp,
    scopes_of,
    timestamp,
)
from outlay.guard.errors import HoldResolved, Inconsistent, UnknownHold
from outlay.units import Money

RAISED = "ceiling-raised"
ACCEPTED = "accepted"
"""The event of the note with which a person accepts a log that is not what was seen before."""
RENTAL_STATES = ("created", "unknown", "terminating", "gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Money set aside for one operation.

    Attributes:
        id: Its name in the log, and in ``OUTLAY_HOLD``.
        day: The UTC day that it, and its capture, belong to.
        amount: What is set aside, extensions included.
        by: The host and process that opened it.
        rental: How to find and end what it pays for, when that is something rented.
        state: What is known of the rented thing: empty, or one of RENTAL_STATES.
        resource: The vendor's id of the rented thing, once known.
        watcher: The host and process that will end it at its deadline.
    """

    id: str
    op_label: str
    lab: str
    day: str
    amount: Money
    ts: str
    by: str = ""
    rental: Rental | None = None
    state: str = ""
    resource: str = ""
    watcher: str = ""

    @classmethod
    def opened_by(cls, line: Held) -> Hold:
        """Return the hold that a line opens."""
        return cls(
            id=line.hold, op_label=line.op_label, lab=line.lab, day=line.day,
            amount=Money(micros_of(line.estimated), line.currency), ts=line.ts, by=line.by,
            rental=line.rental,
        )  # fmt: skip

    @property
    def lives(self) -> bool:
        """Whether it pays for something rented that nobody saw to be gone.

        One whose id nobody ever learnt may never have been: a person may say so.
        """
        never_seen = self.state == "unknown" and not self.resource
        return self.rental is not None and self.state != "gone" and not never_seen

    def cost_at(self, now_ns: int) -> Money:
        """Return what a rental has cost, and at least what is held for it."""
        if self.rental is None:
            return self.amount
        return max(self.amount, self.rental.cost_until(now_ns))


@dataclass(slots=True)
class Balance:
    """What was spent and what is set aside in one scope, in micro-units."""

    captured: int = 0
    held: int = 0


class PayingScope(NamedTuple):
    """Which lab paid on which day."""

    lab: str
    day: str


class DatedLine(NamedTuple):
    """The latest UTC day that a line states, and the line's label."""

    day: str
    op_label: str


def stated_day(line: AnyLine) -> str:
    """Return the UTC day on which a line says that it was written."""
    return day_of(line.ts) if isinstance(line, Simple) else line.ts[:10]


class Books:
    """The fold of a spend log: feed it lines in order, then ask."""

    def __init__(self) -> None:
        self.currency: str | None = None
        self.balances: defaultdict[Scope, Balance] = defaultdict(Balance)
        self.open: dict[str, Hold] = {}
        self.rentals: dict[str, Hold] = {}
        self.resolved: dict[str, str] = {}
        self.grants: dict[str, Held | Captured] = {}
        self.ceiling_micros: int | None = None
        self.latest_day = ""
        self.raised: list[Noted] = []
        self.accepted: list[Noted] = []
        self.given_up: set[str] = set()
        self.last_dated = DatedLine("", "")
        self.last_paid: dict[str, PayingScope] = {}
        self._open_by_label: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._hold_of_key: dict[str, Hold] = {}
        self._simple: set[str] = set()
        self._open_rentals: dict[str, None] = {}
        self.paid_for: dict[str, int] = {}  # by the hold of a rental, in micro-units

    def copy(self) -> Books:
        """Return books that stay as they are while these go on."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(other, name, value.copy())
        for scope, balance in self.balances.items():
            other.balances[scope] = replace(balance)
        for label, holds in self._open_by_label.items():
            other._open_by_label[label] = holds.copy()
        return other

    def captured(self, scope: Scope = WHOLE) -> int:
        """Return what was spent in a scope, corrections included, in micro-units."""
        return self.balances[scope].captured if scope in self.balances else 0

    def held(self, scope: Scope = WHOLE, *, at_ns: int | None = None) -> int:
        """Return what unresolved holds set aside in a scope, in micro-units.

        By ``at_ns``, what rentals have cost beyond what is held for them counts as well.
        """
        held = self.balances[scope].held if scope in self.balances else 0
        if at_ns is None or not self._open_rentals:
            return held
        inside = (h for h in self.open_rentals() if scope in scopes_of(h.lab, h.day))
        return held + sum((hold.cost_at(at_ns) - hold.amount).micros for hold in inside)

    def committed(self, scope: Scope = WHOLE, *, at_ns: int) -> int:
        """Return what was spent and what is set aside in a scope by then, in micro-units."""
        return self.captured(scope) + self.held(scope, at_ns=at_ns)

    def open_rentals(self) -> tuple[Hold, ...]:
        """Return the unresolved holds that pay for something rented, oldest first."""
        return tuple(self.open[hold_id] for hold_id in self._open_rentals)

    def oldest_open(self, op_label: str) -> Hold | None:
        """Return the oldest unresolved hold of a label that pays for nothing rented."""
        held = self._open_by_label.get(op_label, ())
        found = next((name for name in held if self.open[name].rental is None), None)
        return None if found is None else self.open[found]

    def hold(self, hold_id: str) -> Hold:
        """Return an open hold.

        Raises:
            UnknownHold: There never was one of that id.
            HoldResolved: It was captured or voided.
        """
        if hold_id in self.resolved:
            raise HoldResolved(hold_id, self.resolved[hold_id])
        if hold_id not in self.open:
            raise UnknownHold(hold_id)
        return self.open[hold_id]

    def granted(self, key: str) -> Hold:
        """Return the hold that was granted under an idempotency key, as it was granted."""
        return self._hold_of_key[key]

    def apply(self, line: AnyLine) -> None:
        """Add one line.

        Raises:
            Inconsistent: It contradicts the lines before it.
        """
        self._agree_on_currency(line)
        self.last_dated = max(self.last_dated, DatedLine(stated_day(line), line.op_label))
        try:
            self._post(line)
        except (UnknownHold, HoldResolved) as error:
            raise Inconsistent(str(error)) from None
        if not isinstance(line, Simple) and line.ceiling is not None:
            self.ceiling_micros = micros_of(line.ceiling)

    def _post(self, line: AnyLine) -> None:
        match line:
            case Held():
                self._open(line)
            case Extended():
                hold = self.hold(line.hold)
                self._move(hold.lab, hold.day, held=micros_of(line.estimated))
                more = Money(micros_of(line.estimated), hold.amount.currency)
                self._keep(replace(hold, amount=hold.amount + more))
            case Captured():
                self._capture(line)
            case Voided():
                self._resolve(self.hold(line.hold), f"voided at {line.ts}")
            case Corrected():
                if line.op_label not in self.last_paid:  # else its day was seen, or is a simple one
                    self._see_day(line.day)
                self._move(line.lab, line.day, captured=micros_of(line.actual))
            case Noted():
                self._note(line)
            case Sealed():
                pass
            case Simple():
                self._apply_simple(line)
            case _:
                assert_never(line)

    def _agree_on_currency(self, line: AnyLine) -> None:
        if self.currency not in (None, line.currency):
            raise Inconsistent(f"currency {line.currency}; the lines before it say {self.currency}")
        self.currency = line.currency

    def _see_day(self, day: str) -> None:
        self.latest_day = max(self.latest_day, day)

    def _move(self, lab: str, day: str, *, captured: int = 0, held: int = 0) -> None:
        for scope in scopes_of(lab, day):
            balance = self.balances[scope]
            balance.captured += captured
            balance.held += held

    def _open(self, line: Held) -> None:
        if line.hold in self.open or line.hold in self.resolved:
            raise Inconsistent(f"hold {line.hold} is opened a second time")
        self._see_day(line.day)
        hold = Hold.opened_by(line)
        self._add_open(hold)
        if line.key:
            self.grants[line.key] = line
            self._hold_of_key[line.key] = hold

    def _add_open(self, hold: Hold) -> None:
        self._move(hold.lab, hold.day, held=hold.amount.micros)
        self._keep(hold)
        self._open_by_label[hold.op_label][hold.id] = None

    def _oldest_simple(self, op_label: str) -> Hold | None:
        """Return the label's oldest unresolved hold of the simple form."""
        held = self._open_by_label.get(op_label, ())
        found = next((name for name in held if name in self._simple), None)
        return None if found is None else self.open[found]

    def _keep(self, hold: Hold) -> None:
        """Take an open hold as it is now; what it rents is remembered beyond its resolution."""
        self.open[hold.id] = hold
        if hold.rental is not None:
            self.rentals[hold.id] = hold
            self._open_rentals[hold.id] = None

    def _resolve(self, hold: Hold, how: str) -> None:
        self._move(hold.lab, hold.day, held=-hold.amount.micros)
        del self.open[hold.id]
        self._open_rentals.pop(hold.id, None)
        del self._open_by_label[hold.op_label][hold.id]
        self.resolved[hold.id] = how

    def _capture(self, line: Captured) -> None:
        if line.hold:  # its day was seen when it was opened, unless a simple line says it
            self._resolve(self.hold(line.hold), f"captured at {line.ts}")
            if line.hold in self.rentals:
                self.paid_for[line.hold] = micros_of(line.actual)
        else:
            self._see_day(line.day)
        self._pay(line.op_label, PayingScope(line.lab, line.day), line.actual)
        if line.key:
            self.grants[line.key] = line

    def _pay(self, op_label: str, paid: PayingScope, actual: Decimal | None) -> None:
        self._move(paid.lab, paid.day, captured=micros_of(actual))
        self.last_paid[op_label] = paid

    def _note(self, line: Noted) -> None:
        if line.event == RAISED:
            self.raised.append(line)
        elif line.event == ACCEPTED:
            self.accepted.append(line)
            self.given_up.update(line.detail.get("instead_of", "").split())
            self.latest_day = stated_day(line)  # also what a wrong clock had opened is given up
        elif line.hold in self.rentals:
            before = self.rentals[line.hold]
            after = replace(
                before,
                state=line.event if line.event in RENTAL_STATES else before.state,
                resource=line.detail.get("resource", before.resource),
                watcher=line.detail.get("watcher", before.watcher),
            )
            self.rentals[line.hold] = after
            if line.hold in self.open:
                self.open[line.hold] = after

    def _apply_simple(self, line: Simple) -> None:
        """Add what another program wrote: it adds spend, and settles none of our holds.

        Its date opens no day and keeps none open: nobody here looked at the clock.
        """
        day = day_of(line.ts)
        if line.actual is None:
            number = len(self.open) + len(self.resolved)
            amount = Money(micros_of(line.estimated), line.currency)
            ts = timestamp(wall_ns_of(parse_timestamp(line.ts)))
            hold = Hold(
                id=f"simple-{number}", op_label=line.op_label, lab=lab_of(line.op_label),
                day=day, amount=amount, ts=ts,
            )  # fmt: skip
            self._simple.add(hold.id)
            self._add_open(hold)
            return
        settled = self._oldest_simple(line.op_label)
        lab = lab_of(line.op_label)
        if settled is not None:
            self._resolve(settled, f"captured at {line.ts}")
            lab, day = settled.lab, settled.day
        self._pay(line.op_label, PayingScope(lab, day), line.actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The limits in force; ``None`` means no limit of that kind.

    Attributes:
        labs: A cap per lab. Once there is one, a lab without a cap has none of the money.
    """

    whole: Money
    labs: Mapping[str, Money] = field(default_factory=dict)
    day: Money | None = None
    month: Money | None = None

    def tightened_by(self, other: Ceilings) -> Ceilings:
        """Return the tighter of each limit; where both cap labs, a lab needs a cap in both."""

        def tighter(a: Money | None, b: Money | None) -> Money | None:
            return min((x for x in (a, b) if x is not None), default=None)

        shared = {
            lab: min(self.labs[lab], other.labs[lab]) for lab in self.labs.keys() & other.labs
        }
        if self.labs and other.labs and not shared:
            shared = {BUFFER: Money(0, self.whole.currency)}  # no lab has any of the money
        return Ceilings(
            whole=min(self.whole, other.whole),
            labs=shared or self.labs or other.labs,
            day=tighter(self.day, other.day),
            month=tighter(self.month, other.month),
        )

    def of(self, scope: Scope) -> Money | None:
        """Return the scope's limit."""
        match scope.kind:
            case "whole":
                return self.whole
            case "day":
                return self.day
            case "month":
                return self.month
            case "lab":
                nothing = Money(0, self.whole.currency)
                return self.labs.get(scope.name, nothing) if self.labs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingCeilings:
    """The ceilings in force, what set the whole's, and the caller's own where a variable did."""

    ceilings: Ceilings
    by: str
    over: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeStanding:
    """How one scope stands: its limit, what was spent and what is set aside."""

    scope: Scope
    limit: Money
    captured: Money
    held: Money

    @property
    def remaining(self) -> Money:
        """What is left; negative once more was spent than the limit allows."""
        return self.limit - self.captured - self.held


def standings_of(
    books: Books, ceilings: Ceilings, scopes: Iterable[Scope], *, at_ns: int
) -> tuple[ScopeStanding, ...]:
    """Return how those scopes stand that have a limit, rentals at what they have cost by then."""
    return tuple(
        ScopeStanding(
            scope=scope,
            limit=limit,
            captured=Money(books.captured(scope), limit.currency),
            held=Money(books.held(scope, at_ns=at_ns), limit.currency),
        )
        for scope in scopes
        if (limit := ceilings.of(scope)) is not None
    )


def shortfalls(
    books: Books, ceilings: Ceilings, *, lab: str, day: str, asked: Money, at_ns: int
) -> tuple[ScopeStanding, ...]:
    """Return every scope in which ``asked`` more does not fit; empty means allowed."""
    tight = [
        scope
        for scope in scopes_of(lab, day)
        if (limit := ceilings.of(scope)) is not None
        and Money(books.committed(scope, at_ns=at_ns), limit.currency) + asked > limit
    ]
    return standings_of(books, ceilings, tight, at_ns=at_ns) if tight else ()


def room(books: Books, ceilings: Ceilings, *, lab: str, day: str, at_ns: int) -> Money:
    """Return what more can be set aside: what the tightest scope has left."""
    rows = standings_of(books, ceilings, scopes_of(lab, day), at_ns=at_ns)
    return min(row.remaining for row in rows)


def standings(
    books: Books, ceilings: Ceilings, *, day: str, at_ns: int, lab: str | None = None
) -> tuple[ScopeStanding, ...]:
    """Return every scope that has a limit, the whole first; ``lab`` is one even if unheard of."""
    asked = () if lab is None else (lab,)
    spent_in = {scope.name for scope in books.balances if scope.kind == "lab"}
    labs = sorted({*ceilings.labs, *spent_in, *asked})
    scopes = (
        WHOLE,
        *(Scope("lab", lab) for lab in labs),
        Scope("day", day),
        Scope("month", day[:7]),
    )
    return standings_of(books, ceilings, scopes, at_ns=at_ns)


def balance_findings(
    books: Books, source: str, *, today: str, unattended: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return what is in doubt: ceilings raised, logs accepted, dates ahead, lost rentals.

    ``unattended`` says why a rental is an error, by its hold: overdue, or without a watcher.
    """
    raised = [
        "the ceiling was raised from {from} to {to} by {by}".format(**noted.detail)
        + f" at {noted.ts}{_why(noted)}"
        for noted in books.raised
    ]
    accepted = [
        f"{noted.detail['by']} accepted the log at {noted.ts} although "
        f"{noted.detail['found'] or 'its last day lay ahead'}{_why(noted)}"
        for noted in books.accepted
    ]
    ahead = []
    if books.last_dated.day > today:
        line = books.last_dated
        ahead = [f"a line of {line.op_label!r} is dated {line.day}, which lies ahead of {today}"]
    lost = [
        f"hold {hold.id} ({hold.op_label}) pays for something whose id is unknown; "
        "find it with `outlay guard reap`"
        for hold in books.open.values()
        if hold.state == "unknown"
    ]
    return (
        *(
            Finding(source=source, message=text, severity="warning")
            for text in (*accepted, *ahead, *raised)
        ),
        *(
            Finding(source=source, message=text)
            for text in (*lost, *_unattended_messages(books, unattended))
        ),
    )


def _unattended_messages(books: Books, unattended: Mapping[str, str]) -> list[str]:
    holds = (books.open[hold_id] for hold_id in unattended)
    return [
        f"hold {hold.id} ({hold.op_label}) pays for {hold.resource or 'something'} rented, and "
        f"{unattended[hold.id]}: it bills on. `outlay guard down {hold.op_label}` ends it, "
        f"`outlay guard adopt {hold.id}` watches it again"
        for hold in holds
    ]


def _why(noted: Noted) -> str:
    return f": {noted.detail['reason']}" if "reason" in noted.detail else ""
