"""What one run cost, by phase and per unit of what it got for it.

Pure: a function of the run's timeline, its rates and what it reported. The parts sum to the whole
to the micro-unit. A run without a price has no cost, which is not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from outlay.account.run import RunAccount
from outlay.cost.charges import gpu_ns_within
from outlay.errors import Finding
from outlay.goodput import phases as ph
from outlay.goodput.follower import RunView
from outlay.goodput.timeline import Window, progress
from outlay.ledger import Attempt, Price
from outlay.ledger.price import Kind
from outlay.rates import kind_of_cost, prices_of
from outlay.units import Money
from outlay.units.money import per

# The names under which trainings report the same thing, the most telling first.
ACCURACY = ("test_accuracy", "accuracy", "eval_accuracy", "val_accuracy", "validation_accuracy")
LOSS = ("validation_loss", "val_loss", "eval_loss", "test_loss", "loss")
EPOCHS = ("epochs", "epoch")
LEARNING_RATE = ("learning_rate", "lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The cost of a run, or of a window of it. Times are nanoseconds.

    Attributes:
        cost: What it cost; None without a price. Equals the sum of ``by_phase``.
        assumed: What of that is assumed: no record says whether it was to be paid.
        kind: Of the cost: ``cash``, or ``showback``; the two are never added.
        prices: Every price that was in force, in the order of time.
        gpu_ns: GPUs times the time that attempts ran; the time between attempts is not in it.
        steps: Steps executed, repeated ones each time.
        committed_steps: Steps that are safe in a checkpoint.
        tokens: Of all ranks, repeated work included; ``samples`` likewise.
        epochs: As the run reported them, or steps over the length of an epoch; None if unknown.
        accuracy: The best that was reported, not the last.
        assumptions: What the cost rests on that nobody measured.
        begin: Who says when the run began: a ``supervisor``, its ``process``, or its first
            ``record``, where what came before is not known.
        end: How its end is known: ``recorded``, or by its ``last_sign`` of life; ``none`` yet.
    """

    run_id: str
    model: str
    window: Window
    alive: bool
    cost: Money | None
    assumed: Money | None
    kind: Kind
    prices: tuple[Price, ...]
    by_phase: dict[str, Money]
    wall_ns: int
    gpu_ns: int
    steps: int
    committed_steps: int
    samples: int
    tokens: int
    epochs: float | None
    accuracy: float | None
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]
    begin: Literal["supervisor", "process", "record"] = "record"
    end: Literal["recorded", "last_sign", "none"] = "recorded"

    @property
    def productive(self) -> Money | None:
        """What the surviving steps cost."""
        return None if self.cost is None else self.by_phase.get(ph.STEP, self.cost * 0)

    @property
    def badput(self) -> dict[str, Money]:
        """What everything else cost, by cause."""
        return {name: cost for name, cost in self.by_phase.items() if name != ph.STEP}

    def unit_costs(self) -> dict[str, float | None]:
        """Return the cost per unit of what the run did, in currency units; None where unknown.

        An accuracy point is 1.0 of accuracy, as it is documented for ``TrainingCostReport``.
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


def cost_of(view: RunView, window: Window | None = None) -> RunCost:
    """Return what a run cost, or what it cost in a window; counts are of the whole run."""
    chosen = view.whole if window is None else window
    breakdown = view.break_down(chosen)
    attempts = view.timeline.attempts
    account = view.account
    steps = sum(account.segments[attempt.segment].work.steps for attempt in attempts)
    committed = progress(view.timeline, view.rates).committed_step
    return RunCost(
        run_id=view.identity.run_id,
        model=view.identity.model,
        window=chosen,
        alive=view.timeline.alive,
        cost=breakdown.cost,
        assumed=breakdown.assumed,
        kind=kind_of_cost(attempts),
        prices=prices_of(attempts),
        by_phase={n: c for n, c in breakdown.cost_by_phase.items() if c},
        wall_ns=breakdown.wall_ns,
        gpu_ns=round(sum(gpu_ns_within(a, chosen.start_ns, chosen.end_ns) for a in attempts)),
        steps=steps,
        committed_steps=0 if committed is None else committed + 1,
        samples=account.work.samples,
        tokens=account.work.tokens,
        epochs=_epochs(account, steps),
        accuracy=best_accuracy(account),
        assumptions=breakdown.assumptions,
        findings=view.findings,
        begin=attempts[0].begin,
        end=_end_of(attempts[-1], alive=view.timeline.alive),
    )


def _end_of(last: Attempt, *, alive: bool) -> Literal["recorded", "last_sign", "none"]:
    if alive:
        return "none"
    return "last_sign" if last.end is None else "recorded"


def _epochs(account: RunAccount, steps: int) -> float | None:
    if reported := account.series(*EPOCHS):
        return max(point.value for point in reported)
    per_epoch = steps_per_epoch(account)
    return steps / per_epoch if per_epoch else None


def steps_per_epoch(account: RunAccount) -> int | None:
    """Return the length of an epoch as the run's budget last stated it; None when it did not."""
    stated = (event.data.get("steps_per_epoch") for event in reversed(account.budget_events()))
    return next((steps for steps in stated if isinstance(steps, int)), None)


def best_accuracy(account: RunAccount) -> float | None:
    """Return the highest accuracy that was reported; None when none was."""
    return max((point.value for point in account.series(*ACCURACY)), default=None)


def best_loss(account: RunAccount) -> float | None:
    """Return the lowest loss that was reported; None when none was."""
    return min((point.value for point in account.series(*LOSS)), default=None)
