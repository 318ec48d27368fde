"""``outlay`` without a command, and ``outlay runs``: what is running, and all known runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from outlay.cli.output import (
    AsJson,
    console,
    must_be_directory,
    new_table,
    print_findings,
    print_json,
    print_json_line,
    print_rows,
    print_sentence,
    shown_path,
)
from outlay.clock import SYSTEM
from outlay.errors import Finding
from outlay.ledger.price import KINDS
from outlay.runs.collect import (
    dead_runs,
    find_runs,
    findings_in,
    list_runs,
    read_runs,
    refresh_registered,
    started_ns,
    total_burn,
)
from outlay.store import open_store
from outlay.store.runs import RunFilter, RunRow
from outlay.store.runs import list_runs as stored_runs
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import ago_text, counted, kind_suffix

if TYPE_CHECKING:
    from outlay.guard.rental.watch import RentedHold
    from outlay.runs.figures import RunFigures
    from outlay.runs.reading import RunReading

NEWEST = 50
WATCH_S = 2.0


def overview(*, as_json: bool) -> None:
    """Show what is running, its cost per hour, and what is wrong."""
    from outlay.guard.rental.watch import (  # Not needed by ``outlay runs``.
        known_logs,
        living_rentals,
    )

    store, now_ns = open_store(), SYSTEM.wall_ns()
    collected = refresh_registered(store, now_ns)
    running = [figures for figures in collected.figures if figures.status == "running"]
    dead = stored_runs(store, RunFilter(status="dead"))
    # Findings of dead runs come from their rows: their logs are not read again.
    others = [figures for figures in collected.figures if figures.status != "dead"]
    findings = [*collected.findings, *findings_in([*others, *dead]), *dead_runs(dead)]
    rented, errors = living_rentals(known_logs())
    findings = [*errors, *findings]
    burn = total_burn(running)
    if as_json:
        amounts = {kind: [each.money for each in burn if each.kind == kind] for kind in KINDS}
        said = {"burn_per_hour": amounts["cash"], "showback_per_hour": amounts["showback"]}
        print_json({"running": running, **said, "rented": rented, "findings": findings})
        return
    if running:
        columns = ("run", ">steps", ">wall time", ">cost", ">burn per hour", "last seen")
        print_rows(columns, [_running_cells(figures, now_ns) for figures in running])
        console.print(f"\nBurning now: {', '.join(map(str, burn)) or 'no price'}")
    elif not rented:
        console.print("Nothing is running. Start with: outlay exec -- python train.py")
    _print_rented(rented)
    if findings:
        console.print("\nWhat is wrong", style="bold")
        print_findings(findings)


def _print_rented(rented: Sequence[RentedHold]) -> None:
    for each in rented:
        rental = each.hold.rental
        assert rental is not None
        print_sentence(
            f"Rented: {each.hold.resource or rental.name} for {each.hold.op_label}, {rental.rate}, "
            f"ends at {rental.deadline[:16].replace('T', ' ')}Z ({each.log_path})"
        )


def show_runs(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Only runs in or below this directory.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Every run, not just the newest {NEWEST}.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show running runs until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: status, steps, cost, last seen.

    With --watch: the running ones with cost per hour, goodput, budget left and last sign of life,
    every two seconds; with --json one line of JSON each time.

    Example: outlay runs experiments/
    """
    if watch:
        _watch(directory, as_json=as_json)
        return
    limit = None if everything else NEWEST
    if directory is None:
        listed = list_runs(limit=limit)
        nothing = "No runs are registered. Register some with: outlay import runs DIR"
        _show(listed.rows, listed.findings, listed.left_out, nothing=nothing, as_json=as_json)
        return
    must_be_directory(directory)
    dirs = sorted(find_runs([directory]), key=started_ns, reverse=True)
    found = read_runs(dirs[:limit], SYSTEM.wall_ns())
    figures = sorted(found.figures, key=lambda run: -run.started_ns)
    findings = [*found.findings, *findings_in(figures)]
    nothing = "No runs here. A run is a directory with ledger/*.jsonl in it."
    _show(figures, findings, len(dirs[len(dirs[:limit]) :]), nothing=nothing, as_json=as_json)


