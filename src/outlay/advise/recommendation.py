"""A recommendation: what to do, what it saves, how sure that is, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from outlay.clock import as_utc, utc_now
from outlay.errors import InvalidValue, choices

Grade = Literal["measured", "estimated", "assumed"]

# How far figures of each kind are believed: a saving computed from assumed figures can't be sure.
TRUST: dict[Grade, float] = {"measured": 1.0, "estimated": 0.75, "assumed": 0.5}


@dataclass
class OptimizationRecommendation:
    """What to change, and what that is expected to save.

    Attributes:
        category: ``batch_size``, ``early_stopping``, ``epochs``, ``dataset``, ``compute``,
            ``checkpoint`` or ``badput``.
        estimated_savings: In currency units.
        estimated_time_saved: In hours; negative where it takes longer.
        confidence: The probability that it saves anything, times how far its figures are believed.
        savings_low: The lower end of an 80 % interval of the saving; ``savings_high`` the upper.
        grade: The weakest kind of figure that it rests on.
        evidence: What was measured.
        assumptions: What was not.
        needed: Which measurement would sharpen it.
        subject: The run or model that it is about; "" for a bare question.
        currency: Of every amount in it.
    """

    category: str
    title: str
    description: str
    estimated_savings: float
    estimated_time_saved: float | None = None
    confidence: float = 0.8
    action: str = ""
    risks: list[str] = field(default_factory=list)
    timestamp: datetime = field(default_factory=utc_now)
    savings_low: float | None = field(default=None, kw_only=True)
    savings_high: float | None = field(default=None, kw_only=True)
    grade: Grade = field(default="estimated", kw_only=True)
    evidence: list[str] = field(default_factory=list, kw_only=True)
    assumptions: list[str] = field(default_factory=list, kw_only=True)
    needed: list[str] = field(default_factory=list, kw_only=True)
    subject: str = field(default="", kw_only=True)
    currency: str = field(default="USD", kw_only=True)

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)

    @property
    def key(self) -> str:
        """What makes two recommendations the same: the same kind of advice about the same thing."""
        return (
            f"{self.category}|{self.subject}" if self.subject else f"{self.category}||{self.title}"
        )

    @property
    def pays_from(self) -> tuple[str, str]:
        """Which money is saved: that of one run or model is saved once, whatever is changed."""
        return self.subject, self.currency

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the timestamp in ISO 8601."""
        return asdict(self) | {"timestamp": as_utc(self.timestamp).isoformat()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> OptimizationRecommendation:
        """Return what ``to_dict`` made."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        known["timestamp"] = as_utc(datetime.fromisoformat(known["timestamp"]))
        return cls(**known)


def confidence_of(probability: float, grade: Grade) -> float:
    """Return how sure a saving is: its probability, times how far its figures are believed."""
    if grade not in TRUST:
        raise InvalidValue("grade", grade, choices(TRUST))
    return round(probability * TRUST[grade], 3)


def amount_text(amount: float, currency: str) -> str:
    """Return an amount as recommendations show it: ``12.50 USD``."""
    return f"{amount:,.2f} {currency}"


def merged(found: Iterable[OptimizationRecommendation]) -> list[OptimizationRecommendation]:
    """Return each piece of advice once, in its latest version, the largest saving first."""
    latest: dict[str, OptimizationRecommendation] = {}
    for each in sorted(found, key=lambda each: as_utc(each.timestamp)):
        latest[each.key] = each
    return sorted(latest.values(), key=lambda each: (-each.estimated_savings, each.key))


def total_savings(found: Iterable[OptimizationRecommendation]) -> dict[str, float]:
    """Return what advice saves in all, by currency; of the same money the largest counts.

    Half the epochs on a GPU at half the price save three quarters, not all of it; and a cheaper
    GPU makes waiting for data cheaper too. Savings on the same run overlap, so they are not added.
    """
    largest: dict[tuple[str, str], OptimizationRecommendation] = {}
    for each in merged(found):  # The largest saving comes first.
        largest.setdefault(each.pays_from, each)
    totals: dict[str, float] = {}
    for each in largest.values():
        totals[each.currency] = totals.get(each.currency, 0.0) + each.estimated_savings
    return dict(sorted(totals.items()))
