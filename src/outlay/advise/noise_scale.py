"""The gradient noise scale: beyond which batch size more samples a step stop helping.

After McCandlish et al. 2018, arXiv:1812.06162. Reaching a loss with batch size B takes
S_min (1 + Bc/B) steps and E_min (1 + B/Bc) examples, where the critical batch size Bc is about the
noise scale tr(Sigma)/|G|^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from outlay.errors import InvalidValue


def noise_scale(small: tuple[int, float], large: tuple[int, float]) -> float:
    """Return the simple noise scale from squared gradient norms at two batch sizes.

    Args:
        small: A batch size, and the mean of |G|^2 over batches of it.
        large: A larger one, likewise.

    Raises:
        InvalidValue: The norms admit no positive signal; average over more batches.
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
    """Return examples needed over the least possible: 1 + B/Bc; 1 where Bc is beyond any batch."""
    return 1.0 if critical is None else 1 + batch / critical


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Samples per second by batch size: T = peak B / (B + half), fitted to measurements.

    Attributes:
        error: The relative standard deviation of the measurements about the fit.
        largest: The largest batch that was measured.
    """

    peak: float
    half: float
    error: float
    largest: int

    def at(self, batch: float) -> float:
        """Return samples per second with a batch size."""
        return self.peak * batch / (batch + self.half)


def fit_throughput(measured: Mapping[int, float]) -> Throughput:
    """Fit throughput to measurements at two or more batch sizes, least squares in 1/T over 1/B."""
    if len(measured) < 2 or any(b < 1 or t <= 0 for b, t in measured.items()):
        raise InvalidValue(
            "throughputs", dict(measured), "samples per second at two or more batch sizes"
        )
    batches = np.array(sorted(measured), dtype=np.float64)
    times = np.array([1 / measured[int(b)] for b in batches])
    columns = np.stack([np.ones_like(batches), 1 / batches], axis=1)
    (base, overhead), *_ = np.linalg.lstsq(columns, times, rcond=None)
    # A fit may say that larger batches are slower; then the fastest measured is the peak.
    base = max(float(base), float(times.min()) / 2)
    overhead = max(float(overhead), 0.0)
    fitted = base + overhead / batches
    error = float(np.sqrt(np.mean((times / fitted - 1) ** 2)))
    return Throughput(peak=1 / base, half=overhead / base, error=error, largest=int(batches[-1]))


def hours_to_finish(
    batch: int, speed: Throughput, *, least_examples: float, critical: float | None
) -> float:
    """Return the hours that a training takes with a batch size.

    Args:
        batch: The batch size.
        speed: The fitted throughput.
        least_examples: E_min: what the training needs with very small batches.
        critical: The critical batch size; None means far beyond any batch looked at.
    """
    return least_examples * examples_factor(batch, critical) / speed.at(batch) / 3600
