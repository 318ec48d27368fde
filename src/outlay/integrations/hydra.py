"""Hydra: a callback that gives each job of a run or multirun its directory and budget.

It is enabled in the configuration; the program calls ``outlay.run`` without these arguments::

    hydra:
      callbacks:
        outlay:
          _target_: outlay.integrations.hydra.OutlayCallback
          budget: iso_time=2h

A budget under ``runtime.budget`` in the job's own configuration overrides it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from outlay.budget.config import VARIABLE, as_text, read_budget, read_stated
from outlay.errors import MissingExtra

try:
    from hydra.core.hydra_config import HydraConfig
    from hydra.experimental.callback import Callback
except ImportError:
    raise MissingExtra("outlay.integrations.hydra", "hydra") from None


class OutlayCallback(Callback):
    """Sets ``OUTLAY_RUN_DIR`` and ``OUTLAY_BUDGET`` for a job, and unsets them after it.

    A variable that is already set is not changed: the launcher set it.

    Args:
        budget: The budget of each job, in any form that ``outlay.run`` takes; default: none.
        price: Per GPU-hour; default: none.

    Raises:
        InvalidValue: The budget is not valid.
    """

    def __init__(self, budget: object = None, price: str | None = None) -> None:
        self._budget = read_budget(budget)
        self._price = price
        self._set: list[str] = []

    def on_job_start(self, config: Any, **more: Any) -> None:
        """Set the job's variables."""
        del more
        stated = {name: config[name] for name in ("runtime", "budget") if config.get(name)}
        budget = (read_stated(stated) if stated else None) or self._budget
        output_dir = Path(HydraConfig.get().runtime.output_dir)  # One per job of a multirun.
        self._set_variable("OUTLAY_RUN_DIR", str(output_dir.absolute()))
        if budget is not None and budget.limits:
            self._set_variable(VARIABLE, as_text(budget))
        if self._price is not None:
            self._set_variable("OUTLAY_PRICE", self._price)

    def on_job_end(self, config: Any, job_return: Any, **more: Any) -> None:
        """Unset them: the next job of a multirun may run in this process."""
        del config, job_return, more
        for name in self._set:
            os.environ.pop(name, None)
        self._set.clear()

    def _set_variable(self, name: str, value: str) -> None:
        if not os.environ.get(name):
            os.environ[name] = value
            self._set.append(name)
