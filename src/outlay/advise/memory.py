"""What a training needs of a GPU's memory: what it holds always, and what each sample adds.

Weights, gradients and Adam's states take 16 bytes a parameter, in mixed precision as in full (ZeRO,
arXiv:1910.02054). Activations are measured where they can be; else they are estimated for a
transformer of that size by 34 + 5as/h bytes per token, hidden unit and layer (arXiv:2205.05198),
with the shape that such models have.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlay.errors import InvalidValue

GB = 2**30
STATE_BYTES_PER_PARAMETER = 16
_RESERVE_GB = 2.0  # The framework, its kernels, and what fragmentation loses.
# The width of common transformers grows with their depth: 12 x 768, 96 x 12288.
_HIDDEN_PER_LAYER = 64
_HEAD = 64
_TOKENS_PER_SAMPLE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Bytes that a training holds whatever the batch, and bytes that each sample adds."""

    fixed_bytes: float
    bytes_per_sample: float
    measured: bool

    def largest_batch(self, gpu_gb: float) -> int:
        """Return the largest batch that fits into a GPU; 0 where not even the model does."""
        free = (gpu_gb - _RESERVE_GB) * GB - self.fixed_bytes
        return int(free // self.bytes_per_sample) if free > 0 else 0


def estimated_memory(parameters: int, *, tokens: int = _TOKENS_PER_SAMPLE) -> MemoryModel:
    """Return the memory of a transformer with so many parameters, all on one GPU."""
    if parameters < 1:
        raise InvalidValue("model_param_count", parameters, "a number of parameters, 1 or more")
    layers = (parameters / (12 * _HIDDEN_PER_LAYER**2)) ** (1 / 3)
    hidden = _HIDDEN_PER_LAYER * layers
    per_token = layers * hidden * (34 + 5 * tokens / _HEAD)
    return MemoryModel(
        fixed_bytes=parameters * STATE_BYTES_PER_PARAMETER,
        bytes_per_sample=per_token * tokens,
        measured=False,
    )


def measured_memory(small: tuple[int, float], large: tuple[int, float]) -> MemoryModel:
    """Return the memory model through peak memory (bytes) measured at two batch sizes.

    Args:
        small: A batch size and the peak memory seen with it.
        large: A larger one, and its peak.
    """
    (small_batch, small_peak), (large_batch, large_peak) = small, large
    if not 0 < small_batch < large_batch or not 0 < small_peak < large_peak:
        raise InvalidValue("memory", (small, large), "a larger batch that needs more memory")
    per_sample = (large_peak - small_peak) / (large_batch - small_batch)
    # Rounding and fragmentation can make the line start below the weights; nothing is below 0.
    fixed = max(0.0, small_peak - per_sample * small_batch)
    return MemoryModel(fixed_bytes=fixed, bytes_per_sample=per_sample, measured=True)
