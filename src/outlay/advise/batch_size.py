"""Advice on the batch size: the cheapest that fits and still learns from its samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from outlay.advise.memory import MemoryModel, estimated_memory
from outlay.advise.noise_scale import (
    Throughput,
    examples_factor,
    fit_throughput,
    hours_to_finish,
)
from outlay.advise.recommendation import (
    Grade,
    OptimizationRecommendation,
    amount_text,
    confidence_of,
)
from outlay.errors import InvalidValue

_LEAST_SAVING = 0.10
_SIZES = tuple(2**power for power in range(17))
# How throughput grows with the batch where nobody measured it: T ~ B^e. 0 is a GPU that is busy
# already, 0.5 the most that is usual; the advice counts with little of it.
_EXPONENTS = (0.0, 0.1, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSituation:
    """A training as it runs now.

    Attributes:
        throughput: Samples per second with the current batch.
        hours: What the training, or an epoch of it, takes now.
        throughputs: Measured samples per second by batch size, where others were tried.
        critical: The gradient noise scale, where it was measured.
        currency: Of the price.
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


def recommend_batch_size(now: BatchSituation) -> OptimizationRecommendation | None:
    """Return a cheaper batch size that fits; None where none is known."""
    memory = now.memory or estimated_memory(now.parameters)
    most = memory.largest_batch(now.gpu_gb)
    if most <= now.batch or now.critical == 0:  # Without noise, more samples teach nothing new.
        return None
    if now.throughputs is not None:
        return _from_measurements(now, memory, most, fit_throughput(now.speeds))
    return _from_assumptions(now, memory, most)


class _SavedHours(NamedTuple):
    """Hours that a batch size saves: what is expected, and the ends of its interval."""

    low: float
    point: float
    high: float


def _candidates(now: BatchSituation, most: int) -> list[int]:
    return [batch for batch in _SIZES if now.batch < batch <= most]


def _from_assumptions(
    now: BatchSituation, memory: MemoryModel, most: int
) -> OptimizationRecommendation | None:
    """One doubling at a time: further is only worth trying when the first one paid."""
    larger = [b for b in _candidates(now, most) if now.critical is None or b <= now.critical]
    if not larger:
        return None
    batch = larger[0]
    return _built(
        now,
        batch,
        _SavedHours(*(now.hours * (1 - (now.batch / batch) ** e) for e in _EXPONENTS)),
        grade="assumed",
        evidence=[_fits(batch, memory, most, now.gpu_gb)],
        assumptions=[
            "throughput grows with the batch as B^0.1, at best as B^0.5; it was not measured",
            *_assumed(now, memory),
        ],
        needed=["samples per second at two or more batch sizes (throughputs=)", *_needed(now)],
    )


def _from_measurements(
    now: BatchSituation, memory: MemoryModel, most: int, speed: Throughput
) -> OptimizationRecommendation | None:
    # Beyond twice the largest measured batch the fit is a guess.
    tried = [b for b in _candidates(now, most) if b <= 2 * speed.largest]
    examples = now.hours * 3600 * speed.at(now.batch)
    least = examples / examples_factor(now.batch, now.critical)

    def hours(batch: int) -> float:
        return hours_to_finish(batch, speed, least_examples=least, critical=now.critical)

    best = min(tried, key=hours, default=now.batch)
    saved = now.hours - hours(best)
    if best == now.batch or saved <= 0:
        return None
    doubt = 1.28 * max(speed.error, 0.02) * 2**0.5 * now.hours
    return _built(
        now,
        best,
        _SavedHours(saved - doubt, saved, saved + doubt),
        grade="measured" if memory.measured and now.critical is not None else "estimated",
        evidence=[
            f"throughput at {len(now.speeds)} batch sizes up to {speed.largest}",
            _fits(best, memory, most, now.gpu_gb),
            *([] if now.critical is None else [f"gradient noise scale {now.critical:.0f}"]),
        ],
        assumptions=_assumed(now, memory),
        needed=_needed(now),
    )


def _fits(batch: int, memory: MemoryModel, most: int, gpu_gb: float) -> str:
    how = "measured" if memory.measured else "estimated"
    return f"batch {batch} fits: at most {most} on {gpu_gb:g} GB ({how} memory)"


def _assumed(now: BatchSituation, memory: MemoryModel) -> list[str]:
    found = []
    if not memory.measured:
        found.append("a transformer of this size with 512 tokens a sample, Adam, on one GPU")
    if now.critical is None:
        found.append("larger batches need no more samples to learn the same")
    return found


def _needed(now: BatchSituation) -> list[str]:
    found = []
    if now.memory is None:
        found.append("peak memory at two batch sizes (memory=)")
    if now.critical is None:
        found.append("the gradient noise scale (noise_scale=)")
    return found


def _built(
    now: BatchSituation,
    batch: int,
    hours: _SavedHours,
    *,
    grade: Grade,
    evidence: list[str],
    assumptions: list[str],
    needed: list[str],
) -> OptimizationRecommendation | None:
    low, point, high = (saved * now.price_per_hour for saved in hours)
    if high < _LEAST_SAVING:
        return None
    probability = 0.9 if low >= 0 else 0.5 + 0.4 * point / (point - low)
    all_of_it = now.hours * now.price_per_hour
    return OptimizationRecommendation(
        category="batch_size",
        title=f"Try batch size {batch} instead of {now.batch}",
        description=(
            f"A batch of {batch} is expected to save {amount_text(point, now.currency)} "
            f"({low:,.2f} to {high:,.2f}) of {amount_text(all_of_it, now.currency)}."
        ),
        estimated_savings=point,
        estimated_time_saved=hours.point,
        confidence=confidence_of(probability, grade),
        action=f"Set the batch size to {batch} and adapt the learning rate",
        risks=["a larger batch may need another learning rate and warm-up"],
        savings_low=low,
        savings_high=high,
        grade=grade,
        evidence=evidence,
        assumptions=assumptions,
        needed=needed,
        currency=now.currency,
    )
