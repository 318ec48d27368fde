"""The callback of Hugging Face transformers, for Trainer and what is built on it (trl).

``Trainer(..., callbacks=[OutlayCallback(price="1.50 USD/h", budget="iso_time=2h")])``

A callback sees neither the batches nor the begin of an evaluation or a save, and the loop reads its
"stop" only after a step. Where that matters, put ``OutlayTrainerMixin`` before the Trainer's class:
it refuses a batch before it is trained on, and times what has no begin hook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from outlay.clock import SYSTEM, Clock
from outlay.errors import MissingExtra
from outlay.integrations.driver import Counts, LoopDriver, samples_of, tokens_of

try:
    import torch
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtra("outlay.integrations.transformers", "transformers") from None

if TYPE_CHECKING:
    from outlay.runs.live import Run


class OutlayCallback(TrainerCallback):
    """Records a Trainer's training as a run, and stops it where its budget or guard says so.

    Args:
        tokens: Counts the tokens of a micro-batch from its shapes; default: ``input_ids``.
        samples: Counts its samples, likewise.
        save_at_stop: Whether a run that must stop saves once more, where it saves at all: what was
            trained since the last checkpoint would be lost otherwise.
        clock: Times the waits for data.
        **options: What ``outlay.run`` takes. ``model`` is the model's class by default, ``dir`` the
            output directory, ``config`` the TrainingArguments.

    Attributes:
        summary: The run's figures, once training has ended.
    """

    def __init__(
        self,
        *,
        tokens: Counts = tokens_of,
        samples: Counts = samples_of,
        save_at_stop: bool = True,
        clock: Clock = SYSTEM,
        **options: Any,
    ) -> None:
        self.driver = LoopDriver(options, clock)
        self.mixed_in = False
        self._tokens_of = tokens
        self._samples_of = samples
        self._save_at_stop = save_at_stop
        self._tokens = self._samples = 0
        self._last_tokens = self._last_samples = 0
        self._first_step = self._saved_step = -1
        self._evaluating = False
        self._model: Any = None
        self._hook: Any = None

    @property
    def run(self) -> Run | None:
        """The run, while it trains."""
        return self.driver.run

    @property
    def summary(self) -> dict[str, str | int | float | None]:
        """The run's figures, once training has ended."""
        return self.driver.summary

    # What the Trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Open the run, where the Trainer's own checkpoint says."""
        self._unwatch()
        self._model = model = more.get("model")
        self.driver.start(
            model=type(model).__name__, dir=args.output_dir, config=args.to_sanitized_dict()
        )
        self.driver.resume_from(state.global_step)
        self._first_step = self._saved_step = state.global_step
        self._tokens = self._samples = 0
        self._last_tokens, self._last_samples = _last_sizes(state)
        if not self.mixed_in:
            self._watch_inputs()
            control.should_training_stop |= bool(self.driver.ask())
        if args.eval_on_start:
            self._begin_evaluation()
        elif state.global_step:
            self.driver.phase("training_prep")  # Skips the batches that were trained on.
        else:
            self.driver.begin_waiting()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a step; its micro-batches have been drawn already."""
        del args, state, control, more
        self.driver.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End the step, ask whether another one may run, and see what comes between."""
        del more
        tokens, samples = self._tokens, self._samples
        self.driver.end_step(tokens=tokens, samples=samples)
        self._last_tokens, self._last_samples = tokens, samples
        _keep_sizes(state, tokens, samples)
        self._tokens = self._samples = 0
        if not self.mixed_in and self.driver.ask(tokens=tokens, samples=samples):
            self.stop(args, control)
        self.driver.begin_waiting()
        if not control.should_log:  # Else its begin is told by ``on_log``.
            self._begin_between(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Record the loss; logging is no wait for data."""
        del args, state, more
        if logs and "loss" in logs:
            self.driver.metrics({"loss": logs["loss"]})
            self.driver.begin_waiting()
            self._begin_between(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """A batch was evaluated: of a further dataset, where no evaluation was announced."""
        del args, state, control, more
        if not self.mixed_in and not self._evaluating:
            self._begin_evaluation()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any
    ) -> None:
        """End an evaluation and record what it found; there may be one more for another dataset."""
        del args, state, more
        self._evaluating = False
        self.driver.metrics(metrics)
        self.driver.phase(None)
        self.driver.begin_waiting()
        if control.should_save and not self.mixed_in:
            self.driver.phase("checkpoint_save")

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """A checkpoint has been written: all before the next step is safe."""
        del args, control, more
        self._saved_step = state.global_step
        self.driver.commit(state.global_step - 1)
        self.driver.phase(None)
        self.driver.begin_waiting()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """See what comes between two epochs; a run that was stopped saves what it has."""
        del more
        if self.driver.stopped:
            control.should_training_stop = True
            unsaved = state.global_step > self._saved_step
            control.should_save |= unsaved and self._saves(args)
            if state.global_step == self._first_step:  # Nothing was trained: there is nothing new.
                control.should_evaluate = control.should_save = False
        self._begin_between(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Close the run."""
        del args, state, control, more
        self._unwatch()
        self.driver.finish()

    # What the mixin tells

    def admit(self, batches: list[Any]) -> bool:
        """Count the micro-batches of the next step; return whether it may run.

        Prompts that a trainer of trl has yet to complete have no size: what the model is given
        counts then, and the step is taken to be as large as the last one.
        """
        self.driver.end_waiting()
        self._tokens = self._samples = 0
        for batch in batches if self._hook is None else ():
            self._count(batch)
        if not self._tokens and self._tokens_of is tokens_of:
            self._samples = 0
            self._watch_inputs()
            return not self.driver.ask(tokens=self._last_tokens, samples=self._last_samples)
        return not self.driver.ask(tokens=self._tokens, samples=self._samples)

    def stop(self, args: Any, control: Any) -> None:
        """Tell the Trainer to stop, and to save what it has."""
        control.should_training_stop = True
        control.should_save |= self._saves(args)

    def fail(self, error: BaseException) -> None:
        """Close the run of a training that raised."""
        self._unwatch()
        self.driver.finish_with(error)

    # How it does that

    def _saves(self, args: Any) -> bool:
        return self._save_at_stop and str(getattr(args.save_strategy, "value", "")) != "no"

    def _begin_between(self, control: Any) -> None:
        """Begin the phase that the Trainer's control announces; the mixin knows when it begins."""
        if self.mixed_in:
            return
        if control.should_evaluate:
            self._begin_evaluation()
        elif control.should_save:
            self.driver.phase("checkpoint_save")

    def _begin_evaluation(self) -> None:
        self._evaluating = True
        self.driver.phase("evaluation")

    def _watch_inputs(self) -> None:
        """Count what the model is given: the callback is not shown the batches."""
        if self._hook is None and hasattr(self._model, "register_forward_pre_hook"):
            self._hook = self._model.register_forward_pre_hook(self._count_inputs, with_kwargs=True)

    def _unwatch(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _count_inputs(self, module: Any, inputs: Any, named: Mapping[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():  # Completions are generated without.
            self._count(named or inputs)

    def _count(self, batch: Any) -> None:
        try:
            self._tokens += self._tokens_of(batch)
            self._samples += self._samples_of(batch)
        except Exception as error:  # noqa: BLE001 - a user's count must not end a training
            self.driver.report_error("counting tokens", error)


# The last step's sizes are kept in the Trainer's own checkpoint: of prompts nothing else is known
# when a run is resumed, and it would train a step that it had refused before. As rank 0 had them.

_KEPT = "outlay"


def _keep_sizes(state: Any, tokens: int, samples: int) -> None:
    if isinstance(kept := getattr(state, "stateful_callbacks", None), dict):
        kept[_KEPT] = {"args": {}, "attributes": {"tokens": tokens, "samples": samples}}


def _last_sizes(state: Any) -> tuple[int, int]:
    kept = getattr(state, "stateful_callbacks", None) or {}
    sizes = kept[_KEPT]["attributes"] if _KEPT in kept else {}
    return sizes.get("tokens", 0), sizes.get("samples", 0)


class OutlayTrainerMixin:
    """What a callback cannot see: ``class MyTrainer(OutlayTrainerMixin, Trainer)``.

    Refuses a batch before it is trained on, also the first one of an exhausted run, times waits,
    evaluations and saves from their begin, and closes the run of a training that raised. Without an
    ``OutlayCallback`` among the callbacks it does nothing.
    """

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; an exception closes the run and goes on unchanged."""
        callback = self._outlay()
        if callback is not None:
            callback.mixed_in = True
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            if callback is not None:
                callback.fail(error)
            raise

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """Draw the micro-batches of a step; hand over none where the step may not run."""
        callback = self._outlay()
        drawn = super().get_batch_samples(epoch_iterator, *args, **kwargs)  # type: ignore[misc]
        if callback is None or callback.run is None or not drawn[0] or callback.admit(drawn[0]):
            return drawn
        trainer: Any = self
        trainer.control.should_training_stop = True
        return [], None

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, as a phase from its begin."""
        return self._phase("evaluation", super().evaluate, args, kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        save = super()._save_checkpoint  # type: ignore[misc]
        return self._phase("checkpoint_save", save, args, kwargs)

    def _phase(self, name: str, work: Any, args: Any, kwargs: Any) -> Any:
        callback = self._outlay()
        if callback is None or callback.run is None:
            return work(*args, **kwargs)
        callback.driver.phase(name)
        done = work(*args, **kwargs)
        callback.driver.phase(None)
        callback.driver.begin_waiting()
        return done

    def _outlay(self) -> OutlayCallback | None:
        trainer: Any = self
        callbacks = trainer.callback_handler.callbacks
        return next((one for one in callbacks if isinstance(one, OutlayCallback)), None)
