"""Offers, snapshots of their sources, and the screening of implausible offers. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low
from typing import Protocol

import msgspec

from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.prices.gpus import family_of, resolve, same_memory
from outlay.units import Money
from outlay.units.billing_terms import BillingTerms

# Larger figures are vendor mistakes and would overflow the store's columns.
MAX_GPUS = 100_000
MAX_PRICE_MICROS = Money.parse("1e6 USD").micros
MANUAL = "manual:"
"""Source prefix of manually set prices, which never expire; a new one replaces the old."""
TRACKED = "tracked:"
"""Source prefix of prices that were tracked one by one, with ``GPUPriceTracker.track_price``."""


class Tier(StrEnum):
    """Rental terms of an offer."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that can be rented together, and what an hour of them costs.

    Attributes:
        gpu: Canonical name for a known card, else the vendor's name; with the form factor if
            known: ``H100-SXM``.
        price: Per hour of the **whole** offer, all its GPUs.
        tier: On-demand, spot (can be reclaimed) or reserved (fixed term).
        community: A third party's machine, rented through a marketplace.
        memory_gb: Per GPU.
        nvlink: Between the GPUs of this offer; None if unknown or if there is only one GPU.
        interconnect: The vendor's name for it.
        bandwidth_mbps: Download, megabits per second.
        availability: Minimum number rentable now; 0 is sold out, None is unknown.
        storage_price: Per GB and month.
        cuda: Newest supported CUDA version.
        offer_id: The vendor's id; the spot and on-demand offers of one machine share it.
        fetched_ns: UTC nanoseconds.
        given: The original price text, if micro-units cannot hold all its digits.
        terms: How the vendor bills the time of a machine, if that was stated.
    """

    provider: str
    gpu: str
    gpu_count: int
    price: Money
    tier: Tier = Tier.ON_DEMAND
    community: bool = False
    memory_gb: int | None = None
    nvlink: bool | None = None
    interconnect: str | None = None
    bandwidth_mbps: int | None = None
    region: str | None = None
    availability: int | None = None
    storage_price: Money | None = None
    cuda: str | None = None
    offer_id: str | None = None
    fetched_ns: int
    source: str
    given: str | None = None
    terms: BillingTerms | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpu_count <= MAX_GPUS:
            raise InvalidValue("gpu_count", self.gpu_count, f"1 to {MAX_GPUS} GPUs")
        if not 0 <= self.price.micros <= MAX_PRICE_MICROS:
            raise InvalidValue("price", str(self.price), "between 0 and a million")
        storage = self.storage_price
        if storage is not None and not 0 <= storage.micros <= MAX_PRICE_MICROS:
            raise InvalidValue("storage_price", str(storage), "between 0 and a million")

    @property
    def per_gpu_micros(self) -> int:
        """Price of one GPU per hour, rounded half up; the only place that divides a price."""
        return (2 * self.price.micros + self.gpu_count) // (2 * self.gpu_count)

    @property
    def price_per_gpu(self) -> Money:
        """Price of one GPU per hour."""
        return Money(self.per_gpu_micros, self.price.currency)

    @property
    def label(self) -> str:
        """The terms: ``spot``, ``community on-demand``."""
        return terms_label(self.tier, community=self.community)


def terms_label(tier: Tier, *, community: bool) -> str:
    """Return rental terms as text: ``spot``, ``community on-demand``."""
    return f"community {tier}" if community else str(tier)


def cheapest_first(offer: Offer) -> tuple[object, ...]:
    """Sort key: price per GPU; the other fields make the order deterministic."""
    return (
        offer.price.currency,
        offer.per_gpu_micros,
        offer.price.micros,
        offer.provider,
        offer.gpu,
        offer.tier,
        offer.region or "",
        offer.offer_id or "",
    )


def read_price(price: str | float, *, name: str = "price") -> Money:
    """Parse a price; plain digits take a fast path, as a file has tens of thousands of them."""
    text = price if isinstance(price, str) else repr(price)
    if text.isascii():
        whole, _, fraction = text.partition(".")
        if whole.isdigit() and len(fraction) <= 6 and (fraction.isdigit() or not fraction):
            return Money(int(whole + fraction.ljust(6, "0")))
    return Money.parse(price, name=name)


# Sources and snapshots


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Offers parsed from a source's response, and findings about rows that could not be parsed."""

    offers: tuple[Offer, ...]
    findings: tuple[Finding, ...] = ()


class SourceFailed(OutlayError):
    """A source could not be loaded; names the source and the reason."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.reason = reason


class OfferSource(Protocol):
    """A source of offers."""

    @property
    def name(self) -> str:
        """The source's name in findings and stored snapshots."""

    def load(self, fetched_ns: int) -> Parsed:
        """Return its offers, each with ``fetched_ns`` as its timestamp.

        Raises:
            SourceFailed: Nothing could be loaded.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The result of one fetch of one source.

    Attributes:
        fetched_ns: UTC nanoseconds, the same for every offer of the fetch.
        offers: Those that passed screening.
        findings: Quarantined offers, unreadable rows, or why the fetch failed.
        failed: Nothing was loaded, as opposed to a source without offers.
    """

    source: str
    fetched_ns: int
    offers: tuple[Offer, ...] = ()
    findings: tuple[Finding, ...] = ()
    failed: bool = False


