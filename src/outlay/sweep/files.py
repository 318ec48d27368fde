"""Reading a grid file into a plan: the only place where a grid's path is opened."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, read_text
from outlay.errors import InvalidValue
from outlay.ledger import Price
from outlay.prices.partition_rates import read_rates
from outlay.runs.options import parse_price, warn_of_old_price
from outlay.sweep.grid import Grid, read_grid
from outlay.sweep.partitions import names_of, with_prices
from outlay.sweep.plan import Plan
from outlay.sweep.planning import make_plan


def plan_file(path: Path) -> Plan:
    """Return the plan of a grid file.

    Raises:
        InvalidValue: The file cannot be read.
        InvalidGrid: Something in it is wrong; names everything that is.
        PriceFileUnusable: It names a price, and the known prices cannot be read.
    """
    try:
        text = read_text(path)
    except (OSError, BadDocument) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise InvalidValue("GRID", str(path), f"a YAML or JSON file ({problem})") from None
    with _no_collecting():
        grid = read_grid(text, source=str(path), default_name=path.stem)
    return make_plan(_priced(grid))


def _priced(grid: Grid) -> Grid:
    """Return the grid with the prices that it names; files are read only where one is needed."""
    on_cluster = any(entry.settings.engine == "slurm" for entry in grid.entries)
    if not on_cluster and not names_of(grid):
        return grid
    known: dict[str, Price] = {}

    def look_up(name: str) -> Price:
        if name not in known:
            known[name] = parse_price(name, name="price", source="grid", environ=os.environ)
            warn_of_old_price(known[name], os.environ, SYSTEM.wall_ns())
        return known[name]

    return with_prices(grid, look_up, read_rates() if on_cluster else {})


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Put the garbage collector off: a long grid makes a million objects that all stay.

    Looking through them again and again, in vain, would take as long as reading the grid.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
