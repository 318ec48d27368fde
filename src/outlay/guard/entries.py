"""What a line of the spend log says, and its bytes; scopes and checked arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from outlay.clock import utc_datetime, wall_ns_of
from outlay.decoding import Decoder
from outlay.errors import InvalidValue
from outlay.rates import cost_at_most
from outlay.units import Money, Rate
from outlay.units.money import MICROS
from outlay.units.quantity import EXACT, exact_decimal

# What limits are for: the whole log, a lab, a UTC day, a UTC month.

BUFFER = "buffer"
_LAB = re.compile(r"lab[ _]?(\d+)", re.IGNORECASE)


class Scope(NamedTuple):
    """Something that has a limit: the whole log, a lab, a UTC day or a UTC month."""

    kind: Literal["whole", "lab", "day", "month"]
    name: str = ""

    def __str__(self) -> str:
        # What the spend log calls a lab is a project to everybody else.
        kind = "project" if self.kind == "lab" else self.kind
        return f"{kind} {self.name}".strip()


WHOLE = Scope("whole")


def scopes_of(lab: str, day: str) -> tuple[Scope, ...]:
    """Return every scope that money of this lab and day counts in."""
    return (WHOLE, Scope("lab", lab), Scope("day", day), Scope("month", day[:7]))


def lab_of(op_label: str, lab: str | None = None) -> str:
    """Return the lab that pays: the one named, else the label's ``labNN``, else the buffer.

    ``lab02`` and ``02`` are the same lab, as the manifest writes it: ``02``.
    """
    name = op_label.split("-", 1)[0] if lab is None else lab
    if match := _LAB.fullmatch(name.strip()):
        return match[1]
    return BUFFER if lab is None else lab.strip()


# What callers hand to the guard, checked before anything is written.

_KEY_LENGTH = 255


def read_text(value: object, *, name: str, expected: str = "text") -> str:
    """Return text that a line can hold."""
    if not isinstance(value, str):
        raise InvalidValue(name, value, expected)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(name, value, f"{expected}, in characters that UTF-8 can hold") from None
    return value


def read_label(op_label: object) -> str:
    """Return the name of an operation, refusing an empty one."""
    expected = "a name for the operation, such as lab02-spinup"
    label = read_text(op_label, name="op_label", expected=expected)
    if not label.strip():
        raise InvalidValue("op_label", op_label, expected)
    return label


def read_reason(reason: object) -> str:
    """Return why something is done, refusing silence."""
    text = read_text(reason, name="reason", expected="why, in a few words")
    if not text.strip():
        raise InvalidValue("reason", reason, "why, in a few words")
    return text


def read_key(key: object) -> str:
    """Return an idempotency key, refusing one that is too long to be one."""
    text = read_text(key, name="key")
    if len(text) > _KEY_LENGTH:
        raise InvalidValue("key", key, f"at most {_KEY_LENGTH} characters")
    return text


def read_detail(detail: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a note says beside its event, all of it text."""
    return {
        read_text(key, name="detail"): read_text(value, name=f"detail {key!r}")
        for key, value in (detail or {}).items()
    }


def read_amount(value: object, *, name: str, currency: str) -> Money:
    """Return an amount of zero or more; digits beyond a micro-unit round up."""
    amount = Money.parse(value, name=name, currency=currency, rounding="up")
    if amount.currency != currency or not 0 <= amount.micros < LARGEST * MICROS:
        expected = f"an amount in {currency}, zero or more and below {LARGEST}"
        raise InvalidValue(name, value, expected)
    return amount


def read_difference(value: object, *, name: str, currency: str) -> Money:
    """Return what is to be added to the spend, or taken back; what is in doubt counts as spent."""
    expected = f"a finite amount below {LARGEST}; negative takes back"
    number = exact_decimal(value, name=name, expected=expected)
    if number.copy_abs() >= LARGEST:
        raise InvalidValue(name, value, expected)
    return Money(micros_of(number), currency)


# What a line of the spend log says, and its bytes.
#
# The documented keys (``ts, op_label, estimated, actual, currency``) come first in every line,
# and ``actual`` means spend in each of them, so that adding up ``actual`` over all lines is the
# total spent even for a reader that knows nothing else.

SCHEMA = 1
LARGEST = 10**12  # currency units; beyond it a typing error is likelier than a budget


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What every line carries.

    Attributes:
        ts: When it was written, UTC, as the clock showed it.
        op_label: The operation, as the user names it.
        estimated: What the line sets aside; on a line that resolves a hold, what was set aside.
        actual: What the line adds to the spend; negative only in a correction.
        ceiling: The ceiling in force when the line was written.
        v: The schema the line was written in.
    """

    ts: str
    op_label: str
    estimated: Decimal | None = None
    actual: Decimal | None = None
    currency: str
    ceiling: Decimal | None = None
    v: int


class Vendor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The commands of a vendor, one word per item, ``$VARIABLES`` unexpanded.

    Attributes:
        list: Prints everything that runs, or bills, as JSON.
        terminate: Ends ``{id}`` for good: a thing merely stopped still bills.
        id_from: Where the output of creation shows the id: ``json:.id`` or ``regex:...``; ``name``
            where the name is the id.
        items: Where the listing keeps its array; empty when it is one.
        state_key: The key of a listed item's state, where some states bill nothing.
        stdin: What every command reads, such as a header with a ``$TOKEN`` in it.
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


class Rental(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is needed to find and end something rented, without any secret.

    Attributes:
        name: The unique name that was set at creation; finds it again when the id is lost.
        rate: Per hour, as text.
        started: When the hold was written, before creation: billing is counted from here.
        deadline: When it has to be asked to end, UTC.
        vendor_timer: Read from old logs alone: no vendor's timer was found to end anything.
    """

    name: str
    rate: str
    started: str
    deadline: str
    vendor: Vendor
    vendor_timer: str = ""

    @property
    def started_ns(self) -> int:
        """When billing starts, UTC nanoseconds."""
        return wall_ns_of(parse_timestamp(self.started))

    def cost_until(self, now_ns: int) -> Money:
        """Return what it has cost at its rate; nothing before it was ordered."""
        return cost_at_most(Rate.parse(self.rate), max(now_ns - self.started_ns, 0))


