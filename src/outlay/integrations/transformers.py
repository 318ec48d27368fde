"""Callback for Hugging Face transformers: Trainer and trainers built on it (trl).

``Trainer(..., callbacks=[OutlayCallback(price="1.50 USD/h", budget="iso_time=2h")])``

A callback sees neither batches nor the begin of evaluations and saves, and can stop the loop only
after a step. Where that matters, add ``OutlayTrainerMixin`` before the Trainer class: it refuses a
batch before training on it, and times what has no begin hook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outlay.clock import SYSTEM, Clock
from outlay.errors import MissingExtra
from outlay.integrations.driver import Counts, LoopCallback
from outlay.record.meters.batches import count_samples, count_tokens

try:
    import torch
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtra("outlay.integrations.transformers", "transformers") from None


class OutlayCallback(LoopCallback, TrainerCallback):
    """Records a Trainer's training as a run, and stops it at the limits of its budget or guard.

    Args:
        tokens: Counts the tokens of a micro-batch from its shapes; default: the elements of
            ``input_ids`` or of integer inputs. Needed if tokens are limited and it cannot tell.
        samples: Counts the samples of a micro-batch; default: the first dimension.
        save_at_stop: Whether a run that must stop saves once more (unless saving is disabled), so
            that the work since the last checkpoint is not lost.
        clock: Times data waits.
        **options: Arguments of ``outlay.run``. Defaults: ``model`` is the model's class, ``dir``
            the output directory, ``config`` the TrainingArguments.
    """

    def __init__(
        self,
        *,
        tokens: Counts = count_tokens,
        samples: Counts = count_samples,
        save_at_stop: bool = True,
        clock: Clock = SYSTEM,
        **options: Any,
    ) -> None:
        super().__init__(options, clock, tokens, samples)
        self.mixed_in = False
        self._save_at_stop = save_at_stop
        self._last_tokens = self._last_samples = 0
        self._first_step = self._saved_step = -1
        self._evaluating = False
        self._model: Any = None
        self._hook: Any = None

    # Hooks of the Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Open the run, and resume from the Trainer's own checkpoint."""
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
            self.driver.phase("training_prep")  # The Trainer skips batches it has trained on.
        else:
            self.driver.begin_waiting()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin a step; its micro-batches are loaded already."""
        del args, state, control, more
        self.driver.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End the step, stop if no further one may run, and begin the phase that follows."""
        del more
        tokens, samples = self._tokens, self._samples
        self.driver.end_step(tokens=tokens, samples=samples)
        self._last_tokens, self._last_samples = tokens, samples
        _keep_sizes(state, tokens, samples)
        self._tokens = self._samples = 0
        if not self.mixed_in and self.driver.ask(tokens=tokens, samples=samples):
            self.stop(args, control)
        self.driver.begin_waiting()
        if not control.should_log:  # Else ``on_log`` begins it.
            self._begin_between(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Record the loss; logging is not a data wait."""
        del args, state, more
        if logs and "loss" in logs:
            self.driver.metrics({"loss": logs["loss"]})
            self.driver.begin_waiting()
            self._begin_between(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin an evaluation that was not announced: that of a further dataset."""
        del args, state, control, more
        if not self.mixed_in and not self._evaluating:
            self._begin_evaluation()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any
    ) -> None:
        """End an evaluation and record its metrics; another dataset's may follow."""
        del args, state, more
        self._evaluating = False
        self.driver.metrics(metrics)
        self.driver.phase(None)
        self.driver.begin_waiting()
        if control.should_save and not self.mixed_in:
            self.driver.phase("checkpoint_save")

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Commit a checkpoint."""
        del args, control, more
        self._saved_step = state.global_step
        self.driver.commit(state.global_step - 1)
        self.driver.phase(None)
        self.driver.begin_waiting()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin the phase that follows; a run that must stop saves unsaved work."""
        del more
        if self.driver.stopped:
            control.should_training_stop = True
            unsaved = state.global_step > self._saved_step
            control.should_save |= unsaved and self._saves(args)
            if state.global_step == self._first_step:  # Nothing was trained.
                control.should_evaluate = control.should_save = False
        self._begin_between(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Close the run."""
        del args, state, control, more
        self._unwatch()
        self.driver.finish()

    # Called by OutlayTrainerMixin

    def admit(self, batches: list[Any]) -> bool:
        """Count the micro-batches of the next step; return whether it may run.

        trl's prompts have no size before they are completed: then the model's inputs are counted,
        and the step is assumed to be as large as the last one.
        """
        self.driver.end_waiting()
        self._tokens = self._samples = 0
        if self._tokens_of is count_tokens and any(
            self.driver.count(count_tokens, batch) is None for batch in batches
        ):
            self._watch_inputs()
        if self._hook is not None:
            return not self.driver.ask(tokens=self._last_tokens, samples=self._last_samples)
        for batch in batches:
            self._count(batch)
        return not self.driver.ask(tokens=self._tokens, samples=self._samples)

    def stop(self, args: Any, control: Any) -> None:
        """Make the Trainer save and stop."""
        control.should_training_stop = True
        control.should_save |= self._saves(args)

    def fail(self, error: BaseException) -> None:
        """Close the run of a training that raised."""
        self._unwatch()
        self.driver.finish_with(error)

    def _saves(self, args: Any) -> bool:
        return self._save_at_stop and str(getattr(args.save_strategy, "value", "")) != "no"

    def _begin_between(self, control: Any) -> None:
        """Begin the phase that the Trainer's control announces."""
        if self.mixed_in:
            return  # The mixin begins phases itself.
        if control.should_evaluate:
            self._begin_evaluation()
        elif control.should_save:
            self.driver.phase("checkpoint_save")

    def _begin_evaluation(self) -> None:
        self._evaluating = True
        self.driver.phase("evaluation")

    def _watch_inputs(self) -> None:
        """Count the model's inputs, since the callback does not get the batches."""
        if self._hook is None and hasattr(self._model, "register_forward_pre_hook"):
            self._hook = self._model.register_forward_pre_hook(self._count_inputs, with_kwargs=True)

    def _unwatch(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _count_inputs(self, module: Any, inputs: Any, named: Mapping[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():  # Generation runs without gradients.
            self._count(named or inputs)

    def _count(self, batch: Any) -> None:
        tokens, samples = self._size_of(batch)
        self._tokens += tokens
        self._samples += samples


# Sizes of the last step in the Trainer's own checkpoint, as rank 0 has them
#
# Without them, a resumed run with prompts of unknown size would train a step that it had refused.

_KEPT = "outlay"


def _keep_sizes(state: Any, tokens: int, samples: int) -> None:
    if isinstance(kept := getattr(state, "stateful_callbacks", None), dict):
        kept[_KEPT] = {"args": {}, "attributes": {"tokens": tokens, "samples": samples}}


def _last_sizes(state: Any) -> tuple[int, int]:
    kept = getattr(state, "stateful_callbacks", None) or {}
    sizes = kept[_KEPT]["attributes"] if _KEPT in kept else {}
    return sizes.get("tokens", 0), sizes.get("samples", 0)


class OutlayTrainerMixin:
    """Adds what a callback cannot do: ``class MyTrainer(OutlayTrainerMixin, Trainer)``.

    Refuses a batch before training on it (also the first one of an exhausted run), times waits,
    evaluations and saves from their begin, and closes the run of a training that raised. Does
    nothing without an ``OutlayCallback`` among the callbacks.
    """

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; an exception closes the run and is raised unchanged."""
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
        """Load the micro-batches of a step; return none if the step may not run."""
        callback = self._outlay()
        drawn = super().get_batch_samples(epoch_iterator, *args, **kwargs)  # type: ignore[misc]
        if callback is None or callback.run is None or not drawn[0] or callback.admit(drawn[0]):
            return drawn
        trainer: Any = self
        trainer.control.should_training_stop = True
        return [], None

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, as a phase."""
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
