"""How busy the host's NVIDIA GPUs are, sampled through NVML where it is installed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """The present load: the mean share of busy GPUs (0 to 1) and their energy counter."""

    busy: float
    energy_mj: int


class Nvml:
    """Reads the GPUs of this host; made only where NVML works."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def sample(self) -> Sample:
        """Return the load now; a counter that a GPU does not have reads as 0."""
        busy = [self._nvml.nvmlDeviceGetUtilizationRates(d).gpu / 100 for d in self._devices]
        return Sample(sum(busy) / len(busy), sum(map(self._energy_mj, self._devices)))

    def _energy_mj(self, device: object) -> int:
        with contextlib.suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(device))
        return 0


def find_gpus() -> Nvml | None:
    """Return a reader of this host's GPUs, or None where there are none to read."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        gpus = Nvml(pynvml)
    except pynvml.NVMLError:
        return None
    return gpus if gpus._devices else None
