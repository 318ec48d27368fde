"""Offers fetched from vendors, imported, exported and surveyed; their tables and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from sqlalchemy import Engine

from outlay.cli.cost.kept_files import keep_cost_files
from outlay.cli.output import (
    AsJson,
    FittingTable,
    TableCell,
    console,
    errors,
    is_for_people,
    must_exist,
    new_table,
    print_findings,
    print_json,
    print_sentence,
)
from outlay.clock import SYSTEM, utc_text
from outlay.compat.cost_module.price_history import export_history, history_file, import_history
from outlay.errors import Finding, InvalidValue
from outlay.guard.checklist import SURVEY_FILE
from outlay.prices.alerts import AlertRules, change_percent
from outlay.prices.offer import MANUAL, Offer, Snapshot
from outlay.prices.offer_search import COLUMNS, cells_of
from outlay.prices.price_book import PriceBook
from outlay.prices.recording import Series
from outlay.prices.series import PricePoint, alerts
from outlay.prices.survey import BY_HAND, Survey, as_markdown, justification, survey
from outlay.store import open_store
from outlay.units import Money
from outlay.units.shown import ago_text, counted, money_text

# Tables and JSON.

FINDINGS_SHOWN = 10
_CENT = 10_000


@contextmanager
def writing_to(option: str, path: Path) -> Iterator[None]:
    """Turn an OSError into an InvalidValue that names the option and the path."""
    try:
        yield
    except OSError as error:
        expected = f"a writable path ({error.strerror})"
        raise InvalidValue(option, str(path), expected) from None


def offer_table(offers: Sequence[Offer], now_ns: int) -> FittingTable:
    """Return offers as a table; on a terminal they are grouped by GPU, that of the first first."""
    first = ("provider", "offer", "$/GPU-h", "$/h in all", "left", "age", "region", "NVLink")
    table = new_table(*COLUMNS, first=first)
    by_gpu: dict[str, list[Offer]] = {}
    for offer in offers:
        by_gpu.setdefault(offer.gpu if is_for_people() else "", []).append(offer)
    for gpu, group in by_gpu.items():
        table.add_group(gpu)
        for offer in group:
            short = _short_cells(offer, now_ns)
            texts = cells_of(offer, now_ns).items()
            table.add_row(*(TableCell(text=text, short=short.get(name)) for name, text in texts))
    return table


def _short_cells(offer: Offer, now_ns: int) -> dict[str, str]:
    """Return what is shorter on a terminal, by column."""
    return {
        "offer": f"{offer.gpu_count}x {offer.label}",
        ">$/GPU-h": _short_price(offer.price_per_gpu),
        ">$/h in all": _short_price(offer.price),
        ">age": ago_text(now_ns - offer.fetched_ns).removesuffix(" ago"),
    }


def _price_cell(money: Money) -> TableCell:
    return TableCell(text=_amount(money), short=_short_price(money))


def _short_price(money: Money) -> str:
    return money_text(money, None if abs(money.micros) < _CENT else 2).removesuffix(" USD")


def offer_json(offer: Offer) -> dict[str, Any]:
    """Return every field of an offer and its price per GPU."""
    row = {name: getattr(offer, name) for name in offer.__struct_fields__}
    return row | {"price_per_gpu": offer.price_per_gpu}


def _snapshot_json(snapshot: Snapshot) -> dict[str, object]:
    return {
        "source": snapshot.source,
        "fetched_ns": snapshot.fetched_ns,
        "failed": snapshot.failed,
        "offers": len(snapshot.offers),
        "findings": snapshot.findings,
    }


def series_table(points: Sequence[PricePoint]) -> FittingTable:
    """Return one row per series: last, lowest and highest price, and the change."""
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
            _price_cell(mine[-1].price),
            _price_cell(low),
            _price_cell(high),
            f"{change:+.1f} %",
        )
        table.add_row(*cells)
    first, last = points[0].at_ns, points[-1].at_ns
    has_others = any(series.currency != "USD" for series in by_series)
    unit = "in USD where no currency is named" if has_others else "in USD"
    table.caption = f"{utc_text(first)} to {utc_text(last)}, per GPU-hour, {unit}"
    return table


def print_some_findings(findings: Sequence[Finding]) -> None:
    """Print the first findings and the number of the others."""
    print_findings(findings[:FINDINGS_SHOWN])
    if len(findings) > FINDINGS_SHOWN:
        console.print(f"... and {len(findings) - FINDINGS_SHOWN:,} more like these")


def _amount(money: Money) -> str:
    """Return an amount without "USD"; other currencies are named."""
    return str(money).removesuffix(" USD")


# ``outlay prices fetch``.

VENDORS: Final = ("runpod", "lambda", "vast")


def fetch_prices(
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="Source: runpod, lambda, vast (default: these) or gpuhunt:PROVIDER; repeatable."
        ),
    ] = None,
    drop: Annotated[float, typer.Option(help="Alert on a fall by more than this percent.")] = 10,
    surge: Annotated[float, typer.Option(help="Alert on a rise by more than this percent.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Fetch prices from vendors in parallel and store them.

    API keys come from RUNPOD_API_KEY, LAMBDA_API_KEY and VAST_API_KEY.

    Example: outlay prices fetch --source vast --source runpod
    """
    store, rules = open_store(), AlertRules.parse(drop, surge)
    snapshots = fetch_sources(source or VENDORS)
    store_prices(store, snapshots, rules)
    keep_cost_files()
    instants = {snapshot.fetched_ns for snapshot in snapshots}
    raised = [alert for alert in alerts(store, since_ns=min(instants)) if alert.at_ns in instants]
    if as_json:
        print_json({"snapshots": [_snapshot_json(one) for one in snapshots], "alerts": raised})
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


