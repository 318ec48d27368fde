"""Searching the stored offers: ``outlay.list_prices()``, and the table of an offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, overload

from outlay.clock import SYSTEM
from outlay.errors import Finding
from outlay.escaping import html_table
from outlay.prices.catalog import Catalog, Query
from outlay.prices.offer import MANUAL, Offer, Tier
from outlay.prices.price_book import PriceBook, SourceState, require_loaded
from outlay.store import open_store
from outlay.units import Duration, Money, Rate
from outlay.units.quantity import duration_text
from outlay.units.shown import counted

if TYPE_CHECKING:
    from sqlalchemy import Engine

COLUMNS: Final = (
    "provider", "offer", ">$/GPU-h", ">$/h in all", ">GB", "NVLink", "region", ">left", "id",
    ">age", "source",
)  # fmt: skip
"""The columns of an offer's table; ">" aligns right."""
_NVLINK = {True: "yes", False: "no", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSearch(Sequence[Offer]):
    """The result of a search: matching offers, cheapest first.

    Attributes:
        searched: Number of offers searched.
        too_old: Number of matching offers that were excluded for their age.
        findings: Sources whose latest fetch failed, so that older prices or none are shown.
    """

    offers: list[Offer]
    searched: int
    too_old: int
    findings: tuple[Finding, ...]

    @overload
    def __getitem__(self, index: int) -> Offer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Offer]: ...
    def __getitem__(self, index: int | slice) -> Offer | list[Offer]:
        return self.offers[index]

    def __len__(self) -> int:
        return len(self.offers)

    def __repr__(self) -> str:
        found = f"{counted(len(self), 'offer')} of {self.searched:,}"
        best = [f"cheapest {each.price_per_gpu}/GPU-h at {each.provider}" for each in self[:1]]
        return f"<OfferSearch {', '.join([found, *best])}>"

    def _repr_html_(self) -> str:
        """Return the offers as a table for a notebook."""
        now_ns = SYSTEM.wall_ns()
        headings = (column.removeprefix(">") for column in COLUMNS)
        return html_table(headings, (cells_of(offer, now_ns).values() for offer in self))


def cells_of(offer: Offer, now_ns: int) -> dict[str, str]:
    """Return what a table shows of an offer, by column."""
    texts = (
        offer.provider, f"{offer.gpu_count}x {offer.gpu} {offer.label}",
        _amount(offer.price_per_gpu), _amount(offer.price),
        "" if offer.memory_gb is None else str(offer.memory_gb), _NVLINK[offer.nvlink],
        offer.region or "", "" if offer.availability is None else str(offer.availability),
        offer.offer_id or "", duration_text(now_ns - offer.fetched_ns), offer.source,
    )  # fmt: skip
    return dict(zip(COLUMNS, texts, strict=True))


def _amount(money: Money) -> str:
    """Return an amount without "USD"; other currencies are named."""
    return str(money).removesuffix(" USD")


def list_prices(
    gpu: str | None = None,
    *,
    count: int | None = None,
    spot: bool | None = None,
    max_price: str | None = None,
    region: str | None = None,
    provider: str | None = None,
    max_age: str | None = None,
    limit: int | None = None,
) -> OfferSearch:
    """Return the stored offers, sold-out ones included, cheapest per GPU first.

    ``outlay prices fetch`` or ``outlay prices set`` store them; this asks nobody.

    Args:
        gpu: A card or a family: ``A100`` means both memory sizes.
        count: GPUs of the offer.
        spot: Only spot, or only on-demand offers; None for both.
        max_price: The highest price per GPU, such as ``"2.50 USD/h"``.
        region: Only offers of this region.
        provider: Only offers of this provider.
        max_age: Leaves out offers that were last seen longer ago, such as ``"7d"``.
        limit: At most this many; None for all.

    Raises:
        InvalidValue: An argument cannot be used.
        NothingLoaded: No prices were ever stored.
    """
    query = Query(
        gpu=gpu, gpu_count=count, region=region, provider=provider,
        tier=None if spot is None else Tier.SPOT if spot else Tier.ON_DEMAND,
        max_price=None if max_price is None else Rate.parse(max_price, name="max_price").per_hour,
    )  # fmt: skip
    oldest_ns = None
    if max_age is not None:
        oldest_ns = SYSTEM.wall_ns() - Duration.parse(max_age, name="max_age").ns
    return search_offers(open_store(), query, limit=limit, since_ns=oldest_ns)


def search_offers(
    store: Engine,
    query: Query,
    *,
    limit: int | None = None,
    at_ns: int | None = None,
    since_ns: int | None = None,
) -> OfferSearch:
    """Return the matching offers as of ``at_ns`` or now.

    Offers last seen before ``since_ns`` are excluded, except manually set ones.

    Raises:
        NothingLoaded: No source was ever loaded.
    """
    book = PriceBook(store)
    states = require_loaded(book)
    offers = book.offers(at_ns=at_ns, gpu=query.gpu, tier=query.tier)
    matching = Catalog(offers).find(query)
    recent = [
        offer
        for offer in matching
        if since_ns is None or offer.fetched_ns >= since_ns or offer.source.startswith(MANUAL)
    ]
    return OfferSearch(
        offers=recent[:limit],
        too_old=len(matching) - len(recent),
        searched=sum(state.offers for state in states),
        findings=(*filter(None, map(_failure_finding, states)), *book.damage),
    )


def _failure_finding(state: SourceState) -> Finding | None:
    if state.failure is None:
        return None
    shown = "showing its older prices" if state.loaded_ns else "none of its prices are known"
    return Finding(source=state.source, message=f"{state.failure}; {shown}", severity="warning")
