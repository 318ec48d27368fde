"""A line of somebody else's catalog, whichever catalog it is."""

from __future__ import annotations

from dataclasses import dataclass

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
            price=read_price(self.price),
            tier=self.tier,
            memory_gb=gpu.memory_gb,
            nvlink=nvlink,
            interconnect="NVLink" if nvlink else None,
            region=self.region or None,
            offer_id=self.instance or None,
            fetched_ns=fetched_ns,
            source=source,
        )


def read_price(price: str | float) -> Money:
    """Return a price as Money; plain digits, which a catalog has by the ten thousand, at once."""
    if isinstance(price, str) and price.isascii():
        whole, _, fraction = price.partition(".")
        if whole.isdigit() and len(fraction) <= 6 and (fraction.isdigit() or not fraction):
            return Money(int(whole + fraction.ljust(6, "0")))
    return Money.parse(price, name="price")
