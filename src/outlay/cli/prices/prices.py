"""``outlay prices``: what a GPU costs, where, now and before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from sqlalchemy import Engine

from outlay.cli.cost.tables import keep_cost_files
from outlay.cli.output import (
    AsJson,
    Png,
    console,
    counted,
    errors,
    new_table,
    print_findings,
    print_json,
)
from outlay.clock import SYSTEM, as_utc, utc_text, wall_ns_of
from outlay.compat.cost_module.price_history import export_history, history_file, import_history
from outlay.errors import Finding, InvalidValue
from outlay.prices.alerts import AlertRules, change_percent
from outlay.prices.book import PriceBook, look_up, must_be_loaded
from outlay.prices.catalog import Query
from outlay.prices.chart import cheapest_over_time, save_png, text_chart
from outlay.prices.offer import Offer, Snapshot, Tier
from outlay.prices.recording import Series
from outlay.prices.series import PricePoint, alerts, points
from outlay.rates import NS_PER_HOUR
from outlay.store import open_store
from outlay.units import Duration, Money, Rate
from outlay.units.quantity import duration_text

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
    row = {field.name: getattr(offer, field.name) for field in fields(offer)}
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
            series.gpu,
            series.label,
            str(len(mine)),
            _amount(mine[-1].price),
            _amount(low),
            _amount(high),
            f"{change:+.1f} %",
        )
        table.add_row(*cells)
    first, last = points[0].at_ns, points[-1].at_ns
    table.caption = f"{utc_text(first)} to {utc_text(last)}, in USD per GPU-hour"
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
    from outlay.prices.sources.base import fetch_all
    from outlay.prices.sources.registry import sources_named

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
    from outlay.prices.sources.base import SourceFailed, fetch
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


app = typer.Typer(help="What a GPU costs, where, now and before.", no_args_is_help=True)
app.command("fetch")(fetch_prices)

Gpu = Annotated[
    str | None, typer.Option("--gpu", help="A card or a family, such as H100 or A100-80GB.")
]
Count = Annotated[int | None, typer.Option("--count", min=1, help="GPUs in one offer.")]
Spot = Annotated[bool | None, typer.Option("--spot/--on-demand", help="Only these terms.")]
MaxPrice = Annotated[str | None, typer.Option(help='Per GPU-hour at most, such as "2.50 USD/h".')]
MaxTotal = Annotated[
    str | None, typer.Option(help='For the whole offer at most, such as "20 USD/h".')
]
MinMemory = Annotated[int | None, typer.Option(min=1, help="GB of one GPU, at least.")]
Region = Annotated[str | None, typer.Option(help="Text in the region's name.")]
Provider = Annotated[str | None, typer.Option(help="Only this provider's.")]
Nvlink = Annotated[bool, typer.Option("--nvlink", help="Only GPUs known to be joined by NVLink.")]
MaxAge = Annotated[
    str | None, typer.Option(help="Leave out what was last seen longer ago, such as 7d.")
]
At = Annotated[
    str | None, typer.Option(help="As of an instant instead of now, such as 2026-01-31.")
]


@app.command("set")
def set_price(
    gpu: Annotated[str, typer.Argument(help="A card, such as A100-80GB.")],
    price: Annotated[str, typer.Argument(help='Per GPU-hour, such as "1.50 USD/h".')],
    provider: Annotated[str, typer.Option(help="Whose price it is.")] = "own",
    count: Annotated[int, typer.Option(min=1, help="GPUs in one offer.")] = 1,
    tier: Annotated[Tier, typer.Option(help="On which terms.")] = Tier.ON_DEMAND,
    instance: Annotated[
        str | None, typer.Option("--id", help="The instance or offer that it is the price of.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """State a price by hand: a contract, a quote, the rate of your own cluster.

    Example: outlay prices set A100-80GB "1.10 USD/h" --provider cluster --count 8
    """
    from outlay.prices.sources.base import fetch
    from outlay.prices.sources.manual import ManualSource

    rate = Rate.parse(price, name="PRICE")
    source = ManualSource(
        provider=provider, gpu=gpu, price=rate, gpu_count=count, tier=tier, offer_id=instance
    )
    snapshot = fetch(source)
    if not snapshot.offers:
        raise InvalidValue("PRICE", price, snapshot.findings[0].message)
    book = PriceBook(open_store())
    book.record([snapshot])
    book.publish()
    if as_json:
        print_json([priced(offer) for offer in snapshot.offers])
    else:
        console.print(offer_table(list(snapshot.offers), SYSTEM.wall_ns()))


def show_offers(
    context: typer.Context,
    gpu: Gpu = None,
    count: Count = None,
    spot: Spot = None,
    max_price: MaxPrice = None,
    max_total: MaxTotal = None,
    min_memory: MinMemory = None,
    region: Region = None,
    provider: Provider = None,
    nvlink: Nvlink = False,
    max_age: MaxAge = None,
    at: At = None,
    limit: Annotated[int, typer.Option(min=1, help="How many offers at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show offers: all of them, or as ``cheapest`` those that are not known to be sold out."""
    query = Query(
        gpu=gpu, gpu_count=count, tier=_tier(spot), max_price=_ceiling(max_price, "--max-price"),
        max_total_price=_ceiling(max_total, "--max-total"), min_memory_gb=min_memory,
        region=region, provider=provider, nvlink=nvlink, rentable=context.info_name == "cheapest",
    )  # fmt: skip
    _show(open_store(), query, limit, max_age, at, as_json=as_json)


