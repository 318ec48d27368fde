"""``outlay prices import`` and ``export``: price histories and catalogs as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import AsJson
from outlay.cli.output import console, print_json
from outlay.cli.price_tables import print_some_findings, summary, writing_to
from outlay.errors import Finding
from outlay.prices.book import PriceBook
from outlay.prices.exchange import export_history, history_file, import_history
from outlay.store import open_store


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
    from outlay.prices.sources.csv_catalogs import CsvSource

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
