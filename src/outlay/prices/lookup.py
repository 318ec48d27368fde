"""Answering "what is on offer?" from the store, with how old the answer is and what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from outlay.errors import Finding, OutlayError
from outlay.prices.book import PriceBook, SourceState
from outlay.prices.catalog import Catalog, Query
from outlay.prices.offer import Offer


class NothingLoaded(OutlayError):
    """No prices were ever loaded, which is not the same as nothing being on offer."""

    def __init__(self) -> None:
        super().__init__(
            "no prices were loaded yet, so nothing can be said about offers. "
            "Load some: outlay prices fetch, or outlay prices import FILE."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Offers that match, cheapest first, and what they were found in.

    Attributes:
        searched: How many offers were looked through.
        findings: Sources whose latest fetch failed, so that older prices or none are shown.
    """

    offers: list[Offer]
    searched: int
    findings: tuple[Finding, ...]


def look_up(
    store: Engine,
    query: Query,
    *,
    limit: int | None = None,
    at_ns: int | None = None,
    since_ns: int | None = None,
) -> Found:
    """Return the offers that match.

    Args:
        store: From ``open_store``.
        query: What is looked for.
        limit: At most so many.
        at_ns: As of this instant instead of now.
        since_ns: Leave out what was last seen before this instant.

    Raises:
        NothingLoaded: There is nothing to look through.
    """
    book = PriceBook(store)
    states = must_be_loaded(book)
    offers = book.offers(at_ns=at_ns, gpu=query.gpu, tier=query.tier)
    recent = [offer for offer in offers if since_ns is None or offer.fetched_ns >= since_ns]
    return Found(
        offers=Catalog(recent).find(query, limit=limit),
        searched=sum(state.offers for state in states),
        findings=(*filter(None, map(_failure, states)), *book.damage),
    )


def anything_loaded(book: PriceBook) -> bool:
    """Return whether any source was ever loaded."""
    return any(state.loaded_ns is not None for state in book.sources())


def must_be_loaded(book: PriceBook) -> list[SourceState]:
    """Return how every source stands.

    Raises:
        NothingLoaded: None of them was ever loaded.
    """
    states = book.sources()
    if all(state.loaded_ns is None for state in states):
        raise NothingLoaded
    return states


def _failure(state: SourceState) -> Finding | None:
    if state.failure is None:
        return None
    shown = "its older prices are shown" if state.loaded_ns else "none of its prices are known"
    return Finding(source=state.source, message=f"{state.failure}; {shown}", severity="warning")
