"""GPUPriceTracker: prices tracked over time.

A thin wrapper of the price book without state of its own: it returns what the store contains, the
same in every process and after a restart.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from outlay.clock import SYSTEM, Clock, utc_datetime
from outlay.compat.cost_module.data_directory import (
    data_directory,
    log_imported,
    price_file,
    update_files,
)
from outlay.compat.cost_module.gpu_price import GPUPrice, PriceAlert, PriceHistory
from outlay.compat.cost_module.price_history import append_price, export_history, import_history
from outlay.errors import Finding, InvalidValue
from outlay.prices.alerts import AlertRules
from outlay.prices.offer import TRACKED, Offer, OfferSource, Snapshot, Tier
from outlay.prices.price_book import PriceBook, fetch
from outlay.prices.recording import machine_of, series_of
from outlay.prices.series import (
    VALID_NS,
    PriceWindow,
    alerts,
    points,
    price_statistics,
    windows,
)
from outlay.prices.sources.http import VendorSource
from outlay.prices.sources.vendors import VAST
from outlay.store import open_store
from outlay.units.quantity import NS_PER_HOUR

# The documented figures are plain dollars; prices in other currencies are ignored.
_CURRENCY = "USD"
_log = logging.getLogger(__name__)


class CheapestGPU(NamedTuple):
    """The cheapest GPU, and its average price over 24 hours; None without prices in them."""

    price: GPUPrice
    average_24h: float | None


class PriceRecommendation(NamedTuple):
    """A price, and a comment on it."""

    price: GPUPrice
    reason: str


class CurrentPrice(float):
    """A price per GPU-hour: a number that also has the fields of its ``GPUPrice``."""

    def __new__(cls, price: GPUPrice) -> CurrentPrice:
        """Return the number."""
        return super().__new__(cls, price.price_per_hour)

    def __init__(self, price: GPUPrice) -> None:
        self.price = price

    def __getattr__(self, name: str) -> Any:
        if name == "price":  # Not set yet while it is being copied.
            raise AttributeError(name)
        return getattr(self.price, name)


Key = tuple[str, str]  # GPU name and provider, the documented key of histories.


class GPUPriceTracker:
    """Tracks GPU prices across providers and raises alerts.

    Args:
        data_dir: Directory of the store; else ``$OUTLAY_STORE`` or ``$OUTLAY_HOME``. A file of the
            cost module in it, else below ``~/.context/training``, is imported and kept up to date.
        drop_percent: A fall of more than this raises an alert.
        surge_percent: A rise of more than this raises an alert.
        vast: The source of ``fetch_vastai_prices``.
        clock: The end of "the last 24 hours".
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        drop_percent: float = 10,
        surge_percent: float = 20,
        vast: OfferSource | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._store = open_store(data_dir)
        self._book = PriceBook(self._store, rules=AlertRules.parse(drop_percent, surge_percent))
        self._vast = vast or VendorSource(VAST)
        self._clock = clock
        self.findings: list[Finding] = []
        self.damage: list[Finding] = []
        self._file: Path | None = None
        if (directory := data_directory(data_dir)) is not None:
            with update_files(directory):
                file = price_file(directory)
                if file.exists():
                    log_imported(import_history(self._store, file).added, "price", directory)
                export_history(self._store, file)
                self._file = file

    def track_price(
        self, price: GPUPrice | None = None, *, gpu_price: GPUPrice | None = None
    ) -> PriceAlert | None:
        """Store a price, by either name; return the alert that it raises, if any.

        A price is compared with the previous one of the same tier, region and instance. Prices
        without these and with the same timestamp are one snapshot: its cheapest price is compared
        with the cheapest of the previous snapshot.
        """
        price = price or gpu_price
        if price is None:
            raise InvalidValue("price", None, "a GPUPrice")
        offer = price.to_offer()
        snapshot = Snapshot(source=offer.source, fetched_ns=offer.fetched_ns, offers=(offer,))
        self._book.record([snapshot])
        if self._file is not None:
            with update_files(self._file.parent):
                append_price(self._file, price)
        for alert in alerts(self._store, since_ns=offer.fetched_ns, until_ns=offer.fetched_ns):
            if alert.series == series_of(offer) and alert.current == offer.price:
                return PriceAlert.from_alert(alert)
        return None

    def fetch_vastai_prices(self) -> list[GPUPrice]:
        """Return Vast.ai's prices per GPU, cheapest first; they are not stored.

        On failure the list is empty, and the reason is logged and in ``findings``.
        """
        snapshot = fetch(self._vast, clock=self._clock)
        self.findings = list(snapshot.findings)
        if snapshot.failed:
            _log.warning("%s", snapshot.findings[0])
        prices = [GPUPrice.from_offer(offer) for offer in snapshot.offers]
        return sorted(prices, key=lambda price: price.price_per_hour)

    def get_cheapest_gpu(self, gpu_type: str | None = None) -> CheapestGPU | None:
        """Return the cheapest GPU whose name contains the text and that is not sold out."""
        offer = next(iter(self._rentable(gpu_type)), None)
        if offer is None:
            return None
        day = self._last_day().get(machine_of(series_of(offer)))
        return CheapestGPU(GPUPrice.from_offer(offer), None if day is None else day.average)

    def get_price_recommendations(
        self, gpu_type: str | None = None, max_price: float | None = None
    ) -> list[PriceRecommendation]:
        """Return the available GPUs up to a price, cheapest first, each with a comment."""
        day = self._last_day()
        found = []
        for offer in self._rentable(gpu_type):
            price = GPUPrice.from_offer(offer)
            if max_price is None or price.price_per_hour <= max_price:
                reason = _reason(price, day.get(machine_of(series_of(offer))))
                found.append(PriceRecommendation(price, reason))
        return found

    def get_alerts(self, hours: float = 24) -> list[PriceAlert]:
        """Return the alerts of the last hours from all processes, oldest first."""
        since_ns = self._clock.wall_ns() - round(hours * NS_PER_HOUR)
        return self._alerts(since_ns)

    def get_price_statistics(self) -> dict[str, Any]:
        """Return figures of all tracked GPUs, with keys ``provider:gpu``.

        Average and trend are of the currently cheapest machine and terms, and missing without a
        price in the last 24 hours.
        """
        return asdict(price_statistics(self._store, self._clock.wall_ns(), self.damage))

    @property
    def histories(self) -> dict[Key, PriceHistory]:
        """Everything ever tracked, by GPU and provider; the cheapest price of each instant."""
        cheapest: dict[Key, dict[int, float]] = defaultdict(dict)
        for point in points(self._store, currency=_CURRENCY):
            at = cheapest[point.series.gpu, point.series.provider]
            each = float(point.price.amount)
            at[point.at_ns] = min(each, at.get(point.at_ns, each))
        return {
            key: PriceHistory(
                *key, [(utc_datetime(ns), price) for ns, price in at.items()], clock=self._clock
            )
            for key, at in cheapest.items()
        }

    @property
    def current_prices(self) -> dict[Key, CurrentPrice]:
        """The cheapest available price, by GPU and provider: a number."""
        cheapest: dict[Key, CurrentPrice] = {}
        for offer in self._rentable():
            price = CurrentPrice(GPUPrice.from_offer(offer))
            cheapest.setdefault((offer.gpu, offer.provider), price)
        return cheapest

    @property
    def alerts(self) -> list[PriceAlert]:
        """Every alert ever raised, oldest first."""
        return self._alerts(0)

    def _alerts(self, since_ns: int) -> list[PriceAlert]:
        found = alerts(self._store, since_ns=since_ns)
        return [PriceAlert.from_alert(one) for one in found if one.series.currency == _CURRENCY]

    def _rentable(self, gpu_type: str | None = None) -> list[Offer]:
        """Return the cheapest offer of each provider, GPU and tier, cheapest first."""
        wanted = (gpu_type or "").lower()
        cheapest: dict[tuple[str, str, Tier], Offer] = {}
        tracked = self._book.offers(source_prefix=TRACKED)
        for newest in self._book.cheapest_rentable():
            if newest.price.currency == _CURRENCY and wanted in newest.gpu.lower():
                offer = _cheapest_valid(newest, tracked)
                cheapest.setdefault((offer.provider, offer.gpu, offer.tier), offer)
        return sorted(cheapest.values(), key=lambda offer: (offer.per_gpu_micros, offer.gpu))

    def _last_day(self) -> dict[tuple[object, ...], PriceWindow]:
        since_ns = self._clock.wall_ns() - 24 * NS_PER_HOUR
        return windows(self._store, since_ns=since_ns, currency=_CURRENCY)


def _cheapest_valid(newest: Offer, tracked: Iterable[Offer]) -> Offer:
    """Return the cheapest offer with the terms of the newest one that is still valid."""
    if not newest.source.startswith(TRACKED):
        return newest  # A fetched snapshot is complete.
    terms = (newest.provider, newest.gpu, newest.tier, newest.price.currency)
    since_ns = newest.fetched_ns - VALID_NS
    valid = (
        offer
        for offer in tracked
        if (offer.provider, offer.gpu, offer.tier, offer.price.currency) == terms
        and offer.fetched_ns > since_ns
        and (offer.availability is None or offer.availability > 0)
    )
    return min(valid, key=lambda offer: offer.per_gpu_micros, default=newest)


def _reason(price: GPUPrice, day: PriceWindow | None) -> str:
    if day is None:
        return f"Last seen {price.timestamp:%Y-%m-%d}, not in the last 24h"
    if price.price_per_hour <= 1.05 * day.lowest:
        return f"Near 24h low (${day.lowest:.4f})"
    if price.price_per_hour < 0.9 * day.average:
        return f"Below 24h average (${day.average:.4f})"
    return "Within price range"
