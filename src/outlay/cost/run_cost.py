"""The cost of one run: by phase, and per step, sample, token and accuracy point. Pure.

The parts sum to the whole to the micro-unit. A run without a price has no cost, which is not zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from outlay.account.run import RunAccount
from outlay.cost.charges import gpu_ns_within
from outlay.errors import Finding
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import CostBeside, PricedTime, Window
from outlay.ledger import Attempt, Price
from outlay.rates import prices_of
from outlay.units import Money
from outlay.units.money import Kind, per
from outlay.units.shown import Grade

# Metric names with the same meaning, in order of preference.
ACCURACY = ("test_accuracy", "accuracy", "eval_accuracy", "val_accuracy", "validation_accuracy")
LOSS = ("validation_loss", "val_loss", "eval_loss", "test_loss", "loss")
EPOCHS = ("epochs", "epoch")
LEARNING_RATE = ("learning_rate", "lr")
PARAMETERS = ("parameters", "model_parameters")
SEQUENCE_LENGTH = ("sequence_length", "seq_len", "max_seq_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost(PricedTime):
    """The cost of a run, or of a window of it. Times are nanoseconds.

    Attributes:
        kind: ``cash`` or ``showback``; the two are never added.
        prices: All prices in order of time.
        gpu_ns: GPUs times the duration of attempts, without the time between them.
        steps: Executed steps, including repeated ones.
        committed_steps: Steps up to the last committed checkpoint.
        tokens: Of all ranks, including repeated work; ``samples`` likewise.
        epochs: As reported, else steps divided by the length of an epoch; None if unknown.
        accuracy: The best reported, not the last.
        energy_mj: Measured energy of the whole run; 0 if none was measured.
        begin: Source of the start time: a ``supervisor``, the ``process``, or the first
            ``record``, in which case earlier time is unknown.
        end: Source of the end time: ``recorded``, the ``last_sign`` of life, or ``none`` yet.
    """

    run_id: str
    model: str
    window: Window
    alive: bool
    kind: Kind
    prices: tuple[Price, ...]
    by_phase: dict[str, Money]
    gpu_ns: int
    steps: int
    committed_steps: int
    samples: int
    tokens: int
    epochs: float | None
    accuracy: float | None
    findings: tuple[Finding, ...]
    begin: Literal["supervisor", "process", "record"] = "record"
    end: Literal["recorded", "last_sign", "none"] = "recorded"
    energy_mj: int = 0

    @property
    def productive(self) -> Money | None:
        """The cost of steps that survived."""
        return None if self.cost is None else self.by_phase.get(ph.STEP, self.cost * 0)

    @property
    def grade(self) -> Grade:
        """How the cost is known: as well as its least certain part."""
        return grade_of_cost(self.prices, self.assumptions)

    def unit_costs(self) -> dict[str, float | None]:
        """Return the cost per unit of work, in currency units; None if unknown.

        An accuracy point is 1.0 of accuracy, as documented for ``TrainingCostReport``.
        """
        return {
            "step": per(self.cost, self.steps),
            "committed_step": per(self.cost, self.committed_steps),
            "sample": per(self.cost, self.samples),
            "epoch": per(self.cost, self.epochs),
            "token": per(self.cost, self.tokens),
            "million_tokens": per(self.cost, Fraction(self.tokens, 10**6)),
            "accuracy_point": per(self.cost, self.accuracy),
        }


def grade_of_cost(prices: Iterable[Price], assumptions: Collection[str]) -> Grade:
    """Return how a cost at these prices is known."""
    if assumptions:
        return "assumed"
    return "measured" if all(price.offer for price in prices) else "stated"


def cost_of(view: RunView, window: Window | None = None) -> RunCost:
    """Return the cost of a run, or of a window of it; counts are of the whole run."""
    chosen = view.whole if window is None else window
    breakdown = view.break_down(chosen)
    attempts = view.timeline.attempts
    account = view.account
    steps = sum(account.segments[attempt.segment].work.steps for attempt in attempts)
    committed = view.timeline.committed_step()
    return RunCost(
        **breakdown.priced() | {"cost_beside": tuple(map(_without_zeros, breakdown.cost_beside))},
        run_id=view.identity.run_id,
        model=view.identity.model,
        window=chosen,
        alive=view.timeline.alive,
        kind=view.unit.kind,
        prices=prices_of(attempts),
        by_phase={n: c for n, c in breakdown.cost_by_phase.items() if c},
        gpu_ns=round(sum(gpu_ns_within(a, chosen.start_ns, chosen.end_ns) for a in attempts)),
        steps=steps,
        committed_steps=0 if committed is None else committed + 1,
        samples=account.work.samples,
        tokens=account.work.tokens,
        epochs=_epochs(account, steps),
        accuracy=best_accuracy(account),
        findings=view.findings,
        begin=attempts[0].begin,
        end=_end_of(attempts[-1], alive=view.timeline.alive),
        energy_mj=view.energy_mj(),
    )


def _without_zeros(beside: CostBeside) -> CostBeside:
    return replace(beside, by_phase={n: c for n, c in beside.by_phase.items() if c})


def _end_of(last: Attempt, *, alive: bool) -> Literal["recorded", "last_sign", "none"]:
    if alive:
        return "none"
    return "last_sign" if last.end is None else "recorded"


def _epochs(account: RunAccount, steps: int) -> float | None:
    reported = account.values(*EPOCHS)
    if len(reported):
        return float(reported.max())
    per_epoch = steps_per_epoch(account)
    return steps / per_epoch if per_epoch else None


def steps_per_epoch(account: RunAccount) -> int | None:
    """Return the epoch length from the run's latest budget event that has one, or None."""
    stated = (event.data.get("steps_per_epoch") for event in reversed(account.budget_events()))
    return next((steps for steps in stated if isinstance(steps, int)), None)


def best_accuracy(account: RunAccount) -> float | None:
    """Return the highest reported accuracy, or None."""
    values = account.values(*ACCURACY)
    return float(values.max()) if len(values) else None


def best_loss(account: RunAccount) -> float | None:
    """Return the lowest reported loss, or None."""
    values = account.values(*LOSS)
    return float(values.min()) if len(values) else None


def last_reported(account: RunAccount, names: Sequence[str]) -> float | None:
    """Return the last value above zero that was reported under one of some names."""
    values = account.recorded(*names).value
    above = values[values > 0]
    return float(above[-1]) if len(above) else None
