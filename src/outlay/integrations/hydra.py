"""Hydra: a callback that hands each job of a run or a multirun its directory and its budget.

In the configuration, so that no program changes that calls ``outlay.run`` without them::

    hydra:
      callbacks:
        outlay:
          _target_: outlay.integrations.hydra.OutlayCallback
          budget: iso_time=2h

What the job's own configuration enables under ``runtime.budget`` goes before that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from outlay.budget.config import VARIABLE, as_text, read_budget, read_stated
from outlay.errors import MissingExtra

try:
    from hydra.experimental.callback import Callback
except ImportError:
    raise MissingExtra("outlay.integrations.hydra", "hydra") from None

_DIRECTORY = "OUTLAY_RUN_DIR"


class OutlayCallback(Callback):
    """Sets ``OUTLAY_RUN_DIR`` and ``OUTLAY_BUDGET`` for a job, and puts back what was there.

    A variable that is set already is left alone: whoever launched the job knows better.

    Args:
        budget: What each job may use, in any form that ``outlay.run`` takes; default: nothing.
        price: Per GPU-hour, likewise.

    Raises:
        InvalidValue: The budget cannot be used.
    """

    def __init__(self, budget: object = None, price: str | None = None) -> None:
        self._budget = read_budget(budget)
        self._price = price
        self._set: list[str] = []

    def on_job_start(self, config: Any, **more: Any) -> None:
        """Hand the job what is its own."""
        del more
        stated = {name: config[name] for name in ("runtime", "budget") if config.get(name)}
        budget = (read_stated(stated) if stated else None) or self._budget
        self._set_variable(_DIRECTORY, str(Path(_output_dir()).absolute()))
        if budget is not None and budget.limits:
            self._set_variable(VARIABLE, as_text(budget))
        if self._price is not None:
            self._set_variable("OUTLAY_PRICE", self._price)

    def on_job_end(self, config: Any, job_return: Any, **more: Any) -> None:
        """Take it back: the next job of a multirun may run in this process."""
        del config, job_return, more
        for name in self._set:
            os.environ.pop(name, None)
        self._set.clear()

    def _set_variable(self, name: str, value: str) -> None:
        if not os.environ.get(name):
            os.environ[name] = value
            self._set.append(name)


def _output_dir() -> str:
    """Return where Hydra puts what the job writes; jobs of a multirun have one each."""
    from hydra.core.hydra_config import HydraConfig

    return str(HydraConfig.get().runtime.output_dir)
