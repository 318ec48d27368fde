"""The fold of a spend log into balances, and whether more may be held. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, assert_never

import msgspec

from outlay.clock import wall_ns_of
from outlay.decoding import Decoder
from outlay.errors import Finding
from outlay.guard.entries import (
    AnyLine,
    Captured,
    Corrected,
    Entry,
    Extended,
    Held,
    Keyed,
    Limited,
    Noted,
    Rental,
    RunPart,
    Sealed,
    Simple,
    Vendor,
    Voided,
    basis_of,
    day_of,
    is_machine,
    micros_of,
    parse_timestamp,
    timestamp,
)
from outlay.guard.errors import HoldResolved, Inconsistent, UnknownHold
from outlay.guard.scopes import (
    HOUR,
    WHOLE,
    Limit,
    Payer,
    Scope,
    ScopePattern,
    lab_of,
    read_of,
    scopes_of,
)
from outlay.units import Money, Unit
from outlay.units.money import Kind

RAISED = "ceiling-raised"
ACCEPTED = "accepted"
"""The event of the note that accepts a log which is behind what was seen."""
REQUESTED = "limit-requested"
DENIED = "limit-denied"
OFFLINE = "offline-allowance"
"""The event of the note that states how long operations go on without their database."""
RENTAL_STATES = (
    "created", "listed", "not-listed", "unknown", "terminating", "gone", "reappeared",
)  # fmt: skip
_SIMPLE = "simple-"  # begins the ids of other programs' holds; the guard's own are hexadecimal
_OWN = "own-"  # begins the queues of the guard's own holds


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
        ids: Every id under which the vendor listed it.
        listed: When a listing first showed it, or showed it again; empty if none ever did.
        missing: Since when complete listings do not show it, although nobody terminated it.
        tried: When its termination was first tried after it was last listed.
        gone: When it was verified gone.
        namesakes: The ids of machines with its name that are not it.
        disowned: Those of which a person said that they are somebody else's.
        user: Whose money it is; ``team`` likewise.
        rate: What it pays for costs per hour, in micro-units; 0 if unknown.
        kind: Of the amount, which JSON does not have.
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
    ids: tuple[str, ...] = ()
    listed: str = ""
    missing: str = ""
    tried: str = ""
    gone: str = ""
    namesakes: tuple[str, ...] = ()
    disowned: tuple[str, ...] = ()
    user: str = ""
    team: str = ""
    rate: int = 0
    kind: Kind = "cash"

    def __post_init__(self) -> None:
        if self.amount.kind != self.kind:
            object.__setattr__(self, "amount", self.amount.as_kind(self.kind))

    @classmethod
    def opened_by(cls, line: Held) -> Hold:
        """Return the hold of a line."""
        unit = unit_of(line.currency)
        return cls(
            id=line.hold, op_label=line.op_label, lab=line.lab, day=line.day,
            amount=unit.money(micros_of(line.estimated)), ts=line.ts, by=line.by,
            rental=line.rental, user=line.user, team=line.team, rate=rate_of(line), kind=unit.kind,
        )  # fmt: skip

    @property
    def payer(self) -> Payer:
        """Whose money it is."""
        return Payer(self.lab, self.user, self.team)

    @property
    def process(self) -> str:
        """The process on which it depends: a rental's watcher, else the one that opened it."""
        return self.watcher or self.by

    @property
    def lives(self) -> bool:
        """Whether it pays for a rental that is not verified gone.

        A rental whose id never became known may not exist: a person may void its hold.
        """
        never_seen = self.state == "unknown" and not self.resource
        return self.rental is not None and self.state != "gone" and not never_seen

    @property
    def doubt(self) -> str:
        """Why it is not certain that its rental runs, or that it ended; empty if it is."""
        if self.rental is None:
            return ""
        if self.state == "unknown":
            return "never listed" if self.resource else "its id is unknown"
        return f"not listed since {self.missing[:19].replace('T', ' ')}Z" if self.missing else ""

    def is_machine(self, instance_id: str) -> bool:
        """Return whether a machine's own instance id is one under which the rental was listed."""
        return any(is_machine(each, instance_id) for each in (self.resource, *self.ids))

    def noted(self, event: str, detail: Mapping[str, str], ts: str) -> Hold:
        """Return a rental's hold after a note of ``ts``, or of the time in its detail."""
        at, state = detail.get("at", ts), event if event in RENTAL_STATES else self.state
        new = [detail[key] for key in ("resource", "also") if key in detail]
        after = replace(
            self, state=state, resource=detail.get("resource", self.resource),
            watcher=detail.get("watcher", self.watcher),
            ids=(*self.ids, *(each for each in new if each not in self.ids)),
        )  # fmt: skip
        match event:
            case "listed":
                return replace(after, listed=at, missing="", tried="")
            case "not-listed":
                return replace(after, missing=at)
            case "terminating":  # What was never listed stays unknown.
                unknown = self.state == "unknown"
                return replace(after, tried=at, state="unknown" if unknown else state)
            case "gone":
                return replace(after, gone=at, missing="")
            case "namesakes":
                disowned = (*self.disowned, *detail.get("disowned", "").split())
                ids = tuple(detail.get("ids", "").split())
                return replace(after, namesakes=ids, disowned=tuple(dict.fromkeys(disowned)))
            case _:
                return after

    def cost_at(self, now_ns: int) -> Money:
        """Return the cost of a rental by now, at least the amount held."""
        if self.rental is None:
            return self.amount
        return max(self.amount, self.rental.cost_until(now_ns))


