"""Telling offers from mistakes: what cannot be true is quarantined, and never ranked.

Pure: a list of offers in, the believable ones and a finding for each of the others out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

from outlay.errors import Finding
from outlay.prices.gpus import SPECS, family_of, same_memory
from outlay.prices.offer import Offer, Tier

# A price this many times below the median of its GPU is a typing error: the cheapest market
# places are about thirty times below the dearest clouds for old cards, and never forty.
TIMES_BELOW_MEDIAN = 40
ENOUGH_FOR_A_MEDIAN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Offers that can be true, and findings for those that cannot."""

    offers: tuple[Offer, ...]
    findings: tuple[Finding, ...]


def screen(offers: Iterable[Offer]) -> Screened:
    """Separate offers that can be true from those that cannot."""
    candidates = list(offers)
    on_demand = _on_demand_prices(candidates)
    medians = _medians(candidates)
    good: list[Offer] = []
    findings: list[Finding] = []
    for offer in candidates:
        problem = (
            _price_problem(offer, medians)
            or _spot_problem(offer, on_demand)
            or _memory_problem(offer)
        )
        if problem is None:
            good.append(offer)
        else:
            findings.append(Finding(source=offer.source, message=f"{_name(offer)}: {problem}"))
    return Screened(offers=tuple(good), findings=tuple(findings))


def _name(offer: Offer) -> str:
    where = f" in {offer.region}" if offer.region else ""
    which = f" ({offer.offer_id})" if offer.offer_id else ""
    return f"{offer.provider} {offer.gpu_count}x {offer.gpu} {offer.label}{where}{which}"


def _price_problem(offer: Offer, medians: dict[_Kind, int]) -> str | None:
    each = offer.price_per_gpu
    if each.micros == 0:
        return "a price of 0 is no offer"
    spec = SPECS.get(offer.gpu)
    if spec is not None and each.currency == spec.floor.currency and each < spec.floor:
        return f"{each} per GPU-hour is below any price ever asked for this GPU"
    usual = medians.get(_kind(offer))
    if usual is not None and each.micros * TIMES_BELOW_MEDIAN < usual:
        return f"{each} per GPU-hour is {usual // each.micros} times below the median of its kind"
    return None


def _spot_problem(offer: Offer, on_demand: dict[_Thing, int]) -> str | None:
    if offer.tier is not Tier.SPOT or offer.offer_id is None:
        return None
    steady = on_demand.get(_thing(offer))
    if steady is not None and offer.price.micros > steady:
        return f"spot at {offer.price} is dearer than the same on demand"
    return None


def _memory_problem(offer: Offer) -> str | None:
    if offer.memory_gb is None:
        return None
    cards = [SPECS[offer.gpu]] if offer.gpu in SPECS else family_of(offer.gpu)
    if not cards or any(same_memory(offer.memory_gb, card.memory_gb) for card in cards):
        return None
    made = " or ".join(str(card.memory_gb) for card in cards)
    return f"{offer.memory_gb} GB of memory, where {offer.gpu} has {made} GB"


class _Thing(NamedTuple):
    """What spot and on-demand of the same thing have in common."""

    provider: str
    offer_id: str | None
    region: str | None
    gpu_count: int
    community: bool
    currency: str


def _thing(offer: Offer) -> _Thing:
    return _Thing(
        offer.provider,
        offer.offer_id,
        offer.region,
        offer.gpu_count,
        offer.community,
        offer.price.currency,
    )


def _on_demand_prices(offers: Sequence[Offer]) -> dict[_Thing, int]:
    prices: dict[_Thing, int] = {}
    for offer in offers:
        if offer.tier is Tier.ON_DEMAND and offer.offer_id is not None:
            thing = _thing(offer)
            prices[thing] = min(offer.price.micros, prices.get(thing, offer.price.micros))
    return prices


class _Kind(NamedTuple):
    """What has one usual price: a GPU, in one currency."""

    gpu: str
    currency: str


def _kind(offer: Offer) -> _Kind:
    return _Kind(offer.gpu, offer.price.currency)


def _medians(offers: Sequence[Offer]) -> dict[_Kind, int]:
    prices: dict[_Kind, list[int]] = defaultdict(list)
    for offer in offers:
        prices[_kind(offer)].append(offer.per_gpu_micros)
    return {
        kind: median_low(known)
        for kind, known in prices.items()
        if len(known) >= ENOUGH_FOR_A_MEDIAN
    }
