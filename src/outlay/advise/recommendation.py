"""A recommendation: what to do, what it saves, how sure that is, and what it rests on.

Three kinds are kept apart. A ``saving`` gives up no quality beyond a stated tolerance. A ``trade``
is cheaper and worse: what it gives up is named beside what it saves, and it is in no total. An
``observation`` is money that was seen to buy little; how much of it can be had back is not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Literal

from outlay.clock import as_utc, utc_now
from outlay.errors import InvalidValue, choices
from outlay.units import Money
from outlay.units.shown import amount_text, money_of, money_text, range_text

Grade = Literal["measured", "estimated", "assumed"]
AdviceKind = Literal["saving", "trade", "observation"]

# How far figures of each kind are believed: a saving computed from assumed figures can't be sure.
TRUST: dict[Grade, float] = {"measured": 1.0, "estimated": 0.85, "assumed": 0.5}
_ORDER: dict[AdviceKind, int] = {"saving": 0, "trade": 1, "observation": 2}

LEAST_SHARE = 0.01
"""Savings below this share of what a training costs are not worth a change."""
# No two runs take the same time, so that no saving in the next one is known more closely.
_LEAST_DOUBT = 0.03


@dataclass
class OptimizationRecommendation:
    """What to change, and what that is expected to save.

    Attributes:
        category: ``batch_size``, ``early_stopping``, ``epochs``, ``dataset``, ``compute``,
            ``checkpoint``, ``badput``, ``idle_gpu``, ``mfu`` or ``other``.
        estimated_savings: In currency units; 0 of an observation.
        estimated_time_saved: In hours; negative where it takes longer.
        confidence: The probability that it saves anything, times how far its figures are believed.
        savings_low: The lower end of an 80 % interval of the saving; ``savings_high`` the upper.
        grade: How the saving is known: ``estimated`` where it is computed from measurements,
            ``assumed`` where it rests on a figure that nobody measured. Only the money of an
            observation is ``measured``: what another run would save was never measured.
        evidence: What was measured.
        assumptions: What was not.
        needed: Which measurement would sharpen it.
        subject: The run or model that it is about; "" for a bare question.
        currency: Of every amount in it.
        kind: ``saving`` (at equal quality), ``trade`` (cheaper and worse) or ``observation``.
        quality_loss: What a trade gives up; "" otherwise.
        tolerance: By how much at most the final metric may be worse, in its own unit; None where
            what is changed has no part in it.
        at_stake: What an observation is about, in currency units; None otherwise.
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
    kind: AdviceKind = field(default="saving", kw_only=True)
    quality_loss: str = field(default="", kw_only=True)
    tolerance: float | None = field(default=None, kw_only=True)
    at_stake: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)

    @property
    def key(self) -> str:
        """What makes two recommendations the same: the same kind of advice about the same thing."""
        what = self.category if self.kind == "saving" else f"{self.category}:{self.kind}"
        return f"{what}|{self.subject}" if self.subject else f"{what}||{self.title}"

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


def least_saving(cost: float) -> float:
    """Return the least that is worth a change to a training of that cost."""
    return LEAST_SHARE * cost


def bounded(found: OptimizationRecommendation, cost: float) -> OptimizationRecommendation:
    """Return a saving whose interval holds its estimate, has a width, and ends within the cost."""
    point = found.estimated_savings
    low = point if found.savings_low is None else found.savings_low
    high = point if found.savings_high is None else found.savings_high
    low = min(low, point) * (1 - _LEAST_DOUBT)
    high = max(high, point) * (1 + _LEAST_DOUBT)
    return replace(found, savings_low=max(0.0, low), savings_high=max(point, min(high, cost)))


def gain_text(found: OptimizationRecommendation) -> str:
    """Return what a recommendation is worth, in a line: ``saves 12.50 USD (10.00 to 14.00)``."""
    if found.kind == "observation" and not found.estimated_savings:
        return f"{amount_text(found.at_stake or 0.0, found.currency)} at stake"
    text = f"saves {amount_text(found.estimated_savings, found.currency)}"
    if found.savings_low is not None and found.savings_high is not None:
        ends = (money_of(end, found.currency) for end in (found.savings_low, found.savings_high))
        text += f" ({range_text(*ends)})"
    return f"{text} and gives up {found.quality_loss}" if found.kind == "trade" else text


def nothing_above(floor: Money | None) -> str:
    """Return that nothing was found that saves more than a floor."""
    if floor is None:
        return f"Nothing that saves more than {LEAST_SHARE:.0%} of a run's cost was found."
    return (
        f"Nothing worth changing above {money_text(floor)} "
        f"({LEAST_SHARE:.0%} of its cost) was found."
    )


def merged(found: Iterable[OptimizationRecommendation]) -> list[OptimizationRecommendation]:
    """Return each piece of advice once, in its latest version.

    Savings come first, then trades, then observations; of each the largest amount first.
    """
    latest: dict[str, OptimizationRecommendation] = {}
    for each in sorted(found, key=lambda each: as_utc(each.timestamp)):
        latest[each.key] = each
    return sorted(
        latest.values(),
        key=lambda each: (
            _ORDER[each.kind], -each.estimated_savings, -(each.at_stake or 0.0), each.key
        ),
    )  # fmt: skip


def of_kind(
    found: Iterable[OptimizationRecommendation], kind: AdviceKind
) -> list[OptimizationRecommendation]:
    """Return the advice of one kind."""
    return [each for each in found if each.kind == kind]


def total_savings(found: Iterable[OptimizationRecommendation]) -> dict[str, float]:
    """Return what is saved in all at equal quality, by currency; of the same money the largest.

    Half the epochs on a GPU at half the price save three quarters, not all of it; and a cheaper
    GPU makes waiting for data cheaper too. Savings on the same run overlap, so they are not added.
    """
    largest: dict[tuple[str, str], OptimizationRecommendation] = {}
    for each in merged(of_kind(found, "saving")):  # The largest saving comes first.
        largest.setdefault(each.pays_from, each)
    totals: dict[str, float] = {}
    for each in largest.values():
        totals[each.currency] = totals.get(each.currency, 0.0) + each.estimated_savings
    return dict(sorted(totals.items()))
