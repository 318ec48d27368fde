"""A GPU as NVIDIA's management library sees it: its energy, counted or sampled, and its load."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from outlay.clock import SYSTEM, Clock
from outlay.record.meters.quality import Quality


class NvmlSource:
    """One GPU. Volta and later count millijoules; before, power is sampled and integrated.

    Args:
        nvml: The ``pynvml`` module.
        device: Which GPU: its index, or its UUID.
        clock: Times the samples of power.

    Raises:
        OSError: The GPU tells neither.
    """

    def __init__(self, nvml: Any, device: int | str, clock: Clock = SYSTEM) -> None:
        self.name = f"gpu{device}"
        self._nvml = nvml
        by_index, by_uuid = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
        self._handle = _call(nvml, by_index if isinstance(device, int) else by_uuid, device)
        self._monotonic_ns = clock.monotonic_ns
        self._sampled_ns = self._monotonic_ns()
        self._last_mw = 0
        try:
            self._last_mj = self._counter_mj()
            self.quality = Quality.MEASURED
        except OSError:
            self._last_mw = self._power_mw()
            self.quality = Quality.ESTIMATED

    @classmethod
    def detect(cls, environ: Mapping[str, str], clock: Clock = SYSTEM) -> list[NvmlSource]:
        """Return a source for every GPU this process may use.

        Raises:
            OSError: There is no NVIDIA driver, or a GPU cannot be read.
        """
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return []
        _call(nvml, nvml.nvmlInit)
        count = int(_call(nvml, nvml.nvmlDeviceGetCount))
        return [cls(nvml, device, clock) for device in visible_devices(environ, count)]

    def take_uj(self) -> int:
        """Return microjoules since the last call."""
        if self.quality is Quality.MEASURED:
            now_mj = self._counter_mj()
            used_mj, self._last_mj = now_mj - self._last_mj, now_mj
            # The counter starts anew with the driver; what it shows then is what was used since.
            return 1000 * (used_mj if used_mj >= 0 else now_mj)
        now_ns, now_mw = self._monotonic_ns(), self._power_mw()
        # Milliwatts times nanoseconds are picojoules; the mean of two samples is half their sum.
        twice_pj = (now_ns - self._sampled_ns) * (now_mw + self._last_mw)
        self._sampled_ns, self._last_mw = now_ns, now_mw
        return twice_pj // 2_000_000

    def busy(self) -> float:
        """Return the share of the recent past in which the GPU was at work, 0 to 1."""
        query = self._nvml.nvmlDeviceGetUtilizationRates
        return float(_call(self._nvml, query, self._handle).gpu) / 100

    def _counter_mj(self) -> int:
        query = self._nvml.nvmlDeviceGetTotalEnergyConsumption
        return int(_call(self._nvml, query, self._handle))

    def _power_mw(self) -> int:
        return int(_call(self._nvml, self._nvml.nvmlDeviceGetPowerUsage, self._handle))


def visible_devices(environ: Mapping[str, str], count: int) -> list[int | str]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to this process; all where it is unset.

    As for CUDA, what follows the first entry that names no GPU is not visible.
    """
    stated = environ.get("CUDA_VISIBLE_DEVICES")
    if stated is None:
        return list(range(count))
    devices: list[int | str] = []
    for entry in map(str.strip, stated.split(",")):
        if entry.startswith(("GPU-", "MIG-")):
            devices.append(entry)
        elif entry.isdecimal() and int(entry) < count:
            devices.append(int(entry))
        else:
            break
    return devices


def _call(nvml: Any, query: Any, *args: Any) -> Any:
    try:
        return query(*args)
    except nvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error
