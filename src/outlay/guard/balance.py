"""The fold of a spend log into balances, and whether more may be held. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import assert_never

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
"""The event of the note that accepts a log which is behind what was seen."""
RENTAL_STATES = ("created", "unknown", "terminating", "gone")
_SIMPLE = "simple-"  # begins the ids of other programs' holds; the guard's own are hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Money held for one operation.

    Attributes:
        id: Its name in the log, and in ``OUTLAY_HOLD``.
        day: The UTC day on which it, and its capture, count.
        amount: The amount held, extensions included.
        by: The host and process that opened it.
        rental: How to find and terminate the rental that it pays for, if any.
        state: The rental's last known state: empty, or one of RENTAL_STATES.
        resource: The vendor's id of the rental, once known.
        watcher: The host and process that terminates it at its deadline.
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
        """Return the hold of a line."""
        return cls(
            id=line.hold, op_label=line.op_label, lab=line.lab, day=line.day,
            amount=Money(micros_of(line.estimated), line.currency), ts=line.ts, by=line.by,
            rental=line.rental,
        )  # fmt: skip

    @property
    def lives(self) -> bool:
        """Whether it pays for a rental that is not verified gone.

        A rental whose id never became known may not exist: a person may void its hold.
        """
        never_seen = self.state == "unknown" and not self.resource
        return self.rental is not None and self.state != "gone" and not never_seen

    def cost_at(self, now_ns: int) -> Money:
        """Return the cost of a rental by now, at least the amount held."""
        if self.rental is None:
            return self.amount
        return max(self.amount, self.rental.cost_until(now_ns))


def stated_day(line: AnyLine) -> str:
    """Return the UTC day of a line's timestamp."""
    return day_of(line.ts) if isinstance(line, Simple) else line.ts[:10]


