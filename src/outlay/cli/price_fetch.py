"""``outlay prices fetch``: vendors asked for their prices, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from outlay.cli.options import AsJson
from outlay.cli.output import console, counted, errors, new_table, print_json
from outlay.cli.price_tables import print_some_findings, summary
from outlay.prices.alerts import AlertRules
from outlay.prices.book import PriceBook
from outlay.prices.series import alerts
from outlay.prices.snapshot import Snapshot
from outlay.store import open_store

VENDORS: Final = ("runpod", "lambda", "vast")


def fetch_prices(
    source: Annotated[
        list[str] | None,
        typer.Option(help="Whom to ask: runpod, lambda, vast or gpuhunt:PROVIDER; repeatable."),
    ] = None,
    drop: Annotated[float, typer.Option(help="Alert on a fall of more than this percent.")] = 10,
    surge: Annotated[float, typer.Option(help="Alert on a rise of more than this percent.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Ask vendors for their prices, all at once, and keep the answers.

    Keys come from RUNPOD_API_KEY, LAMBDA_API_KEY and VAST_API_KEY.

    Example: outlay prices fetch --source vast --source runpod
    """
    store = open_store()
    book = PriceBook(store, rules=AlertRules.parse(drop, surge))
    snapshots = ask(source or VENDORS)
    book.record(snapshots)
    book.publish()
    instants = {snapshot.fetched_ns for snapshot in snapshots}
    raised = [alert for alert in alerts(store, since_ns=min(instants)) if alert.at_ns in instants]
    if as_json:
        print_json({"snapshots": [summary(one) for one in snapshots], "alerts": raised})
    else:
        table = new_table("source", ">offers", ">quarantined", "result")
        for one in snapshots:
            bad = "" if one.failed else str(len(one.findings))
            result = "not loaded" if one.failed else "loaded"
            table.add_row(one.source, "" if one.failed else f"{len(one.offers):,}", bad, result)
        console.print(table)
        for one in snapshots:
            print_some_findings(one.findings)
        if raised:
            console.print(f"{counted(len(raised), 'price alert')}: outlay prices alerts")
    if all(one.failed for one in snapshots):
        raise typer.Exit(1)


def ask(names: Sequence[str]) -> list[Snapshot]:
    """Fetch sources by name, showing which are still being waited for."""
    # Loaded here: an HTTP client is of no use to the commands that only read the store.
    from outlay.prices.sources.base import fetch_all
    from outlay.prices.sources.registry import sources_named

    sources = sources_named(names)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=errors, transient=True) as progress:
        tasks = {one.name: progress.add_task(f"asking {one.name}", total=1) for one in sources}
        return fetch_all(
            sources, on_done=lambda snapshot: progress.update(tasks[snapshot.source], completed=1)
        )
