"""The prices page: the cheapest offers, and the history of one GPU's price."""

from __future__ import annotations

from typing import Final

from outlay.prices.price_book import PriceBook
from outlay.prices.series import points
from outlay.report import html
from outlay.report.drawing.run_charts import price_history
from outlay.report.html import Cell
from outlay.web.book_reader import BookReader
from outlay.web.page import Page, PageQuery, columns_of

_DAY_NS: Final = 86_400 * 10**9
_PRICED_DAYS: Final = 30
_MOST_PRICES: Final = 100


def prices_stamp(ask: PageQuery, books: BookReader) -> object:
    """Return the page's stamp."""
    del books
    return (ask.get("gpu"),)


def prices_page(ask: PageQuery, books: BookReader) -> Page:
    """Return the cheapest offers, and the history of one GPU's price."""
    book = PriceBook(books.store)
    offers = book.cheapest_rentable()[:_MOST_PRICES]
    gpus = list(dict.fromkeys(offer.gpu for offer in offers))
    gpu = ask.one_of("gpu", gpus, gpus[0] if gpus else "")
    rows = [
        [
            Cell(text=offer.gpu, href=ask.address(gpu=offer.gpu)), offer.provider, offer.tier,
            offer.gpu_count, offer.price_per_gpu, offer.region or "",
        ]
        for offer in offers
    ]  # fmt: skip
    headings = ["GPU", "vendor", "tier", "GPUs", "per GPU-hour", "region"]
    if not rows:
        said = "No prices are loaded. Fetch those of vendors that need no account with"
        parts = [html.section("Prices", html.empty(said, "outlay prices fetch"))]
    else:
        if not any(offer.region for offer in offers):
            headings, rows = headings[:-1], [row[:-1] for row in rows]
        table = html.table(headings, rows, caption="Prices", is_list=True)
        parts = [columns_of([html.section("Cheapest offers", table), *_history(gpu, books)])]
    columns = ("gpu", "vendor", "tier", "gpus", "per_gpu_hour", "currency", "region")
    return Page(
        title="Prices", tab="Prices", parts=parts, columns=columns, lives=False,
        rows=[
            dict(zip(columns, (
                o.gpu, o.provider, o.tier, o.gpu_count, o.price_per_gpu.amount,
                o.price_per_gpu.currency, o.region,
            ), strict=True))
            for o in offers
        ],
        document={"offers": offers, "gpu": gpu},
    )  # fmt: skip


def _history(gpu: str, books: BookReader) -> list[str]:
    """Return a GPU's prices over the last days: a line for each vendor, a chart per currency."""
    found = points(books.store, gpu=gpu, since_ns=books.now_ns - _PRICED_DAYS * _DAY_NS)
    charts = price_history(found, title=f"{gpu}, last {_PRICED_DAYS} days")
    return [html.section(chart.title, html.chart(chart)) for chart in charts]
