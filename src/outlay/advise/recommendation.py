"""A recommendation: what to do, what it saves, how certain that is, and the evidence.

There are three kinds. A ``saving`` gives up no quality beyond a stated tolerance. A ``trade`` is
cheaper and worse: the quality loss is named with the saving, and it is in no total. An
``observation`` is money that bought little; how much of it could be saved is not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Literal

from outlay.clock import as_utc, utc_now
from outlay.errors import InvalidValue, choices
from outlay.units import Money
from outlay.units.shown import Grade, amount_text, money_of, money_text, range_text

AdviceKind = Literal["saving", "trade", "observation"]

# Confidence in figures of each grade: a saving computed from assumed figures is not certain.
TRUST: dict[Grade, float] = {"measured": 1.0, "estimated": 0.85, "assumed": 0.5}
_ORDER: dict[AdviceKind, int] = {"saving": 0, "trade": 1, "observation": 2}

# How often the true saving was in the interval, by cause: measured by benchmarks/advice_quality.py
# on the half of its simulated trainings on which anything may be tuned, 30 to 791 cases each, with
# 20 more cases of which 80 % held.
HELD = {
    "bursts": 0.81,
    "checkpoint": 0.87,
    "checkpoint_save": 0.84,
    "compute": 0.98,
    "converged": 0.80,
    "custom:compile": 0.80,
    "data_loading": 0.81,
    "early_stopping": 0.99,
    "evaluation": 0.99,
    "plateau": 0.84,
    "program_startup": 0.94,
    "recovery": 0.83,
    "stages": 0.87,
    "stall": 0.87,
    "turn": 0.96,
}
# Factors on the width of an interval, by cause. What a remedy leaves and how many failures come are
# seldom both at their worst, so that most are below 1. Chosen on the same half: four in five
# intervals hold, or a few more. Start-up keeps the width that the trainings in the tests need.
WIDTH = {
    "bursts": 0.7,
    "checkpoint_save": 0.65,
    "custom:compile": 0.6,
    "program_startup": 1.1,
    "recovery": 0.75,
}

LEAST_SHARE = 0.01
"""Savings below this share of a training's cost are not worth a change."""
# Two runs never take the same time: no saving is known more precisely.
_LEAST_DOUBT = 0.03


