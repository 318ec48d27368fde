"""outlay keeps the books of ML training: what a run may spend, what it spent, what it got for it.

Public names load when first used, so that ``import outlay`` costs a training script next to
nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from outlay.errors import Finding, OutlayError
    from outlay.guard.budget_guard import BudgetGuard
    from outlay.guard.errors import BudgetGuardExceeded
    from outlay.runs import Run, run
    from outlay.units import Duration, Energy, Flops, Money, Rate, Tokens

# Each public name and the module that defines it.
_HOMES = {
    "BudgetGuard": "outlay.guard.budget_guard",
    "BudgetGuardExceeded": "outlay.guard.errors",
    "Duration": "outlay.units",
    "Energy": "outlay.units",
    "Finding": "outlay.errors",
    "Flops": "outlay.units",
    "Money": "outlay.units",
    "OutlayError": "outlay.errors",
    "Rate": "outlay.units",
    "Run": "outlay.runs",
    "Tokens": "outlay.units",
    "run": "outlay.runs",
}

__all__ = [
    "BudgetGuard",
    "BudgetGuardExceeded",
    "Duration",
    "Energy",
    "Finding",
    "Flops",
    "Money",
    "OutlayError",
    "Rate",
    "Run",
    "Tokens",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outlay' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