class Books:
    """The fold of a spend log's lines, applied in order."""

    def __init__(self) -> None:
        self.currency: str | None = None
        self.captured_in = Counter[Scope]()
        self.held_in = Counter[Scope]()  # the same scopes, in micro-units as well
        self.open: dict[str, Hold] = {}
        self.rentals: dict[str, Hold] = {}
        self.resolved: dict[str, str] = {}
        self.grants: dict[str, Held | Captured] = {}
        self.ceiling_micros: int | None = None
        self.latest_day = ""
        self.raised: list[Noted] = []
        self.accepted: list[Noted] = []
        self.given_up: set[str] = set()
        self.last_dated = ("", "")  # the latest day of any line, and the line's label
        self.last_paid: dict[str, tuple[str, str]] = {}  # lab and day, by label
        self.paid_for: dict[str, int] = {}  # by a rental's hold, in micro-units

    def copy(self) -> Books:
        """Return an independent copy."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(other, name, value.copy())
        return other

    def captured(self, scope: Scope = WHOLE) -> int:
        """Return the spend of a scope, corrections included, in micro-units."""
        return self.captured_in[scope]

    def held(self, scope: Scope = WHOLE, *, at_ns: int | None = None) -> int:
        """Return the sum of a scope's open holds, in micro-units.

        With ``at_ns``, including what rentals have cost by then beyond their holds.
        """
        held = self.held_in[scope]
        if at_ns is not None:
            inside = (h for h in self.open_rentals() if scope in scopes_of(h.lab, h.day))
            held += sum((hold.cost_at(at_ns) - hold.amount).micros for hold in inside)
        return held

    def committed(self, scope: Scope = WHOLE, *, at_ns: int) -> int:
        """Return spent plus held in a scope at ``at_ns``, in micro-units."""
        return self.captured(scope) + self.held(scope, at_ns=at_ns)

    def open_rentals(self) -> tuple[Hold, ...]:
        """Return the open holds of rentals, oldest first."""
        return tuple(hold for hold in self.rentals.values() if hold.id in self.open)

    def oldest_open(self, op_label: str) -> Hold | None:
        """Return the label's oldest open hold that is not a rental's."""
        holds = (hold for hold in self.open.values() if hold.op_label == op_label)
        return next((hold for hold in holds if hold.rental is None), None)

    def hold(self, hold_id: str) -> Hold:
        """Return an open hold.

        Raises:
            UnknownHold: No hold has that id.
            HoldResolved: It is captured or voided.
        """
        if hold_id in self.resolved:
            raise HoldResolved(hold_id, self.resolved[hold_id])
        if hold_id not in self.open:
            raise UnknownHold(hold_id)
        return self.open[hold_id]

    def apply(self, line: AnyLine) -> None:
        """Add one line.

        Raises:
            Inconsistent: It contradicts the lines before it.
        """
        self._check_currency(line)
        self.last_dated = max(self.last_dated, (stated_day(line), line.op_label))
        try:
            self._apply_entry(line)
        except (UnknownHold, HoldResolved) as error:
            raise Inconsistent(str(error)) from None
        if not isinstance(line, Simple) and line.ceiling is not None:
            self.ceiling_micros = micros_of(line.ceiling)

    def _apply_entry(self, line: AnyLine) -> None:
        match line:
            case Held():
                self._open(line)
            case Extended():
                hold = self.hold(line.hold)
                self._add_to_scopes(hold.lab, hold.day, held=micros_of(line.estimated))
                more = Money(micros_of(line.estimated), hold.amount.currency)
                self._store_hold(replace(hold, amount=hold.amount + more))
            case Captured():
                self._capture(line)
            case Voided():
                self._resolve(self.hold(line.hold), f"voided at {line.ts}")
            case Corrected():
                if line.op_label not in self.last_paid:  # else counted, or a simple line's day
                    self._advance_day(line.day)
                self._add_to_scopes(line.lab, line.day, captured=micros_of(line.actual))
            case Noted():
                self._note(line)
            case Sealed():
                pass
            case Simple():
                self._apply_simple(line)
            case _:
                assert_never(line)

    def _check_currency(self, line: AnyLine) -> None:
        if self.currency not in (None, line.currency):
            raise Inconsistent(f"currency {line.currency}; the lines before it say {self.currency}")
        self.currency = line.currency

    def _advance_day(self, day: str) -> None:
        self.latest_day = max(self.latest_day, day)

    def _add_to_scopes(self, lab: str, day: str, *, captured: int = 0, held: int = 0) -> None:
        for scope in scopes_of(lab, day):
            self.captured_in[scope] += captured
            self.held_in[scope] += held

    def _open(self, line: Held) -> None:
        if line.hold in self.open or line.hold in self.resolved:
            raise Inconsistent(f"hold {line.hold} is opened a second time")
        self._advance_day(line.day)
        self._add_open(Hold.opened_by(line))
        if line.key:
            self.grants[line.key] = line

    def _add_open(self, hold: Hold) -> None:
        self._add_to_scopes(hold.lab, hold.day, held=hold.amount.micros)
        self._store_hold(hold)

    def _store_hold(self, hold: Hold) -> None:
        """Store an open hold; a rental's is remembered after it is resolved."""
        self.open[hold.id] = hold
        if hold.rental is not None:
            self.rentals[hold.id] = hold

    def _resolve(self, hold: Hold, how: str) -> None:
        self._add_to_scopes(hold.lab, hold.day, held=-hold.amount.micros)
        del self.open[hold.id]
        self.resolved[hold.id] = how

    def _capture(self, line: Captured) -> None:
        if line.hold:  # its day counted when it was opened, unless by a simple line
            self._resolve(self.hold(line.hold), f"captured at {line.ts}")
            if line.hold in self.rentals:
                self.paid_for[line.hold] = micros_of(line.actual)
        else:
            self._advance_day(line.day)
        self._add_spend(line, line.lab, line.day)
        if line.key:
            self.grants[line.key] = line

    def _add_spend(self, line: Captured | Simple, lab: str, day: str) -> None:
        self._add_to_scopes(lab, day, captured=micros_of(line.actual))
        self.last_paid[line.op_label] = (lab, day)

    def _note(self, line: Noted) -> None:
        if line.event == RAISED:
            self.raised.append(line)
        elif line.event == ACCEPTED:
            self.accepted.append(line)
            self.given_up.update(line.detail.get("instead_of", "").split())
            self.latest_day = stated_day(line)  # also resets a day that a wrong clock opened
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
        """Apply another program's line: it adds spend, and settles no hold of the guard's.

        Its date does not advance the day: it is not from outlay's clock.
        """
        lab, day = lab_of(line.op_label), day_of(line.ts)
        if line.actual is None:
            self._add_open(
                Hold(
                    id=f"{_SIMPLE}{len(self.open) + len(self.resolved)}", op_label=line.op_label,
                    lab=lab, day=day, amount=Money(micros_of(line.estimated), line.currency),
                    ts=timestamp(wall_ns_of(parse_timestamp(line.ts))),
                )
            )  # fmt: skip
            return
        holds = (hold for hold in self.open.values() if hold.op_label == line.op_label)
        settled = next((hold for hold in holds if hold.id.startswith(_SIMPLE)), None)
        if settled is not None:
            self._resolve(settled, f"captured at {line.ts}")
            lab, day = settled.lab, settled.day
        self._add_spend(line, lab, day)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The limits in force; ``None`` means no limit of that kind.

    Attributes:
        labs: A cap per lab. Once there is one, a lab without a cap may spend nothing.
        by: What set the ceiling of the whole: ``ceiling_usd``, a variable, or ``manifest.json``.
        over: The caller's ceiling, if a variable overrides it.
    """

    whole: Money
    labs: Mapping[str, Money] = field(default_factory=dict)
    day: Money | None = None
    month: Money | None = None
    by: str = "ceiling_usd"
    over: Money | None = None

    def tightened_by(self, other: Ceilings) -> Ceilings:
        """Return the tighter of each limit; where both cap labs, a lab needs a cap in both."""

        def tighter(a: Money | None, b: Money | None) -> Money | None:
            return min((x for x in (a, b) if x is not None), default=None)

        shared = {
            lab: min(self.labs[lab], other.labs[lab]) for lab in self.labs.keys() & other.labs
        }
        if self.labs and other.labs and not shared:
            shared = {BUFFER: Money(0, self.whole.currency)}  # no lab may spend anything
        return Ceilings(
            whole=min(self.whole, other.whole),
            labs=shared or self.labs or other.labs,
            day=tighter(self.day, other.day),
            month=tighter(self.month, other.month),
            by=other.by if other.whole <= self.whole else self.by,
            over=self.over,
        )

    def of(self, scope: Scope) -> Money | None:
        """Return a scope's limit."""
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
class ScopeStanding:
    """The limit, spend and holds of one scope."""

    scope: Scope
    limit: Money
    captured: Money
    held: Money

    @property
    def remaining(self) -> Money:
        """What is left; negative once the limit is exceeded."""
        return self.limit - self.captured - self.held