app.command(
    "list",
    help="List offers, sold-out ones included, cheapest per GPU first.\n\n"
    "Example: outlay prices list --gpu H100 --count 8 --on-demand",
)(show_offers)
app.command(
    "cheapest",
    help="Show the cheapest offers that are not known to be sold out.\n\n"
    "Example: outlay prices cheapest --gpu A100 --min-memory 80 --spot",
)(show_offers)


@app.command("history")
def history(
    gpu: Annotated[str, typer.Argument(help="A card or a family, such as H100 or A100-80GB.")],
    provider: Provider = None,
    spot: Spot = None,
    since: Annotated[str, typer.Option(help="How far back, such as 30d.")] = "30d",
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Show how a GPU's price moved: the cheapest offer of each snapshot.

    Example: outlay prices history H100 --provider runpod --since 90d --png h100.png
    """
    since_ns = SYSTEM.wall_ns() - Duration.parse(since, name="--since").ns
    store, damage = open_store(), list[Finding]()
    tier = _tier(spot)
    found = points(store, gpu=gpu, provider=provider, tier=tier, since_ns=since_ns, damage=damage)
    if not found:
        must_be_loaded(PriceBook(store))
    if png is not None and found:
        with writing_to("--png", png):
            save_png(found, png, title=f"{gpu}: cheapest offer per GPU-hour")
    if as_json:
        print_json({"points": found, "findings": damage})
        return
    if not found:
        console.print(f"No price of {gpu} was seen in the last {since}.")
    else:
        chart = text_chart(cheapest_over_time(found), width=console.width)
        console.print(chart, soft_wrap=True)
        console.print(series_table(found))
    print_findings(damage)


@app.command("alerts")
def show_alerts(
    hours: Annotated[float, typer.Option(min=0, help="How many hours back.")] = 24,
    as_json: AsJson = False,
) -> None:
    """Show prices that dropped, surged or reached a historic low.

    Example: outlay prices alerts --hours 72
    """
    store, damage = open_store(), list[Finding]()
    since_ns = SYSTEM.wall_ns() - round(hours * NS_PER_HOUR)
    found = alerts(store, since_ns=since_ns, damage=damage)
    if not found:
        must_be_loaded(PriceBook(store))
    if as_json:
        print_json({"alerts": found, "findings": damage})
        return
    print_findings(damage)
    if not found:
        console.print(f"No price alerts in the last {hours:g} hours.")
        return
    table = new_table(
        "when", "what", "provider", "gpu", "terms", ">now, per GPU-h", ">before", ">change"
    )
    for alert in found:
        series = alert.series
        table.add_row(
            utc_text(alert.at_ns), alert.kind, series.provider, series.gpu, series.label,
            str(alert.current), str(alert.previous), f"{alert.change_percent:+.1f} %",
        )  # fmt: skip
    console.print(table)


@app.command("stats")
def stats(as_json: AsJson = False) -> None:
    """Show every tracked GPU: price now, average and trend of the last 24 hours; and the sources.

    Example: outlay prices stats
    """
    from outlay.compat.cost_module.tracker import GPUPriceTracker

    tracker, book = GPUPriceTracker(), PriceBook(open_store())
    figures, states = tracker.get_price_statistics(), must_be_loaded(book)
    damage = [*tracker.damage, *book.damage]
    if as_json:
        print_json(figures | {"sources": states, "findings": damage})
        return
    table = new_table("provider", "gpu", ">now, $/GPU-h", ">24 h average", ">24 h trend")
    for key, now in sorted(figures["current_prices"].items()):
        provider, _, gpu = key.rpartition(":")
        average, trend = figures["average_prices_24h"][key], figures["price_trends_24h"][key]
        table.add_row(provider, gpu, f"{now:.4f}", f"{average:.4f}", f"{trend:+.1f} %")
    console.print(table)
    for state in states:
        loaded = "never loaded" if state.loaded_ns is None else utc_text(state.loaded_ns)
        console.print(f"{state.source}: {loaded}, {state.offers:,} offers")
    print_findings(damage)


app.command("import")(import_prices)
app.command("export")(export_prices)


def _show(
    store: Engine,
    query: Query,
    limit: int,
    max_age: str | None,
    at: str | None,
    *,
    as_json: bool,
) -> None:
    now_ns = SYSTEM.wall_ns() if at is None else _instant(at)
    since_ns = None if max_age is None else now_ns - Duration.parse(max_age, name="--max-age").ns
    found = look_up(
        store, query, limit=limit, since_ns=since_ns, at_ns=None if at is None else now_ns
    )
    if as_json:
        rows = [priced(offer) for offer in found.offers]
        print_json({"offers": rows, "searched": found.searched, "findings": found.findings})
        return
    if found.offers:
        console.print(offer_table(found.offers, now_ns))
    else:
        console.print(f"No offer matches; {found.searched:,} loaded offers were looked through.")
    print_findings(found.findings)


def _tier(spot: bool | None) -> Tier | None:
    return None if spot is None else Tier.SPOT if spot else Tier.ON_DEMAND


def _ceiling(text: str | None, option: str) -> Money | None:
    return None if text is None else Rate.parse(text, name=option).per_hour


def _instant(text: str) -> int:
    try:
        return wall_ns_of(as_utc(datetime.fromisoformat(text)))
    except ValueError:
        expected = "an ISO date or time such as 2026-01-31T12:00"
        raise InvalidValue("--at", text, expected) from None
