"""How often spot machines were taken back, pooled over runs by vendor, GPU and tier. Pure.

Counted are recorded preemptions and the hours of attempts whose price is that of a spot offer. A
machine that vanished without a notice is in no log, and so is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outlay.advise.spot import ReclaimRate
from outlay.advise.tiers import SPOT_MTTF_HOURS
from outlay.errors import InvalidValue
from outlay.ledger import Attempt, Price
from outlay.prices.gpus import matching_names, resolve
from outlay.prices.names import parse_name
from outlay.prices.offer import Offer, Tier
from outlay.units.quantity import NS_PER_HOUR
from outlay.units.shown import counted

ENOUGH_HOURS: Final = 4 * SPOT_MTTF_HOURS
"""So long without a reclaim says something: at the assumed rate its chance is 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOffer:
    """A vendor's spot machines with one GPU."""

    provider: str
    gpu: str
    community: bool = False

    @classmethod
    def of(cls, offer: Offer) -> SpotOffer | None:
        """Return it for an offer; None if that is not spot."""
        if offer.tier is not Tier.SPOT:
            return None
        return cls(
            provider=offer.provider.lower(), gpu=resolve(offer.gpu).name, community=offer.community
        )

    @classmethod
    def of_price(cls, price: Price | None) -> SpotOffer | None:
        """Return it for a recorded price; None if that is of no spot offer, or was typed."""
        if price is None or not price.offer:
            return None
        try:
            name = parse_name(price.offer.partition(" ")[0], name="offer")
        except InvalidValue:
            return None
        if name.tier is not Tier.SPOT:
            return None
        return cls(
            provider=name.provider.lower(), gpu=resolve(name.gpu).name, community=name.community
        )

    @property
    def text(self) -> str:
        """Its name for people."""
        tier = "community spot" if self.community else "spot"
        return f"{self.provider} {self.gpu} {tier}"


@dataclass(frozen=True, slots=True)
class SpotUse:
    """What runs recorded on spot machines."""

    reclaims: int = 0
    uptime_ns: int = 0
    runs: int = 0

    def __add__(self, also: SpotUse) -> SpotUse:
        return SpotUse(
            self.reclaims + also.reclaims, self.uptime_ns + also.uptime_ns, self.runs + also.runs
        )

    @property
    def hours(self) -> float:
        """How long machines were up."""
        return self.uptime_ns / NS_PER_HOUR

    @property
    def text(self) -> str:
        """What it rests on, in words."""
        return (
            f"{counted(self.reclaims, 'reclaim')} in {self.hours:.0f} h of "
            f"{counted(self.runs, 'run')}"
        )

    def rate(self, where: str) -> ReclaimRate | None:
        """Return the rate; None if that is too little to say anything.

        Without any reclaim it is that of half of one, the mean of a rate of which nothing else is
        known (Jeffreys).
        """
        if not self.uptime_ns or (not self.reclaims and self.hours < ENOUGH_HOURS):
            return None
        return ReclaimRate(
            mttf_hours=self.hours / (self.reclaims or 0.5), reclaims=self.reclaims,
            uptime_hours=self.hours, source=f"recorded: {self.text} on {where}",
        )  # fmt: skip


class SpotHistory:
    """The spot machines of all runs that were added."""

    def __init__(self) -> None:
        self._uses: dict[SpotOffer, SpotUse] = defaultdict(SpotUse)

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Add a run by its attempts."""
        found: dict[SpotOffer, SpotUse] = defaultdict(SpotUse)
        for attempt in attempts:
            if (offer := SpotOffer.of_price(attempt.header.price)) is not None:
                is_reclaimed = attempt.end is not None and attempt.end.status == "preempted"
                up_ns = attempt.last_sign_ns - attempt.start_ns
                found[offer] += SpotUse(int(is_reclaimed), up_ns)
        for offer, use in found.items():
            self._uses[offer] += use + SpotUse(runs=1)

    def of(self, offer: SpotOffer) -> SpotUse:
        """Return what was recorded on one vendor's GPU."""
        return self._uses.get(offer, SpotUse())

    def rate(self, offer: SpotOffer) -> ReclaimRate:
        """Return how often these machines are taken back; a guess if too little was recorded."""
        return self.of(offer).rate(offer.text) or guess(self.of(offer), offer.text)

    def rate_of_gpu(self, gpu: str) -> ReclaimRate | None:
        """Return that of a GPU's spot machines at any vendor; None with too little."""
        same = matching_names(gpu, {offer.gpu for offer in self._uses})
        uses = (use for offer, use in self._uses.items() if offer.gpu in same)
        return sum(uses, SpotUse()).rate(f"{gpu} spot of any vendor")


def guess(seen: SpotUse, where: str) -> ReclaimRate:
    """Return the assumed rate, and that it is a guess."""
    known = f"{seen.text} on {where} say too little" if seen.runs else f"no run was on {where}"
    return ReclaimRate(mttf_hours=SPOT_MTTF_HOURS, source=f"a guess: {known}; --mttf states it")