def standings_of(
    books: Books, ceilings: Ceilings, scopes: Iterable[Scope], *, at_ns: int
) -> tuple[ScopeStanding, ...]:
    """Return the standings of the scopes that have a limit, with rentals' cost at ``at_ns``."""
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
    rows = standings_of(books, ceilings, scopes_of(lab, day), at_ns=at_ns)
    return tuple(row for row in rows if asked > row.remaining)


def room(books: Books, ceilings: Ceilings, *, lab: str, day: str, at_ns: int) -> Money:
    """Return how much more can be held: the remainder of the tightest scope."""
    rows = standings_of(books, ceilings, scopes_of(lab, day), at_ns=at_ns)
    return min(row.remaining for row in rows)


def standings(
    books: Books, ceilings: Ceilings, *, day: str, at_ns: int, lab: str | None = None
) -> tuple[ScopeStanding, ...]:
    """Return every scope that has a limit, the whole first; ``lab`` is included even if unused."""
    asked = () if lab is None else (lab,)
    spent_in = {scope.name for scope in books.held_in if scope.kind == "lab"}
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
    """Return raised ceilings, accepted logs, dates ahead, and lost or unattended rentals.

    ``unattended`` maps a rental's hold to the reason: overdue, or without a watcher.
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
    day, label = books.last_dated
    ahead = []
    if day > today:
        ahead = [f"a line of {label!r} is dated {day}, which lies ahead of {today}"]
    lost = [
        f"hold {hold.id} ({hold.op_label}) pays for a rental whose id is unknown; "
        "find it with `outlay guard reap`"
        for hold in books.open.values()
        if hold.state == "unknown"
    ]
    unwatched = [
        f"hold {hold.id} ({hold.op_label}) pays for the rental {hold.resource or '(id unknown)'}, "
        f"and {unattended[hold.id]}: it keeps billing. `outlay guard down {hold.op_label}` "
        f"terminates it, `outlay guard adopt {hold.id}` watches it again"
        for hold in map(books.open.__getitem__, unattended)
    ]
    doubts = (*accepted, *ahead, *raised)
    return (
        *(Finding(source=source, message=text, severity="warning") for text in doubts),
        *(Finding(source=source, message=text) for text in (*lost, *unwatched)),
    )


def _why(noted: Noted) -> str:
    return f": {noted.detail['reason']}" if "reason" in noted.detail else ""
