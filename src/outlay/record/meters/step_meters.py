"""Fills measurements into steps: FLOPs, energy and bytes of collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from outlay.errors import InvalidValue, MissingExtra
from outlay.ledger import Step
from outlay.record.meters.collectives import CollectiveMeter
from outlay.record.meters.energy import EnergyMeter

# Floating-point operations of a step: by formula, or counted by torch


@dataclass(frozen=True, slots=True)
class FlopsPerToken:
    """A fixed number of operations per token.

    Six per parameter and token is the usual estimate for training a dense transformer, forward and
    backward: C = 6·N·D (Kaplan et al., 2020, arXiv:2001.08361; Hoffmann et al., 2022,
    arXiv:2203.15556).
    """

    per_token: int

    @classmethod
    def six_per_parameter(cls, parameters: int) -> FlopsPerToken:
        """Return the 6·N·D estimate for a model of this many parameters."""
        if type(parameters) is not int or parameters < 1:
            raise InvalidValue("parameters", parameters, "a whole number of parameters, 1 or more")
        return cls(6 * parameters)

    def __call__(self, tokens: int) -> int:
        """Return the operations of a step of this many tokens."""
        return self.per_token * tokens


def counted_by_torch(step: Callable[[], object]) -> int:
    """Run one step and return the operations that torch's FLOP counter counts.

    The counter slows the step down, so count one step and multiply (``FlopsPerToken``).

    Raises:
        MissingExtra: torch is not installed.
    """
    try:
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        raise MissingExtra("counting FLOPs", "torch") from None
    counter: Any = FlopCounterMode(display=False)
    with counter:
        step()
    return int(counter.get_total_flops())


@dataclass(slots=True, kw_only=True)
class StepMeters:
    """The meters of one process; None for those not used.

    Attributes:
        flops: Returns a step's operations by its tokens, unless the step states them.
    """

    collectives: CollectiveMeter | None = None
    energy: EnergyMeter | None = None
    flops: Callable[[int], int] | None = None

    def fill(self, step: Step) -> Step:
        """Return the step with the use since the last one; amounts that it states are kept."""
        comm_bytes = self.collectives.take() if self.collectives is not None else 0
        energy_mj = self.energy.take() if self.energy is not None else 0
        flops = self.flops(step.tokens) if self.flops is not None else 0
        if not (comm_bytes or energy_mj or flops):
            return step
        return replace(
            step,
            comm_bytes=step.comm_bytes or comm_bytes,
            energy_mj=step.energy_mj or energy_mj,
            flops=step.flops or flops,
        )

    def stop(self) -> int:
        """Stop metering; return the millijoules used since the last step."""
        if self.collectives is not None:
            self.collectives.stop()
        return 0 if self.energy is None else self.energy.take(at_once=True)
