"""accelerate: a tracker for custom loops that log through an Accelerator.

``Accelerator(log_with=OutlayTracker("bert", price="1.50 USD/h"))``

accelerate passes a tracker the configuration, metrics and the end, but no steps: wrap the loop with
``tracker.run.steps(loader)``. Create the tracker on every rank, after the process group
(``PartialState()``); ``accelerator.end_training()`` closes it.
"""

from __future__ import annotations

import os
from typing import Any

from outlay.errors import MissingExtra
from outlay.record.redaction import CONFIGURATION_NOTE, recorded_config
from outlay.runs.live import Run
from outlay.runs.live import run as start_run

try:
    from accelerate.tracking import GeneralTracker
except ImportError:
    raise MissingExtra("outlay.integrations.accelerate", "accelerate") from None


class OutlayTracker(GeneralTracker):
    """Records what an Accelerator logs as metrics of a run.

    Args:
        model: The name of the model.
        **options: Arguments of ``outlay.run``.

    Attributes:
        run: The run: ``for batch in tracker.run.steps(loader)``.
    """

    name = "outlay"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(_blank=True)
        self.run: Run = start_run(model, **options)

    @property
    def tracker(self) -> Run:
        """The run, as ``accelerator.get_tracker("outlay", unwrap=True)`` returns it."""
        return self.run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the configuration given to ``init_trackers``, without secrets."""
        self.run.note(CONFIGURATION_NOTE, **recorded_config(values, os.environ))

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Record the numbers among the values."""
        for name, value in values.items():
            if isinstance(value, int | float):
                self.run.metric(name, value, step)

    def finish(self) -> None:
        """Close the run."""
        self.run.close()
