"""The price of a GPU-hour as recorded with a run, and how it is parsed.

Parses typed prices: ``1.50 USD/h``, optionally followed by ``showback`` or ``cash``, and by how the
vendor bills: ``1.50 USD/h, increment 1h, minimum 1h, setup 5m``. Price *names* such as
``lambda:8xH100`` are looked up by ``outlay.prices``, which is loaded only for that.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from outlay.clock import utc_text
from outlay.decoding import BadDocument, decode
from outlay.errors import InvalidValue
from outlay.units import Rate, Unit
from outlay.units.billing_terms import BillingTerms, parse_terms
from outlay.units.money import KINDS, Kind
from outlay.units.quantity import NS_PER_HOUR, duration_text

AUTO = "auto"
OLD_NS = 24 * NS_PER_HOUR
"""A looked-up price older than this gets a warning."""


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """The price of one GPU-hour, and its source.

    Attributes:
        source: An argument, the environment, a partition's rate, or a source of offers.
        kind: ``cash`` is paid for the hour; ``showback`` is what an hour of something owned or
            reserved is worth. The two are never added.
        offer: The name of the offer that a price name resolved to; "" for a typed price.
        fetched_ns: When that offer was fetched, UTC nanoseconds; 0 for a typed price.
        terms: How the vendor bills a machine at this price; None if by its time. Runs are charged
            by their time, whatever the terms.
    """

    micros_per_hour: Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)]
    currency: str = "USD"
    source: str = "stated"
    kind: Kind = "cash"
    offer: str = ""
    fetched_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)] = 0
    terms: BillingTerms | None = None

    @property
    def rate(self) -> Rate:
        """The price as money per hour."""
        return self.unit.rate(self.micros_per_hour)

    @property
    def stated(self) -> Rate:
        """Its amount without its kind, as documents state it that have the kind beside it."""
        return Rate(self.micros_per_hour, self.currency)

    @property
    def unit(self) -> Unit:
        """Its currency and kind."""
        return Unit(self.currency, self.kind)

    @property
    def text(self) -> str:
        """The price in the form that ``typed_price`` parses, without its source and terms."""
        return str(self.rate)

    @property
    def origin(self) -> str:
        """Where the price came from, in a phrase."""
        if not self.offer:
            return self.source
        return f"{self.offer}, fetched {utc_text(self.fetched_ns)} from {self.source}"

    def age_warning(self, at_ns: int) -> str | None:
        """Return a warning if the offer had been fetched more than a day before ``at_ns``."""
        if not self.offer or at_ns - self.fetched_ns <= OLD_NS:
            return None
        age = duration_text(at_ns - self.fetched_ns)
        return (
            f"the price of {self.offer} was {age} old; `outlay prices fetch` asks for a new one, "
            "for the next run"
        )


class _StrictPrice(Price, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A price that a launcher passes to the process it starts; every field is checked."""


def is_price_name(value: object) -> bool:
    """Return whether a value is a price name, such as ``lambda:8xH100`` or ``auto``."""
    if not isinstance(value, str) or value.lstrip().startswith("{"):
        return False
    text = split_kind(value)[0]
    return ":" in text or text.lower() == AUTO


def split_kind(text: str) -> tuple[str, Kind | None]:
    """Split a price's text into the part before its kind, and the kind if there is one."""
    words = text.strip().rsplit(None, 1)
    for kind in KINDS:
        if len(words) == 2 and words[1].lower() == kind:
            return words[0], kind
    return text.strip(), None


def typed_price(
    value: object, *, name: str, source: str, kind: Kind = "cash", currency: str = "USD"
) -> Price:
    """Parse ``"1.50 USD/h"``, ``"1.20 USD/h showback"`` or a number as a price per GPU-hour.

    Billing terms may follow: ``"1.50 USD/h, increment 1h, minimum 1h, setup 5m"``. Also parses what
    ``handed_on`` wrote. ``kind`` and ``currency`` are the defaults for a text that names none.

    Raises:
        InvalidValue: It is not a price.
    """
    if isinstance(value, Price):
        return value
    terms = None
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            return _decode_price(value, name)
        value, *parts = value.split(",")
        terms = parse_terms(parts, name=name)
        value, stated_kind = split_kind(value)
        kind = stated_kind or kind
    rate = Rate.parse(value, name=name, currency=currency)
    return Price(rate.micros_per_hour, rate.currency, source, kind, terms=terms)


def handed_on(price: Price) -> str:
    """Return a price as text for ``OUTLAY_PRICE`` of a started process; ``typed_price`` parses it.

    A typed price stays in its typed form; one that was looked up, or has billing terms, becomes a
    JSON object of its fields.
    """
    is_plain = not price.offer and price.terms is None
    return price.text if is_plain else msgspec.json.encode(price).decode()


def _decode_price(text: str, name: str) -> Price:
    try:
        price = decode(text, _StrictPrice)
    except BadDocument as error:
        raise InvalidValue(name, text, f"a price as a JSON object ({error})") from None
    return Price(**msgspec.structs.asdict(price))
