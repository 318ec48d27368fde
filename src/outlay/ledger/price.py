"""What one GPU costs for an hour, as it is frozen with a run, and the texts that state it.

A typed price is read here: ``1.50 USD/h``, with ``showback`` or ``cash`` behind it where that is
said. What a *name* such as ``lambda:8xH100`` stands for is looked up in ``outlay.prices``, which is
loaded for that alone.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from outlay.clock import utc_text
from outlay.decoding import BadDocument, decode
from outlay.errors import InvalidValue
from outlay.units import Rate
from outlay.units.quantity import NS_PER_HOUR, duration_text

Kind = Literal["cash", "showback"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AUTO = "auto"
OLD_NS = 24 * NS_PER_HOUR
"""A looked-up price that was fetched longer ago is said to be old."""


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one GPU costs for an hour, and who says so.

    Attributes:
        source: Who says so: an argument, the environment, a partition's rate, a source of offers.
        kind: ``cash`` is paid for the hour; ``showback`` is what an hour of something owned or
            reserved is worth. The two are never added.
        offer: The offer that a name was resolved to, as a name; "" for a typed price.
        fetched_ns: When that offer was seen, UTC nanoseconds; 0 for a typed price.
    """

    micros_per_hour: Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)]
    currency: str = "USD"
    source: str = "stated"
    kind: Kind = "cash"
    offer: str = ""
    fetched_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)] = 0

    @property
    def rate(self) -> Rate:
        """What one GPU costs per hour."""
        return Rate(self.micros_per_hour, self.currency)

    @property
    def text(self) -> str:
        """The price as it may be typed, without where it came from."""
        return str(self.rate) if self.kind == "cash" else f"{self.rate} {self.kind}"

    @property
    def origin(self) -> str:
        """Where the price came from, in a phrase."""
        if not self.offer:
            return self.source
        return f"{self.offer}, fetched {utc_text(self.fetched_ns)} from {self.source}"

    def age_warning(self, at_ns: int) -> str | None:
        """Return what to say where the offer had been fetched more than a day before ``at_ns``."""
        if not self.offer or at_ns - self.fetched_ns <= OLD_NS:
            return None
        age = duration_text(at_ns - self.fetched_ns)
        return (
            f"the price of {self.offer} was {age} old; `outlay prices fetch` asks for a new one, "
            "for the next run"
        )


class _HandedPrice(Price, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A price as a launcher hands it on: every field checked."""

    micros_per_hour: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


def is_price_name(value: object) -> bool:
    """Whether a value names a price instead of stating one: ``lambda:8xH100``, ``auto``."""
    if not isinstance(value, str) or value.lstrip().startswith("{"):
        return False
    text = split_kind(value)[0]
    return ":" in text or text.lower() == AUTO


def split_kind(text: str) -> tuple[str, Kind | None]:
    """Return a price's text without the word for its kind, and the kind where one is said."""
    words = text.strip().rsplit(None, 1)
    for kind in KINDS:
        if len(words) == 2 and words[1].lower() == kind:
            return words[0], kind
    return text.strip(), None


def typed_price(
    value: object, *, name: str, source: str, kind: Kind = "cash", currency: str = "USD"
) -> Price:
    """Return ``"1.50 USD/h"``, ``"1.20 USD/h showback"`` or a number as a price per GPU-hour.

    A resolved price is taken as ``handed_on`` wrote it. ``kind`` and ``currency`` count where the
    text names none.

    Raises:
        InvalidValue: It is no such price.
    """
    if isinstance(value, Price):
        return value
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            return _read_handed(value, name)
        text, said = split_kind(value)
        rate = Rate.parse(text, name=name, currency=currency)
        return Price(rate.micros_per_hour, rate.currency, source, said or kind)
    rate = Rate.parse(value, name=name, currency=currency)
    return Price(rate.micros_per_hour, rate.currency, source, kind)


def handed_on(price: Price) -> str:
    """Return a price as a launcher passes it to what it starts: nothing about it is lost.

    A typed one as it may be typed; a looked-up one as a JSON object with the fields of the record.
    """
    return msgspec.json.encode(price).decode() if price.offer else price.text


def _read_handed(text: str, name: str) -> Price:
    try:
        price = decode(text, _HandedPrice)
    except BadDocument as error:
        raise InvalidValue(name, text, f"a price as a JSON object ({error})") from None
    return Price(*(getattr(price, field) for field in Price.__struct_fields__))
