"""Energy: counters of GPUs (NVML) and CPU packages (RAPL), and how far to trust them.

Where nothing can be measured the meter says so; it never reads zero in silence.
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
from outlay.record.facts import is_first_of_node

# How far a reading can be trusted.


class Quality(StrEnum):
    """How a reading came about."""

    MEASURED = "measured"
    """A hardware counter of energy."""
    ESTIMATED = "estimated"
    """Sampled power times the time between samples."""
    UNAVAILABLE = "unavailable"
    """Nothing here can be read."""


# CPU energy from Linux's powercap tree (RAPL): one wrapping counter per package.

POWERCAP = Path("/sys/class/powercap")
# intel-rapl:0 is a package; intel-rapl:0:1 is a part of it, which would count twice.
_PACKAGE = re.compile(r"(?:intel|amd)-rapl:\d+")


class PowercapSource:
    """One package's energy counter; it wraps around, which is allowed for once between readings."""

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


# A GPU as NVIDIA's management library sees it: its energy, counted or sampled, and its load.


class NvmlSource:
    """One GPU. Volta and later count millijoules; before, power is sampled and integrated.

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
        return [cls(nvml, device, clock) for device in nvml_devices(environ, count)]

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


def nvml_devices(environ: Mapping[str, str], count: int) -> list[int | str]:
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


MIN_INTERVAL_NS = 100_000_000
"""Counters move every 20 to 100 ms, so asking more often tells nothing (and RAPL says not to)."""


class EnergySource(Protocol):
    """Something that can tell how much energy was used since it was last asked."""

    quality: Quality

    def take_uj(self) -> int:
        """Return microjoules since the last call (the first call: since the source was made).

        Raises:
            OSError: The source cannot be read any more.
        """


class EnergyMeter:
    """Adds up every source there is.

    Attributes:
        quality: The worst quality among the sources: a sum is no better than its parts.
        lost: Readings that failed; their energy is missing from the total.
    """

    def __init__(self, sources: Sequence[EnergySource], clock: Clock = SYSTEM) -> None:
        self.sources = tuple(sources)
        self.quality = worst_quality(self.sources)
        self.lost = 0
        self._monotonic_ns = clock.monotonic_ns
        self._asked_ns = clock.monotonic_ns()
        self._rest_uj = 0

    def take(self, *, at_once: bool = False) -> int:
        """Return the millijoules that were used since the last reading.

        Asked within ``MIN_INTERVAL_NS`` it reads nothing, unless ``at_once``: what was used then
        comes with the next reading.
        """
        now_ns = self._monotonic_ns()
        if not at_once and now_ns - self._asked_ns < MIN_INTERVAL_NS:
            return 0
        self._asked_ns = now_ns
        for source in self.sources:
            try:
                self._rest_uj += source.take_uj()
            except OSError:
                self.lost += 1
        energy_mj, self._rest_uj = divmod(self._rest_uj, 1000)
        return energy_mj


def worst_quality(sources: Sequence[EnergySource]) -> Quality:
    """Return how far the sum over all sources can be trusted."""
    qualities = {source.quality for source in sources}
    if not qualities:
        return Quality.UNAVAILABLE
    return Quality.ESTIMATED if Quality.ESTIMATED in qualities else Quality.MEASURED


def detect_energy(environ: Mapping[str, str], clock: Clock = SYSTEM) -> EnergyMeter:
    """Return a meter of everything this process may measure; it may be of nothing.

    The first process of a node measures for the whole node: if all did, the sum over ranks would
    count the same joules many times. Slurm may give each task GPUs that no other one sees, so there
    each measures its own; tasks that share GPUs then count them more than once, never less.
    """
    sources: list[EnergySource] = []
    first = is_first_of_node(environ)
    if first or "LOCAL_RANK" not in environ:
        with contextlib.suppress(OSError):
            sources += NvmlSource.detect(environ, clock)
    if first:
        sources += PowercapSource.detect()
    return EnergyMeter(sources, clock)
