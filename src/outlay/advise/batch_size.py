"""Advice on the batch size: the cheapest that fits in memory and still learns enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from outlay.account.columns import Ints
from outlay.account.run import RunAccount
from outlay.advise.recommendation import (
    AdviceKind,
    OptimizationRecommendation,
    bounded,
    confidence_of,
    least_saving,
)
from outlay.cost.run_cost import EPOCHS, PARAMETERS, last_reported, steps_per_epoch
from outlay.errors import InvalidValue
from outlay.goodput.follower import RunView
from outlay.ledger import AttemptStarted
from outlay.prices.gpus import family_of, resolve
from outlay.units.shown import Grade, amount_text

# GPU memory of a training: a fixed part, and a part per sample.
#
# Weights, gradients and Adam's states take 16 bytes per parameter, in mixed and in full precision
# (ZeRO, arXiv:1910.02054). Activations are measured if possible; else they are estimated for a
# transformer of that size at 34 + 5as/h bytes per token, hidden unit and layer (arXiv:2205.05198),
# with the usual shape of such models.

GB = 2**30
STATE_BYTES_PER_PARAMETER = 16
_RESERVE_GB = 2.0  # The framework, its kernels, and fragmentation.
# The width of common transformers grows with their depth: 12 x 768, 96 x 12288.
_HIDDEN_PER_LAYER = 64
_HEAD = 64
_TOKENS_PER_SAMPLE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Memory of a training: bytes independent of the batch, and bytes per sample."""

    fixed_bytes: float
    bytes_per_sample: float
    measured: bool

    def largest_batch(self, gpu_gb: float) -> int:
        """Return the largest batch that fits into a GPU; 0 if the model alone does not fit."""
        free = (gpu_gb - _RESERVE_GB) * GB - self.fixed_bytes
        return int(free // self.bytes_per_sample) if free > 0 else 0


def estimated_memory(parameters: int) -> MemoryModel:
    """Estimate the memory of a transformer of that size on one GPU."""
    if parameters < 1:
        raise InvalidValue("model_param_count", parameters, "a number of parameters, 1 or more")
    layers = (parameters / (12 * _HIDDEN_PER_LAYER**2)) ** (1 / 3)
    hidden = _HIDDEN_PER_LAYER * layers
    per_token = layers * hidden * (34 + 5 * _TOKENS_PER_SAMPLE / _HEAD)
    return MemoryModel(
        fixed_bytes=parameters * STATE_BYTES_PER_PARAMETER,
        bytes_per_sample=per_token * _TOKENS_PER_SAMPLE,
        measured=False,
    )


def measured_memory(small: tuple[int, float], large: tuple[int, float]) -> MemoryModel:
    """Return the memory model of two measurements, each a batch size and its peak in bytes."""
    (small_batch, small_peak), (large_batch, large_peak) = small, large
    if not 0 < small_batch < large_batch or not 0 < small_peak < large_peak:
        raise InvalidValue("memory", (small, large), "a larger batch that needs more memory")
    per_sample = (large_peak - small_peak) / (large_batch - small_batch)
    # Rounding and fragmentation can make the intercept negative.
    fixed = max(0.0, small_peak - per_sample * small_batch)
    return MemoryModel(fixed_bytes=fixed, bytes_per_sample=per_sample, measured=True)


# The gradient noise scale: above that batch size, more samples per step hardly help.
#
# After McCandlish et al. 2018, arXiv:1812.06162. Reaching a loss with batch size B takes S_min (1
# + Bc/B) steps and E_min (1 + B/Bc) examples, where the critical batch size Bc is about the noise
# scale tr(Sigma)/|G|^2.


def noise_scale(small: tuple[int, float], large: tuple[int, float]) -> float:
    """Return the simple noise scale from two batch sizes, each with its mean squared gradient norm.

    Raises:
        InvalidValue: The norms give no positive signal; average over more batches.
    """
    (b_small, g_small), (b_large, g_large) = small, large
    if not 0 < b_small < b_large:
        raise InvalidValue("batch sizes", (b_small, b_large), "a small and a larger one")
    signal = (b_large * g_large - b_small * g_small) / (b_large - b_small)
    noise = (g_small - g_large) / (1 / b_small - 1 / b_large)
    if signal <= 0 or noise < 0:
        expected = "norms averaged over enough batches that the larger batch has the smaller norm"
        raise InvalidValue("gradient norms", (g_small, g_large), expected)
    return noise / signal


def examples_factor(batch: float, critical: float | None) -> float:
    """Return examples needed relative to the minimum: 1 + B/Bc; 1 for an unknown Bc."""
    return 1.0 if critical is None else 1 + batch / critical


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchThroughput:
    """Samples per second by batch size, fitted to measurements: T = peak B / (B + half).

    Attributes:
        error: The relative standard deviation of the measurements about the fit.
        largest: The largest measured batch.
    """

    peak: float
    half: float
    error: float
    largest: int

    def at(self, batch: float) -> float:
        """Return the samples per second of a batch size."""
        return self.peak * batch / (batch + self.half)


def fit_throughput(measured: Mapping[int, float]) -> BatchThroughput:
    """Fit throughput to measurements at two or more batch sizes, least squares in 1/T over 1/B."""
    if len(measured) < 2 or any(b < 1 or t <= 0 for b, t in measured.items()):
        raise InvalidValue(
            "throughputs", dict(measured), "samples per second at two or more batch sizes"
        )
    batches = np.array(sorted(measured), dtype=np.float64)
    times = np.array([1 / measured[int(b)] for b in batches])
    columns = np.stack([np.ones_like(batches), 1 / batches], axis=1)
    (base, overhead), *_ = np.linalg.lstsq(columns, times, rcond=None)
    # If larger batches seem slower, bound the peak by the fastest measurement.
    base = max(float(base), float(times.min()) / 2)
    overhead = max(float(overhead), 0.0)
    fitted = base + overhead / batches
    error = float(np.sqrt(np.mean((times / fitted - 1) ** 2)))
    return BatchThroughput(
        peak=1 / base, half=overhead / base, error=error, largest=int(batches[-1])
    )


# The cheapest batch size that fits and still learns from its samples.

_SIZES = tuple(2**power for power in range(17))
# Growth of throughput with the batch if it was not measured: T ~ B^e. With 0 the GPU is busy
# already, 0.5 is the most that is usual; the estimate uses the middle value.
_EXPONENTS = (0.0, 0.1, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSituation:
    """A training at its current batch size.

    Attributes:
        throughput: Samples per second with the current batch.
        hours: Duration of the training, or of an epoch.
        throughputs: Measured samples per second by batch size, if others were tried.
        critical: The gradient noise scale, if it was measured.
    """

    batch: int
    gpu_gb: float
    parameters: int
    throughput: float
    price_per_hour: float
    hours: float
    throughputs: Mapping[int, float] | None = None
    critical: float | None = None
    memory: MemoryModel | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InvalidValue("current_batch_size", self.batch, "a batch size, 1 or more")
        for name in ("gpu_gb", "throughput", "price_per_hour", "hours"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidValue(name, getattr(self, name), "a finite number, zero or more")
        if self.critical is not None and not 0 <= self.critical < float("inf"):
            raise InvalidValue("noise_scale", self.critical, "a finite number, zero or more")

    @property
    def speeds(self) -> dict[int, float]:
        """Every measured throughput by batch size, the current one included."""
        now = {self.batch: self.throughput} if self.throughput else {}
        return now | dict(self.throughputs or {})


_UNKNOWN_LOSS = (
    "each sample teaches less in a larger batch; how much less is not known without the gradient "
    "noise scale"
)


class _Saving(NamedTuple):
    """The hours that a batch size saves: the estimate and its interval."""

    batch: int
    low: float
    point: float
    high: float


def recommend_batch_size(now: BatchSituation) -> OptimizationRecommendation | None:
    """Return a cheaper batch size that fits; None if none is known."""
    memory = now.memory or estimated_memory(now.parameters)
    most = memory.largest_batch(now.gpu_gb)
    if most <= now.batch or now.critical == 0:  # Without noise, more samples do not help.
        return None
    sizes = [batch for batch in _SIZES if now.batch < batch <= most]
    speed = None if now.throughputs is None else fit_throughput(now.speeds)
    found = _assumed_saving(now, sizes) if speed is None else _measured_saving(now, sizes, speed)
    if found is None:
        return None
    how = "measured" if memory.measured else "estimated"
    fits = f"batch {found.batch} fits: at most {most} on {now.gpu_gb:g} GB ({how} memory)"
    assumed, needed = [], []
    if not memory.measured:
        assumed.append("a transformer of this size with 512 tokens a sample, Adam, on one GPU")
    if now.memory is None:
        needed.append("peak memory at two batch sizes (memory=)")
    if now.critical is None:
        assumed.append("larger batches need no more samples to learn the same")
        needed.append("the gradient noise scale (noise_scale=)")
    if speed is None:
        growth = "throughput grows with the batch as B^0.1, at best as B^0.5; it was not measured"
        return _recommendation(
            now,
            found,
            grade="assumed",
            kind="trade" if now.critical is None else "observation",
            evidence=[fits],
            assumptions=[growth, *assumed],
            needed=["samples per second at two or more batch sizes (throughputs=)", *needed],
        )
    noise = [] if now.critical is None else [f"gradient noise scale {now.critical:.0f}"]
    return _recommendation(
        now,
        found,
        grade="estimated",
        kind="trade" if now.critical is None else "saving",
        evidence=[
            f"throughput at {len(now.speeds)} batch sizes up to {speed.largest}",
            fits,
            *noise,
        ],
        assumptions=assumed,
        needed=needed,
    )


def _assumed_saving(now: BatchSituation, sizes: Sequence[int]) -> _Saving | None:
    """Return the saving of one doubling; try another only if the first one paid off."""
    larger = (b for b in sizes if now.critical is None or b <= now.critical)
    batch = next(larger, None)
    if batch is None:
        return None
    return _Saving(batch, *(now.hours * (1 - (now.batch / batch) ** e) for e in _EXPONENTS))


def _measured_saving(
    now: BatchSituation, sizes: Sequence[int], speed: BatchThroughput
) -> _Saving | None:
    """Return the largest saving by the fitted throughput."""

    def hours(batch: int) -> float:
        examples = examples_factor(batch, now.critical) / examples_factor(now.batch, now.critical)
        return now.hours * examples * speed.at(now.batch) / speed.at(batch)

    # The fit is not extrapolated beyond twice the largest measured batch.
    best = min((b for b in sizes if b <= 2 * speed.largest), key=hours, default=now.batch)
    saved = now.hours - hours(best)
    if best == now.batch or saved <= 0:
        return None
    margin = 1.28 * max(speed.error, 0.02) * 2**0.5 * now.hours
    return _Saving(best, saved - margin, saved, saved + margin)


def _recommendation(
    now: BatchSituation,
    found: _Saving,
    *,
    grade: Grade,
    kind: AdviceKind,
    evidence: list[str],
    assumptions: list[str],
    needed: list[str],
) -> OptimizationRecommendation | None:
    low, point, high = (hours * now.price_per_hour for hours in found[1:])
    all_of_it = now.hours * now.price_per_hour
    if high <= 0 or point < least_saving(all_of_it):
        return None
    probability = 0.9 if low >= 0 else 0.5 + 0.4 * point / (point - low)
    advice = OptimizationRecommendation(
        category="batch_size",
        title=f"Try batch size {found.batch} instead of {now.batch}",
        description=(
            f"A batch of {found.batch} is expected to save {amount_text(point, now.currency)} of "
            f"{amount_text(all_of_it, now.currency)}."
        ),
        estimated_savings=point,
        estimated_time_saved=found.point,
        confidence=confidence_of(probability, grade),
        action=f"Set the batch size to {found.batch} and adapt the learning rate",
        risks=["a larger batch may need another learning rate and warm-up"],
        savings_low=low,
        savings_high=high,
        grade=grade,
        evidence=evidence,
        assumptions=assumptions,
        needed=needed,
        currency=now.currency,
        kind=kind,
        quality_loss=_UNKNOWN_LOSS if kind == "trade" else "",
        tolerance=0.0 if kind == "saving" else None,
    )
    return bounded(advice, all_of_it)


# Advice from a run's log, and the figures that the log lacks.

NOISE_SCALE = ("gradient_noise_scale", "noise_scale")


def advise_batch_size(
    view: RunView, *, price_per_hour: float, hours: float, currency: str
) -> OptimizationRecommendation | None:
    """Return a cheaper batch size for a run; None if none is known, or too little was logged.

    The batch is that of one rank, which must fit in one GPU; the gradient noise scale is of the
    samples of all ranks.
    """
    header, durations = view.timeline.attempts[-1].header, _durations(view.account)
    speeds = _speeds(durations)
    gpu_gb, parameters = _memory_gb(header), parameters_of(view.account)
    if gpu_gb is None or parameters is None or not speeds:
        return None
    batch = max(speeds, key=lambda each: len(durations[each]))
    noise = last_reported(view.account, NOISE_SCALE)
    return recommend_batch_size(
        BatchSituation(
            batch=batch,
            gpu_gb=gpu_gb,
            parameters=parameters,
            throughput=speeds[batch],
            price_per_hour=price_per_hour,
            hours=hours,
            throughputs=speeds if len(speeds) > 1 else None,
            critical=None if noise is None else noise / header.world_size,
            currency=currency,
        )
    )


def unmeasured(view: RunView) -> list[str]:
    """Return the figures that advice on batch size and dataset lacks, and how to log them."""
    header, account = view.timeline.attempts[-1].header, view.account
    sizes = [spec.name for spec in family_of(header.gpu)] if header.gpu else []
    gpu = f"the memory of the {header.gpu} ({' or '.join(sizes)})" if sizes else "the GPU"
    lacks = [
        ("batch size", "the number of samples of a step", "run.steps(loader, samples=len)",
         account.work.samples > 0),
        ("batch size", gpu, f'outlay.run(gpu="{sizes[-1] if sizes else "H100"}")',
         _memory_gb(header) is not None),
        ("batch size", "the model's size", 'run.metric("parameters", count)',
         parameters_of(account) is not None),
        ("batch size", "the gradient noise scale", 'run.metric("gradient_noise_scale", value)',
         last_reported(account, NOISE_SCALE) is not None),
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


def _memory_gb(header: AttemptStarted) -> int | None:
    return resolve(header.gpu).memory_gb if header.gpu else None


def _durations(account: RunAccount) -> dict[int, Ints]:
    """Return the durations of single steps in nanoseconds, by samples per step."""
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
    """Return samples per second of one rank by batch size, from median steps."""
    found = {batch: float(np.median(each)) for batch, each in durations.items()}
    return {batch: batch / (typical_ns / 1e9) for batch, typical_ns in found.items() if typical_ns}


def parameters_of(account: RunAccount) -> int | None:
    """Return the model's number of parameters; a metric of that name below 1 is another figure."""
    return int(last_reported(account, PARAMETERS) or 0) or None