class Held(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="hold"):
    """Money was set aside."""

    hold: str
    lab: str
    day: str
    caps: dict[str, Decimal] = {}
    key: str = ""
    by: str = ""
    rental: Rental | None = None


class Extended(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="extend"):
    """``estimated`` more was set aside for the same hold."""

    hold: str
    caps: dict[str, Decimal] = {}


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """Which process's part of which run a capture pays for.

    Attributes:
        segment: The file in the run's ledger that the process wrote.
    """

    run: str
    segment: str


class Captured(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="capture"):
    """``actual`` was spent: it resolves its hold, or stands alone when ``hold`` is empty."""

    hold: str = ""
    lab: str
    day: str
    key: str = ""
    basis: str = "measured"
    part: RunPart | None = None


class Voided(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="void"):
    """Nothing was spent on this hold."""

    hold: str
    reason: str


class Corrected(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="correct"):
    """``actual`` more (or less) was spent than an earlier line says."""

    lab: str
    day: str
    reason: str


class Noted(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="note"):
    """Something worth remembering that moves no money: a ceiling raised, a pod seen gone."""

    hold: str = ""
    event: str
    detail: dict[str, str] = {}


class Sealed(Entry, frozen=True, kw_only=True, omit_defaults=True, tag="seal"):
    """The bytes from ``torn_from`` on, ``torn_bytes`` of them, were cut off while being written."""

    torn_from: int
    torn_bytes: int


class Simple(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line in the document's simple form, written by hand or by another program."""

    ts: str | float
    op_label: str
    estimated: Decimal | None = None
    actual: Decimal | None = None
    currency: str = "USD"


AnyEntry = Held | Extended | Captured | Voided | Corrected | Noted | Sealed
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
    return entry


def _check_amount(amount: Decimal | None, *, signed: bool = False) -> None:
    """Refuse what no line says: a hold of less than nothing would make room for another."""
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
    """Return what a line is: the event that it notes, else the kind of its struct."""
    if isinstance(line, Simple):
        return "simple"
    return getattr(line, "event", "") or str(type(line).__struct_config__.tag)


def amount_of(micros: int) -> Decimal:
    """Return micro-units as the number that a line shows."""
    whole, fraction = divmod(abs(micros), MICROS)
    digits = f"{fraction:06d}".rstrip("0").ljust(2, "0")
    return Decimal(f"{'-' if micros < 0 else ''}{whole}.{digits}")


def micros_of(amount: Decimal | None) -> int:
    """Return a line's number in micro-units; digits beyond them (hand-written) round up."""
    if amount is None:
        return 0
    # Not in the thread's own context: the host program may have set that to one digit.
    return int(EXACT.multiply(amount, MICROS).to_integral_value(ROUND_CEILING))


def timestamp(wall_ns: int) -> str:
    """Return an instant as lines write it: ``2026-11-15T20:30:00.000000Z``."""
    seconds, ns = divmod(wall_ns, 1_000_000_000)
    return f"{_second(seconds)}.{ns // 1000:06d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return utc_datetime(seconds * 1_000_000_000).replace(tzinfo=None).isoformat()


def parse_timestamp(ts: str | float) -> datetime:
    """Return a line's time, ISO text or epoch seconds, as an aware UTC datetime.

    Raises:
        msgspec.ValidationError: It is neither.
    """
    try:
        if not isinstance(ts, str):
            return datetime.fromtimestamp(ts, tz=UTC)
        moment = datetime.fromisoformat(ts)
        # The document does not say which zone it means; UTC is what ours mean.
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise msgspec.ValidationError(f"ts {ts!r} is no time ({error})") from None


def day_of(ts: str | float) -> str:
    """Return the UTC day that a line's time falls on."""
    return parse_timestamp(ts).date().isoformat()


def is_machine(resource: str, instance_id: str) -> bool:
    """Return whether a machine that knows itself by an instance id is what a vendor lists.

    Vast's label of a container is ``C.`` and the id.
    """
    return bool(resource) and instance_id in (resource, f"C.{resource}")


# What a decision hands to a spend log.

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Posting(Generic[Answer]):
    """What a decision appends to the log, and what it answers once that is safe."""

    entries: tuple[AnyEntry, ...]
    answer: Answer
