"""Lines of the spend log and their encoding; validation of arguments. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Generic, Literal, TypeVar, get_args

import msgspec

from outlay.clock import utc_datetime, wall_ns_of
from outlay.decoding import Decoder
from outlay.errors import InvalidValue
from outlay.guard.scopes import Of, Payer, Period, ScopePattern
from outlay.rates import cost_at_most
from outlay.units import Money, Unit
from outlay.units.billing_terms import BillingTerms
from outlay.units.money import MICROS, decimal_text, recorded_rate
from outlay.units.quantity import EXACT, exact_decimal
from outlay.units.shown import Grade

# Validation of callers' arguments, before anything is written.

_KEY_LENGTH = 255


def read_text(value: object, *, name: str, expected: str = "text") -> str:
    """Return text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise InvalidValue(name, value, expected)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(name, value, f"{expected}, in characters that UTF-8 can hold") from None
    return value


def _read_nonempty(value: object, *, name: str, expected: str) -> str:
    text = read_text(value, name=name, expected=expected)
    if not text.strip():
        raise InvalidValue(name, value, expected)
    return text


def read_label(op_label: object) -> str:
    """Return the label of an operation; an empty one is invalid."""
    expected = "a name for the operation, such as lab02-spinup"
    return _read_nonempty(op_label, name="op_label", expected=expected)


def read_reason(reason: object) -> str:
    """Return a reason; an empty one is invalid."""
    return _read_nonempty(reason, name="reason", expected="why, in a few words")


def read_key(key: object) -> str:
    """Return an idempotency key of at most 255 characters."""
    text = read_text(key, name="key")
    if len(text) > _KEY_LENGTH:
        raise InvalidValue("key", key, f"at most {_KEY_LENGTH} characters")
    return text


def read_detail(detail: Mapping[str, str] | None) -> dict[str, str]:
    """Return a note's details as text."""
    return {
        read_text(key, name="detail"): read_text(value, name=f"detail {key!r}")
        for key, value in (detail or {}).items()
    }


def read_amount(value: object, *, name: str, unit: Unit) -> Money:
    """Return an amount of zero or more in a unit; digits beyond a micro-unit round up."""
    amount = Money.parse(value, name=name, currency=unit.currency, rounding="up")
    stated = amount if isinstance(value, Money) else amount.as_kind(unit.kind)
    if stated.unit != unit or not 0 <= amount.micros < LARGEST * MICROS:
        raise InvalidValue(name, value, f"an amount in {unit}, zero or more and below {LARGEST}")
    return stated


def read_difference(value: object, *, name: str) -> int:
    """Return a signed difference in micro-units; further digits round towards more spend."""
    expected = f"a finite amount below {LARGEST}; negative takes back"
    number = exact_decimal(value, name=name, expected=expected)
    if number.copy_abs() >= LARGEST:
        raise InvalidValue(name, value, expected)
    return micros_of(number)


# Lines of the spend log.
#
# The documented keys (``ts, op_label, estimated, actual, currency``) come first in every line, and
# ``actual`` means spend in each of them, so that the sum of ``actual`` over all lines is the total
# spent, for a reader that knows nothing else.

SCHEMA = 2
"""2 adds whose money it is (user, team), what a hold costs per hour, a key for every kind of line,
and lines that set limits."""
LARGEST = 10**12  # currency units; more is probably a typing error


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """The fields of every line.

    Attributes:
        ts: The UTC wall clock when it was written.
        op_label: The user's name of the operation.
        estimated: The amount held; on a line that resolves a hold, the amount that was held.
        actual: The amount added to the spend; negative only in a correction.
        ceiling: The ceiling in force when the line was written.
        v: The schema version.
    """

    ts: str
    op_label: str
    estimated: Decimal | None = None
    actual: Decimal | None = None
    currency: str
    ceiling: Decimal | None = None
    v: int


A_PAGE = 10
"""A list of an unknown vendor with so many rows may be one page of more."""


