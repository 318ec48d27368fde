"""Callback for Lightning: ``Trainer(callbacks=[OutlayCallback(price="1.50 USD/h")])``.

Lightning's callbacks see neither data waits nor the writing of checkpoints. Its profiler does, so
the callback wraps the Trainer's profiler. A step is an optimizer step, however many batches it
accumulates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlay.clock import SYSTEM, Clock
from outlay.errors import MissingExtra
from outlay.integrations.driver import Counts, LoopCallback, LoopDriver
from outlay.record.meters.batches import count_samples, count_tokens

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
    from lightning.pytorch.profilers import Profiler
except ImportError:
    raise MissingExtra("outlay.integrations.lightning", "lightning") from None

_log = logging.getLogger("outlay")

_FETCH = "[_TrainingEpochLoop].train_dataloader_next"
_SAVE = "save_checkpoint"


class OutlayCallback(LoopCallback, Callback):
    """Records a fit as a run, and stops it at the limits of its budget or guard.

    A batch that exceeds the budget is refused before training on it. Limits override ``min_steps``
    and ``min_epochs``.

    Args:
        tokens: Counts the tokens of a batch from its shapes; default: the elements of
            ``input_ids`` or of integer inputs. Needed if tokens are limited and it cannot tell.
        samples: Counts the samples of a batch; default: the first dimension of its first tensor.
        clock: Times data waits.
        **options: Arguments of ``outlay.run``. Defaults: ``model`` is the module's class, ``dir``
            the Trainer's root directory, ``config`` the module's hyperparameters.
    """

    def __init__(
        self,
        *,
        tokens: Counts = count_tokens,
        samples: Counts = count_samples,
        clock: Clock = SYSTEM,
        **options: Any,
    ) -> None:
        super().__init__(options, clock, tokens, samples)
        self._stepping = False
        self._begun_step = -1
        self._trainer: Any = None
        self._profiler: Any = None
        self._async_checkpoints: _AsyncCheckpointWatch | None = None

    # Hooks of the Trainer

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Open the run, and wrap the Trainer's profiler."""
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
        checkpoint_io = trainer.strategy.checkpoint_io
        self._async_checkpoints = _AsyncCheckpointWatch.of(checkpoint_io, self.driver)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Resume from a restored checkpoint; stop here if no step may run."""
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
            StopIteration: It may not run; Lightning treats it as the end of the epoch.
        """
        del pl_module, batch_idx
        tokens, samples = self._size_of(batch)
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
        """End the step after an optimizer step."""
        if trainer.global_step > self._begun_step:
            self._end_step(trainer.global_step - self._begun_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End a step that the last batches of an epoch left without an optimizer step."""
        del trainer, pl_module
        if self._stepping:
            self._end_step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an evaluation; the sanity check before training counts as preparation."""
        del pl_module
        if not trainer.sanity_checking:
            self.driver.phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End an evaluation and record its metrics."""
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
        """Close the run after pending asynchronous checkpoints are written."""
        del pl_module
        if stage == "fit" and self.driver.run is not None:
            if self._async_checkpoints is not None:
                self.driver.phase("checkpoint_save")
                self._async_checkpoints.wait()
            self._restore(trainer)
            self.driver.finish()

    # Called by OutlayProfiler

    def fetching(self) -> None:
        """Begin a data wait; inside a step it is a ``data_loading`` phase."""
        if self._stepping:
            self.driver.phase("data_loading")
        else:
            self.driver.begin_waiting()

    def fetched(self) -> None:
        """End the data wait."""
        if self._stepping:
            self.driver.phase(None)
        else:
            self.driver.end_waiting()

    def saving(self) -> int:
        """Begin saving a checkpoint; return the last step in it."""
        self.driver.phase("checkpoint_save")
        return int(self._trainer.global_step) - 1

    def saved(self, step: int, *, written: bool) -> None:
        """End saving; an asynchronous checkpoint is committed once it is written."""
        self.driver.phase(None)
        if written and self._async_checkpoints is None:
            self.driver.commit(step)

    def _end_step(self, count: int = 1) -> None:
        # With several optimizers Lightning counts one step for each.
        self.driver.end_step(tokens=self._tokens, samples=self._samples, count=count)
        self._stepping, self._tokens, self._samples = False, 0, 0

    def _restore(self, trainer: Any) -> None:
        if isinstance(trainer.profiler, OutlayProfiler):
            trainer.profiler = self._profiler
        if self._async_checkpoints is not None:
            self._async_checkpoints.remove()
            self._async_checkpoints = None


def _stop(trainer: Any) -> None:
    """End the fit after this batch, overriding min_steps and min_epochs."""
    fit_loop = trainer.fit_loop
    if not fit_loop._can_stop_early:
        _log.warning(
            "the run must stop before min_epochs=%s and min_steps=%s: its limit overrides them",
            fit_loop.min_epochs, fit_loop.min_steps,
        )  # fmt: skip
        fit_loop.min_epochs = fit_loop.epoch_loop.min_steps = 0
    trainer.should_stop = True


def _number(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 else value


class OutlayProfiler(Profiler):
    """Reports data waits and checkpoints to a callback; delegates to another profiler."""

    def __init__(self, inner: Any, callback: OutlayCallback) -> None:
        super().__init__()
        self._inner = inner
        self._callback = callback

    def start(self, action_name: str) -> None:
        """Begin an action."""
        self._inner.start(action_name)
        if action_name == _FETCH:
            self._callback.fetching()

    def stop(self, action_name: str) -> None:
        """End an action."""
        if action_name == _FETCH:
            self._callback.fetched()
        self._inner.stop(action_name)

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Enclose an action; a save that raises counts as not written."""
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
        """Log the other profiler's report."""
        self._inner.describe()

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Set the other profiler up."""
        self._inner.setup(*args, **kwargs)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Tear the other profiler down."""
        self._inner.teardown(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


class _AsyncCheckpointWatch:
    """Records when asynchronous checkpoints are written: Lightning returns before that."""

    def __init__(self, outer: Any, driver: LoopDriver) -> None:
        self._outer = outer
        self._driver = driver
        self._inner = outer.checkpoint_io
        self._write = self._inner.save_checkpoint
        self._inner.save_checkpoint = self._save

    @classmethod
    def of(cls, checkpoint_io: Any, driver: LoopDriver) -> _AsyncCheckpointWatch | None:
        """Wrap a checkpoint plugin; None if it writes synchronously."""
        asynchronous = isinstance(checkpoint_io, AsyncCheckpointIO)
        return cls(checkpoint_io, driver) if asynchronous else None

    def wait(self) -> None:
        """Wait until everything is written, as Lightning does right after."""
        self._outer.teardown()

    def remove(self) -> None:
        """Restore the plugin's own method."""
        del self._inner.save_checkpoint

    def _save(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        run = self._driver.run
        if run is None:
            self._write(checkpoint, *args, **kwargs)
            return
        with run.span("checkpoint_save", overlapped=True):
            self._write(checkpoint, *args, **kwargs)
        self._driver.commit(int(checkpoint["global_step"]) - 1)
