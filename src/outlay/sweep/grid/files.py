"""From a grid file or a command line to a plan: reads prices, and measures on earlier runs."""

from __future__ import annotations

import gc
import glob
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any, Final

from outlay.budget.limits import StartUp
from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, read_text
from outlay.errors import Finding, InvalidValue, OutlayError, choices
from outlay.files import write_whole
from outlay.guard.spend_log import is_url, named_log, open_book
from outlay.ledger import Price, SegmentLife, Step, derive_attempts, segment_paths
from outlay.ledger.reader import first_records, identify
from outlay.prices.current import read_rates
from outlay.runs.options import parse_price, warn_of_old_price
from outlay.sweep.engines.base import is_scheduled
from outlay.sweep.errors import InvalidGrid, NotASweep, SweepNotRecorded
from outlay.sweep.grid.command_grid import GRID_SUFFIXES, SOURCE, GridOptions, read_command
from outlay.sweep.grid.grid import Grid, read_grid
from outlay.sweep.plan.plan import NO_LIKELY_COSTS, LikelyCosts, SweepPlan
from outlay.sweep.plan.planning import make_plan, with_prices
from outlay.sweep.search.space import Point
from outlay.sweep.state.manifest import read_manifest

_EARLIER_MAX: Final = 20
_HEAD_BYTES: Final = 1 << 17


def plan_file(
    path: Path,
    root: Path | None = None,
    suggested: Mapping[str, Sequence[Point]] | None = None,
) -> SweepPlan:
    """Return the plan of a grid file; start-up is also measured on the runs below ``root``.

    ``suggested`` is as for ``make_plan``.

    Raises:
        InvalidValue: The file cannot be read.
        InvalidGrid: It has problems; names all of them.
        PriceFileUnusable: It names a price, and the price file cannot be read.
    """
    try:
        text = read_text(path)
    except (OSError, BadDocument) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise InvalidValue("GRID", str(path), f"a YAML or JSON file ({problem})") from None
    with _without_gc():
        grid = read_grid(text, source=str(path), default_name=path.stem)
        return plan_grid(grid, root, suggested)


def plan_grid(
    grid: Grid,
    root: Path | None = None,
    suggested: Mapping[str, Sequence[Point]] | None = None,
) -> SweepPlan:
    """Return the plan of a grid; raises as ``plan_file`` does."""
    start_up = measure_start_up(earlier_runs(grid, root))
    return make_plan(_priced(_with_book(grid)), start_up, suggested)


# A grid that is given on a command line.

GRID_FILE: Final = "sweep_grid.yaml"
"""Where the grid of a command line is written, in the sweep's directory."""


def plan_command(program: str, words: Sequence[str], options: GridOptions) -> SweepPlan:
    """Return the plan of a program and its parameters, with the text of the grid it stands for.

    Raises:
        InvalidGrid: The words have problems; names all of them.
        PriceFileUnusable: A price is named, and the price file cannot be read.
    """
    if options.price is None and (price := os.environ.get("OUTLAY_PRICE")):
        options = replace(options, price=price)
    stated = read_command(program, words, options)
    findings = [*stated.findings, *_program_problems(stated.tree.get("entrypoint", ()))]
    try:
        plan = plan_grid(read_grid(stated.text, source=SOURCE, default_name="program"))
    except InvalidGrid as error:  # Without lines: nobody sees the text.
        findings += [replace(finding, line=0) for finding in error.findings]
    if findings:
        raise InvalidGrid(list(dict.fromkeys(findings)))
    return replace(plan, grid_text=stated.text)


def _program_problems(entrypoint: Sequence[str]) -> list[Finding]:
    """Return a problem if a program is not here; scripts are relative to this directory."""
    name = next(iter(entrypoint), "")
    if not name or name == "-m" or "{" in name:
        return []
    if Path(name).is_file() if name.endswith(".py") else shutil.which(name):
        return []
    expected = f"a program or a script here; the name of a grid ends in {choices(GRID_SUFFIXES)}"
    return [Finding(source=SOURCE, message=str(InvalidValue("PROGRAM", name, expected)))]


def keep_grid(plan: SweepPlan, root: Path) -> SweepPlan:
    """Write the grid of a command line into the sweep's directory; return the plan of that file.

    Raises:
        SweepNotRecorded: The disk refuses.
    """
    if not plan.grid_text:
        return plan
    path = root / GRID_FILE
    try:
        write_whole(path, plan.grid_text.encode(), private=True)
    except OSError as error:
        raise SweepNotRecorded(str(path), error.strerror or str(error)) from error
    return replace(plan, grid=replace(plan.grid, source=str(path)))


