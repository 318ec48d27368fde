"""Advice on repeated data: how many passes over it are still worth their money."""

from __future__ import annotations

import math

from outlay.advise.recommendation import OptimizationRecommendation, amount_text, confidence_of
from outlay.advise.scaling import REPETITION_CONSTANT, effective_data
from outlay.errors import InvalidValue

# The last pass should teach at least this much of what fresh data would; the stricter and the
# laxer threshold give the interval.
_WORTH = 0.5
_STRICT, _LAX = 0.75, 0.25
_LEAST_SAVING = 0.10


def passes_worth(least: float, *, constant: float = REPETITION_CONSTANT) -> int:
    """Return after how many passes another one is worth less than a share of fresh data.

    The worth of a pass is the slope of D' = U + U R* (1 - exp(-(e - 1) / R*)), exp(-(e - 1) / R*).
    """
    if not 0 < least <= 1:
        raise InvalidValue("least", least, "a share of what fresh data is worth, up to 1")
    return 1 + math.floor(constant * -math.log(least))


def recommend_fewer_passes(
    epochs: float, cost: float, hours: float, *, currency: str = "USD"
) -> OptimizationRecommendation | None:
    """Return how many passes over the same data are enough; None where all of them are worth it.

    Args:
        epochs: Passes over the data that the training made.
        cost: What the whole training cost.
        hours: How long it took.
        currency: Of the cost.
    """
    enough = passes_worth(_WORTH)
    if not enough < epochs < math.inf:
        return None
    low, saved, high = (
        max(0.0, 1 - passes_worth(worth) / epochs) * cost for worth in (_LAX, _WORTH, _STRICT)
    )
    if saved < _LEAST_SAVING:
        return None
    kept = effective_data(1.0, enough) / effective_data(1.0, epochs)
    return OptimizationRecommendation(
        category="dataset",
        title=f"Get fresh data instead of more than {enough} passes over the same",
        description=(
            f"The data was passed over {epochs:g} times; the last pass was worth "
            f"{math.exp(-(epochs - 1) / REPETITION_CONSTANT):.0%} of fresh data. {enough} passes "
            f"teach {kept:.0%} of it all and cost {amount_text(saved, currency)} less."
        ),
        estimated_savings=saved,
        estimated_time_saved=(1 - enough / epochs) * hours,
        confidence=confidence_of(0.8, "estimated"),
        action=f"Add data, or stop after {enough} passes",
        risks=[f"{1 - kept:.0%} of what the data teaches is given up"],
        savings_low=low,
        savings_high=high,
        grade="estimated",
        evidence=[f"{epochs:g} epochs, as the run reported them"],
        assumptions=[
            f"repeated data loses its worth as in language models, R* = {REPETITION_CONSTANT} "
            "(arXiv:2305.16264)"
        ],
        needed=["accuracy on parts of the dataset (CostOptimizer.recommend_dataset_size)"],
        currency=currency,
    )
