"""Advice on a run's batch size from its own log, and which figures the log lacks for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outlay.account.columns import Ints
from outlay.account.run import RunAccount
from outlay.advise.batch_size import BatchSituation, recommend_batch_size
from outlay.advise.recommendation import OptimizationRecommendation
from outlay.cost.run_cost import EPOCHS, steps_per_epoch
from outlay.goodput.follower import RunView
from outlay.ledger import AttemptStarted
from outlay.prices.gpus import resolve

PARAMETERS = ("parameters", "model_parameters")
NOISE_SCALE = ("gradient_noise_scale", "noise_scale")


def advise_batch_size(
    view: RunView, *, price_per_hour: float, hours: float, currency: str
) -> OptimizationRecommendation | None:
    """Return a cheaper batch size for a run; None where none is known, or too little was logged.

    The batch is that of one rank: its samples a step fill one GPU's memory, while the gradient
    noise scale is about the samples of all ranks.
    """
    header, durations = _header(view), _durations(view.account)
    speeds = _speeds(durations)
    gpu_gb, parameters = _memory_gb(header), _last(view.account, PARAMETERS)
    if gpu_gb is None or parameters is None or not speeds:
        return None
    batch = max(speeds, key=lambda each: len(durations[each]))
    noise = _last(view.account, NOISE_SCALE)
    return recommend_batch_size(
        BatchSituation(
            batch=batch,
            gpu_gb=gpu_gb,
            parameters=int(parameters),
            throughput=speeds[batch],
            price_per_hour=price_per_hour,
            hours=hours,
            throughputs=speeds if len(speeds) > 1 else None,
            critical=None if noise is None else noise / header.world_size,
            currency=currency,
        )
    )


def unmeasured(view: RunView) -> list[str]:
    """Return what advice on batch size and dataset lacks, and how a run logs it."""
    header, account = _header(view), view.account
    lacks = [
        ("batch size", "the number of samples of a step", "run.steps(loader, samples=len)",
         account.work.samples > 0),
        ("batch size", "the GPU", 'outlay.run(gpu="H100")', _memory_gb(header) is not None),
        ("batch size", "the model's size", 'run.metric("parameters", count)',
         _last(account, PARAMETERS) is not None),
        ("batch size", "the gradient noise scale", 'run.metric("gradient_noise_scale", value)',
         _last(account, NOISE_SCALE) is not None),
        ("dataset", "the number of passes over the data", 'run.metric("epochs", passes)',
         _epochs_known(account)),
    ]  # fmt: skip
    return [
        f"{advice}: {what} is not known; say it with {how}"
        for advice, what, how, known in lacks
        if not known
    ]


def _epochs_known(account: RunAccount) -> bool:
    reported = account.metric_names()
    return steps_per_epoch(account) is not None or any(name in reported for name in EPOCHS)


def _header(view: RunView) -> AttemptStarted:
    return view.timeline.attempts[-1].header


def _memory_gb(header: AttemptStarted) -> int | None:
    return resolve(header.gpu).memory_gb if header.gpu else None


def _durations(account: RunAccount) -> dict[int, Ints]:
    """Return the nanoseconds of single steps by their samples."""
    every = [segment.steps for segment in account.shown() if segment.work.samples]
    if not every:
        return {}
    batch = np.concatenate([steps.samples // steps.count for steps in every])
    took = np.concatenate([(steps.end - steps.start) // steps.count for steps in every])
    order = np.argsort(batch, kind="stable")
    sizes, first = np.unique(batch[order], return_index=True)
    parts = np.split(took[order], first[1:])
    return {int(size): part for size, part in zip(sizes, parts, strict=True) if size > 0}


def _speeds(durations: dict[int, Ints]) -> dict[int, float]:
    """Return samples per second of one rank by batch size, from the median step of each."""
    found = {batch: float(np.median(each)) for batch, each in durations.items()}
    return {batch: batch / (typical_ns / 1e9) for batch, typical_ns in found.items() if typical_ns}


def _last(account: RunAccount, names: Sequence[str]) -> float | None:
    """Return the last value above zero that was reported under one of some names."""
    values = [point.value for point in account.series(*names) if point.value > 0]
    return values[-1] if values else None
