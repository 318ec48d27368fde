"""Something for rent: an offer, a snapshot of a source, and what cannot be true. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

import msgspec

from outlay.errors import Finding, InvalidValue
from outlay.prices.gpus import family_of, resolve, same_memory
from outlay.units import Money

# Beyond these a figure is a vendor's mistake, and would not fit the columns it is kept in.
MOST_GPUS = 100_000
MANUAL = "manual:"
"""What the source of a price that somebody stated begins with: it holds until another is stated."""
HIGHEST_PRICE = Money.parse("1e6 USD").micros


class Tier(StrEnum):
    """On which terms an offer is rented."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that can be rented together, and what an hour of them costs.

    Attributes:
        provider: Who rents them out.
        gpu: Canonical name where the table knows the card, else the vendor's; with the form factor
            where it is known: ``H100-SXM``.
        price: Of one hour of the **whole** offer, all its GPUs.
        tier: On-demand, spot (may be taken back) or reserved (bound for a term).
        community: On somebody else's machine, found through a market place.
        memory_gb: Of one GPU.
        nvlink: Between the GPUs of this offer; None when unknown or when there is only one.
        interconnect: What joins the GPUs, in the vendor's words.
        bandwidth_mbps: Download to the machine, megabits a second.
        availability: How many can be rented now, at least; 0 sold out, None not said.
        storage_price: Of one GB for a month.
        cuda: The newest CUDA version it runs.
        offer_id: What the vendor calls it; spot and on-demand of one thing share it.
        fetched_ns: When it was so, UTC nanoseconds.
        source: Which source said so.
        given: The price per hour as it was written, where micro-units cannot hold all its digits.
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

    def __post_init__(self) -> None:
        if not 1 <= self.gpu_count <= MOST_GPUS:
            raise InvalidValue("gpu_count", self.gpu_count, f"1 to {MOST_GPUS} GPUs")
        if not 0 <= self.price.micros <= HIGHEST_PRICE:
            raise InvalidValue("price", str(self.price), "between 0 and a million")
        storage = self.storage_price
        if storage is not None and not 0 <= storage.micros <= HIGHEST_PRICE:
            raise InvalidValue("storage_price", str(storage), "between 0 and a million")

    @property
    def per_gpu_micros(self) -> int:
        """What one GPU of it costs per hour, rounded half up; nothing else divides a price."""
        return (2 * self.price.micros + self.gpu_count) // (2 * self.gpu_count)

    @property
    def price_per_gpu(self) -> Money:
        """The same as Money."""
        return Money(self.per_gpu_micros, self.price.currency)

    @property
    def label(self) -> str:
        """The terms in a word or two: ``spot``, ``community on-demand``."""
        return terms(self.tier, community=self.community)


def terms(tier: Tier, *, community: bool) -> str:
    """Return on which terms something is rented, in a word or two."""
    return f"community {tier}" if community else str(tier)


def cheapest_first(offer: Offer) -> tuple[object, ...]:
    """Sort key: price per GPU, then everything that makes the order the same every time."""
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
    """Return a price as Money; plain digits, which a file has by the ten thousand, at once."""
    text = price if isinstance(price, str) else repr(price)
    if text.isascii():
        whole, _, fraction = text.partition(".")
        if whole.isdigit() and len(fraction) <= 6 and (fraction.isdigit() or not fraction):
            return Money(int(whole + fraction.ljust(6, "0")))
    return Money.parse(price, name=name)