class Vendor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The commands of a vendor, one argument per item, ``$VARIABLES`` unexpanded.

    Attributes:
        list: Prints everything that runs or bills, as JSON.
        terminate: Deletes ``{id}``: a machine that is only stopped still bills.
        id_from: Where the create command prints the id: ``json:.id`` or ``regex:...``; ``name``
            if the name is the id.
        items: The path of the listing's array; empty if the listing is the array.
        state_key: The key of a listed item's state, if some states are not billed.
        stdin: The standard input of every command, such as a header with a ``$TOKEN``.
        show: Prints the machine ``{id}``, as JSON; empty if a machine can't be asked for by its id.
        created_key: The key of a listed item's creation time, ISO text or epoch seconds.
        total: The path of the number of all items; ``{offset}`` in ``list`` asks for more pages.
        whole_below: A listing without pages is whole if it has fewer rows; 0 if it always is.
    """

    name: str
    list: tuple[str, ...]
    terminate: tuple[str, ...]
    id_from: str = "json:.id"
    items: str = ""
    id_key: str = "id"
    name_key: str = "name"
    state_key: str = ""
    gone_states: tuple[str, ...] = ()
    stdin: str = ""
    show: tuple[str, ...] = ()
    created_key: str = ""
    total: str = ""
    whole_below: int = A_PAGE


class Rental(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to find and terminate a rental; contains no secret.

    Attributes:
        name: The unique name set at creation, by which it is found if the id is unknown.
        rate: Per hour, as text.
        started: When the hold was written, before creation; cost counts from here.
        deadline: When termination begins, UTC.
        ordered: When it was ordered, if it came back after its end: then this hold began later.
        vendor_timer: Only in old logs: vendors' timers proved not to terminate anything.
        terms: How the vendor bills; without set-up time, which is between the start and the first
            use.
        run: The id of the run for which a price policy rents it, ends it, and rents again.
    """

    name: str
    rate: str
    started: str
    deadline: str
    vendor: Vendor
    vendor_timer: str = ""
    ordered: str = ""
    terms: BillingTerms | None = None
    run: str = ""

    @property
    def started_ns(self) -> int:
        """The start of billing, UTC nanoseconds."""
        return wall_ns_of(parse_timestamp(self.started))

    @property
    def ordered_ns(self) -> int:
        """The order of the machine, UTC nanoseconds."""
        return wall_ns_of(parse_timestamp(self.ordered or self.started))

    def cost_until(self, now_ns: int) -> Money:
        """Return what is billed at its rate until an instant; zero before the start."""
        used_ns = max(now_ns - self.started_ns, 0)
        billed_ns = self.terms.billed_ns(used_ns) if self.terms and used_ns else used_ns
        return cost_at_most(recorded_rate(self.rate), billed_ns)


class Held(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="hold"):
    """A hold was opened.

    Attributes:
        caps: The limits in force of every other scope than the whole.
        user: Whose money it is; ``team`` likewise.
        via: The service that stated the user, if that is not the login.
        rate: What it pays for costs per hour, if known.
    """

    hold: str
    lab: str
    day: str
    caps: dict[str, Decimal] = {}
    key: str = ""
    by: str = ""
    rental: Rental | None = None
    user: str = ""
    team: str = ""
    via: str = ""
    rate: Decimal | None = None

    @property
    def payer(self) -> Payer:
        """Whose money it is."""
        return Payer(self.lab, self.user, self.team)


class Extended(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="extend"):
    """A hold grew by ``estimated``."""

    hold: str
    caps: dict[str, Decimal] = {}
    key: str = ""


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run that a capture pays for: the run's id, and a process's segment file."""

    run: str
    segment: str


class Captured(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="capture"):
    """``actual`` was spent; it resolves ``hold``, or none if that is empty.

    Without a hold, ``user``, ``team`` and ``via`` state whose money it was.
    """

    hold: str = ""
    lab: str
    day: str
    key: str = ""
    basis: str = "measured"
    part: RunPart | None = None
    user: str = ""
    team: str = ""
    via: str = ""

    @property
    def payer(self) -> Payer:
        """Whose money it was."""
        return Payer(self.lab, self.user, self.team)


class Voided(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="void"):
    """A hold was released; nothing was spent on it."""

    hold: str
    reason: str
    key: str = ""


class Corrected(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="correct"):
    """``actual`` more was spent than recorded before, or less if negative.

    ``hold`` is that of a rental which ran longer than its hold was open.
    """

    hold: str = ""
    lab: str
    day: str
    reason: str
    key: str = ""
    user: str = ""
    team: str = ""

    @property
    def payer(self) -> Payer:
        """Whose money it was."""
        return Payer(self.lab, self.user, self.team)


class Noted(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="note"):
    """An event that changes no balance: a ceiling raised, a rental verified gone."""

    hold: str = ""
    event: str
    detail: dict[str, str] = {}
    key: str = ""


class Limited(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="limit"):
    """A limit was set, changed or removed.

    Attributes:
        limit: The amount in the period; per hour if that is an hour. None removes the limit.
        until: Its end, UTC; from then on the limit without an end is in force again.
        by: Who set it.
        request: The id of the request that it grants, made by ``requested_by``.
    """

    of: Of
    name: str = ""
    period: Period = ""
    limit: Decimal | None = None
    enforce: Literal["refuse", "warn"] = "refuse"
    until: str = ""
    by: str
    reason: str
    request: str = ""
    requested_by: str = ""
    key: str = ""

    @property
    def pattern(self) -> ScopePattern:
        """The scopes that it limits."""
        return ScopePattern(self.of, self.name, self.period)


class Sealed(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="seal"):
    """The ``torn_bytes`` bytes from offset ``torn_from`` are a torn write and count nothing."""

    torn_from: int
    torn_bytes: int


class Simple(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the documented simple form, written by hand or by another program."""

    ts: str | float
    op_label: str
    estimated: Decimal | None = None
    actual: Decimal | None = None
    currency: str = "USD"


