"""The callback of Lightning: ``Trainer(callbacks=[OutlayCallback(price="1.50 USD/h")])``.

A callback of Lightning sees neither the wait for data nor the writing of a checkpoint. The
Trainer's profiler does, so the callback puts a profiler in front of it, which hands everything on.
A step is an optimizer's step, however many batches it accumulates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outlay.clock import SYSTEM, Clock
from outlay.errors import MissingExtra
from outlay.integrations.driver import Counts, LoopDriver, samples_of, tokens_of

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
    from lightning.pytorch.profilers import Profiler
except ImportError:
    raise MissingExtra("outlay.integrations.lightning", "lightning") from None

if TYPE_CHECKING:
    from outlay.runs.live import Run

_log = logging.getLogger("outlay")

_FETCH = "[_TrainingEpochLoop].train_dataloader_next"
_SAVE = "save_checkpoint"


class OutlayCallback(Callback):
    """Records a fit as a run, and stops it where its budget or guard says so.

    A batch that does not fit is refused before it is trained on; a limit goes before ``min_steps``
    and ``min_epochs``.

    Args:
        tokens: Counts the tokens of a batch from its shapes; default: ``input_ids``, else the
            samples of its inputs.
        samples: Counts its samples, likewise.
        clock: Times the waits for data.
        **options: What ``outlay.run`` takes. ``model`` is the module's class by default, ``dir``
            the Trainer's root directory, ``config`` the module's hyperparameters.
    """

    def __init__(
        self,
        *,
        tokens: Counts = tokens_of,
        samples: Counts = samples_of,
        clock: Clock = SYSTEM,
        **options: Any,
    ) -> None:
        self.driver = LoopDriver(options, clock)
        self._tokens_of = tokens
        self._samples_of = samples
        self._tokens = self._samples = 0
        self._stepping = False
        self._begun_step = -1
        self._trainer: Any = None
        self._profiler: Any = None
        self._written: _WrittenCheckpoints | None = None

    @property
    def run(self) -> Run | None:
        """The run, while it trains."""
        return self.driver.run

    @property
    def summary(self) -> dict[str, str | int | float | None]:
        """The run's figures, once training has ended."""
        return self.driver.summary

    # What the Trainer calls

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Open the run, and put a profiler in front of the Trainer's own."""
        if stage != "fit":
            return
        self.driver.start(
            model=type(pl_module).__name__,
            dir=trainer.default_root_dir,
            config=dict(pl_module.hparams),
        )
        self.driver.phase("training_prep")
        self._stepping, self._tokens, self._samples = False, 0, 0
        self._trainer, self._profiler = trainer, trainer.profiler
        trainer.profiler = OutlayProfiler(self._profiler, self)
        self._written = _WrittenCheckpoints.of(trainer.strategy.checkpoint_io, self.driver)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """State where a restored checkpoint goes on; stop here if no step may run."""
        del pl_module
        self.driver.resume_from(trainer.global_step)
        self.driver.phase(None)
        if self.driver.ask():
            _stop(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step with its first batch, if it may run.

        Raises:
            StopIteration: It may not; what Lightning takes for the end of an epoch.
        """
        del pl_module, batch_idx
        tokens, samples = self._count(batch)
        if not self._stepping:
            micro_batches = max(1, trainer.accumulate_grad_batches)
            asked = {"tokens": tokens * micro_batches, "samples": samples * micro_batches}
            if self.driver.ask(**asked):
                _stop(trainer)
                raise StopIteration
            self._stepping, self._begun_step = True, trainer.global_step
            self.driver.begin_step()
        else:
            self.driver.phase(None)
        self._tokens += tokens
        self._samples += samples

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """End the step, if its optimizer has made one."""
        if trainer.global_step > self._begun_step:
            self._end_step(trainer.global_step - self._begun_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End a step that the last batches of an epoch left without an optimizer's step."""
        del trainer, pl_module
        if self._stepping:
            self._end_step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an evaluation; the sanity check before training is part of the preparation."""
        del pl_module
        if not trainer.sanity_checking:
            self.driver.phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End an evaluation and record what it found."""
        del pl_module
        if not trainer.sanity_checking:
            metrics = trainer.callback_metrics
            self.driver.metrics({name: _number(value) for name, value in metrics.items()})
            self.driver.phase(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the run of a training that raised."""
        del pl_module
        self._restore(trainer)
        self.driver.finish_with(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the run, once checkpoints that are being written are."""
        del pl_module
        if stage == "fit" and self.driver.run is not None:
            if self._written is not None:
                self.driver.phase("checkpoint_save")
                self._written.wait()
            self._restore(trainer)
            self.driver.finish()

    # What its profiler tells

    def fetching(self) -> None:
        """Training waits for data from now on; inside a step that is a phase of its own."""
        if self._stepping:
            self.driver.phase("data_loading")
        else:
            self.driver.begin_waiting()

    def fetched(self) -> None:
        """The data is there."""
        if self._stepping:
            self.driver.phase(None)
        else:
            self.driver.end_waiting()

    def saving(self) -> int:
        """A checkpoint is being saved; return the last step that it holds."""
        self.driver.phase("checkpoint_save")
        return int(self._trainer.global_step) - 1

    def saved(self, step: int, *, written: bool) -> None:
        """A checkpoint was saved; one that is written asynchronously is committed when it is."""
        self.driver.phase(None)
        if written and self._written is None:
            self.driver.commit(step)

    # How it does that

    def _end_step(self, count: int = 1) -> None:
        """End a step; with several optimizers Lightning counts one for each."""
        self.driver.end_step(tokens=self._tokens, samples=self._samples, count=count)
        self._stepping, self._tokens, self._samples = False, 0, 0

    def _count(self, batch: Any) -> tuple[int, int]:
        try:
            return self._tokens_of(batch), self._samples_of(batch)
        except Exception as error:  # noqa: BLE001 - a user's count must not end a training
            self.driver.report_error("counting tokens", error)
            return 0, 0

    def _restore(self, trainer: Any) -> None:
        if isinstance(trainer.profiler, OutlayProfiler):
            trainer.profiler = self._profiler
        if self._written is not None:
            self._written.remove()
            self._written = None


def _stop(trainer: Any) -> None:
    """End the fit after this batch, also before the least steps and epochs that were asked for."""
    fit_loop = trainer.fit_loop
    if not fit_loop._can_stop_early:
        _log.warning(
            "the run must stop before min_epochs=%s and min_steps=%s: a limit goes first",
            fit_loop.min_epochs, fit_loop.min_steps,
        )  # fmt: skip
        fit_loop.min_epochs = fit_loop.epoch_loop.min_steps = 0
    trainer.should_stop = True


def _number(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 else value


class OutlayProfiler(Profiler):
    """Tells a callback of data and checkpoints, and hands every action on to another profiler."""

    def __init__(self, inner: Any, callback: OutlayCallback) -> None:
        super().__init__()
        self._inner = inner
        self._callback = callback

    def start(self, action_name: str) -> None:
        """Hand on the begin of an action."""
        self._inner.start(action_name)
        if action_name == _FETCH:
            self._callback.fetching()

    def stop(self, action_name: str) -> None:
        """Hand on its end."""
        if action_name == _FETCH:
            self._callback.fetched()
        self._inner.stop(action_name)

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Enclose an action; a save that raised has saved nothing."""
        if action_name != _SAVE:
            with super().profile(action_name):
                yield action_name
            return
        step, written = self._callback.saving(), False
        try:
            with super().profile(action_name):
                yield action_name
            written = True
        finally:
            self._callback.saved(step, written=written)

    def summary(self) -> str:
        """Return the other profiler's summary."""
        return str(self._inner.summary())

    def describe(self) -> None:
        """Let the other profiler log its report."""
        self._inner.describe()

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Set the other profiler up."""
        self._inner.setup(*args, **kwargs)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Tear the other profiler down."""
        self._inner.teardown(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


class _WrittenCheckpoints:
    """Sees asynchronous checkpoints reach the storage: Lightning returns before they do."""

    def __init__(self, outer: Any, driver: LoopDriver) -> None:
        self._outer = outer
        self._driver = driver
        self._inner = outer.checkpoint_io
        self._write = self._inner.save_checkpoint
        self._inner.save_checkpoint = self._save

    @classmethod
    def of(cls, checkpoint_io: Any, driver: LoopDriver) -> _WrittenCheckpoints | None:
        """Return what watches a checkpoint plugin, if that writes asynchronously."""
        asynchronous = isinstance(checkpoint_io, AsyncCheckpointIO)
        return cls(checkpoint_io, driver) if asynchronous else None

    def wait(self) -> None:
        """Wait until everything is written, as Lightning itself does a moment later."""
        self._outer.teardown()

    def remove(self) -> None:
        """Put the plugin's own method back."""
        del self._inner.save_checkpoint

    def _save(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        run = self._driver.run
        if run is None:
            self._write(checkpoint, *args, **kwargs)
            return
        with run.span("checkpoint_save", overlapped=True):
            self._write(checkpoint, *args, **kwargs)
        self._driver.commit(int(checkpoint["global_step"]) - 1)
