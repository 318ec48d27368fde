"""One line of a vendor's bill, and exact sums of them. Pure.

Amounts stay decimal numbers with all digits of the file: sums are exact, and are rounded to
micro-units once, in ``in_micros``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from functools import reduce
from typing import Literal, TypeVar, get_args

import msgspec

from outlay.rates import apportion
from outlay.units.quantity import EXACT

Category = Literal["usage", "storage", "network", "commitment", "tax", "credit", "other"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
_MICRO_DIGITS = 6
_CENT = Decimal("0.01")

Key = TypeVar("Key")


class BillLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a vendor charged for one thing during ``[start_ns, end_ns)``, UTC nanoseconds.

    Attributes:
        id: The vendor's, else derived from the content; unique in the invoice.
        month: Of the invoice, such as ``2026-10``; the charged time may be in another.
        category: ``usage`` is that of machines; ``commitment`` a fee that is due with or without
            usage; ``credit`` includes discounts and refunds.
        cost: As the file has it; negative for credits.
        resource: The vendor's id; "" for a charge of no single resource, such as a tax.
        name: The vendor's display name of the resource.
        sku: What was charged for, in the vendor's words.
        billed_ns: How long one machine was billed; None if the file does not state it.
        commitment: The id of the commitment that covers the usage, or whose fee it is.
        unused: Whether it is the part of a commitment that nothing used.
    """

    id: str
    invoice: str
    provider: str
    month: str
    category: Category
    cost: Decimal
    currency: str
    start_ns: int
    end_ns: int
    resource: str = ""
    name: str = ""
    sku: str = ""
    region: str = ""
    billed_ns: int | None = None
    commitment: str = ""
    unused: bool = False
    tags: dict[str, str] = {}


class InvoiceTotal(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of an invoice's lines in one currency, with all digits."""

    provider: str
    invoice: str
    month: str
    currency: str
    total: Decimal

    @property
    def to_the_cent(self) -> Decimal:
        """The total as the invoice states it."""
        return to_the_cent(self.total)


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    """Return a sum with all digits."""
    return reduce(EXACT.add, amounts, Decimal(0))


def to_the_cent(amount: Decimal) -> Decimal:
    """Return an amount as an invoice states it."""
    return amount.quantize(_CENT, ROUND_HALF_EVEN, EXACT)


def in_micros(parts: Mapping[Key, Decimal]) -> dict[Key, int]:
    """Return exact amounts in micro-units, which sum to the rounded sum of the amounts."""
    places = max((-_exponent(part) for part in parts.values()), default=0)
    digits = max(places - _MICRO_DIGITS, 0)
    scaled = {key: int(EXACT.scaleb(part, _MICRO_DIGITS + digits)) for key, part in parts.items()}
    return apportion(scaled, per=10**digits)


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # It is finite.
    return exponent


def totals_of(lines: Iterable[BillLine]) -> tuple[InvoiceTotal, ...]:
    """Return the exact sum of each invoice and currency."""
    found: dict[tuple[str, str, str, str], list[Decimal]] = defaultdict(list)
    for line in lines:
        found[line.provider, line.invoice, line.month, line.currency].append(line.cost)
    return tuple(
        InvoiceTotal(
            provider=provider, invoice=invoice, month=month, currency=currency,
            total=exact_sum(costs),
        )
        for (provider, invoice, month, currency), costs in sorted(found.items())
    )  # fmt: skip