# NVLink detection

# SXM boards always have NVLink, and NVL cards come bridged. RunPod identifies the SXM board of the
# H100 by its HBM3 memory; the newest chips have no other form factor.
_NVLINK_NAMES = re.compile(r"SXM|NVL\b|HBM3|\bG?B[23]00\b|\bG?H200\b", re.IGNORECASE)


def nvlink_between(name: str, gpu: str, gpu_count: int) -> bool | None:
    """Return whether an offer's GPUs are joined by NVLink; None if that depends on the machine.

    ``name`` is the vendor's name with the form factor, ``gpu`` the card's canonical name.
    """
    cards = family_of(gpu)
    if gpu_count < 2 or not cards:
        return None
    if not cards[0].nvlink:
        return False
    return True if _NVLINK_NAMES.search(name) else None


# Screening: implausible offers are quarantined and never ranked

# A price this many times below its GPU's median is a typing error: for old cards the cheapest
# marketplaces are about thirty times below the most expensive clouds, and never forty.
TIMES_BELOW_MEDIAN = 40
MIN_PRICES_FOR_MEDIAN = 5


def screen(offers: Iterable[Offer]) -> Parsed:
    """Return the plausible offers, and a finding for each of the others."""
    candidates = list(offers)
    each = [offer.per_gpu_micros for offer in candidates]
    on_demand, medians = _on_demand_prices(candidates), _medians(candidates, each)
    good: list[Offer] = []
    findings: list[Finding] = []
    for offer, micros in zip(candidates, each, strict=True):
        problem = (
            _price_problem(offer, micros, medians)
            or (_spot_problem(offer, on_demand) if offer.tier is Tier.SPOT else None)
            or _memory_problem(offer)
        )
        if problem is None:
            good.append(offer)
        else:
            findings.append(Finding(source=offer.source, message=f"{_describe(offer)}: {problem}"))
    return Parsed(offers=tuple(good), findings=tuple(findings))


def _describe(offer: Offer) -> str:
    where = f" in {offer.region}" if offer.region else ""
    which = f" ({offer.offer_id})" if offer.offer_id else ""
    return f"{offer.provider} {offer.gpu_count}x {offer.gpu} {offer.label}{where}{which}"


def _price_problem(offer: Offer, micros: int, medians: dict[_GpuCurrency, int]) -> str | None:
    if micros == 0:
        return "its price is 0"
    spec, currency = resolve(offer.gpu).spec, offer.price.currency
    if spec is not None and currency == spec.floor.currency and micros < spec.floor.micros:
        return f"{offer.price_per_gpu} per GPU-hour is below any price ever asked for this GPU"
    usual = medians.get((offer.gpu, currency))
    if usual is not None and micros * TIMES_BELOW_MEDIAN < usual:
        times = usual // micros
        return f"{offer.price_per_gpu} per GPU-hour is {times} times below this GPU's median"
    return None


def _spot_problem(offer: Offer, on_demand: dict[_MachineKey, int]) -> str | None:
    steady = None if offer.offer_id is None else on_demand.get(_machine_key(offer))
    if steady is not None and offer.price.micros > steady:
        return f"spot at {offer.price} costs more than the same machine on demand"
    return None


def _memory_problem(offer: Offer) -> str | None:
    if offer.memory_gb is None:
        return None
    spec = resolve(offer.gpu).spec
    cards = family_of(offer.gpu) if spec is None else (spec,)
    if not cards or any(same_memory(offer.memory_gb, card.memory_gb) for card in cards):
        return None
    made = " or ".join(str(card.memory_gb) for card in cards)
    return f"{offer.memory_gb} GB of memory, where {offer.gpu} has {made} GB"


_MachineKey = tuple[str, str | None, str | None, int, bool, str]  # Shared by spot and on-demand.
_GpuCurrency = tuple[str, str]


def _machine_key(offer: Offer) -> _MachineKey:
    return (
        offer.provider, offer.offer_id, offer.region, offer.gpu_count, offer.community,
        offer.price.currency,
    )  # fmt: skip


def _on_demand_prices(offers: Sequence[Offer]) -> dict[_MachineKey, int]:
    prices: dict[_MachineKey, int] = {}
    for offer in offers:
        if offer.tier is Tier.ON_DEMAND and offer.offer_id is not None:
            key, micros = _machine_key(offer), offer.price.micros
            prices[key] = min(micros, prices.get(key, micros))
    return prices


def _medians(offers: Sequence[Offer], each: Sequence[int]) -> dict[_GpuCurrency, int]:
    prices: dict[_GpuCurrency, list[int]] = defaultdict(list)
    for offer, micros in zip(offers, each, strict=True):
        prices[offer.gpu, offer.price.currency].append(micros)
    enough = {key: found for key, found in prices.items() if len(found) >= MIN_PRICES_FOR_MEDIAN}
    return {key: median_low(found) for key, found in enough.items()}
