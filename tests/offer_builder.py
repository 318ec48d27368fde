"""Building offers in tests."""

from __future__ import annotations

from typing import Any

from outlay.prices.offer import Offer
from outlay.units import Money


def offer(price: object = "2.00", **changes: Any) -> Offer:
    """One H100 on demand for $2, unless told otherwise."""
    fields: dict[str, Any] = {
        "provider": "acme",
        "gpu": "H100",
        "gpu_count": 1,
        "price": Money.parse(price),
        "fetched_ns": 1,
        "source": "test",
    }
    return Offer(**(fields | changes))
