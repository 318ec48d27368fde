"""Energy: counters of accelerators and CPU packages, and how far each reading can be trusted.

Where nothing can be measured the meter says so; it never reads zero in silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outlay.clock import SYSTEM, Clock
from outlay.record.facts import is_first_of_node
from outlay.record.meters.nvml import NvmlSource
from outlay.record.meters.powercap import PowercapSource
from outlay.record.meters.quality import Quality

MIN_INTERVAL_NS = 100_000_000
"""Counters move every 20 to 100 ms, so asking more often tells nothing (and RAPL says not to)."""


class EnergySource(Protocol):
    """Something that can tell how much energy was used since it was last asked."""

    name: str
    quality: Quality

    def take_uj(self) -> int:
        """Return microjoules since the last call (the first call: since the source was made).

        Raises:
            OSError: The source cannot be read any more.
        """


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy used since the last reading, and how that is known."""

    energy_mj: int
    quality: Quality


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

    def take(self, *, at_once: bool = False) -> EnergyReading:
        """Return what was used since the last reading.

        Asked within ``MIN_INTERVAL_NS`` it reads nothing, unless ``at_once``: what was used then
        comes with the next reading.
        """
        now_ns = self._monotonic_ns()
        if not at_once and now_ns - self._asked_ns < MIN_INTERVAL_NS:
            return EnergyReading(0, self.quality)
        self._asked_ns = now_ns
        for source in self.sources:
            try:
                self._rest_uj += source.take_uj()
            except OSError:
                self.lost += 1
        energy_mj, self._rest_uj = divmod(self._rest_uj, 1000)
        return EnergyReading(energy_mj, self.quality)


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
