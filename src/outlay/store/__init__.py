"""The shared, queried facts: registered runs, offers and their history, in SQL.

The store holds what can be collected again from run logs, and what vendors once said; the run logs
stay the truth about runs. Nothing here computes money or time.
"""

from outlay.store.home import outlay_home
from outlay.store.migrations import StoreTooNew
from outlay.store.opening import StoreUnavailable, open_store
from outlay.store.runs import RunRow

__all__ = ["RunRow", "StoreTooNew", "StoreUnavailable", "open_store", "outlay_home"]
