"""``outlay`` without a command, and ``outlay runs``: what is running, and all known runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from outlay.cli.output import (
    AsJson,
    CellContent,
    FittingTable,
    TableCell,
    console,
    is_for_people,
    must_be_directory,
    new_table,
    print_findings,
    print_json,
    print_json_line,
    print_sentence,
    shown_path,
    status_cell,
    with_shown_paths,
)
from outlay.clock import SYSTEM
from outlay.errors import Finding, InvalidValue
from outlay.escaping import one_line
from outlay.runs.collect import (
    DEAD_SHOWN_NS,
    RunList,
    dead_runs,
    findings_in,
    list_runs,
    refresh_registered,
    total_burn,
)
from outlay.runs.figures import FIGURES, USUAL, RunFigure, figures_named
from outlay.store import open_store
from outlay.store.run_row import RunRow
from outlay.store.runs import RunFilter
from outlay.store.runs import list_runs as stored_runs
from outlay.units import Money
from outlay.units.money import KINDS
from outlay.units.shown import counted

if TYPE_CHECKING:
    from outlay.guard.rental.watch import RentedHold
    from outlay.runs.reading import RunReading

NEWEST = 50
_ON_TERMINAL = (
    "name", "status", "cost", "goodput", "last_seen", "steps", "attempts", "dir",
)  # fmt: skip
"""The usual columns in the order of their weight; those that do not fit are left out."""
_RUNNING = ("name", "steps", "wall_s", "cost", "burn_per_hour", "last_seen")
_DEAD = ("name", "last_seen", "cost", "user", "dir")
WATCH_S = 2.0


def overview(*, as_json: bool) -> None:
    """Show what is running, its cost per hour, and what is wrong."""
    # Not needed by ``outlay runs``.
    from outlay.export.spend_logs import shown_logs
    from outlay.guard.away.polled_log import PolledLog
    from outlay.guard.rental.watch import known_books, known_logs, living_rentals
    from outlay.runs.inventory.machines_now import read_machines_now
    from outlay.runs.money.limit_use import over_limit, read_limits

    store, now_ns = open_store(), SYSTEM.wall_ns()
    collected = refresh_registered(store, now_ns)
    running = [figures for figures in collected.figures if figures.status == "running"]
    running += (row for row in stored_runs(store, RunFilter(status="running")) if row.log_host)
    dead = stored_runs(store, RunFilter(status="dead", since_ns=now_ns - DEAD_SHOWN_NS))
    # Findings of dead runs come from their rows: their logs are not read again.
    alive = [figures for figures in collected.figures if figures.status != "dead"]
    findings = [*collected.findings, *findings_in([*alive, *dead]), *dead_runs(dead)]
    rented, errors = living_rentals((*known_logs(), *known_books()))
    now = read_machines_now(store, rented, running, now_ns)
    unread: list[Finding] = []
    try:
        logs = [PolledLog(name) for name in shown_logs(None)]
    except InvalidValue as error:
        logs, unread = [], [Finding(source="spend logs", message=str(error))]
    over = over_limit(read_limits(store, logs, unread))
    for log in logs:
        log.close()
    findings = list(dict.fromkeys([*over, *unread, *errors, *now.findings, *findings]))
    burn = now.burn
    if as_json:
        amounts = {kind: [each.per_hour for each in burn if each.kind == kind] for kind in KINDS}
        said = {"burn_per_hour": amounts["cash"], "showback_per_hour": amounts["showback"]}
        print_json(
            {
                "running": running, **said, "burn": now.document(), "machines": now.places,
                "rented": rented, "findings": findings,
            }
        )  # fmt: skip
        return
    if over:
        title = f"What is wrong: {counted(len(over), 'limit')} exceeded"
        console.print(title, style="bold red")
        for finding in over:
            text = one_line(f"{finding.severity} {finding}")
            print_sentence(with_shown_paths(text), style="red")
        console.print()
    if running:
        _print_list(running, _RUNNING, now_ns)
        console.print()
    elif not rented:
        console.print("Nothing is running. Start with: outlay exec -- python train.py")
    if now.places:
        print_sentence(f"Burning now: {now.text}")
    _print_rented(rented)
    listed = dead if is_for_people() else []  # A line per run.
    said_already = {*over, *dead_runs(listed)}
    others = [finding for finding in findings if finding not in said_already]
    if others or listed:
        console.print(f"\nWhat {'else ' if over else ''}is wrong", style="bold")
        print_findings(others)
    if listed:
        print_sentence(f"No sign of life, and no end recorded (killed or crashed): {len(listed)}")
        _print_list(listed, _DEAD, now_ns)


def _print_rented(rented: Sequence[RentedHold]) -> None:
    for each in rented:
        rental = each.hold.rental
        assert rental is not None
        print_sentence(
            f"Rented: {each.hold.resource or rental.name} for {each.hold.op_label}, {rental.rate}, "
            f"ends at {rental.deadline[:16].replace('T', ' ')}Z"
            f"{', ' if each.hold.doubt else ''}{each.hold.doubt} ({each.log_path})"
        )


def show_runs(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Only runs in or below this directory.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Every run, not just the newest {NEWEST}.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show running runs until Ctrl-C.")] = False,
    columns: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="The figures to list: name,cost,goodput. Default: as many of the usual as fit.",
        ),
    ] = "",
    sort: Annotated[
        str, typer.Option(metavar="NAME", help="The figure to sort by, the largest first: waste.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List runs: status, cost, goodput, last seen.

    A terminal gets a line per run and as many columns as fit; a pipe gets all, in full.

    --columns and --sort take any of the figures that docs/reference/figures.md lists; waste is
    short for wasted_cost.

    With --watch: the running ones with cost per hour, goodput, budget left and last sign of life,
    every two seconds; with --json one line of JSON each time.

    Example: outlay runs experiments/
    """
    if watch:
        _watch(directory, as_json=as_json)
        return
    limit = None if everything else NEWEST
    usual = _ON_TERMINAL if is_for_people() else USUAL
    wanted = [figure.name for figure in figures_named(columns.split(",") if columns else usual)]
    by = figures_named(["wasted_cost" if sort == "waste" else sort], "--sort")[0] if sort else None
    if by is not None and by.name not in wanted:
        wanted.insert(1, by.name)
    if directory is None:
        listed = _ranked(list_runs(), by, limit) if by else list_runs(limit=limit)
        nothing = "No runs are registered. Register some with: outlay import runs DIR"
        _show(listed, columns=wanted, nothing=nothing, as_json=as_json)
        return
    must_be_directory(directory)
    listed = list_runs(directory, limit=None if by else limit)
    listed = _ranked(listed, by, limit) if by else listed
    nothing = "No runs here. A run is a directory with ledger/*.jsonl in it."
    _show(listed, columns=wanted, nothing=nothing, as_json=as_json)


