"""Reading a grid file into a plan: the only place where a grid's path is opened."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outlay.decoding import BadDocument, read_text
from outlay.errors import InvalidValue
from outlay.runs.partition_rates import read_rates
from outlay.sweep.grid import read_grid
from outlay.sweep.partitions import with_rates
from outlay.sweep.plan import Plan
from outlay.sweep.planning import make_plan


def plan_file(path: Path) -> Plan:
    """Return the plan of a grid file.

    Raises:
        InvalidValue: The file cannot be read.
        InvalidGrid: Something in it is wrong; names everything that is.
    """
    try:
        text = read_text(path)
    except (OSError, BadDocument) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise InvalidValue("GRID", str(path), f"a YAML or JSON file ({problem})") from None
    with _no_collecting():
        grid = read_grid(text, source=str(path), default_name=path.stem)
    on_cluster = any(entry.settings.engine == "slurm" for entry in grid.entries)
    return make_plan(with_rates(grid, read_rates()) if on_cluster else grid)


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