@dataclass
class OptimizationRecommendation:
    """What to change, and the expected saving.

    Attributes:
        category: ``batch_size``, ``early_stopping``, ``epochs``, ``dataset``, ``compute``,
            ``checkpoint``, ``badput``, ``idle_gpu``, ``imports``, ``mfu`` or ``other``.
        estimated_savings: In currency units; 0 for an observation.
        estimated_time_saved: In hours; negative if it takes longer.
        confidence: How often the true saving of such a change was within its interval, in simulated
            trainings; where none were simulated, the probability of a saving, times the confidence
            in figures of its grade.
        savings_low: The lower end of an 80 % interval of the saving; ``savings_high`` the upper.
        grade: ``estimated`` if computed from measurements, ``assumed`` if it depends on a figure
            that was not measured. Only the money of an observation is ``measured``: the saving of
            another run never is.
        evidence: What was measured.
        assumptions: What was not.
        needed: Measurements that would make it more precise.
        subject: The run or model that it is for; "" if none.
        kind: ``saving`` (at equal quality), ``trade`` (cheaper and worse) or ``observation``.
        quality_loss: What a trade gives up; "" otherwise.
        tolerance: By how much the final metric may get worse, in its own unit; None if the change
            does not affect it.
        at_stake: The money of an observation, in currency units; None otherwise.
        cause: What it addresses, by which its confidence was looked up; "" if not simulated.
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
    cause: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self.timestamp = as_utc(self.timestamp)

    @property
    def key(self) -> str:
        """Identifies the recommendation: two with the same key replace each other."""
        what = self.category if self.kind == "saving" else f"{self.category}:{self.kind}"
        return f"{what}|{self.subject}" if self.subject else f"{what}||{self.title}"

    @property
    def pays_from(self) -> tuple[str, str]:
        """The money that is saved; that of one run or model can be saved only once."""
        return self.subject, self.currency

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the timestamp in ISO 8601."""
        return asdict(self) | {"timestamp": as_utc(self.timestamp).isoformat()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> OptimizationRecommendation:
        """Inverse of ``to_dict``."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        known["timestamp"] = as_utc(datetime.fromisoformat(known["timestamp"]))
        return cls(**known)


def confidence_of(probability: float, grade: Grade) -> float:
    """Return the confidence of a saving: its probability times the confidence in its grade."""
    if grade not in TRUST:
        raise InvalidValue("grade", grade, choices(TRUST))
    return round(probability * TRUST[grade], 3)


def calibrated(found: OptimizationRecommendation, cause: str) -> OptimizationRecommendation:
    """Return a saving with the interval and the confidence that simulated trainings showed."""
    found = replace(found, cause=cause, confidence=HELD.get(cause, found.confidence))
    point, low, high = found.estimated_savings, found.savings_low, found.savings_high
    if low is None or high is None:
        return found
    width = WIDTH.get(cause, 1.0)
    low, high = point - width * (point - low), point + width * (high - point)
    return replace(found, savings_low=low, savings_high=high)


def least_saving(cost: float) -> float:
    """Return the smallest saving that is worth a change to a training of that cost."""
    return LEAST_SHARE * cost


def bounded(found: OptimizationRecommendation, cost: float) -> OptimizationRecommendation:
    """Return a saving whose interval includes its estimate, has a width, and is within the cost."""
    point = found.estimated_savings
    low = point if found.savings_low is None else found.savings_low
    high = point if found.savings_high is None else found.savings_high
    low = min(low, point * (1 - _LEAST_DOUBT))
    high = max(high, point * (1 + _LEAST_DOUBT))
    return replace(found, savings_low=max(0.0, low), savings_high=max(point, min(high, cost)))


def gain_text(found: OptimizationRecommendation) -> str:
    """Return the gain of a recommendation as text: ``saves 12.50 USD (10.00 to 14.00)``."""
    if found.kind == "observation" and not found.estimated_savings:
        return f"{amount_text(found.at_stake or 0.0, found.currency)} at stake"
    text = f"saves {amount_text(found.estimated_savings, found.currency)}"
    if found.savings_low is not None and found.savings_high is not None:
        ends = (money_of(end, found.currency) for end in (found.savings_low, found.savings_high))
        text += f" ({range_text(*ends)})"
    return f"{text} and gives up {found.quality_loss}" if found.kind == "trade" else text


def nothing_above(floor: Money | None) -> str:
    """Return the text for no recommendation above a floor."""
    if floor is None:
        return f"Nothing that saves more than {LEAST_SHARE:.0%} of a run's cost was found."
    return (
        f"Nothing worth changing above {money_text(floor)} "
        f"({LEAST_SHARE:.0%} of its cost) was found."
    )


def merged(found: Iterable[OptimizationRecommendation]) -> list[OptimizationRecommendation]:
    """Return the latest recommendation of each key.

    Savings come first, then trades, then observations; within a kind the largest amount first.
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
    """Return the recommendations of one kind."""
    return [each for each in found if each.kind == kind]


def total_savings(found: Iterable[OptimizationRecommendation]) -> dict[str, float]:
    """Return the total saving at equal quality, by currency; per run only the largest counts.

    Savings on the same run overlap and are not added: half the epochs on a GPU at half the price
    save three quarters, not all.
    """
    largest: dict[tuple[str, str], OptimizationRecommendation] = {}
    for each in merged(of_kind(found, "saving")):  # The largest saving comes first.
        largest.setdefault(each.pays_from, each)
    totals: dict[str, float] = {}
    for each in largest.values():
        totals[each.currency] = totals.get(each.currency, 0.0) + each.estimated_savings
    return dict(sorted(totals.items()))
