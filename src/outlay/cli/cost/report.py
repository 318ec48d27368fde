"""``outlay cost-report``: the flags of a cost report script in one command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from outlay.advise.advice_book import AdviceBook
from outlay.cli.cost.forecasts import forecast_lines
from outlay.cli.cost.kept_files import keep_cost_files
from outlay.cli.cost.tables import (
    CostBooks,
    UnknownModel,
    budget_document,
    budget_rows,
    budget_table,
    comparison_table,
    open_books,
)
from outlay.cli.document import print_blocks
from outlay.cli.output import AsJson, console, print_findings, print_json, print_rows
from outlay.cli.prices.offers import VENDORS, fetch_sources, print_some_findings, store_prices
from outlay.clock import utc_datetime
from outlay.cost.compare import by_model, compare, of_last_unit, return_on_investment
from outlay.cost.forecast import forecast_model
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.prices.offer import Offer
from outlay.prices.price_book import PriceBook, anything_loaded, require_loaded
from outlay.report import run_sections
from outlay.units.quantity import NS_PER_HOUR
from outlay.units.shown import money_text

Section = tuple[Any, Callable[[], None]]
"""A part of the report: its JSON value, and the function that prints it."""


def show_cost_report(
    summary: Annotated[bool, typer.Option("--summary", help="Models, prices and budgets.")] = False,
    fetch_prices: Annotated[
        bool, typer.Option("--fetch-prices", help="Fetch prices from vendors first.")
    ] = False,
    prices: Annotated[bool, typer.Option("--prices", help="Show the cheapest prices.")] = False,
    model: Annotated[str | None, typer.Option(help="Show a model's cost and accuracy.")] = None,
    recommendations: Annotated[
        bool, typer.Option("--recommendations", help="Show the advice of the last 24 hours.")
    ] = False,
    budget: Annotated[bool, typer.Option("--budget", help="Show the state of budgets.")] = False,
    forecast: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="MODEL RUNS", help="Forecast the cost of planned runs of a model."),
    ] = None,
    set_budget: Annotated[
        tuple[str, str] | None, typer.Option(metavar="MODEL AMOUNT", help="Set a model's budget.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show costs and prices.

    Flags select sections: budgets, advice, a forecast; without any, the summary.

    Example: outlay cost-report --forecast bert-base 5
    """
    selected = any((fetch_prices, prices, model, recommendations, budget, forecast, set_budget))
    sections: dict[str, Section] = {}
    books = open_books()
    from_vendors: list[Finding] = []
    if set_budget is not None:
        _set_budget(books, *set_budget)
    if fetch_prices:
        sections["fetched"], from_vendors = _fetched(books)
    if summary or not selected:
        sections["models"] = _models(books)
    if prices or summary or not selected:
        sections["prices"] = _prices(books, required=prices and not fetch_prices)
    if model is not None:
        sections["model"] = _model(books, model)
    if recommendations:
        sections["recommendations"] = _recommendations(books)
    if budget or set_budget is not None or summary or not selected:
        sections["budgets"] = _budgets(books)
    if forecast is not None:
        sections["forecast"] = _forecast(books, *forecast)
    books.findings.extend(books.unpriced(model))
    if as_json:
        values = {name: values for name, (values, _) in sections.items()}
        print_json(values | {"findings": [*books.findings, *from_vendors]})
    else:
        for _, show in sections.values():
            show()
            console.print()
        print_findings(books.findings)
        print_some_findings(from_vendors)
    if fetch_prices and all(count is None for count in sections["fetched"][0].values()):
        raise typer.Exit(1)


class BadNumber(OutlayError):
    """A number that cannot be parsed.

    The exit code is 1, as in the script with these flags; other outlay commands exit with 2.
    """

    def __init__(self, flag: str, seen: str, expected: str) -> None:
        super().__init__(f"{flag}: {seen!r} cannot be used; expected {expected}")