def kept_grid(root: Path, recorded: str) -> Path:
    """Return the grid of a sweep: the recorded path, else, if it was moved, the file in it."""
    path = Path(recorded)
    return root / GRID_FILE if path.name == GRID_FILE and not path.exists() else path


def _with_book(grid: Grid) -> Grid:
    """Return the grid with the full name of its book: a path is relative to the grid's directory.

    Raises:
        InvalidGrid: The URL has a password, or is none.
    """
    if not grid.book:
        return grid
    try:
        if is_url(grid.book):
            return replace(grid, book=open_book(grid.book).name.handed_on())
    except InvalidValue as error:
        problem = str(InvalidValue("ceiling", error.seen, error.expected))
        raise InvalidGrid([Finding(source=grid.source, message=problem)]) from None
    directory = Path(os.path.abspath(grid.source)).parent  # noqa: PTH100 - keeps links
    return replace(grid, book=str(named_log(directory / Path(grid.book).expanduser())))


def _priced(grid: Grid) -> Grid:
    """Return the grid with its named prices; reads price files only if one is needed."""
    on_cluster = any(is_scheduled(entry.engine) for entry in grid.entries)
    if not on_cluster and not any(entry.price_name for entry in grid.entries):
        return grid
    known: dict[str, Price] = {}

    def look_up(name: str) -> Price:
        if name not in known:
            known[name] = parse_price(name, name="price", source="grid", environ=os.environ)
            warn_of_old_price(known[name], os.environ, SYSTEM.wall_ns())
        return known[name]

    return with_prices(grid, look_up, read_rates() if on_cluster else {})


def earlier_runs(grid: Grid, root: Path | None = None) -> list[Path]:
    """Return run directories of earlier sweeps of a grid, the newest first, at most 20.

    Those of the sweep at ``root`` come before all others.
    """
    sweeps = sorted(Path("runs").glob(f"{glob.escape(grid.name)}_*"), reverse=True)
    if grid.output_dir:
        sweeps.insert(0, Path(grid.output_dir).expanduser())
    if root is not None:
        others = (sweep for sweep in sweeps if sweep.absolute() != root)
        sweeps = [root, *others]
    found = (run for sweep in sweeps for run in sorted(sweep.glob("*")) if segment_paths(run))
    return list(itertools.islice(found, _EARLIER_MAX))


def measure_start_up(run_dirs: Iterable[Path]) -> StartUp | None:
    """Return the median time from an attempt's begin to its first step; None without steps.

    Reads only the first 128 KiB of each segment.
    """
    times_ns: list[int] = []
    for run_dir in run_dirs:
        lives, first_ns = [], {}
        for path in segment_paths(run_dir):
            records = first_records(path, _HEAD_BYTES)
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


_PAST_MAX: Final = 400


def read_likely_costs(plan: SweepPlan) -> LikelyCosts:
    """Return what a plan's runs are likely to cost, by recorded runs.

    Opens the store only if a run's cost is open, and it says how much it does, or ran before.
    """
    # Imported here: they load NumPy and SQL, which nothing else of a grid needs.
    from outlay.runs.collect import refresh_registered
    from outlay.store import open_store
    from outlay.store.runs import RunFilter, list_runs
    from outlay.sweep.plan.likely_costs import EarlierRun, likely_costs, open_runs, says_its_work

    waiting = open_runs(plan)
    if not waiting:
        return NO_LIKELY_COSTS
    params = _earlier_params(plan.grid)
    if not params and not any(says_its_work(run) for run in waiting):
        return NO_LIKELY_COSTS
    try:
        store = open_store()
        refresh_registered(store, SYSTEM.wall_ns())
        rows = list_runs(store, RunFilter(status="completed"), limit=_PAST_MAX)
    except OutlayError as error:
        return LikelyCosts(runs={}, basis=f"Recorded runs cannot be read: {error}")
    earlier = [EarlierRun(row=row, params=params[row.dir]) for row in rows if row.dir in params]
    return likely_costs(plan, earlier, rows[::-1])


def _earlier_params(grid: Grid) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of runs of earlier sweeps, by their directory."""
    found: dict[str, Mapping[str, Any]] = {}
    sweeps = dict.fromkeys(run.absolute().parent for run in earlier_runs(grid))
    for root in sweeps:
        with suppress(NotASweep):
            runs = read_manifest(root).runs.values()
            found |= {str(root / (run.run_dir or run.id)): run.params for run in runs}
    return found


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable the garbage collector: a long grid makes a million objects that all stay.

    Its repeated scans of them would take as long as planning.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
