"""A listener for nv-one-logger: what a training reports there becomes a run; no loop is touched.

``OutlayExporter(model="gpt").attach_to(TrainingTelemetryProvider.instance())`` before the provider
is configured: by default nv-one-logger exports no steps and no waits for data.

It listens and cannot stop anything: a budget is counted and its end recorded, and a loop that wants
to obey asks ``exporter.run.stop_reason``. It is the model for other listeners: events in, calls of
``LoopDriver`` out, and a table between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
"""The spans that are phases; those inside a step, and those of users, are not."""
_APPLICATION: Final = "application"
_LOOP: Final = "training_loop"
_STEP: Final = "training_single_iteration"
_DATA: Final = "data_loading"


class OutlayExporter(BaseExporter):
    """Records what nv-one-logger is told of a training.

    Args:
        tokens: The tokens of a step on this rank: nv-one-logger counts steps and samples only.
        samples: Its samples, likewise.
        clock: Times the waits for data.
        **options: What ``outlay.run`` takes; ``model`` must be among them.
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
        """The run, while the application is in it."""
        return self.driver.run

    def attach_to(self, provider: Any) -> Any:
        """Listen to a provider, steps and waits for data included; return it."""
        hidden = [
            span for span in DEFAULT_SPANS_EXPORT_BLACKLIST if str(span) not in (_STEP, _DATA)
        ]
        mode = ExportCustomizationMode.BLACKLIST_SPANS
        return provider.with_exporter(self).with_export_customization(mode, hidden)

    @override  # type: ignore[untyped-decorator]
    def initialize(self) -> None:
        """Open the run."""
        super().initialize()
        self.driver.start()

    @override  # type: ignore[untyped-decorator]
    def export_start(self, span: Any) -> None:
        """Begin what a span stands for."""
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
        """End what a span stands for."""
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
        """Take note of a checkpoint that is on storage."""
        super().export_event(event, span)
        if str(event.name) == "save_checkpoint_success":
            done = event.attributes.get_int_value("current_iteration")
            if done:
                self.driver.commit(done - 1)

    @override  # type: ignore[untyped-decorator]
    def export_error(self, event: Any, span: Any) -> None:
        """Take note of an error; of its text nothing is kept."""
        super().export_error(event, span)
        run = self.driver.run
        if run is not None:
            run.note("nv-one-logger reported an error", span=str(span.name))

    @override  # type: ignore[untyped-decorator]
    def close(self) -> None:
        """Close the run, if the application has not ended it."""
        super().close()
        self.driver.finish()
