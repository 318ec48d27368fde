"""Reading a grid file into a plan: the only place where a grid's path is opened.

What a start takes is measured on earlier sweeps of the same grid.
"""

from __future__ import annotations

import gc
import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low
from typing import Final

from outlay.budget.limits import StartUp
from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, read_text
from outlay.errors import InvalidValue
from outlay.ledger import Price, Record, SegmentLife, Step, derive_attempts, segment_paths
from outlay.ledger.codec import decode_block
from outlay.ledger.reader import identify
from outlay.prices.current import read_rates
from outlay.runs.options import parse_price, warn_of_old_price
from outlay.sweep.engines.names import is_scheduled
from outlay.sweep.grid.grid import Grid, read_grid
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.plan.planning import make_plan, with_prices

_EARLIER_MAX: Final = 20
_HEAD_BYTES: Final = 1 << 17


def plan_file(path: Path) -> SweepPlan:
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
    return make_plan(_priced(grid), measure_start_up(earlier_runs(grid)))


def _priced(grid: Grid) -> Grid:
    """Return the grid with the prices that it names; files are read only where one is needed."""
    on_cluster = any(is_scheduled(entry.settings.engine) for entry in grid.entries)
    if not on_cluster and not any(entry.settings.price_name for entry in grid.entries):
        return grid
    known: dict[str, Price] = {}

    def look_up(name: str) -> Price:
        if name not in known:
            known[name] = parse_price(name, name="price", source="grid", environ=os.environ)
            warn_of_old_price(known[name], os.environ, SYSTEM.wall_ns())
        return known[name]

    return with_prices(grid, look_up, read_rates() if on_cluster else {})


def earlier_runs(grid: Grid) -> list[Path]:
    """Return the run directories of earlier sweeps of a grid, the newest first; not too many."""
    sweeps = sorted(Path("runs").glob(f"{glob.escape(grid.name)}_*"), reverse=True)
    if grid.output_dir:
        sweeps.insert(0, Path(grid.output_dir).expanduser())
    found = (run for sweep in sweeps for run in sorted(sweep.glob("*")) if segment_paths(run))
    return list(itertools.islice(found, _EARLIER_MAX))


def measure_start_up(run_dirs: Iterable[Path]) -> StartUp | None:
    """Return what runs took from their begin to their first step; None where none made one.

    Reads the begin of each log, and nothing of one whose first step comes late.
    """
    times_ns: list[int] = []
    for run_dir in run_dirs:
        lives, first_ns = [], {}
        for path in segment_paths(run_dir):
            records = _first_records(path)
            segment = identify(path, records)
            life = SegmentLife(segment)
            life.fold(records)
            lives.append(life)
            if step := next((one for one in records if isinstance(one, Step)), None):
                first_ns[segment] = step.t_ns - step.dur_ns - step.wait_ns
        for attempt in derive_attempts(lives):
            if attempt.segment in first_ns:
                times_ns.append(first_ns[attempt.segment] - attempt.start_ns)
    if not times_ns:
        return None
    return StartUp(ns=median_low(times_ns), attempts=len(times_ns))


def _first_records(path: Path) -> Sequence[Record]:
    try:
        with path.open("rb") as stream:
            block = stream.read(_HEAD_BYTES)
    except OSError:
        return []
    return decode_block(block[: block.rfind(b"\n") + 1]).records


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
