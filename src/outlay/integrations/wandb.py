"""Weights & Biases: a run's numbers beside what the training logs itself.

``attach`` adds to a W&B run that exists. It makes none unless asked, commits no row of its own, and
is not waited for beyond a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlay.errors import MissingExtra
from outlay.export.trackers import WandbSink
from outlay.integrations.trackers import EVERY, FINISH_S, TrackerAttachment
from outlay.runs.live import Run


def attach(
    run: Run,
    wandb_run: Any = None,
    *,
    every: object = EVERY,
    against_cost: Sequence[str] = (),
    create: bool = False,
    finish_s: float = FINISH_S,
) -> TrackerAttachment:
    """Tell a W&B run what an outlay run has used and cost, under ``outlay/*``.

    Those metrics have the axis ``outlay/step``. ``outlay/cost_usd`` is over all attempts and never
    goes back, so that it serves as an axis, too. Final figures are in the W&B run's summary, if the
    outlay run ends before the W&B run is finished.

    Args:
        run: From ``outlay.run()``.
        wandb_run: From ``wandb.init()``; default: the process's own, ``wandb.run``.
        every: How long between two readings.
        against_cost: Metrics to show against dollars, such as ``["eval/*", "loss"]``.
        create: Whether a W&B run is begun where there is none, with W&B's own settings.
        finish_s: How long the end of the outlay run may wait for the last reading.
    """
    trouble, ours = "", False
    try:
        if wandb_run is None:
            wandb_run, ours = _current(create=create)
    except Exception as error:  # noqa: BLE001 - a tracker's trouble is not the training's
        trouble = f"{type(error).__name__}: {error}"[:200]
    if wandb_run is None:
        attachment = TrackerAttachment(run, (), every=every)
        attachment.lose(trouble or "there is no W&B run; call wandb.init() first, or create=True")
        return attachment
    sink = WandbSink(wandb_run, tuple(against_cost), commit=ours)
    return TrackerAttachment(run, [sink], every=every, finish_s=finish_s)


def _current(*, create: bool) -> tuple[Any, bool]:
    """Return the process's W&B run, if any, and whether it was begun here."""
    try:
        import wandb
    except ImportError:
        raise MissingExtra("telling Weights & Biases", "wandb") from None
    if wandb.run is None and create:
        return wandb.init(), True
    return wandb.run, False
