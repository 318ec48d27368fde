"""The SQL store: registered runs, cost reports, offers and their history.

It can be rebuilt from the run logs, which remain the source of truth, except for price history.
Nothing here computes money or time.

Names load lazily: a training process uses only ``outlay_home`` and must not load a database
library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlay.store.connection import StoreUnavailable
    from outlay.store.home import outlay_home
    from outlay.store.opening import StoreTooNew, open_store
    from outlay.store.run_row import RunRow

_MODULES = {
    "RunRow": "outlay.store.run_row",
    "StoreTooNew": "outlay.store.opening",
    "StoreUnavailable": "outlay.store.connection",
    "open_store": "outlay.store.opening",
    "outlay_home": "outlay.store.home",
}

__all__ = [
    "RunRow", "StoreTooNew", "StoreUnavailable", "connection", "home", "machine_lists",
    "open_store", "outlay_home", "run_row", "runs", "schema", "shown_names",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'outlay.store' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