AnyEntry = Held | Extended | Captured | Voided | Corrected | Noted | Limited | Sealed
Keyed = Held | Extended | Captured | Voided | Corrected | Noted | Limited
"""The kinds of lines that can be asked for again by their key."""
AnyLine = AnyEntry | Simple

_encoder = msgspec.json.Encoder(decimal_format="number")
_entry_decoder = Decoder[AnyEntry](AnyEntry)
_simple_decoder = Decoder[Simple](Simple)


def encode(entry: AnyEntry) -> bytes:
    """Return the entry as one JSON object without a line end."""
    return _encoder.encode(entry)


def decode(raw: bytes) -> AnyEntry:
    """Return the entry that ``encode`` wrote; raises msgspec.MsgspecError on anything else."""
    entry = _entry_decoder.decode(raw)
    if entry.v > SCHEMA:
        raise msgspec.ValidationError(f"schema {entry.v} is newer than this outlay ({SCHEMA})")
    _check_amount(entry.estimated)
    _check_amount(entry.actual, signed=isinstance(entry, Corrected))
    _check_amount(entry.ceiling)
    if isinstance(entry, Held | Limited):
        _check_amount(entry.rate if isinstance(entry, Held) else entry.limit)
    return entry


def _check_amount(amount: Decimal | None, *, signed: bool = False) -> None:
    # A negative hold would make room for another.
    if amount is not None and not (amount.is_finite() and (signed or amount >= 0)):
        raise msgspec.ValidationError(f"{amount} is no amount of zero or more")


def decode_simple(raw: bytes) -> Simple:
    """Return a line of the simple form; raises msgspec.MsgspecError on anything else."""
    line = _simple_decoder.decode(raw)
    day_of(line.ts)
    for amount in (line.estimated, line.actual):
        _check_amount(amount)
        if amount is not None and amount >= LARGEST:
            raise msgspec.ValidationError(f"{amount} is more than {LARGEST}")
    if line.estimated is None and line.actual is None:
        raise msgspec.ValidationError("neither an estimated nor an actual amount")
    return line


def line_kind(line: AnyLine) -> str:
    """Return a line's kind; for a note, its event."""
    if isinstance(line, Simple):
        return "simple"
    return getattr(line, "event", "") or str(type(line).__struct_config__.tag)


ACCOUNTED = "accounted"
"""The basis of a capture whose time is that of a scheduler's accounts."""
BASES: tuple[str, ...] = (*get_args(Grade), ACCOUNTED)
"""Where the amount of a capture comes from."""


def basis_of(line: Captured | Corrected | Simple) -> str:
    """Return where a line's actual amount comes from: a basis, ``corrected`` or ``other``.

    Other are lines of other programs, and a basis that is none of ``BASES``.
    """
    if isinstance(line, Corrected):
        return "corrected"
    return line.basis if isinstance(line, Captured) and line.basis in BASES else "other"


def amount_of(micros: int) -> Decimal:
    """Return micro-units as the number in a line."""
    return Decimal(decimal_text(micros))


def micros_of(amount: Decimal | None) -> int:
    """Return a line's number in micro-units; further digits (hand-written) round up."""
    if amount is None:
        return 0
    # Not in the thread's own context, which the host program may have set to one digit.
    return int(EXACT.multiply(amount, MICROS).to_integral_value(ROUND_CEILING))


def timestamp(wall_ns: int) -> str:
    """Return an instant in the log's format: ``2026-11-15T20:30:00.000000Z``."""
    seconds, ns = divmod(wall_ns, 1_000_000_000)
    return f"{_second(seconds)}.{ns // 1000:06d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return utc_datetime(seconds * 1_000_000_000).replace(tzinfo=None).isoformat()


def parse_timestamp(ts: str | float) -> datetime:
    """Return a line's time, ISO text or epoch seconds, as an aware UTC datetime.

    Raises:
        msgspec.ValidationError: Neither of these.
    """
    try:
        if not isinstance(ts, str):
            return datetime.fromtimestamp(ts, tz=UTC)
        moment = datetime.fromisoformat(ts)
        # The documented form names no time zone; outlay writes UTC.
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise msgspec.ValidationError(f"ts {ts!r} is no time ({error})") from None


def day_of(ts: str | float) -> str:
    """Return the UTC day of a line's time."""
    return parse_timestamp(ts).date().isoformat()


def is_machine(resource: str, instance_id: str) -> bool:
    """Return whether a machine's own instance id is the id that its vendor lists.

    Inside a Vast container the id has the prefix ``C.``.
    """
    return bool(resource) and instance_id in (resource, f"C.{resource}")


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """The entries that a decision appends, and its answer once they are on disk."""

    entries: tuple[AnyEntry, ...]
    answer: Answer
