"""The books themselves: which runs there are, and how they stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.output import (
    AsJson,
    console,
    counted,
    must_be_directory,
    print_findings,
    print_json,
    print_rows,
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
)
from outlay.store import open_store
from outlay.store.runs import RunFilter, RunRow
from outlay.store.runs import list_runs as stored_runs
from outlay.units import Money
from outlay.units.quantity import duration_text

if TYPE_CHECKING:
    from outlay.guard.rental.reap import RentedHold
    from outlay.runs.figures import RunFigures

NEWEST = 50


def overview(*, as_json: bool) -> None:
    """Show what runs now, what it burns per hour, and what is wrong."""
    from outlay.guard.rental.reap import (  # A listing of runs needs no guard.
        known_logs,
        living_rentals,
    )
    from outlay.runs.figures import total_burn

    store, now_ns = open_store(), SYSTEM.wall_ns()
    collected = refresh_registered(store, now_ns)
    running = [figures for figures in collected.figures if figures.status == "running"]
    dead = stored_runs(store, RunFilter(status="dead"))
    # What the log of a dead run says stands in its row: it need not have been read again.
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
        _print_running(running, now_ns)
        console.print(f"\nBurning now: {', '.join(map(str, burn)) or 'no price'}")
    elif not rented:
        console.print("Nothing is running. Start with: outlay exec -- python train.py")
    _print_rented(rented)
    if findings:
        console.print("\nWhat is wrong", style="bold")
        print_findings(findings)


def _print_rented(rented: Sequence[RentedHold]) -> None:
    """Show rentals, whether or not a run is on them."""
    for each in rented:
        rental = each.hold.rental
        assert rental is not None
        console.print(
            f"Rented: {each.hold.resource or rental.name} for {each.hold.op_label}, {rental.rate}, "
            f"ends at {rental.deadline[:16].replace('T', ' ')}Z ({each.log_path})",
            soft_wrap=True,
        )  # fmt: skip


def show_runs(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Only runs at or below this directory.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Every run, not just the newest {NEWEST}.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: status, steps, cost, last seen.

    Example: outlay runs experiments/
    """
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
        _ago(now_ns - run.last_seen_ns), shown_path(run.dir),
    )  # fmt: skip


def _print_running(running: list[RunFigures], now_ns: int) -> None:
    columns = ("run", ">steps", ">for", ">cost so far", ">per hour", "last seen")
    print_rows(columns, [_running_cells(figures, now_ns) for figures in running])


def _running_cells(figures: RunFigures, now_ns: int) -> Sequence[str]:
    cost, burn = figures.cost, figures.burn_micros_per_hour
    per_hour = "no price"
    if burn is not None and cost is not None:
        per_hour = f"{Money(burn, cost.currency)}{_kind(figures)}"
    return (
        figures.name, f"{figures.steps:,}", duration_text(figures.wall_ns), _cost(figures),
        per_hour, _ago(now_ns - figures.last_seen_ns),
    )  # fmt: skip


def _cost(run: RunRow | RunFigures) -> str:
    cost = run.cost
    if cost is None:
        return "no price"
    assumed = f" ({run.assumed} assumed)" if run.assumed else ""
    return f"{cost}{_kind(run)}{assumed}"


def _kind(run: RunRow | RunFigures) -> str:
    return "" if run.kind == "cash" else f" {run.kind}"


def _ago(ns: int) -> str:
    return "just now" if ns < 5 * 10**9 else f"{duration_text(ns)} ago"
