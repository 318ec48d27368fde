"""Offers as tables, JSON rows and files; vendors asked for theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from outlay.cli.cost.tables import keep_cost_files
from outlay.cli.output import (
    AsJson,
    console,
    errors,
    must_exist,
    new_table,
    print_findings,
    print_json,
)
from outlay.clock import utc_text
from outlay.compat.cost_module.price_history import export_history, history_file, import_history
from outlay.errors import Finding, InvalidValue
from outlay.prices.alerts import AlertRules, change_percent
from outlay.prices.book import PriceBook, fetch, fetch_all
from outlay.prices.offer import Offer, Snapshot, SourceFailed
from outlay.prices.recording import Series
from outlay.prices.series import PricePoint, alerts
from outlay.store import open_store
from outlay.units import Money
from outlay.units.quantity import duration_text
from outlay.units.shown import counted

# Offers and price series as tables, JSON rows and files.

FINDINGS_SHOWN = 10
_NVLINK = {True: "yes", False: "no", None: ""}
_WIDE = 110


@contextmanager
def writing_to(option: str, path: Path) -> Iterator[None]:
    """Turn a file that cannot be written into an error that names the option and the path."""
    try:
        yield
    except OSError as error:
        expected = f"a place that can be written ({error.strerror})"
        raise InvalidValue(option, str(path), expected) from None


def offer_table(offers: Sequence[Offer], now_ns: int) -> Table:
    """Return offers as a table; a narrow terminal gets the columns that matter most."""
    wide = console.width >= _WIDE
    extra = ("region", ">left", "id") if wide else ()
    table = new_table(
        "provider", "offer", ">$/GPU-h", ">$/h in all", ">GB", "NVLink", *extra, ">age", "source"
    )
    for offer in offers:
        left = "" if offer.availability is None else str(offer.availability)
        more = (offer.region or "", left, offer.offer_id or "") if wide else ()
        cells = (
            offer.provider,
            f"{offer.gpu_count}x {offer.gpu} {offer.label}",
            _amount(offer.price_per_gpu),
            _amount(offer.price),
            "" if offer.memory_gb is None else str(offer.memory_gb),
            _NVLINK[offer.nvlink],
            *more,
            duration_text(now_ns - offer.fetched_ns),
            offer.source,
        )
        table.add_row(*cells)
    return table


def priced(offer: Offer) -> dict[str, Any]:
    """Return every field of an offer, and its price per GPU, for JSON."""
    row = {name: getattr(offer, name) for name in offer.__struct_fields__}
    return row | {"price_per_gpu": offer.price_per_gpu}


def summary(snapshot: Snapshot) -> dict[str, object]:
    """Return what a fetch brought, for JSON."""
    return {
        "source": snapshot.source,
        "fetched_ns": snapshot.fetched_ns,
        "failed": snapshot.failed,
        "offers": len(snapshot.offers),
        "findings": snapshot.findings,
    }


def series_table(points: Sequence[PricePoint]) -> Table:
    """Return one row per series: first, last, lowest and highest price."""
    by_series: dict[Series, list[PricePoint]] = {}
    for point in points:
        by_series.setdefault(point.series, []).append(point)
    table = new_table("provider", "gpu", "terms", ">points", ">last", ">low", ">high", ">change")
    for series, mine in sorted(by_series.items()):
        prices = [point.price.micros for point in mine]
        low, high = (Money(pick(prices), series.currency) for pick in (min, max))
        change = change_percent(prices[-1], prices[0])
        cells = (
            series.provider,
            series.machine,
            series.label,
            str(len(mine)),
            _amount(mine[-1].price),
            _amount(low),
            _amount(high),
            f"{change:+.1f} %",
        )
        table.add_row(*cells)
    first, last = points[0].at_ns, points[-1].at_ns
    has_others = any(series.currency != "USD" for series in by_series)
    unit = "in USD where no currency is named" if has_others else "in USD"
    table.caption = f"{utc_text(first)} to {utc_text(last)}, per GPU-hour, {unit}"
    table.caption_justify = "left"
    return table


def print_some_findings(findings: Sequence[Finding]) -> None:
    """Show the first findings, and how many there are in all."""
    print_findings(findings[:FINDINGS_SHOWN])
    if len(findings) > FINDINGS_SHOWN:
        console.print(f"... and {len(findings) - FINDINGS_SHOWN:,} more like these")


def _amount(money: Money) -> str:
    """Return an amount for a column in dollars; another currency is named in its cell."""
    return str(money).removesuffix(" USD")


# ``outlay prices fetch``: vendors asked for their prices, all at once.

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
    keep_cost_files()
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
    from outlay.prices.sources.vendors import sources_named

    sources = sources_named(names)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=errors, transient=True) as progress:
        tasks = {one.name: progress.add_task(f"asking {one.name}", total=1) for one in sources}
        return fetch_all(
            sources, on_done=lambda snapshot: progress.update(tasks[snapshot.source], completed=1)
        )


# ``outlay prices import`` and ``export``: price histories and catalogs as files.


def import_prices(
    path: Annotated[Path, typer.Argument(help="price_history.json, or a catalog as CSV.")],
    as_json: AsJson = False,
) -> None:
    """Import a price history, or a catalog in gpuhunt's or SkyPilot's CSV dialect.

    Example: outlay prices import ~/.context/training/prices/price_history.json
    """
    must_exist(path.expanduser(), name="PATH")
    if path.suffix.lower() == ".csv":
        _import_catalog(path, as_json=as_json)
        return
    store = open_store()
    imported = import_history(store, history_file(path.expanduser()))
    PriceBook(store).publish()
    if as_json:
        print_json(imported)
        return
    console.print(f"{imported.added:,} prices added, {imported.known:,} known before.")
    print_some_findings(imported.findings)


def _import_catalog(path: Path, *, as_json: bool) -> None:
    from outlay.prices.sources.catalogs import CsvSource

    source = CsvSource(path.expanduser())
    snapshot = fetch(source)
    if snapshot.failed:
        raise SourceFailed(source.name, snapshot.findings[0].message)
    book = PriceBook(open_store())
    book.record([snapshot])
    book.publish()
    if as_json:
        print_json(summary(snapshot))
        return
    console.print(f"{len(snapshot.offers):,} offers of {source.provider}.")
    print_some_findings(snapshot.findings)


def export_prices(
    path: Annotated[Path, typer.Argument(help="Where to write price_history.json.")],
    as_json: AsJson = False,
) -> None:
    """Write every price to a price_history.json, keeping what stands in it already.

    Example: outlay prices export price_history.json
    """
    target, damage = history_file(path.expanduser()), list[Finding]()
    with writing_to("PATH", target):
        count = export_history(open_store(), target, damage)
    if as_json:
        print_json({"prices": count, "path": target, "findings": damage})
        return
    console.print(f"{count:,} prices in {target}", soft_wrap=True)
    print_some_findings(damage)
