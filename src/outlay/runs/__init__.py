"""One run, joined: recorder, price, budget and guard behind ``outlay.run()``.

Names load when first used: a command that lists runs records none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlay.runs.live import Run
    from outlay.runs.starting import run

_HOMES = {"Run": "outlay.runs.live", "run": "outlay.runs.starting"}

__all__ = ["Run", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outlay.runs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
