"""Money that was seen to buy little: idle GPUs, a low MFU, time that nothing accounts for.

None of them is a saving: how much can be had back shows only once the cause is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlay.advise.batch_size import PARAMETERS, last_reported
from outlay.advise.recommendation import OptimizationRecommendation
from outlay.cost.run_cost import RunCost
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.throughput import ModelFlops, utilisation
from outlay.goodput.timeline import Window
from outlay.prices.gpus import resolve
from outlay.units.quantity import duration_text
from outlay.units.shown import amount_text

MFU = ("mfu", "model_flops_utilization", "model_flops_utilisation")

# Dense peak of the tensor cores in bfloat16, or in half precision where the card lacks it, FLOP/s,
# as the makers publish it.
PEAK_FLOPS = {
    "V100": 125e12,
    "T4": 65e12,
    "A10": 125e12,
    "A10G": 125e12,
    "A30": 165e12,
    "A40": 149.7e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "RTX4090": 165e12,
    "MI250X": 383e12,
    "MI300X": 1307e12,
}
_FLOPS_PER_PARAMETER = 6  # Forward and backward, for each token (arXiv:2001.08361).
_LEAST_IDLE = 0.3
_LOW_MFU = 0.2
_USUAL_MFU = 0.4
_LEAST_OTHER = 0.05


def observe(view: RunView, cost: RunCost) -> Iterator[OptimizationRecommendation]:
    """Yield what a priced run paid for and got little of."""
    assert cost.cost is not None, "a run without a price has no cost to speak of"
    amount, currency = float(cost.cost.amount), cost.cost.currency
    for found in (
        _idle_gpus(view.account.gpu_busy_ns / cost.wall_ns, amount, currency),
        _low_mfu(view, amount, currency),
        _other(cost, amount, currency),
    ):
        if found is not None:
            yield found


def _idle_gpus(busy: float, amount: float, currency: str) -> OptimizationRecommendation | None:
    """What was paid for GPUs that did nothing; a share of exactly 0 was never sampled."""
    if not 0 < busy <= 1 - _LEAST_IDLE:
        return None
    idle = (1 - busy) * amount
    return OptimizationRecommendation(
        category="idle_gpu",
        title=f"GPUs were idle {1 - busy:.0%} of the time",
        description=(
            f"They were busy {busy:.0%} of the time, so that {amount_text(idle, currency)} of "
            f"{amount_text(amount, currency)} paid for idle GPUs."
        ),
        estimated_savings=0.0,
        confidence=1.0,
        action="Look what the program waits for; or rent fewer or smaller GPUs",
        grade="measured",
        evidence=[f"GPUs busy {busy:.1%} of wall time, sampled"],
        needed=["steps and spans (outlay.run), which say what the time went to"],
        currency=currency,
        kind="observation",
        at_stake=idle,
    )


def _low_mfu(view: RunView, amount: float, currency: str) -> OptimizationRecommendation | None:
    """Steps that need few of the operations that their GPUs can do."""
    found = _mfu(view)
    if found is None or not 0 < found < _LOW_MFU:
        return None
    breakdown = view.break_down()
    steps = breakdown.cost_by_phase.get(ph.STEP)
    stake = (1 - found / _USUAL_MFU) * (amount if steps is None else float(steps.amount))
    return OptimizationRecommendation(
        category="mfu",
        title=f"Steps use {found:.1%} of what the GPUs can do",
        description=(
            f"Model FLOPs utilisation while steps run is {found:.1%}; at {_USUAL_MFU:.0%}, which "
            f"is usual for large models, the same steps would cost {amount_text(stake, currency)} "
            "less."
        ),
        estimated_savings=0.0,
        confidence=1.0,
        action="Profile a step: larger batches, compiled and fused kernels, lower precision",
        grade="estimated",
        evidence=[f"MFU {found:.1%} while productive"],
        assumptions=[f"{_USUAL_MFU:.0%} can be reached; small models seldom do"],
        needed=["a profile of a few steps"],
        currency=currency,
        kind="observation",
        at_stake=stake,
    )


def _mfu(view: RunView) -> float | None:
    """Return the MFU while steps ran: as the run reported it, else from tokens and parameters."""
    reported = last_reported(view.account, MFU)
    if reported is not None:
        return reported if reported <= 1 else reported / 100
    header = view.timeline.attempts[-1].header
    parameters, tokens = last_reported(view.account, PARAMETERS), view.account.work.tokens
    if not header.gpu or parameters is None or not tokens:
        return None
    peak = PEAK_FLOPS.get(_family(header.gpu))
    if peak is None:
        return None
    window: Window = view.whole
    model = ModelFlops(per_token=_FLOPS_PER_PARAMETER * parameters, peak=peak)
    return utilisation(tokens, model, view.timeline, [window]).of_productive


def _family(gpu: str) -> str:
    spec = resolve(gpu).spec
    return resolve(gpu).name if spec is None else spec.family


def _other(cost: RunCost, amount: float, currency: str) -> OptimizationRecommendation | None:
    """Time that neither steps nor spans account for."""
    money = cost.by_phase.get(ph.OTHER)
    other = 0.0 if money is None else float(money.amount)
    if not other or other < _LEAST_OTHER * amount:
        return None
    return OptimizationRecommendation(
        category="other",
        title=f"Nothing says what {other / amount:.0%} of the cost was for",
        description=(f"{amount_text(other, currency)} went by between steps, outside every span."),
        estimated_savings=0.0,
        confidence=1.0,
        action="Put spans around what runs between steps, to see what it is",
        grade="measured",
        evidence=[f"other: {amount_text(other, currency)} in {duration_text(cost.wall_ns)}"],
        needed=['with run.span("logging"): ...'],
        currency=currency,
        kind="observation",
        at_stake=other,
    )