def _ranked(listed: RunList, by: RunFigure, limit: int | None) -> RunList:
    """Return runs in the order of a figure, largest first, those without it last; by currency."""

    def place(run: RunRow) -> tuple[object, ...]:
        value = by.of(run)
        unit = getattr(value, "unit", ("", ""))
        number = None if by.unit.number is None else by.number(run)
        return value is None, unit[::-1], -(number or 0), "" if number is not None else str(value)

    rows = sorted(listed.rows, key=place)
    return replace(listed, rows=tuple(rows[:limit]), left_out=len(rows) - len(rows[:limit]))


def _watch(directory: Path | None, *, as_json: bool) -> None:
    """Refresh the running runs until interrupted; each round reads only new records."""
    from outlay.runs.run_poller import RunPoller  # Loads NumPy.

    store = open_store()
    poller = RunPoller(store, cached=True)
    below = "" if directory is None else f"{directory.absolute()}/"

    def burn(running: Sequence[RunReading]) -> str:
        """Return what everything burns, or the runs below a directory."""
        from outlay.guard.rental.watch import known_books, known_logs, living_rentals
        from outlay.runs.inventory.machines_now import read_machines_now

        rows = [reading.figures for reading in running]
        if below:
            return ", ".join(map(str, total_burn(rows))) or "no price"
        rented, _ = living_rentals((*known_logs(), *known_books()))
        return read_machines_now(
            store, rented, [*rows, *poller.elsewhere], SYSTEM.wall_ns()
        ).text  # fmt: skip

    def read() -> list[RunReading]:
        return [r for r in poller.running() if f"{r.view.dir}/".startswith(below)]

    if as_json:
        while True:
            print_json_line([_live_row(reading, SYSTEM.wall_ns()) for reading in read()])
            sys.stdout.flush()
            SYSTEM.sleep(WATCH_S)
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            running = read()
            table = _live_table(running, poller.elsewhere, SYSTEM.wall_ns(), burn(running))
            live.update(table, refresh=True)
            SYSTEM.sleep(WATCH_S)