def _watch(directory: Path | None, *, as_json: bool) -> None:
    """Refresh the running runs until interrupted; each round reads only new records."""
    from outlay.web.book_reader import BookReader  # Does not need the extra `web`.

    books = BookReader()
    below = "" if directory is None else f"{directory.absolute()}/"

    def read() -> list[RunReading]:
        return [r for r in books.running() if f"{r.view.dir}/".startswith(below)]

    if as_json:
        while True:
            print_json_line([_live_row(reading, books.now_ns) for reading in read()])
            sys.stdout.flush()
            SYSTEM.sleep(WATCH_S)
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_live_table(read(), books.now_ns), refresh=True)
            SYSTEM.sleep(WATCH_S)


def _live_row(reading: RunReading, now_ns: int) -> dict[str, object]:
    """Return a row of the live table as JSON."""
    figures, used = reading.figures, reading.budget_used
    return {
        "run_id": figures.run_id, "name": figures.name, "steps": figures.steps,
        "goodput": figures.goodput, "cost": figures.cost, "assumed": figures.assumed,
        "kind": figures.kind,
        "burn_micros_per_hour": figures.burn_micros_per_hour,
        "budget_used": None if used is None else used[1],
        "budget_left": None if used is None else 1 - used[1],
        "budget_limit": None if used is None else used[0],
        "last_seen_s": (now_ns - figures.last_seen_ns) / 1e9,
    }  # fmt: skip


def _live_table(running: Sequence[RunReading], now_ns: int) -> RenderableType:
    if not running:
        return Text("Nothing is running. Start with: outlay exec -- python train.py")
    columns = ("run", ">steps", ">goodput", ">wall time", ">cost", ">burn per hour", ">budget left")
    table = new_table(*columns, "last seen")
    for reading in running:
        figures = reading.figures
        name, steps, wall, cost, per_hour, seen = _running_cells(figures, now_ns)
        goodput = "" if figures.goodput is None else f"{figures.goodput:.1%}"
        left = _budget_left(reading)
        table.add_row(name, steps, goodput, wall, cost, per_hour, left, seen)
    burn = ", ".join(map(str, total_burn([reading.figures for reading in running])))
    return Group(table, Text(f"\nBurning now: {burn or 'no price'}. Stop with Ctrl-C."))


def _budget_left(reading: RunReading) -> str:
    """Return the share left of the limit used most; negative once it is exceeded."""
    report, used = reading.budget, reading.budget_used
    if report is None or used is None:
        return "no budget"
    key, share = used
    bound = next(each for each in report.budget.bounds_known if each.dimension.key == key)
    return f"{1 - share:.0%} of {bound.dimension.text(bound.limit)}"


def _show(
    runs: Sequence[RunRow | RunFigures],
    findings: Sequence[Finding],
    left_out: int,
    *,
    nothing: str,
    as_json: bool,
) -> None:
    if as_json:
        print_json({"runs": runs, "left_out": left_out, "findings": findings})
        return
    now_ns = SYSTEM.wall_ns()
    if runs:
        columns = ("run", "status", ">attempts", ">steps", ">cost", "last seen", "directory")
        print_rows(columns, [_cells(run, now_ns) for run in runs])
    else:
        console.print(nothing)
    if left_out:
        console.print(f"... and {counted(left_out, 'earlier run')}: outlay runs --all")
    print_findings(findings)


def _cells(run: RunRow | RunFigures, now_ns: int) -> Sequence[str]:
    return (
        run.name, run.status, str(run.attempts), f"{run.steps:,}", _cost(run),
        ago_text(now_ns - run.last_seen_ns), shown_path(run.dir),
    )  # fmt: skip


def _running_cells(figures: RunFigures, now_ns: int) -> Sequence[str]:
    cost, burn = figures.cost, figures.burn_micros_per_hour
    per_hour = "no price"
    if burn is not None and cost is not None:
        per_hour = f"{Money(burn, cost.currency)}{kind_suffix(figures.kind)}"
    return (
        figures.name, f"{figures.steps:,}", duration_text(figures.wall_ns), _cost(figures),
        per_hour, ago_text(now_ns - figures.last_seen_ns),
    )  # fmt: skip


def _cost(run: RunRow | RunFigures) -> str:
    cost = run.cost
    if cost is None:
        return "no price"
    assumed = f" ({run.assumed} assumed)" if run.assumed else ""
    return f"{cost}{kind_suffix(run.kind)}{assumed}"
