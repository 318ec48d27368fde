"""Floating-point operations of a step: by formula, or counted by torch while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlay.errors import InvalidValue, MissingExtra


@dataclass(frozen=True, slots=True)
class FlopsPerToken:
    """A fixed number of operations for every token.

    Six per parameter and token is the usual estimate of a dense transformer's training step,
    forward and backward: C = 6·N·D (Kaplan et al., 2020, arXiv:2001.08361; Hoffmann et al., 2022,
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
    """Run one step and return the operations torch's own counter saw in it.

    The counter slows the step down, so count one and multiply (``FlopsPerToken``).

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