@lru_cache(maxsize=16)
def unit_of(currency: str) -> Unit:
    """Return the unit of a line's amounts."""
    currency, _, kind = currency.partition(" ")
    return Unit(currency, "showback" if kind == "showback" else "cash")


def rate_of(line: Held) -> int:
    """Return what a hold pays for costs per hour, in micro-units; 0 if it does not say."""
    return micros_of(line.rate)


def stated_day(line: AnyLine) -> str:
    """Return the UTC day of a line's timestamp."""
    return day_of(line.ts) if isinstance(line, Simple) else line.ts[:10]


FOLD = 4
"""The version of what ``Books`` makes of a line; rows that another one folded are not used."""


class BooksState(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold knows besides its tables.

    Attributes:
        ceiling_micros: The last one that a line states.
        latest_day: The latest day on which money counts.
        last_dated: The latest day of any line, and the line's label.
        opened: The number of holds ever opened.
        noted: The number of rows in the table of notes.
        given_up: The hashes of missing lines that a person has accepted.
        limited: The number of lines that set a limit.
        offline_ns: How long operations go on without their database.
        by_basis: What was captured, in micro-units, by where the amounts come from.
    """

    currency: str | None = None
    ceiling_micros: int | None = None
    latest_day: str = ""
    last_dated: tuple[str, str] = ("", "")
    opened: int = 0
    noted: int = 0
    given_up: tuple[str, ...] = ()
    limited: int = 0
    offline_ns: int = 0
    by_basis: dict[str, int] = {}


class Opened(NamedTuple):
    """A hold with its number in the order of opening."""

    number: int
    hold: Hold


class Queue(NamedTuple):
    """The numbers of the first open hold of a queue, and of the next to join it."""

    first: int = 0
    next: int = 0


class Totals(NamedTuple):
    """The spend, the open holds and what these cost per hour in a scope, in micro-units."""

    captured: int = 0
    held: int = 0
    rate: int = 0


class Paid(NamedTuple):
    """Who paid last for a label, and on which day."""

    payer: Payer
    day: str


class LimitRow(NamedTuple):
    """The lines that set the limit of a pattern: for ever, and for a time."""

    lasting: Limited | None = None
    passing: Limited | None = None

    def at(self, ts: str) -> Limited | None:
        """Return the one in force at a time."""
        if self.passing is not None and ts < self.passing.until:
            return self.passing
        return self.lasting


_NEVER: Final = "~"  # after every time


class _Policy(NamedTuple):
    """The limits that so many lines set, as in force from a time to before another."""

    lines: int = 0
    since: str = ""
    until: str = _NEVER
    limits: Mapping[ScopePattern, Limit] = MappingProxyType({})


# Tables of the fold: the rows changed here, over rows that are kept elsewhere.

V = TypeVar("V")


class KeptRows(Protocol):
    """Rows of an earlier fold, by table and key: in a file, or in a database."""

    def row(self, table: str, key: str) -> bytes | None:
        """Return one row's JSON; None if there is none."""

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield a table's keys and rows, in no order."""


class _NoRows:
    """The rows before the first line."""

    def row(self, table: str, key: str) -> bytes | None:
        del table, key
        return None

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        del table
        return iter(())


NO_ROWS: Final[KeptRows] = _NoRows()
_UNREAD: Final[Any] = object()


class RowTable(Generic[V]):
    """Values by key; a value is never changed in place, and None means that there is no row."""

    def __init__(self, name: str, decoder: Decoder[V], kept: KeptRows) -> None:
        self.name = name
        self._decoder = decoder
        self._kept = kept
        self._changed: dict[str, V | None] = {}
        self._read: dict[str, V | None] = {}  # of the kept rows
        self._shared = False  # whether a copy has the same dictionary of changes

    def copy(self) -> RowTable[V]:
        """Return an independent copy; the changes are copied when one of both changes."""
        other = RowTable(self.name, self._decoder, self._kept)
        other._changed, other._read = self._changed, self._read
        self._shared = other._shared = True
        return other

    def rebase(self, kept: KeptRows) -> None:
        """Continue on rows that are kept with the changes of this table."""
        self._kept, self._read = kept, dict(self._changed)
        self._changed, self._shared = {}, False

    def is_known(self, key: str) -> bool:
        """Return whether the value of a key was changed here, or read before."""
        return key in self._changed or key in self._read

    def get(self, key: str) -> V | None:
        """Return the value of a key."""
        found = self._changed.get(key, _UNREAD)
        if found is _UNREAD:
            if self._kept is NO_ROWS:
                return None
            found = self._read.get(key, _UNREAD)
            if found is _UNREAD:
                raw = self._kept.row(self.name, key)
                found = self._read[key] = None if raw is None else self._decoder.decode(raw)
        value: V | None = found
        return value

    def put(self, key: str, value: V | None) -> None:
        """Set the value of a key, or remove it."""
        if self._shared:
            self._changed, self._shared = dict(self._changed), False
        self._changed[key] = value

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all keys and values, in no order."""
        for key, raw in self._kept.rows(self.name):
            if key not in self._changed:
                yield key, self._decoder.decode(raw)
        for key, value in self._changed.items():
            if value is not None:
                yield key, value

    def row(self, key: str) -> bytes | None:
        """Return the JSON of a key's value."""
        value = self.get(key)
        return None if value is None else msgspec.json.encode(value)

    def changes(self) -> Iterator[tuple[str, bytes | None]]:
        """Yield the rows that differ from the kept ones; None for those that are removed."""
        for key, value in self._changed.items():
            yield key, None if value is None else msgspec.json.encode(value)


# The fold.

_DECODERS: dict[str, Decoder[Any]] = {
    "totals": Decoder(Totals), "open": Decoder(Opened), "rentals": Decoder(Opened),
    "renting": Decoder(str), "namesakes": Decoder(str), "queues": Decoder(Queue),
    "queued": Decoder(str), "resolved": Decoder(str), "grants": Decoder(Keyed),
    "notes": Decoder(Noted), "paid": Decoder(Paid), "paid_for": Decoder(int),
    "limits": Decoder(LimitRow), "requests": Decoder(Noted),
}  # fmt: skip
_NOTHING = Totals()
_NO_STATE = BooksState()


def shape_of_rows() -> str:
    """Return a digest of the types in the rows: one more field of ``Hold`` changes it."""
    kinds = (BooksState, Opened, Queue, Totals, Hold, Money, Rental, Vendor, Entry, Held, Captured,
             RunPart, Noted, Extended, Voided, Corrected, Limited, LimitRow, Paid,
             Payer)  # fmt: skip
    fields = [(kind.__name__, sorted(kind.__annotations__.items())) for kind in kinds]
    text = repr((FOLD, sorted(_DECODERS), fields))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Books:
    """The fold of a spend log's lines, applied in order.

    It consists of scalars and of tables, whose rows are looked up by key. Rows of lines that were
    folded before may be kept elsewhere; nothing here reads a whole table of the settled past.
    """

    def __init__(self, kept: KeptRows = NO_ROWS, state: BooksState = _NO_STATE) -> None:
        self.currency = state.currency
        self.ceiling_micros = state.ceiling_micros
        self.latest_day = state.latest_day
        self.last_dated = state.last_dated
        self.given_up = frozenset(state.given_up)
        self.limited = state.limited
        self.offline_ns = state.offline_ns
        self._by_basis = state.by_basis
        self._opened = state.opened
        self._noted = state.noted
        self._policy = _Policy()  # of the last decision

        def table(name: str) -> RowTable[Any]:
            return RowTable(name, _DECODERS[name], kept)

        self._totals: RowTable[Totals] = table("totals")  # by scope
        self._open: RowTable[Opened] = table("open")  # by hold
        self._rentals: RowTable[Opened] = table("rentals")  # by hold, resolved ones as well
        self._renting: RowTable[str] = table("renting")  # open rentals, by hold
        self._namesakes: RowTable[str] = table("namesakes")  # rentals with some, by hold
        self._queues: RowTable[Queue] = table("queues")  # of open holds, by label
        self._queued: RowTable[str] = table("queued")  # hold, by number and queue
        self._resolved: RowTable[str] = table("resolved")  # how, by hold
        self._grants: RowTable[Keyed] = table("grants")  # by idempotency key
        self._paid: RowTable[Paid] = table("paid")  # by label
        self._paid_for: RowTable[int] = table("paid_for")  # micro-units, by a rental's hold
        self._notes: RowTable[Noted] = table("notes")  # by number
        self._limits: RowTable[LimitRow] = table("limits")  # by pattern
        self._requests: RowTable[Noted] = table("requests")  # open ones, by id

    # -- as rows ----------------------------------------------------------------------------

    def state(self) -> BooksState:
        """Return what is not in a table."""
        return BooksState(
            currency=self.currency, ceiling_micros=self.ceiling_micros, latest_day=self.latest_day,
            last_dated=self.last_dated, opened=self._opened, noted=self._noted,
            given_up=tuple(sorted(self.given_up)), limited=self.limited,
            offline_ns=self.offline_ns, by_basis=self._by_basis,
        )  # fmt: skip

    def tables(self) -> dict[str, RowTable[Any]]:
        """Return the tables by name."""
        return {name: getattr(self, f"_{name}") for name in _DECODERS}

    def row(self, table: str, key: str) -> bytes | None:
        """Return one row's JSON; None if there is none."""
        return self.tables()[table].row(key)

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield a table's keys and rows, in no order."""
        for key, value in self.tables()[table].items():
            yield key, msgspec.json.encode(value)

    def rebase(self, kept: KeptRows) -> None:
        """Continue on rows that are kept with all changes so far."""
        for table in self.tables().values():
            table.rebase(kept)

    def copy(self) -> Books:
        """Return an independent copy; takes no longer for a longer log."""
        other = copy(self)
        for name, table in self.tables().items():
            setattr(other, f"_{name}", table.copy())
        return other

    # -- questions --------------------------------------------------------------------------

    def captured(self, scope: Scope = WHOLE) -> int:
        """Return the spend of a scope, corrections included, in micro-units."""
        return (self._totals.get(_key(scope)) or _NOTHING).captured

    def captured_by_basis(self) -> dict[str, int]:
        """Return all spend by ``basis_of`` its lines, in micro-units; their sum is ``captured``."""
        return dict(self._by_basis)

    def held(self, scope: Scope = WHOLE, *, at_ns: int | None = None) -> int:
        """Return the sum of a scope's open holds, in micro-units; of ``HOUR``, of their rates.

        With ``at_ns``, including what rentals have cost by then beyond their holds.
        """
        if scope.period == HOUR:
            return (self._totals.get(_key(scope._replace(period=""))) or _NOTHING).rate
        held = (self._totals.get(_key(scope)) or _NOTHING).held
        if at_ns is not None:
            inside = (h for h in self.open_rentals() if scope in scopes_of(h.payer, h.day))
            held += sum((hold.cost_at(at_ns) - hold.amount).micros for hold in inside)
        return held

    def committed(self, scope: Scope = WHOLE, *, at_ns: int) -> int:
        """Return spent plus held in a scope at ``at_ns``, in micro-units."""
        return self.captured(scope) + self.held(scope, at_ns=at_ns)

    def totals(self) -> dict[tuple[str, str, str], Totals]:
        """Return the totals of every scope: of what, its period and its name."""
        found = ((key.split(" ", 2), total) for key, total in self._totals.items())
        return {(of, period, name): total for (of, period, name), total in found}

    @property
    def unit(self) -> Unit:
        """The unit of all amounts; US dollars before the first line."""
        return unit_of(self.currency or "USD")

    def scopes(self) -> list[Scope]:
        """Return the scopes in which money was held or spent, without their periods."""
        return [Scope(read_of(of), name) for of, period, name in self.totals() if not period]

    def limits(self, ts: str) -> Mapping[ScopePattern, Limit]:
        """Return the limits that lines of the log set, as in force at a time."""
        known = self._policy
        if known.lines != self.limited or not known.since <= ts < known.until:
            self._policy = known = self._policy_at(ts)
        return known.limits

    def _policy_at(self, ts: str) -> _Policy:
        rows = [row for _, row in self._limits.items()]
        ends = [row.passing.until for row in rows if row.passing and ts < row.passing.until]
        limits = {
            line.pattern: Limit(
                self.unit.money(micros_of(line.limit)), line.enforce == "refuse", line.by
            )
            for line in (row.at(ts) for row in rows)
            if line is not None and line.limit is not None
        }
        return _Policy(self.limited, ts, min(ends, default=_NEVER), limits)

    def limit_lines(self) -> list[LimitRow]:
        """Return the lines that set the present limits, and those that will again."""
        return [row for _, row in sorted(self._limits.items())]

    def requests(self) -> list[Noted]:
        """Return the open requests for another limit, oldest first."""
        return sorted((line for _, line in self._requests.items()), key=lambda line: line.ts)

    def request(self, request: str) -> Noted | None:
        """Return an open request for another limit."""
        return self._requests.get(request)

    def open_holds(self) -> tuple[Hold, ...]:
        """Return the open holds, oldest first."""
        return _in_order(opened for _, opened in self._open.items())

    def is_open(self, hold_id: str) -> bool:
        """Return whether a hold is open."""
        return self._open.get(hold_id) is not None

    def rentals(self) -> tuple[Hold, ...]:
        """Return the holds of all rentals, resolved ones as well, oldest first."""
        return _in_order(opened for _, opened in self._rentals.items())

    def open_rentals(self) -> tuple[Hold, ...]:
        """Return the open holds of rentals, oldest first."""
        found = (self._rentals.get(hold_id) for hold_id, _ in self._renting.items())
        return _in_order(opened for opened in found if opened)

    def with_namesakes(self) -> tuple[Hold, ...]:
        """Return the holds of rentals whose name other machines have, oldest first."""
        found = (self._rentals.get(hold_id) for hold_id, _ in self._namesakes.items())
        return _in_order(opened for opened in found if opened)

    def rental(self, hold_id: str) -> Hold | None:
        """Return the hold of a rental, also after it was resolved."""
        found = self._rentals.get(hold_id)
        return None if found is None else found.hold

    def paid_for(self, hold_id: str) -> int | None:
        """Return what the capture of a rental's hold states, in micro-units; None before that."""
        return self._paid_for.get(hold_id)

    def oldest_open(self, op_label: str) -> Hold | None:
        """Return the label's oldest open hold that is not a rental's."""
        heads = map(self._first_in, (_OWN + op_label, _SIMPLE + op_label))
        return next(iter(_in_order(head for head in heads if head)), None)

    def hold(self, hold_id: str) -> Hold:
        """Return an open hold.

        Raises:
            UnknownHold: No hold has that id.
            HoldResolved: It is captured or voided.
        """
        if (found := self._open.get(hold_id)) is not None:
            return found.hold
        if (how := self.resolution(hold_id)) is not None:
            raise HoldResolved(hold_id, how)
        raise UnknownHold(hold_id)

    def resolution(self, hold_id: str) -> str | None:
        """Return how a hold was resolved; None if it is open or unknown."""
        return self._resolved.get(hold_id)

    def grant(self, key: str) -> Keyed | None:
        """Return the line that an idempotency key was used for."""
        return self._grants.get(key)

    def last_paid(self, op_label: str) -> Paid | None:
        """Return who paid a label's last spend, and its day."""
        return self._paid.get(op_label)

    def raised(self) -> tuple[Noted, ...]:
        """Return the notes of raised ceilings, oldest first."""
        return self._noted_as(RAISED)

    def accepted(self) -> tuple[Noted, ...]:
        """Return the notes with which people accepted the log, oldest first."""
        return self._noted_as(ACCEPTED)

    def _noted_as(self, event: str) -> tuple[Noted, ...]:
        found = (self._notes.get(str(number)) for number in range(self._noted))
        return tuple(noted for noted in found if noted is not None and noted.event == event)

    # -- the fold ---------------------------------------------------------------------------

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
        if isinstance(line, Keyed) and line.key:
            self._grants.put(line.key, line)

    def _apply_entry(self, line: AnyLine) -> None:
        match line:
            case Held():
                self._open_hold(line)
            case Extended():
                hold = self.hold(line.hold)
                self._add_to_scopes(hold.payer, hold.day, held=micros_of(line.estimated))
                more = hold.amount.unit.money(micros_of(line.estimated))
                self._replace_hold(replace(hold, amount=hold.amount + more))
            case Captured():
                self._capture(line)
            case Voided():
                self._resolve(self.hold(line.hold), f"voided at {line.ts}")
            case Corrected():
                if self._paid.get(line.op_label) is None:  # else counted, or a simple line's day
                    self._advance_day(line.day)
                self._add_to_scopes(line.payer, line.day, captured=micros_of(line.actual))
                self._add_to_basis(line)
                if self.rental(line.hold) is not None:
                    paid = self.paid_for(line.hold) or 0
                    self._paid_for.put(line.hold, paid + micros_of(line.actual))
            case Noted():
                self._note(line)
            case Limited():
                self._limit(line)
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

    def _add_to_scopes(
        self, payer: Payer, day: str, *, captured: int = 0, held: int = 0, rate: int = 0
    ) -> None:
        totals = self._totals
        for key in _scope_keys(payer, day):
            spent, open_, per_hour = totals.get(key) or _NOTHING
            totals.put(key, Totals(spent + captured, open_ + held, per_hour + rate))

    def _open_hold(self, line: Held) -> None:
        if self.is_open(line.hold) or self.resolution(line.hold) is not None:
            raise Inconsistent(f"hold {line.hold} is opened a second time")
        self._advance_day(line.day)
        self._add_open(Hold.opened_by(line), _OWN)

    def _add_open(self, hold: Hold, queue: str) -> None:
        self._add_to_scopes(hold.payer, hold.day, held=hold.amount.micros, rate=hold.rate)
        opened = Opened(self._opened, hold)
        self._opened += 1
        self._open.put(hold.id, opened)
        if hold.rental is not None:
            self._rentals.put(hold.id, opened)
            self._renting.put(hold.id, hold.id)
        else:
            self._join(queue + hold.op_label, hold.id)

    def _replace_hold(self, hold: Hold) -> None:
        """Replace an open hold, and a rental's, which is remembered after it is resolved."""
        for table in (self._open, self._rentals):
            if (before := table.get(hold.id)) is not None:
                table.put(hold.id, before._replace(hold=hold))

    def _resolve(self, hold: Hold, how: str, *, captured: int = 0) -> None:
        """Resolve a hold; ``captured`` is what was spent, if that counts where the hold did."""
        self._add_to_scopes(
            hold.payer, hold.day, captured=captured, held=-hold.amount.micros, rate=-hold.rate
        )
        self._open.put(hold.id, None)
        self._resolved.put(hold.id, how)
        if hold.rental is not None:
            self._renting.put(hold.id, None)
        else:
            queue = _SIMPLE if hold.id.startswith(_SIMPLE) else _OWN
            self._drop_resolved(queue + hold.op_label)

    def _capture(self, line: Captured) -> None:
        if not line.hold:
            self._advance_day(line.day)
            self._add_spend(line, line.payer, line.day)
            return
        # Its day counted when it was opened, unless by a simple line.
        hold, actual = self.hold(line.hold), micros_of(line.actual)
        if self._rentals.get(line.hold) is not None:
            self._paid_for.put(line.hold, actual)
        if (line.lab, line.day) == (hold.lab, hold.day):
            self._resolve(hold, f"captured at {line.ts}", captured=actual)
            self._add_to_basis(line)
            self._paid.put(line.op_label, Paid(hold.payer, line.day))
        else:
            self._resolve(hold, f"captured at {line.ts}")
            self._add_spend(line, hold.payer._replace(lab=line.lab), line.day)

    def _add_spend(self, line: Captured | Simple, payer: Payer, day: str) -> None:
        self._add_to_scopes(payer, day, captured=micros_of(line.actual))
        self._add_to_basis(line)
        self._paid.put(line.op_label, Paid(payer, day))

    def _add_to_basis(self, line: Captured | Corrected | Simple) -> None:
        basis = basis_of(line)
        now = self._by_basis.get(basis, 0) + micros_of(line.actual)
        self._by_basis = self._by_basis | {basis: now}  # Copies of the books share the one before.

    def _limit(self, line: Limited) -> None:
        self.limited += 1
        key = _key(line.pattern)
        before = self._limits.get(key) or LimitRow()
        # One without an end also ends one for a time.
        row = before._replace(passing=line) if line.until else LimitRow(lasting=line)
        self._limits.put(key, row)
        if line.request:
            self._requests.put(line.request, None)

    def _note(self, line: Noted) -> None:
        if line.event in (RAISED, ACCEPTED):
            self._notes.put(str(self._noted), line)
            self._noted += 1
        if line.event == ACCEPTED:
            self.given_up = self.given_up.union(line.detail.get("instead_of", "").split())
            self.latest_day = stated_day(line)  # also resets a day that a wrong clock opened
        elif line.event == REQUESTED:
            self._requests.put(line.detail.get("request", ""), line)
        elif line.event == DENIED:
            self._requests.put(line.detail.get("request", ""), None)
        elif line.event == OFFLINE:
            self.offline_ns = int(line.detail.get("ns", "0"))
        elif line.event != RAISED and (before := self.rental(line.hold)) is not None:
            after = before.noted(line.event, line.detail, line.ts)
            self._replace_hold(after)
            self._namesakes.put(after.id, after.id if after.namesakes else None)

    def _apply_simple(self, line: Simple) -> None:
        """Apply another program's line: it adds spend, and settles no hold of the guard's.

        Its date does not advance the day: it is not from outlay's clock.
        """
        payer, day = Payer(lab_of(line.op_label)), day_of(line.ts)
        if line.actual is None:
            unit = unit_of(line.currency)
            hold = Hold(
                id=f"{_SIMPLE}{self._opened}", op_label=line.op_label, lab=payer.lab, day=day,
                amount=unit.money(micros_of(line.estimated)), kind=unit.kind,
                ts=timestamp(wall_ns_of(parse_timestamp(line.ts))),
            )  # fmt: skip
            self._add_open(hold, _SIMPLE)
            return
        settled = self._first_in(_SIMPLE + line.op_label)
        if settled is not None:
            self._resolve(settled.hold, f"captured at {line.ts}")
            payer, day = settled.hold.payer, settled.hold.day
        self._add_spend(line, payer, day)

    # -- queues of a label's open holds: the first is open, later ones may be resolved ------

    def _join(self, queue: str, hold_id: str) -> None:
        first, number = self._queues.get(queue) or Queue()
        self._queued.put(f"{number} {queue}", hold_id)
        self._queues.put(queue, Queue(first, number + 1))

    def _first_in(self, queue: str) -> Opened | None:
        first = (self._queues.get(queue) or Queue()).first
        hold_id = self._queued.get(f"{first} {queue}")
        return None if hold_id is None else self._open.get(hold_id)

    def _drop_resolved(self, queue: str) -> None:
        first, end = self._queues.get(queue) or Queue()
        while first < end and self._open.get(self._queued.get(f"{first} {queue}") or "") is None:
            self._queued.put(f"{first} {queue}", None)
            first += 1
        self._queues.put(queue, Queue(first, end) if first < end else None)


HOLD_TABLES = ("open", "resolved", "rentals")
"""The tables that a line about a hold is looked up in, by hold."""


def rows_read(line: AnyLine) -> Iterator[tuple[str, str]]:
    """Yield the table and key of the rows that applying a line reads, or of most of them."""
    queue = (_SIMPLE if isinstance(line, Simple) else _OWN) + line.op_label
    yield "queues", queue
    if hold := getattr(line, "hold", ""):
        for table in HOLD_TABLES:
            yield table, hold
    if isinstance(line, Held | Captured | Corrected):
        for key in _scope_keys(line.payer, line.day):
            yield "totals", key
    if isinstance(line, Corrected):
        yield "paid", line.op_label


def _key(scope: Scope | ScopePattern) -> str:
    return f"{scope.of} {scope.period} {scope.name}"


@lru_cache(maxsize=1024)
def _scope_keys(payer: Payer, day: str) -> tuple[str, ...]:
    return tuple(map(_key, scopes_of(payer, day)))


def _in_order(holds: Iterable[Opened]) -> tuple[Hold, ...]:
    return tuple(opened.hold for opened in sorted(holds, key=_number))


def _number(opened: Opened) -> int:
    return opened.number


def balance_findings(books: Books, source: str, *, today: str) -> tuple[Finding, ...]:
    """Return raised ceilings, accepted logs and dates ahead."""
    raised = [
        "the ceiling was raised from {from} to {to} by {by}".format(**noted.detail)
        + f" at {noted.ts}{_why(noted)}"
        for noted in books.raised()
    ]
    accepted = [
        f"{noted.detail['by']} accepted the log at {noted.ts} although "
        f"{noted.detail['found'] or 'its last day lay ahead'}{_why(noted)}"
        for noted in books.accepted()
    ]
    day, label = books.last_dated
    ahead = []
    if day > today:
        ahead = [f"a line of {label!r} is dated {day}, which lies ahead of {today}"]
    doubts = (*accepted, *ahead, *raised)
    return tuple(Finding(source=source, message=text, severity="warning") for text in doubts)


def rental_findings(
    books: Books, source: str, *, unattended: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return rentals that are lost, unattended, back or not listed, and their namesakes.

    ``unattended`` maps a rental's hold to the reason: overdue, or without a watcher.
    """
    found = []
    doubtful = {hold.id: hold for hold in (*books.open_rentals(), *books.with_namesakes())}
    for hold in doubtful.values():
        if books.is_open(hold.id):
            found += [Finding(source=source, message=text) for text in _errors_of(hold)]
            if hold.state != "unknown" and hold.doubt:
                text = f"{_paying(hold)} {hold.resource}, which is {hold.doubt}: it may still bill"
                found.append(Finding(source=source, message=text, severity="warning"))
        if hold.namesakes:
            found.append(Finding(source=source, message=namesakes_text(hold)))
    found += [
        Finding(
            source=source,
            message=f"{_paying(hold)} {hold.resource or '(id unknown)'}, "
            f"and {unattended[hold.id]}: it {'may bill' if hold.doubt else 'keeps billing'}. "
            f"`outlay guard down {hold.op_label}` "
            f"terminates it, `outlay guard adopt {hold.id}` watches it again",
        )
        for hold in map(books.hold, unattended)
    ]
    return tuple(found)


def _errors_of(hold: Hold) -> list[str]:
    """Return what is wrong with an open rental, by its notes."""
    assert hold.rental is not None
    found = []
    if hold.rental.ordered:
        found.append(
            f"{_paying(hold)} {hold.resource}, which came back at {hold.ts} after it had been "
            "verified gone"
        )
    if hold.state == "unknown" and not hold.resource:
        found.append(
            f"hold {hold.id} ({hold.op_label}) pays for a rental whose id is unknown; "
            "find it with `outlay guard reap`"
        )
    elif hold.state == "unknown":
        found.append(
            f"{_paying(hold)} {hold.resource}, which the vendor never listed: whether it runs is "
            f"unknown. Look for {hold.rental.name} at the vendor's console; once it is gone, "
            f"`outlay guard reconcile {hold.id} --gone --reason ...`"
        )
    return found


def namesakes_text(hold: Hold) -> str:
    """Return that machines have a rental's name, and what to do about it."""
    assert hold.rental is not None
    return (
        f"{', '.join(hold.namesakes)} at {hold.rental.vendor.name} has the name of the rental of "
        f"hold {hold.id} ({hold.rental.name}), and is not the machine that was ordered: it is not "
        f"ended, and project {hold.lab} is blocked. End or rename it at the vendor, then "
        f"`outlay guard reap --terminate`; or, if it is somebody else's, "
        f"`outlay guard reconcile {hold.id} --not-ours --reason ...`"
    )


def _paying(hold: Hold) -> str:
    return f"hold {hold.id} ({hold.op_label}) pays for the rental"


def _why(noted: Noted) -> str:
    return f": {noted.detail['reason']}" if "reason" in noted.detail else ""