def _live_row(reading: RunReading, now_ns: int) -> dict[str, object]:
    """Return a row of the live table as JSON."""
    run = reading.figures
    used = run.budget_used
    return {
        "run_id": run.run_id, "name": run.name, "steps": run.steps, "goodput": run.goodput,
        "cost": run.cost, "assumed": run.assumed, "kind": run.kind,
        "cost_beside": run.cost_beside,
        "burn_micros_per_hour": run.burn_micros_per_hour,
        "budget_used": used,
        "budget_left": None if used is None else 1 - used,
        "budget_limit": run.budget_limit,
        "last_seen_s": (now_ns - run.last_seen_ns) / 1e9,
    }  # fmt: skip


_LIVE = (
    "name", "steps", "goodput", "wall_s", "cost", "burn_per_hour", "budget_left", "last_seen",
)  # fmt: skip


def _live_table(
    running: Sequence[RunReading], elsewhere: Sequence[RunRow], now_ns: int, burn: str
) -> RenderableType:
    rows = [*(reading.figures for reading in running), *elsewhere]
    if not rows:
        return Text("Nothing is running. Start with: outlay exec -- python train.py")
    return Group(_table(rows, _LIVE, now_ns), Text(f"\nBurning now: {burn}. Stop with Ctrl-C."))


def _show(listed: RunList, *, columns: Sequence[str], nothing: str, as_json: bool) -> None:
    if as_json:
        print_json(list_json(listed))
        return
    if listed:
        _print_list(listed, columns, SYSTEM.wall_ns())
    else:
        console.print(nothing)
    if listed.left_out:
        console.print(f"... and {counted(listed.left_out, 'earlier run')}: outlay runs --all")
    print_findings(listed.findings)


def list_json(listed: RunList) -> dict[str, object]:
    """Return a list of runs as JSON."""
    runs = [_document(run) for run in listed]
    return {"runs": runs, "left_out": listed.left_out, "findings": listed.findings}


def _print_list(runs: Sequence[RunRow], columns: Sequence[str], now_ns: int) -> None:
    console.print(_table(runs, columns, now_ns))


_FIRST = (
    "run", "status", "cost", "budget left", "goodput", "burn per hour", "last seen", "wasted",
)  # fmt: skip
"""The headings of the columns that stay the longest on a narrow terminal."""
_MARK = "*"


def _table(runs: Sequence[RunRow], columns: Sequence[str], now_ns: int) -> FittingTable:
    figures = figures_named(columns)
    table = new_table(*map(_heading, figures), first=_FIRST)
    for run in runs:
        table.add_row(*(_cell(figure, run, now_ns) for figure in figures))
    marked = any(_is_partial(figure, run) for figure in figures for run in runs)
    if marked and is_for_people():
        table.caption = f"{_MARK} partly assumed, or also in others: --columns name,cost,assumed"
    return table


def _cell(figure: RunFigure, run: RunRow, now_ns: int) -> CellContent:
    """Return a cell; on a terminal an amount is rounded, and a mark says that it is not all."""
    text, value = figure.text(run, now_ns), figure.of(run)
    if figure.name == "status":
        return status_cell(text)
    if figure.name == "dir":
        return shown_path(text)
    if not isinstance(value, Money):
        return text
    return TableCell(text=text, money=value, after=_MARK if _is_partial(figure, run) else "")


def _is_partial(figure: RunFigure, run: RunRow) -> bool:
    return figure.may_be_assumed and (figure.grade(run) == "assumed" or bool(run.cost_beside))


def _heading(figure: RunFigure) -> str:
    """Return the heading of a column; numbers are aligned right."""
    return f">{figure.label}" if figure.unit.is_right else figure.label


def _document(run: RunRow) -> dict[str, object]:
    """Return a run as JSON: its row, and every figure of the catalogue by name."""
    cost, assumed = run.cost, run.assumed
    return {figure.name: figure.cell(run) for figure in FIGURES} | {
        **msgspec.structs.asdict(run),
        "cost_micros": None if cost is None else cost.micros,
        "assumed_micros": 0 if assumed is None else assumed.micros,
    }