def store_prices(
    store: Engine, snapshots: Sequence[Snapshot], rules: AlertRules | None = None
) -> None:
    """Record snapshots and publish the current offers."""
    book = PriceBook(store, rules=rules)
    book.record(snapshots)
    book.publish()


def fetch_sources(names: Sequence[str]) -> list[Snapshot]:
    """Fetch sources by name, with a spinner for each pending one."""
    # Imported here: commands that only read the store need no HTTP client.
    from outlay.prices.price_book import fetch_all
    from outlay.prices.sources.vendors import sources_named

    sources = sources_named(names)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=errors, transient=True) as progress:
        tasks = {one.name: progress.add_task(f"fetching {one.name}", total=1) for one in sources}
        return fetch_all(
            sources, on_done=lambda snapshot: progress.update(tasks[snapshot.source], completed=1)
        )


# ``outlay prices import`` and ``export``.


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
    console.print(f"{imported.added:,} prices added, {imported.known:,} already known.")
    print_some_findings(imported.findings)


def _import_catalog(path: Path, *, as_json: bool) -> None:
    from outlay.prices.offer import SourceFailed
    from outlay.prices.price_book import fetch
    from outlay.prices.sources.catalogs import CsvSource

    source = CsvSource(path.expanduser())
    snapshot = fetch(source)
    if snapshot.failed:
        raise SourceFailed(source.name, snapshot.findings[0].message)
    store_prices(open_store(), [snapshot])
    if as_json:
        print_json(_snapshot_json(snapshot))
        return
    console.print(f"{len(snapshot.offers):,} offers of {source.provider}.")
    print_some_findings(snapshot.findings)


def export_prices(
    path: Annotated[Path, typer.Argument(help="Where to write price_history.json.")],
    as_json: AsJson = False,
) -> None:
    """Write every price to a price_history.json, keeping the entries it already has.

    Example: outlay prices export price_history.json
    """
    target, damage = history_file(path.expanduser()), list[Finding]()
    with writing_to("PATH", target):
        count = export_history(open_store(), target, damage)
    if as_json:
        print_json({"prices": count, "path": target, "findings": damage})
        return
    print_sentence(f"{count:,} prices in {target}")
    print_some_findings(damage)


# ``outlay prices survey``.


def show_survey(
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in one machine.")] = 2,
    vendors: Annotated[
        str, typer.Option(help="Vendors to compare, separated by commas.")
    ] = ",".join(VENDORS),
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare this GPU model instead of the usual ones, such as H100; repeatable."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help=f"Also write {SURVEY_FILE} there."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Fetch nothing; plan with the placeholder price.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare vendors and pick one.

    For a short job: the cheapest spot offer with NVLink, else a single node. Machines of that size
    whose price was set by hand (outlay prices set --count) are compared, too.

    Example: outlay prices survey --gpus 2 --vendors runpod,lambda,vast -o experiments/cloud-budget
    """
    names = [name.strip() for name in vendors.split(",") if name.strip()]
    if not names:
        raise InvalidValue("--vendors", vendors, f"names separated by commas: {','.join(VENDORS)}")
    snapshots = _offline_snapshots(names) if offline else fetch_sources(names)
    store = open_store()
    if not offline:
        store_prices(store, snapshots)
    snapshots += _set_by_hand(store)
    result = survey(snapshots, gpus=gpus, taken_ns=SYSTEM.wall_ns(), only=gpu or ())
    path = None if output is None else output / SURVEY_FILE
    if path is not None:
        with writing_to("--output", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(as_markdown(result), encoding="utf-8")
    if as_json:
        print_json(_survey_json(result, path))
        return
    offers = [offer for row in result.rows for offer in row.offers]
    if offers:
        console.print(offer_table(offers, result.taken_ns))
        console.print()
    console.print(justification(result).replace("**", ""))
    print_some_findings(result.findings)
    if path is not None:
        print_sentence(f"Written: {path}")


def _set_by_hand(store: Engine) -> list[Snapshot]:
    """Return the prices that a person has set as one snapshot, if there are any."""
    offers = tuple(PriceBook(store).offers(source_prefix=MANUAL))
    if not offers:
        return []
    return [Snapshot(source=BY_HAND, fetched_ns=SYSTEM.wall_ns(), offers=offers)]


def _offline_snapshots(names: list[str]) -> list[Snapshot]:
    now_ns = SYSTEM.wall_ns()
    return [
        Snapshot(
            source=name,
            fetched_ns=now_ns,
            findings=(Finding(source=name, message="not loaded: --offline"),),
            failed=True,
        )
        for name in names
    ]


def _survey_json(result: Survey, path: Path | None) -> dict[str, object]:
    plan = result.placeholder
    return {
        "gpus": result.gpus,
        "taken_ns": result.taken_ns,
        "rule": result.rule,
        "pick": None if result.pick is None else offer_json(result.pick),
        "placeholder": None
        if plan is None
        else {"per_gpu": plan.per_gpu, "cost": plan.cost, "ceiling": plan.ceiling},
        "justification": justification(result),
        "vendors": [
            {
                "vendor": row.vendor,
                "fitting": row.fitting,
                "problem": row.problem,
                "offers": [offer_json(offer) for offer in row.offers],
            }
            for row in result.rows
        ],
        "findings": result.findings,
        "path": path,
    }
