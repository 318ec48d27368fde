"""The price of a run where a grid types none: what it names, else its partition's rate. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from outlay.errors import Finding, InvalidValue
from outlay.ledger import Price
from outlay.ledger.price import AUTO, split_kind
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid import Entry, Grid, Settings


def names_of(grid: Grid) -> list[str]:
    """Return every price that is stated by name and must be looked up, each once."""
    named = (_to_look_up(entry.settings) for entry in grid.entries)
    return list(dict.fromkeys(name for name in named if name))


def with_prices(grid: Grid, look_up: Callable[[str], Price], rates: Mapping[str, Price]) -> Grid:
    """Return the grid with a price wherever one is named, or its partition has a rate.

    Args:
        grid: As it was read.
        look_up: Returns what a name stands for on this machine.
        rates: Of the cluster's partitions.

    Raises:
        InvalidGrid: A name stands for no price; each such entry is named.
    """
    entries: list[Entry] = []
    findings: list[Finding] = []
    for entry in grid.entries:
        try:
            price = _price(entry.settings, look_up, rates)
        except InvalidValue as error:
            findings.append(Finding(source=grid.source, line=entry.line, message=str(error)))
            continue
        entries.append(replace(entry, settings=replace(entry.settings, price=price)))
    if findings:
        raise InvalidGrid(sorted(set(findings)))
    return replace(grid, entries=tuple(entries))


def _on_cluster(settings: Settings) -> bool:
    return settings.engine == "slurm"


def _is_auto(settings: Settings) -> bool:
    return split_kind(settings.price_name)[0].lower() == AUTO


def _to_look_up(settings: Settings) -> str:
    """Return the name that this machine must look up; on a cluster ``auto`` is the partition's."""
    return "" if _on_cluster(settings) and _is_auto(settings) else settings.price_name


def _price(
    settings: Settings, look_up: Callable[[str], Price], rates: Mapping[str, Price]
) -> Price | None:
    if name := _to_look_up(settings):
        return look_up(name)
    partition = settings.slurm.partition
    if settings.price is not None or not _on_cluster(settings):
        return settings.price
    if settings.price_name and partition not in rates:
        shown = partition or "PARTITION"
        expected = f'a partition with a rate: outlay rates set {shown} "1.20 USD/h"'
        raise InvalidValue("price", settings.price_name, expected)
    return rates.get(partition)
