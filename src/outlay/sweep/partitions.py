"""The price of a run on a cluster: what the grid says, else its partition's rate. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outlay.sweep.grid import Entry, Grid
from outlay.units import Rate


def with_rates(grid: Grid, rates: Mapping[str, Rate]) -> Grid:
    """Return the grid with the partitions' rates where it states no price."""
    return replace(grid, entries=tuple(_priced(entry, rates) for entry in grid.entries))


def _priced(entry: Entry, rates: Mapping[str, Rate]) -> Entry:
    settings = entry.settings
    rate = rates.get(settings.slurm.partition)
    if settings.engine != "slurm" or settings.price is not None or rate is None:
        return entry
    return replace(entry, settings=replace(settings, price=rate))
