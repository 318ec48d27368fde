"""Advice on a run's batch size from its own log, and which figures the log lacks for it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from outlay.advise.batch_size import BatchSituation, recommend_batch_size
from outlay.advise.recommendation import OptimizationRecommendation
from outlay.cost.reading import EPOCHS, RunReading, Told
from outlay.ledger import AttemptStarted
from outlay.prices.gpus import resolve

PARAMETERS = ("parameters", "model_parameters")
NOISE_SCALE = ("gradient_noise_scale", "noise_scale")


def advise_batch_size(
    reading: RunReading, *, price_per_hour: float, hours: float, currency: str
) -> OptimizationRecommendation | None:
    """Return a cheaper batch size for a run; None where none is known, or too little was logged.

    The batch is that of one rank: its samples a step fill one GPU's memory, while the gradient
    noise scale is about the samples of all ranks.
    """
    header, speeds = _header(reading), _speeds(reading.told)
    gpu_gb, parameters = _memory_gb(header), _last(reading.told, PARAMETERS)
    if gpu_gb is None or parameters is None or not speeds:
        return None
    batch = max(speeds, key=lambda each: len(reading.told.durations[each]))
    noise = _last(reading.told, NOISE_SCALE)
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


def unmeasured(reading: RunReading) -> list[str]:
    """Return what advice on batch size and dataset lacks, and how a run logs it."""
    header, told = _header(reading), reading.told
    lacks = [
        ("batch size", "the number of samples of a step", "run.steps(loader, samples=len)",
         bool(told.durations)),
        ("batch size", "the GPU", 'outlay.run(gpu="H100")', _memory_gb(header) is not None),
        ("batch size", "the model's size", 'run.metric("parameters", count)',
         _last(told, PARAMETERS) is not None),
        ("batch size", "the gradient noise scale", 'run.metric("gradient_noise_scale", value)',
         _last(told, NOISE_SCALE) is not None),
        ("dataset", "the number of passes over the data", 'run.metric("epochs", passes)',
         _epochs_known(told)),
    ]  # fmt: skip
    return [
        f"{advice}: {what} is not known; say it with {how}"
        for advice, what, how, known in lacks
        if not known
    ]


def _epochs_known(told: Told) -> bool:
    return told.steps_per_epoch is not None or any(told.metrics.get(name) for name in EPOCHS)


def _header(reading: RunReading) -> AttemptStarted:
    return reading.view.timeline.attempts[-1].header


def _memory_gb(header: AttemptStarted) -> int | None:
    return resolve(header.gpu).memory_gb if header.gpu else None


def _speeds(told: Told) -> dict[int, float]:
    """Return samples per second of one rank by batch size, from the median step of each."""
    found = {batch: median(each) for batch, each in told.durations.items()}
    return {batch: batch / (typical_ns / 1e9) for batch, typical_ns in found.items() if typical_ns}


def _last(told: Told, names: Sequence[str]) -> float | None:
    """Return the last value above zero that was reported under one of some names."""
    values = [point.value for point in told.series(names) if point.value > 0]
    return values[-1] if values else None
