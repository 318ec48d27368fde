"""Fills measurements into steps: tokens, FLOPs, energy and bytes of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from outlay.errors import InvalidValue, MissingExtra
from outlay.ledger import Step
from outlay.record.meters.collectives import CollectiveMeter
from outlay.record.meters.energy import EnergyMeter

# Tokens of a batch


def count_tokens(batch: Any) -> int:
    """Return the number of samples in a batch, summed over all augmented views.

    For a tensor (anything with a ``shape``), its first dimension. For a mapping, the sum over its
    list of ``crops``; else over its entries named ``view...``; else its ``image``; else its first
    non-empty entry except ``index``. For a list or tuple, the sum of its parts, so a pair of images
    and labels needs its own function: ``run.steps(loader, tokens=lambda batch: len(batch[0]))``.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):
        return _count_mapping(batch)
    if isinstance(batch, list | tuple):
        return sum(map(count_tokens, batch))
    return 0


def _count_mapping(batch: Mapping[Any, Any]) -> int:
    if isinstance(batch.get("crops"), list | tuple):
        return count_tokens(batch["crops"])
    views = [batch[key] for key in batch if str(key).startswith("view")]
    if views:
        return sum(map(count_tokens, views))
    if "image" in batch:
        return count_tokens(batch["image"])
    counts = (count_tokens(value) for key, value in batch.items() if key != "index")
    return next(filter(None, counts), 0)


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
