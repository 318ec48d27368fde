"""Something for rent: one offer of one vendor, as it stood when it was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outlay.errors import InvalidValue
from outlay.units import Money

# Beyond these a figure is a vendor's mistake, and would not fit the columns it is kept in.
MOST_GPUS = 100_000
HIGHEST_PRICE = Money.parse("1e6 USD").micros


class Tier(StrEnum):
    """On which terms an offer is rented."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """GPUs that can be rented together, and what an hour of them costs.

    Attributes:
        provider: Who rents them out.
        gpu: Canonical name where the table knows the card, else the vendor's.
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
        for name, amount in (("price", self.price), ("storage_price", self.storage_price)):
            if amount is not None and not 0 <= amount.micros <= HIGHEST_PRICE:
                raise InvalidValue(name, str(amount), "between 0 and a million")

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
