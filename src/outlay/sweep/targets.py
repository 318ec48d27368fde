"""The ``budget`` block of an entry: its limits, and the metric that judges its runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from outlay.budget.dimensions import MODES
from outlay.budget.terms import LIMIT_KEYS, Budget
from outlay.errors import InvalidValue, choices
from outlay.units.numbers import exact_decimal

TARGET_KEYS: Final = ("target_metric", "target_value", "target_direction")
BUDGET_KEYS: Final = ("mode", "limit", "charge", "enabled", *LIMIT_KEYS, *TARGET_KEYS)
_LESS_IS_BETTER: Final = ("loss", "error", "perplexity", "ppl", "nll", "mse", "rmse", "mae", "wer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The metric that the runs of an entry are compared by.

    Attributes:
        metric: Its name; empty for none.
        value: What it should reach; None for no target.
        direction: ``max`` where more is better, ``min`` where less is.
    """

    metric: str = ""
    value: float | None = None
    direction: str = "max"

    def reached_by(self, number: float) -> bool:
        """Say whether a value of the metric reaches the target."""
        if self.value is None:
            return False
        return number >= self.value if self.direction == "max" else number <= self.value

    def better(self, one: float, other: float) -> bool:
        """Say whether the first value is better than the second."""
        return one > other if self.direction == "max" else one < other


NO_TARGET: Final = Target()


def read_target(block: Mapping[str, Any]) -> Target:
    """Return what a budget block says about the metric.

    Raises:
        InvalidValue: The direction or the value cannot be used.
    """
    metric = str(block.get("target_metric") or "")
    stated = block.get("target_direction")
    if stated not in (None, "max", "min"):
        raise InvalidValue("target_direction", stated, choices(("max", "min")))
    value = block.get("target_value")
    if value is not None:
        value = float(exact_decimal(value, name="target_value", expected="a number"))
    return Target(metric=metric, value=value, direction=stated or usual_direction(metric))


def usual_direction(metric: str) -> str:
    """Return which way a metric of this name usually gets better."""
    words = metric.lower().replace(".", "_").replace("/", "_").replace("-", "_").split("_")
    return "min" if any(word in _LESS_IS_BETTER for word in words) else "max"


def read_budget(block: Mapping[str, Any]) -> Budget | None:
    """Return the budget of a block; ``limit`` stands for the mode's own key.

    Raises:
        InvalidValue: It states no mode, no limit, two of them, or an impossible one.
    """
    if block.get("enabled") is False:
        return None
    mode = block.get("mode")
    if mode is None and not any(key in block for key in ("limit", *LIMIT_KEYS)):
        return None
    if mode not in MODES:
        raise InvalidValue("budget mode", mode, choices(MODES))
    limits = {key: block[key] for key in LIMIT_KEYS if key in block}
    if block.get("limit") is not None:
        own = MODES[mode].key
        if limits.get(own) is not None:
            raise InvalidValue("budget", {"limit": block["limit"], own: limits[own]}, "one of them")
        limits[own] = block["limit"]
    charge = block.get("charge")
    return Budget.of(str(mode), limits, charge=None if charge is None else str(charge))
