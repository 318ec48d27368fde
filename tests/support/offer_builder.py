"""Offers, and a store without any, for tests."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from outlay.prices.offer import Offer
from outlay.store import open_store
from outlay.store.connection import writing
from outlay.store.schema import (
    price_alerts,
    price_offers,
    price_points,
    price_series,
    price_snapshots,
)
from outlay.units import Money


def offer(price: object = "2.00", **changes: Any) -> Offer:
    """Return an offer; by default one H100 on demand for $2."""
    fields: dict[str, Any] = {
        "provider": "acme",
        "gpu": "H100",
        "gpu_count": 1,
        "price": Money.parse(price),
        "fetched_ns": 1,
        "source": "test",
    }
    return Offer(**(fields | changes))


def store_without_prices() -> Engine:
    """Return the store of the home, emptied of prices: quicker than a new store."""
    store = open_store()
    with writing(store) as connection:
        for table in (price_alerts, price_points, price_offers, price_series, price_snapshots):
            connection.execute(table.delete())
    return store