def _set_budget(books: CostBooks, model: str, amount: str) -> None:
    try:
        books.book.set_budget(model, amount, books.now_ns)
    except InvalidValue:
        raise BadNumber("--set-budget", amount, "a model and an amount, zero or more") from None
    keep_cost_files("costs")


def _fetched(books: CostBooks) -> tuple[Section, list[Finding]]:
    snapshots = fetch_sources(VENDORS)
    store_prices(books.store, snapshots)
    keep_cost_files()
    values = {one.source: None if one.failed else len(one.offers) for one in snapshots}

    def show() -> None:
        for one in snapshots:
            result = "not loaded" if one.failed else f"{len(one.offers):,} offers"
            console.print(f"{one.source}: {result}")

    return (values, show), [finding for one in snapshots for finding in one.findings]


def _models(books: CostBooks) -> Section:
    models = {name: compare(rows) for name, rows in by_model(books.reports()).items()}

    def show() -> None:
        console.print(comparison_table(models) if models else "No costs are known.")

    return models, show


def _prices(books: CostBooks, *, required: bool) -> Section:
    """Return the cheapest prices, None if none were ever loaded.

    Raises:
        NothingLoaded: None were loaded, and they are ``required``.
    """
    book = PriceBook(books.store)
    if required:
        require_loaded(book)
    loaded = anything_loaded(book)
    offers = book.cheapest_rentable()
    books.findings.extend(book.damage)

    def show() -> None:
        if not loaded:
            console.print("No prices are known: outlay cost-report --fetch-prices")
            return
        if not offers:
            console.print("None of the loaded offers can be rented.")
            return
        print_rows(
            ("gpu", "provider", "terms", ">per GPU-hour"),
            [(o.gpu, o.provider, str(o.tier), money_text(o.price_per_gpu, 4)) for o in offers[:20]],
        )

    return [_price_json(offer) for offer in offers] if loaded else None, show


def _price_json(offer: Offer) -> dict[str, Any]:
    """Return an offer under the names of the script with these flags."""
    exact = offer.given if offer.given is not None and offer.gpu_count == 1 else None
    return {
        "gpu_name": offer.gpu,
        "provider": offer.provider,
        "price_per_hour": float(exact or offer.price_per_gpu.amount),
        "availability": offer.availability or 0,
        "cuda_version": offer.cuda,
        "vram_gb": offer.memory_gb,
        "instance_id": offer.offer_id,
        "region": offer.region,
        "timestamp": utc_datetime(offer.fetched_ns),
        "tier": str(offer.tier),
    }


def _model(books: CostBooks, model: str) -> Section:
    rows = books.reports(model)
    if not rows:
        raise UnknownModel(model, [row.model for row in books.reports()])
    models = {name: compare(found) for name, found in by_model(rows).items()}
    roi = return_on_investment(model, of_last_unit(rows))

    def show() -> None:
        console.print(comparison_table(models))
        if roi.best_improvement is not None:
            console.print(f"best accuracy {roi.best_improvement:+.4f} over the first run's")

    return {"figures": models, "roi": roi}, show


def _recommendations(books: CostBooks) -> Section:
    found = AdviceBook(books.store, books.findings).since(books.now_ns - 24 * NS_PER_HOUR)
    return found, lambda: print_blocks(run_sections.advice(found, None))


def _budgets(books: CostBooks) -> Section:
    rows = budget_rows(books)
    documents = [budget_document(row) for row in rows]
    return documents, lambda: console.print(budget_table(rows) if rows else "No budget is set.")


def _forecast(books: CostBooks, model: str, runs: str) -> Section:
    if not runs.isdecimal():
        raise BadNumber("--forecast", runs, "a model and a whole number of runs")
    found = forecast_model(model, books.book.reports(model), books.book.budget(model), int(runs))

    def show() -> None:
        for line in forecast_lines(found):
            console.print(line)

    return found, show
