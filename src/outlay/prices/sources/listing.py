"""A line of somebody else's catalog, whichever catalog it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from outlay.prices.gpus import resolve
from outlay.prices.interconnect import nvlink_between
from outlay.prices.offer import Offer, Tier
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One priced instance type in one region.

    Attributes:
        gpu: In the catalog's words.
        memory_gb: Of one GPU, where the catalog can be believed about it.
        price: Of an hour of the whole instance, as it was written.
    """

    instance: str
    region: str
    gpu: str
    memory_gb: float | None
    gpu_count: int
    price: str | float
    tier: Tier

    def offer(self, *, provider: str, source: str, fetched_ns: int) -> Offer:
        """Return the line as an offer; raises InvalidValue where it makes none."""
        gpu = resolve(self.gpu, self.memory_gb)
        nvlink = nvlink_between(f"{self.gpu} {self.instance}", gpu.name, self.gpu_count)
        return Offer(
            provider=provider,
            gpu=gpu.name,
            gpu_count=self.gpu_count,
            price=_money(self.price),
            tier=self.tier,
            memory_gb=gpu.memory_gb,
            nvlink=nvlink,
            interconnect="NVLink" if nvlink else None,
            region=self.region or None,
            offer_id=self.instance or None,
            fetched_ns=fetched_ns,
            source=source,
        )


@lru_cache(maxsize=65_536)
def _money(price: str | float) -> Money:
    """Catalogs repeat a price in every region, and reading an exact decimal is not free."""
    return Money.parse(price, name="price")
