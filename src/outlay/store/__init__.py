"""The shared, queried facts: registered runs, offers and their history, in SQL.

The store holds what can be collected again from run logs, and what vendors once said; the run logs
stay the truth about runs. Nothing here computes money or time.

Names load when first used: a training process asks only for ``outlay_home`` and must not pay for a
database library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlay.store.engine import StoreUnavailable
    from outlay.store.home import outlay_home
    from outlay.store.opening import StoreTooNew, open_store
    from outlay.store.runs import RunRow

_HOMES = {
    "RunRow": "outlay.store.runs",
    "StoreTooNew": "outlay.store.opening",
    "StoreUnavailable": "outlay.store.engine",
    "open_store": "outlay.store.opening",
    "outlay_home": "outlay.store.home",
}

__all__ = ["RunRow", "StoreTooNew", "StoreUnavailable", "open_store", "outlay_home"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outlay.store' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
