"""A price that somebody knows: a contract, a quote, the rate of one's own cluster."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.prices.gpus import resolve
from outlay.prices.offer import MANUAL, Offer, Parsed, Tier
from outlay.units import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualSource:
    """One offer, stated by hand.

    Attributes:
        price: Per GPU-hour.
        offer_id: Of the one instance or offer that it is the price of, where it is.
    """

    provider: str
    gpu: str
    price: Rate
    gpu_count: int = 1
    tier: Tier = Tier.ON_DEMAND
    region: str | None = None
    offer_id: str | None = None

    @property
    def name(self) -> str:
        """A stream of its own for each machine and its terms: one price forgets no other."""
        on = "" if self.tier is Tier.ON_DEMAND else f":{self.tier}"
        size = "" if self.gpu_count == 1 else f":{self.gpu_count}x"
        of_one = f":{self.offer_id}" if self.offer_id else ""
        return f"{MANUAL}{self.provider}:{resolve(self.gpu).name}{size}{on}{of_one}"

    def load(self, fetched_ns: int) -> Parsed:
        """Return the offer."""
        gpu = resolve(self.gpu)
        offer = Offer(
            provider=self.provider,
            gpu=gpu.name,
            gpu_count=self.gpu_count,
            price=(self.price * self.gpu_count).per_hour,
            tier=self.tier,
            memory_gb=gpu.memory_gb,
            region=self.region,
            offer_id=self.offer_id,
            fetched_ns=fetched_ns,
            source=self.name,
        )
        return Parsed(offers=(offer,))
