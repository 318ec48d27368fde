"""An exporter for nv-one-logger that records its telemetry as a run; the loop is not changed.

Call ``OutlayExporter(model="gpt").attach_to(TrainingTelemetryProvider.instance())`` before the
provider is configured: by default nv-one-logger exports no steps and no data waits.

An exporter cannot stop training: a budget is counted and its exhaustion recorded; a loop that
should stop checks ``exporter.run.stop_reason``. A pattern for other listeners: a table maps events
to calls of ``LoopDriver``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from outlay.budget.limits import TOKENS
from outlay.budget.measurements import BudgetRefused
from outlay.clock import SYSTEM, Clock
from outlay.errors import MissingExtra
from outlay.integrations.driver import LoopDriver

try:
    from nv_one_logger.exporter.exporter import BaseExporter
    from nv_one_logger.recorder.default_recorder import ExportCustomizationMode
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import (
        DEFAULT_SPANS_EXPORT_BLACKLIST,
    )
    from overrides import override  # Without it nv-one-logger refuses the class.
except ImportError:
    raise MissingExtra("outlay.integrations.one_logger", "one-logger") from None

if TYPE_CHECKING:
    from outlay.runs.live import Run

_PHASES: Final = {
    "distributed_code_initialization": "accelerator_init",
    "data_loader_initialization": "training_prep",
    "model_initialization": "training_prep",
    "optimizer_initialization": "training_prep",
    "checkpoint_load": "checkpoint_restore",
    "checkpoint_save_sync": "checkpoint_save",
    "checkpoint_save_async": "checkpoint_save",
    "checkpoint_save_finalization": "checkpoint_save",
    "validation_loop": "evaluation",
    "testing_loop": "evaluation",
}
"""Phases by span name; spans inside a step and spans of users are not phases."""
_APPLICATION: Final = "application"
_LOOP: Final = "training_loop"
_STEP: Final = "training_single_iteration"
_DATA: Final = "data_loading"


class OutlayExporter(BaseExporter):
    """Records nv-one-logger's telemetry as a run.

    Args:
        model: The name of the model.
        tokens: The tokens of a step on this rank; nv-one-logger does not export them.
        samples: The samples of a step on this rank.
        clock: Times data waits.
        **options: Other arguments of ``outlay.run``.
    """

    def __init__(
        self,
        *,
        model: str,
        tokens: int = 0,
        samples: int = 0,
        clock: Clock = SYSTEM,
        **options: Any,
    ) -> None:
        super().__init__()
        self.driver = LoopDriver({"model": model, **options}, clock)
        self._tokens = tokens
        self._samples = samples

    @property
    def run(self) -> Run | None:
        """The run, while the application runs."""
        return self.driver.run

    def attach_to(self, provider: Any) -> Any:
        """Add this exporter to a provider, with steps and data waits; return the provider."""
        hidden = [
            span for span in DEFAULT_SPANS_EXPORT_BLACKLIST if str(span) not in (_STEP, _DATA)
        ]
        mode = ExportCustomizationMode.BLACKLIST_SPANS
        return provider.with_exporter(self).with_export_customization(mode, hidden)

    @override  # type: ignore[untyped-decorator]
    def initialize(self) -> None:
        """Open the run.

        Raises:
            BudgetRefused: Tokens are limited, and were not stated.
        """
        super().initialize()
        self.driver.start()
        budget = None if self.run is None else self.run.budget
        if budget is not None and TOKENS.key in budget.budget.limits and not self._tokens:
            why = (
                "nv-one-logger exports no tokens: state those of a step, OutlayExporter(tokens=...)"
            )
            refused = BudgetRefused(TOKENS.key, why)
            self.driver.finish_with(refused)
            raise refused

    @override  # type: ignore[untyped-decorator]
    def export_start(self, span: Any) -> None:
        """Begin the step, data wait or phase of a span."""
        super().export_start(span)
        name = str(span.name)
        if name == _LOOP:
            self.driver.resume_from(span.attributes.get_int_value("train_iterations_start") or 0)
        elif name == _STEP:
            self.driver.begin_step()
        elif name == _DATA:
            self.driver.begin_waiting()
        elif name in _PHASES:
            self.driver.phase(_PHASES[name])

    @override  # type: ignore[untyped-decorator]
    def export_stop(self, span: Any) -> None:
        """End the step, data wait or phase of a span."""
        super().export_stop(span)
        name = str(span.name)
        if name == _STEP:
            self.driver.end_step(tokens=self._tokens, samples=self._samples)
            self.driver.ask(tokens=self._tokens, samples=self._samples)
        elif name == _DATA:
            self.driver.end_waiting()
        elif name in _PHASES:
            self.driver.phase(None)
        elif name == _APPLICATION:
            self.driver.finish()

    @override  # type: ignore[untyped-decorator]
    def export_event(self, event: Any, span: Any) -> None:
        """Record a committed checkpoint."""
        super().export_event(event, span)
        if str(event.name) == "save_checkpoint_success":
            done = event.attributes.get_int_value("current_iteration")
            if done:
                self.driver.commit(done - 1)

    @override  # type: ignore[untyped-decorator]
    def export_error(self, event: Any, span: Any) -> None:
        """Record that there was an error, without its text."""
        super().export_error(event, span)
        run = self.driver.run
        if run is not None:
            run.note("nv-one-logger reported an error", span=str(span.name))

    @override  # type: ignore[untyped-decorator]
    def close(self) -> None:
        """Close the run, if the application's span has not ended."""
        super().close()
        self.driver.finish()