# One look at one source: what it offered at an instant, or why nothing is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one fetch of one source brought.

    Attributes:
        fetched_ns: When, UTC nanoseconds; every offer of the fetch carries the same instant.
        offers: What passed screening.
        findings: What was quarantined, unreadable or, for a failed fetch, why it failed.
        failed: Nothing was loaded. Not the same as a source that has nothing to offer.
    """

    source: str
    fetched_ns: int
    offers: tuple[Offer, ...] = ()
    findings: tuple[Finding, ...] = ()
    failed: bool = False


# Whether the GPUs of an offer are joined by NVLink, from what its name and its card say.

# Boards of SXM form are wired with NVLink, and NVL cards come bridged. RunPod names the SXM
# board of the H100 by its HBM3 memory; the newest chips exist in no other form.
_WIRED = re.compile(r"SXM|NVL\b|HBM3|\bG?B[23]00\b|\bG?H200\b", re.IGNORECASE)


def nvlink_between(name: str, gpu: str, gpu_count: int) -> bool | None:
    """Return True or False where it is certain, None where it depends on the machine.

    ``name`` is the vendor's, form factor included, and ``gpu`` the card's canonical one.
    """
    cards = family_of(gpu)
    if gpu_count < 2 or not cards:
        return None
    if not cards[0].nvlink:
        return False
    return True if _WIRED.search(name) else None


# Telling offers from mistakes: what cannot be true is quarantined, and never ranked.

# A price this many times below the median of its GPU is a typing error: the cheapest market
# places are about thirty times below the dearest clouds for old cards, and never forty.
TIMES_BELOW_MEDIAN = 40
ENOUGH_FOR_A_MEDIAN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What was read from a source's answer, and which parts of it could not be."""

    offers: tuple[Offer, ...]
    findings: tuple[Finding, ...] = ()


def screen(offers: Iterable[Offer]) -> Parsed:
    """Return the offers that can be true, and findings for those that cannot."""
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
            findings.append(Finding(source=offer.source, message=f"{_name(offer)}: {problem}"))
    return Parsed(offers=tuple(good), findings=tuple(findings))


def _name(offer: Offer) -> str:
    where = f" in {offer.region}" if offer.region else ""
    which = f" ({offer.offer_id})" if offer.offer_id else ""
    return f"{offer.provider} {offer.gpu_count}x {offer.gpu} {offer.label}{where}{which}"


def _price_problem(offer: Offer, micros: int, medians: dict[_Kind, int]) -> str | None:
    if micros == 0:
        return "a price of 0 is no offer"
    spec, currency = resolve(offer.gpu).spec, offer.price.currency
    if spec is not None and currency == spec.floor.currency and micros < spec.floor.micros:
        return f"{offer.price_per_gpu} per GPU-hour is below any price ever asked for this GPU"
    usual = medians.get((offer.gpu, currency))
    if usual is not None and micros * TIMES_BELOW_MEDIAN < usual:
        times = usual // micros
        return f"{offer.price_per_gpu} per GPU-hour is {times} times below the median of its kind"
    return None


def _spot_problem(offer: Offer, on_demand: dict[_Thing, int]) -> str | None:
    steady = None if offer.offer_id is None else on_demand.get(_thing(offer))
    if steady is not None and offer.price.micros > steady:
        return f"spot at {offer.price} is dearer than the same on demand"
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


# What spot and on-demand of the same thing have in common; and what has one usual price: a GPU, in
# one currency.
_Thing = tuple[str, str | None, str | None, int, bool, str]
_Kind = tuple[str, str]


def _thing(offer: Offer) -> _Thing:
    return (
        offer.provider, offer.offer_id, offer.region, offer.gpu_count, offer.community,
        offer.price.currency,
    )  # fmt: skip


def _on_demand_prices(offers: Sequence[Offer]) -> dict[_Thing, int]:
    prices: dict[_Thing, int] = {}
    for offer in offers:
        if offer.tier is Tier.ON_DEMAND and offer.offer_id is not None:
            thing, micros = _thing(offer), offer.price.micros
            prices[thing] = min(micros, prices.get(thing, micros))
    return prices


def _medians(offers: Sequence[Offer], each: Sequence[int]) -> dict[_Kind, int]:
    prices: dict[_Kind, list[int]] = defaultdict(list)
    for offer, micros in zip(offers, each, strict=True):
        prices[offer.gpu, offer.price.currency].append(micros)
    return {
        kind: median_low(known)
        for kind, known in prices.items()
        if len(known) >= ENOUGH_FOR_A_MEDIAN
    }
