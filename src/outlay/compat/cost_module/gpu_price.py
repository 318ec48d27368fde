"""Documented values of price tracking: GPUPrice, PriceHistory, PriceAlert.

Their prices are floats per GPU-hour, as documented; internally, prices are exact Money.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from outlay.clock import SYSTEM, Clock, as_utc, utc_datetime, utc_now, wall_ns_of
from outlay.errors import InvalidValue, choices
from outlay.prices.offer import TRACKED, Offer, Tier, read_price
from outlay.prices.series import Alert
from outlay.units.money import MICROS
from outlay.units.quantity import NS_PER_HOUR

AlertType = Literal["drop", "surge", "low"]
_EXPECTED_PRICE = "a price per GPU-hour above 0"


@dataclass
class GPUPrice:
    """The hourly price of one GPU at a provider at an instant.

    Attributes:
        availability: Number available; 0 if unknown.
        instance_id: The provider's id of the offer.
        tier: ``on-demand``, ``spot`` or ``reserved``; prices of different tiers are not compared.
    """

    gpu_name: str
    provider: str
    price_per_hour: float
    availability: int = 0
    cuda_version: str | None = None
    vram_gb: int | None = None
    instance_id: str | None = None
    region: str | None = None
    timestamp: datetime = field(default_factory=utc_now)
    tier: str = field(default="on-demand", kw_only=True)

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the timestamp in ISO 8601."""
        return asdict(self) | {"timestamp": self.timestamp.isoformat()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GPUPrice:
        """Return the price of ``to_dict``."""
        return cls(**(values | {"timestamp": datetime.fromisoformat(values["timestamp"])}))

    @classmethod
    def from_offer(cls, offer: Offer) -> GPUPrice:
        """Return an offer's price per GPU."""
        exact = offer.given if offer.given is not None and offer.gpu_count == 1 else None
        return cls(
            gpu_name=offer.gpu,
            provider=offer.provider,
            price_per_hour=float(exact or offer.price_per_gpu.amount),
            availability=offer.availability or 0,
            cuda_version=offer.cuda,
            vram_gb=offer.memory_gb,
            instance_id=offer.offer_id,
            region=offer.region,
            timestamp=utc_datetime(offer.fetched_ns),
            tier=str(offer.tier),
        )

    def to_offer(self) -> Offer:
        """Return the price as an offer of one GPU.

        Raises:
            InvalidValue: The price is not a number above zero, or the tier is invalid.
        """
        price = read_price(self.price_per_hour, name="price_per_hour")
        if price.micros == 0:
            raise InvalidValue("price_per_hour", self.price_per_hour, _EXPECTED_PRICE)
        given = repr(float(self.price_per_hour))
        is_exact = price.micros / MICROS == float(given)
        return Offer(
            provider=self.provider,
            gpu=self.gpu_name,
            gpu_count=1,
            price=price,
            tier=_tier(self.tier),
            memory_gb=self.vram_gb,
            region=self.region,
            # Here 0 (the documented default) means unknown; in an offer it means sold out.
            availability=self.availability or None,
            cuda=self.cuda_version,
            offer_id=self.instance_id,
            fetched_ns=wall_ns_of(self.timestamp),
            source=self._source(),
            given=None if is_exact else given,
        )

    def _source(self) -> str:
        """Return the source name in the price book; a later price of one source replaces it."""
        source = f"{TRACKED}{self.provider}:{self.gpu_name}"
        if self.region or self.instance_id:
            return f"{source}:{self.tier}:{self.region or ''}:{self.instance_id or ''}"
        return source if self.tier == Tier.ON_DEMAND else f"{source}:{self.tier}"


def _tier(word: str) -> Tier:
    try:
        return Tier(word)
    except ValueError:
        raise InvalidValue("tier", word, choices(Tier)) from None


@dataclass
class PriceHistory:
    """The prices of one GPU at one provider over time."""

    gpu_name: str
    provider: str
    prices: list[tuple[datetime, float]] = field(default_factory=list)
    clock: Clock = field(default=SYSTEM, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        self.prices = [(as_utc(at), price) for at, price in self.prices]

    def add_price(self, price: float, timestamp: datetime | None = None) -> None:
        """Add a point; the default time is now."""
        self.prices.append((as_utc(timestamp or utc_datetime(self.clock.wall_ns())), price))

    def get_average(self, hours: float = 24) -> float:
        """Return the mean of the last hours' points; 0.0 if there are none."""
        recent = self._recent(hours)
        return sum(recent) / len(recent) if recent else 0.0

    def get_min_max(self, hours: float = 24) -> tuple[float, float]:
        """Return the lowest and highest price of the last hours; zeros if there are no points."""
        recent = self._recent(hours)
        return (min(recent), max(recent)) if recent else (0.0, 0.0)

    def get_trend(self, hours: float = 24) -> float:
        """Return the change from the first to the last point of the last hours, in percent."""
        recent = self._recent(hours)
        if len(recent) < 2 or recent[0] == 0:
            return 0.0
        return (recent[-1] - recent[0]) / recent[0] * 100

    def _recent(self, hours: float) -> list[float]:
        """Return the prices after ``hours`` ago, in order of time."""
        since_ns = self.clock.wall_ns() - round(hours * NS_PER_HOUR)
        stamped = sorted((wall_ns_of(as_utc(at)), price) for at, price in self.prices)
        return [price for at_ns, price in stamped if at_ns > since_ns]


@dataclass
class PriceAlert:
    """An alert for a price that dropped, surged, or reached a new low."""

    gpu_name: str
    provider: str
    alert_type: AlertType
    current_price: float
    previous_price: float
    change_percent: float
    timestamp: datetime = field(default_factory=utc_now)
    message: str = ""

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)
        if not self.message:
            self.message = (
                f"{_WORDS[self.alert_type]}: {self.gpu_name} at {self.provider} is "
                f"${self.current_price:.4f}/h, was ${self.previous_price:.4f}/h "
                f"({self.change_percent:+.1f} %)"
            )

    @classmethod
    def from_alert(cls, alert: Alert) -> PriceAlert:
        """Return a stored alert in its documented form."""
        return cls(
            gpu_name=alert.series.gpu,
            provider=alert.series.provider,
            alert_type=alert.kind.value,
            current_price=float(alert.current.amount),
            previous_price=float(alert.previous.amount),
            change_percent=alert.change_percent,
            timestamp=utc_datetime(alert.at_ns),
        )


_WORDS: dict[AlertType, str] = {
    "drop": "Price drop",
    "surge": "Price surge",
    "low": "Historic low",
}
