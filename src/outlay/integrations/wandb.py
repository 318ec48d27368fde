"""Weights & Biases: logs a run's figures to a W&B run, next to what the training logs.

``attach`` creates no W&B run unless asked, commits no row of its own, and delays the end of the run
by a bounded time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from outlay.errors import MissingExtra
from outlay.export.tracker_sinks import WandbSink
from outlay.integrations.trackers import EVERY, FINISH_S, TrackerAttachment
from outlay.integrations.wandb_files import RUN_ID
from outlay.record import facts
from outlay.runs.live import Run
from outlay.runs.reading import read_run

_log = logging.getLogger("outlay")


def attach(
    run: Run,
    wandb_run: Any = None,
    *,
    every: object = EVERY,
    against_cost: Sequence[str] = (),
    create: bool = False,
    finish_s: float = FINISH_S,
) -> TrackerAttachment:
    """Log an outlay run's usage and cost to a W&B run, under ``outlay/*``.

    The x axis of these metrics is ``outlay/step``. ``outlay/cost_usd`` is cumulative over all
    attempts and never decreases, so it can be an axis too. The W&B run's summary gets the final
    figures if the outlay run ends before the W&B run is finished.

    Args:
        run: From ``outlay.run()``.
        wandb_run: From ``wandb.init()``; default: the process's own, ``wandb.run``.
        every: The interval between two readings.
        against_cost: Metrics to plot against cost, such as ``["eval/*", "loss"]``; the run's log
            is read once before this function returns.
        create: Whether to create a W&B run if there is none, with W&B's own settings.
        finish_s: The timeout for the last reading at the end of the outlay run.
    """
    trouble, ours = "", False
    try:
        if wandb_run is None:
            wandb_run, ours = _current(create=create)
    except Exception as error:  # noqa: BLE001 - a tracker must not fail the training
        trouble = f"{type(error).__name__}: {error}"[:200]
    if wandb_run is None:
        attachment = TrackerAttachment(run, (), every=every)
        attachment.lose(trouble or "there is no W&B run; call wandb.init() first, or create=True")
        return attachment
    if run.rank == 0 and not facts.is_disabled(os.environ):
        _name_in(wandb_run, run)
    sink = WandbSink(wandb_run, tuple(against_cost), commit=ours)
    if against_cost and run.rank == 0 and not facts.is_disabled(os.environ):
        _define_cost_axis(sink, run)
    return TrackerAttachment(run, [sink], every=every, finish_s=finish_s)


def _name_in(wandb_run: Any, run: Run) -> None:
    """Name the outlay run in the W&B run, so that ``outlay import wandb`` knows it again."""
    try:
        wandb_run.config.update({RUN_ID: run.run_id}, allow_val_change=True)
    except Exception as error:  # noqa: BLE001 - a tracker must not fail the training
        _log.warning("%s: W&B's configuration does not name the run: %s", run.dir, error)


def _define_cost_axis(sink: WandbSink, run: Run) -> None:
    """Log the cost so far and define it as an axis, before the training logs its first row.

    W&B gives a row that is logged after the definition, but before a value of the axis, the value
    0: a thread beside the training would sometimes be too late.
    """
    try:
        sink.write(read_run(run.dir))
    except Exception as error:  # noqa: BLE001 - a tracker must not fail the training
        _log.warning("%s: the cost axis is defined later: %s", run.dir, error)


def _current(*, create: bool) -> tuple[Any, bool]:
    """Return the process's W&B run, if any, and whether it was created here."""
    try:
        import wandb
    except ImportError:
        raise MissingExtra("logging to Weights & Biases", "wandb") from None
    if wandb.run is None and create:
        return wandb.init(), True
    return wandb.run, False
