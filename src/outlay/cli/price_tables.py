"""Offers and price series as tables, JSON rows and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.table import Table

from outlay.cli.output import console, new_table, print_findings
from outlay.clock import utc_text
from outlay.errors import Finding, InvalidValue
from outlay.prices.alerts import change_percent
from outlay.prices.offer import Offer
from outlay.prices.rows import Series
from outlay.prices.series import PricePoint
from outlay.prices.snapshot import Snapshot
from outlay.units import Money
from outlay.units.quantity import duration_text

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
