"""``outlay prices``: offers, their history, and the prices of a cluster's partitions."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from outlay.cli.cost.kept_files import keep_cost_files
from outlay.cli.output import (
    AsJson,
    FittingTable,
    Png,
    console,
    is_for_people,
    new_table,
    print_findings,
    print_json,
)
from outlay.cli.prices.offers import (
    export_prices,
    fetch_prices,
    import_prices,
    offer_json,
    offer_table,
    series_table,
    show_survey,
    store_prices,
    writing_to,
)
from outlay.clock import SYSTEM, as_utc, utc_text, wall_ns_of
from outlay.errors import Finding, InvalidValue
from outlay.ledger import Price
from outlay.prices.catalog import Query
from outlay.prices.current import rate_text, read_rate, read_rates, set_rate
from outlay.prices.offer import TRACKED, Tier
from outlay.prices.offer_search import search_offers
from outlay.prices.price_book import MAX_AGE_NS, PriceBook, require_loaded
from outlay.prices.series import (
    PriceStatistics,
    alerts,
    cheapest_over_time,
    points,
    price_statistics,
    text_chart,
)
from outlay.rates import NS_PER_HOUR
from outlay.store import open_store
from outlay.units import Duration, Money, Rate
from outlay.units.billing_terms import parse_terms
from outlay.units.quantity import duration_text
from outlay.units.shown import counted

app = typer.Typer(help="What a GPU costs, now and before.", no_args_is_help=True)
app.command("fetch")(fetch_prices)

Gpu = Annotated[str | None, typer.Option("--gpu", help="A GPU or family, such as H100, A100-80GB.")]
Count = Annotated[int | None, typer.Option("--count", min=1, help="GPUs in one offer.")]
Spot = Annotated[bool | None, typer.Option("--spot/--on-demand", help="Only this kind of offer.")]
MaxPrice = Annotated[str | None, typer.Option(help='Most per GPU-hour, such as "2.50 USD/h".')]
MaxTotal = Annotated[str | None, typer.Option(help='Most for the whole offer, such as "20 USD/h".')]
MinMemory = Annotated[int | None, typer.Option(min=1, help="Least memory of one GPU, in GB.")]
Region = Annotated[str | None, typer.Option(help="Only regions whose name contains this.")]
Provider = Annotated[str | None, typer.Option(help="Only this provider.")]
Nvlink = Annotated[bool, typer.Option("--nvlink", help="Only GPUs known to have NVLink.")]
MaxAge = Annotated[
    str | None,
    typer.Option(
        help="Ignore offers last seen longer ago, such as 7d; default: 30d for cheapest, no limit "
        "for list. Prices set by hand are never ignored."
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        help="As of this instant instead of now: 2026-01-31T12:00+01:00; without a zone, UTC."
    ),
]


@app.command("set")
def set_price(
    gpu: Annotated[str, typer.Argument(help="A GPU model, such as A100-80GB.")],
    price: Annotated[
        str,
        typer.Argument(
            help='Per GPU-hour: "1.50 USD/h", or "1.50 USD/h, increment 1m, minimum 10m, setup 5m".'
        ),
    ],
    provider: Annotated[str, typer.Option(help="Provider of the offer.")] = "own",
    count: Annotated[int, typer.Option(min=1, help="GPUs in one offer.")] = 1,
    tier: Annotated[Tier, typer.Option(help="Terms of the offer.")] = Tier.ON_DEMAND,
    instance: Annotated[str | None, typer.Option("--id", help="Instance or offer id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set a price by hand: a contract, a quote, the rate of your own cluster.

    Example: outlay prices set A100-80GB "1.10 USD/h" --provider cluster --count 8
    """
    from outlay.prices.price_book import fetch
    from outlay.prices.sources.catalogs import ManualSource

    amount, *terms = price.split(",")
    source = ManualSource(
        provider=provider, gpu=gpu, price=Rate.parse(amount, name="PRICE"), gpu_count=count,
        tier=tier, offer_id=instance, terms=parse_terms(terms, name="PRICE"),
    )  # fmt: skip
    snapshot = fetch(source)
    if not snapshot.offers:
        raise InvalidValue("PRICE", price, snapshot.findings[0].message)
    store_prices(open_store(), [snapshot])
    if as_json:
        print_json([offer_json(offer) for offer in snapshot.offers])
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
    rows: Annotated[int, typer.Option(min=1, help="How many offers to show at most.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Show offers; called as ``cheapest``, only those not known to be sold out."""
    query = Query(
        gpu=gpu, gpu_count=count, tier=_tier(spot), max_price=_hourly(max_price, "--max-price"),
        max_total_price=_hourly(max_total, "--max-total"), min_memory_gb=min_memory,
        region=region, provider=provider, nvlink=nvlink, rentable=context.info_name == "cheapest",
    )  # fmt: skip
    now_ns = SYSTEM.wall_ns() if at is None else _instant(at)
    oldest_ns = MAX_AGE_NS if query.rentable else None
    if max_age is not None:
        oldest_ns = Duration.parse(max_age, name="--max-age").ns
    since_ns = None if oldest_ns is None else now_ns - oldest_ns
    at_ns = None if at is None else now_ns
    found = search_offers(open_store(), query, limit=limit or rows, since_ns=since_ns, at_ns=at_ns)
    if as_json:
        offers = [offer_json(offer) for offer in found.offers]
        figures = {"searched": found.searched, "too_old": found.too_old}
        print_json({"offers": offers} | figures | {"findings": found.findings})
        return
    if found.offers:
        console.print(offer_table(found.offers, now_ns))
    else:
        console.print(f"No offer matches; {found.searched:,} loaded offers were searched.")
    if found.too_old and oldest_ns is not None:
        ignored, age = counted(found.too_old, "offer"), duration_text(oldest_ns)
        console.print(f"{ignored} last seen more than {age} ago ignored")
        console.print("Refresh with outlay prices fetch, or set --max-age")
    print_findings(found.findings)


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
    gpu: Annotated[str, typer.Argument(help="A GPU model or family, such as H100 or A100-80GB.")],
    provider: Provider = None,
    spot: Spot = None,
    since: Annotated[str, typer.Option(help="How far back, such as 30d.")] = "30d",
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Show a GPU's price over time: the cheapest offer of each snapshot.

    Example: outlay prices history H100 --provider runpod --since 90d --png h100.png
    """
    since_ns = SYSTEM.wall_ns() - Duration.parse(since, name="--since").ns
    store, damage = open_store(), list[Finding]()
    tier = _tier(spot)
    found = points(store, gpu=gpu, provider=provider, tier=tier, since_ns=since_ns, damage=damage)
    if not found:
        require_loaded(PriceBook(store))
    if png is not None and found:
        from outlay.report.drawing.pictures import save_charts
        from outlay.report.drawing.run_charts import price_history

        with writing_to("--png", png):
            charts = price_history(found, title=f"{gpu}: cheapest offer per GPU-hour")
            save_charts(charts, png)
    if as_json:
        print_json({"points": found, "findings": damage})
        return
    if not found:
        console.print(f"No price of {gpu} was recorded in the last {since}.")
    else:
        chart = text_chart(cheapest_over_time(found), width=min(console.width, 100))
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
        require_loaded(PriceBook(store))
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
            utc_text(alert.at_ns), alert.kind, series.provider, series.machine, series.label,
            str(alert.current), str(alert.previous), f"{alert.change_percent:+.1f} %",
        )  # fmt: skip
    console.print(table)


def _statistics_table(figures: PriceStatistics) -> FittingTable:
    """Return a row per series; on a terminal they are grouped by GPU, the cheapest first."""
    prices, grouped = figures.current_prices, is_for_people()
    by_gpu: dict[str, list[str]] = {}
    for key in sorted(prices, key=lambda key: (prices[key] if grouped else 0.0, key)):
        by_gpu.setdefault(key.rpartition(":")[2] if grouped else "", []).append(key)
    names = ("provider",) if grouped else ("provider", "gpu")
    table = new_table(*names, ">now, $/GPU-h", ">24 h average", ">24 h trend")
    for group, keys in by_gpu.items():
        table.add_group(group)
        for key in keys:
            provider, _, gpu = key.rpartition(":")
            day = ("-", "-")  # No price in the last 24 hours.
            if (average := figures.average_prices_24h.get(key)) is not None:
                day = (f"{average:.4f}", f"{figures.price_trends_24h[key]:+.1f} %")
            whose = (provider,) if grouped else (provider, gpu)
            table.add_row(*whose, f"{prices[key]:.4f}", *day)
    return table


@app.command("stats")
def stats(as_json: AsJson = False) -> None:
    """Show every tracked GPU: price now, average and trend of the last 24 hours; and the sources.

    Example: outlay prices stats
    """
    keep_cost_files("prices")
    store, damage = open_store(), list[Finding]()
    figures = price_statistics(store, SYSTEM.wall_ns(), damage)
    book = PriceBook(store)
    states = require_loaded(book)
    damage += book.damage
    if as_json:
        print_json(asdict(figures) | {"sources": states, "findings": damage})
        return
    console.print(_statistics_table(figures))
    asked = [state for state in states if not state.source.startswith(TRACKED)]
    for state in asked:
        loaded = "never loaded" if state.loaded_ns is None else utc_text(state.loaded_ns)
        console.print(f"{state.source}: {loaded}, {counted(state.offers, 'offer')}")
    if by_hand := sum(state.offers for state in states if state not in asked):
        console.print(f"tracked by hand: {counted(by_hand, 'offer')}")
    print_findings(damage)


app.command("import")(import_prices)
app.command("export")(export_prices)
app.command("survey")(show_survey)


# ``outlay prices partition``.

partition_app = typer.Typer(help="What a GPU-hour costs on each partition.", no_args_is_help=True)
app.add_typer(partition_app, name="partition")

Partition = Annotated[str, typer.Argument(metavar="PARTITION", help="As Slurm names it.")]


@partition_app.command("set")
def set_partition(
    partition: Partition,
    rate: Annotated[
        str,
        typer.Argument(
            metavar="RATE",
            help='Per GPU-hour, such as "1.20 USD/h"; showback unless followed by "cash".',
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Set the price of a GPU-hour on a partition, for future sweeps and imported jobs.

    Example: outlay prices partition set gpu-a100 "1.20 USD/h"
    """
    _show_rates(set_rate(partition, read_rate(rate, partition, name="RATE")), as_json=as_json)


@partition_app.command("remove")
def remove_partition(partition: Partition, as_json: AsJson = False) -> None:
    """Remove a partition's rate; runs already priced with it do not change.

    Example: outlay prices partition remove gpu-a100
    """
    _show_rates(set_rate(partition, None), as_json=as_json)


@partition_app.command("show")
def show_rates(as_json: AsJson = False) -> None:
    """Show every partition that has a rate.

    Example: outlay prices partition show
    """
    _show_rates(read_rates(), as_json=as_json)


def _show_rates(rates: dict[str, Price], *, as_json: bool) -> None:
    if as_json:
        print_json({name: rate_text(rate) for name, rate in rates.items()})
        return
    if not rates:
        console.print(
            'No partition has a rate. Set one with: outlay prices partition set gpu "1.20 USD/h"'
        )
        return
    table = new_table("partition", ">per GPU-hour", "kind")
    for name, rate in rates.items():
        table.add_row(name, str(rate.stated), rate.kind)
    console.print(table)


def _tier(spot: bool | None) -> Tier | None:
    return None if spot is None else Tier.SPOT if spot else Tier.ON_DEMAND


def _hourly(text: str | None, option: str) -> Money | None:
    return None if text is None else Rate.parse(text, name=option).per_hour


def _instant(text: str) -> int:
    try:
        return wall_ns_of(as_utc(datetime.fromisoformat(text)))
    except ValueError:
        expected = "an ISO date or time such as 2026-01-31T12:00Z; without a zone it is UTC"
        raise InvalidValue("--at", text, expected) from None
