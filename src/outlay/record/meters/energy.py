"""Measures energy from counters of GPUs (NVML) and CPU packages (RAPL), with their quality.

If nothing can be measured, the quality is ``unavailable``, never a silent zero.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from outlay.clock import SYSTEM, Clock
from outlay.machine import CUDA_VISIBLE, device_names
from outlay.record.facts import is_first_of_node


class Quality(StrEnum):
    """How a reading was obtained."""

    MEASURED = "measured"
    """From a hardware counter of energy."""
    ESTIMATED = "estimated"
    """Sampled power times the time between samples."""
    UNAVAILABLE = "unavailable"
    """No sensor can be read."""


# CPU packages: Linux's powercap tree (RAPL)

POWERCAP = Path("/sys/class/powercap")
# intel-rapl:0 is a package; intel-rapl:0:1 is a part of it and would count twice.
_PACKAGE = re.compile(r"(?:intel|amd)-rapl:\d+")


class PowercapSource:
    """One package's energy counter, which may wrap around once between two readings."""

    quality = Quality.MEASURED

    def __init__(self, zone: Path) -> None:
        self._counter = zone / "energy_uj"
        self._range_uj = _read_integer(zone / "max_energy_range_uj")
        self._last_uj = _read_integer(self._counter)

    @classmethod
    def detect(cls, root: Path = POWERCAP) -> list[PowercapSource]:
        """Return a source for every package that can be read."""
        sources = []
        for zone in sorted(root.glob("*-rapl:*")):
            if _PACKAGE.fullmatch(zone.name):
                with contextlib.suppress(OSError):
                    sources.append(cls(zone))
        return sources

    def take_uj(self) -> int:
        """Return microjoules since the last call."""
        now_uj = _read_integer(self._counter)
        used_uj = now_uj - self._last_uj
        self._last_uj = now_uj
        return used_uj if used_uj >= 0 else used_uj + self._range_uj + 1


def _read_integer(path: Path) -> int:
    text = path.read_text().strip()
    if not text.isdecimal():
        raise OSError(f"{path}: expected a number, got {text!r}")
    return int(text)


# GPUs: NVIDIA's management library


class NvmlSource:
    """One GPU. Volta and later count millijoules; on earlier ones power is sampled and integrated.

    ``nvml`` is the ``pynvml`` module, ``device`` a GPU's index or UUID.
    """

    def __init__(self, nvml: Any, device: int | str, clock: Clock = SYSTEM) -> None:
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
        """Return a source for every GPU that this process may use.

        Raises:
            OSError: There is no NVIDIA driver, or a GPU cannot be read.
        """
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return []
        _call(nvml, nvml.nvmlInit)
        count = int(_call(nvml, nvml.nvmlDeviceGetCount))
        return [cls(nvml, device, clock) for device in nvml_devices(environ, count)]

    def take_uj(self) -> int:
        """Return microjoules since the last call."""
        if self.quality is Quality.MEASURED:
            now_mj = self._counter_mj()
            used_mj, self._last_mj = now_mj - self._last_mj, now_mj
            # Reloading the driver resets the counter, which then shows the use since.
            return 1000 * (used_mj if used_mj >= 0 else now_mj)
        now_ns, now_mw = self._monotonic_ns(), self._power_mw()
        # mW · ns = pJ; the mean of two samples is half their sum.
        twice_pj = (now_ns - self._sampled_ns) * (now_mw + self._last_mw)
        self._sampled_ns, self._last_mw = now_ns, now_mw
        return twice_pj // 2_000_000

    def busy(self) -> float:
        """Return the GPU's recent utilization, 0 to 1."""
        query = self._nvml.nvmlDeviceGetUtilizationRates
        return float(_call(self._nvml, query, self._handle).gpu) / 100

    def _counter_mj(self) -> int:
        query = self._nvml.nvmlDeviceGetTotalEnergyConsumption
        return int(_call(self._nvml, query, self._handle))

    def _power_mw(self) -> int:
        return int(_call(self._nvml, self._nvml.nvmlDeviceGetPowerUsage, self._handle))


def nvml_devices(environ: Mapping[str, str], count: int) -> list[int | str]:
    """Return the GPUs visible by ``CUDA_VISIBLE_DEVICES``; all ``count`` of them if it is unset.

    As in CUDA, entries after the first one that names no GPU are ignored.
    """
    if CUDA_VISIBLE not in environ:
        return list(range(count))
    devices: list[int | str] = []
    for entry in device_names(environ[CUDA_VISIBLE]):
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


MIN_INTERVAL_NS = 100_000_000
"""Counters are updated every 20 to 100 ms; RAPL advises against reading them more often."""


class EnergySource(Protocol):
    """A sensor of energy."""

    quality: Quality

    def take_uj(self) -> int:
        """Return microjoules since the last call (the first call: since construction).

        Raises:
            OSError: The source cannot be read any more.
        """


class EnergyMeter:
    """Sums all sources.

    Attributes:
        quality: The worst quality among the sources.
        lost: Readings that failed; their energy is missing from the total.
    """

    def __init__(self, sources: Sequence[EnergySource], clock: Clock = SYSTEM) -> None:
        self.sources = tuple(sources)
        self.quality = worst_quality(self.sources)
        self.lost = 0
        self._monotonic_ns = clock.monotonic_ns
        self._read_ns = clock.monotonic_ns()
        self._rest_uj = 0

    def take(self, *, at_once: bool = False) -> int:
        """Return the millijoules used since the last reading.

        Within ``MIN_INTERVAL_NS`` of that reading it returns 0, unless ``at_once``: the next
        reading includes what was used meanwhile.
        """
        now_ns = self._monotonic_ns()
        if not at_once and now_ns - self._read_ns < MIN_INTERVAL_NS:
            return 0
        self._read_ns = now_ns
        for source in self.sources:
            try:
                self._rest_uj += source.take_uj()
            except OSError:
                self.lost += 1
        energy_mj, self._rest_uj = divmod(self._rest_uj, 1000)
        return energy_mj


def worst_quality(sources: Sequence[EnergySource]) -> Quality:
    """Return the quality of the sum over all sources."""
    qualities = {source.quality for source in sources}
    if not qualities:
        return Quality.UNAVAILABLE
    return Quality.ESTIMATED if Quality.ESTIMATED in qualities else Quality.MEASURED


def detect_energy(environ: Mapping[str, str], clock: Clock = SYSTEM) -> EnergyMeter:
    """Return a meter of every sensor that this process should read; there may be none.

    The first process of a node measures for the whole node: if all did, the sum over ranks would
    count the same joules many times. Slurm may give each task GPUs that no other task sees, so
    there each task measures its own; tasks that share GPUs count them more than once, never less.
    """
    sources: list[EnergySource] = []
    first = is_first_of_node(environ)
    if first or "LOCAL_RANK" not in environ:
        with contextlib.suppress(OSError):
            sources += NvmlSource.detect(environ, clock)
    if first:
        sources += PowercapSource.detect()
    return EnergyMeter(sources, clock)
