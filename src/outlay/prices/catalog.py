"""In-memory search over offers.

Offers are sorted once by price; a query is a mask over NumPy columns in that order, so its result
is sorted too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from outlay.prices.gpus import matching_names
from outlay.prices.offer import Offer, Tier, cheapest_first
from outlay.units import Money

_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Search criteria; None means any.

    Attributes:
        gpu: A card or a family (``A100`` means both memory sizes).
        max_price: Per GPU-hour.
        max_total_price: Per hour of the whole offer.
        min_memory_gb: Per GPU; excludes offers of unknown memory.
        nvlink: Only offers known to have NVLink.
        rentable: Exclude offers known to be sold out.
    """

    gpu: str | None = None
    gpu_count: int | None = None
    tier: Tier | None = None
    max_price: Money | None = None
    max_total_price: Money | None = None
    min_memory_gb: int | None = None
    region: str | None = None
    provider: str | None = None
    nvlink: bool = False
    rentable: bool = False


class Catalog:
    """A fixed set of offers that can be searched."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._offers = sorted(offers, key=cheapest_first)
        self._gpus, self._gpu_codes = _encode([offer.gpu for offer in self._offers])
        self._tiers, self._tier_codes = _encode([offer.tier for offer in self._offers])
        self._each = _column(offer.per_gpu_micros for offer in self._offers)
        self._total = _column(offer.price.micros for offer in self._offers)
        self._counts = _column(offer.gpu_count for offer in self._offers)
        self._memory = _column(
            _UNKNOWN if offer.memory_gb is None else offer.memory_gb for offer in self._offers
        )
        self._matches: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def __iter__(self) -> Iterator[Offer]:
        return iter(self._offers)

    def find(self, query: Query, *, limit: int | None = None) -> list[Offer]:
        """Return the matching offers, cheapest per GPU first."""
        masked = (self._offers[position] for position in np.flatnonzero(self._mask(query)))
        found = (offer for offer in masked if _matches_other_fields(query, offer))
        return list(islice(found, limit))

    def _mask(self, query: Query) -> NDArray[np.bool_]:
        mask = np.ones(len(self._offers), dtype=np.bool_)
        if query.gpu is not None:
            mask &= self._has_gpu(query.gpu)
        if query.tier is not None:
            mask &= self._tiers == self._tier_codes.get(query.tier, _UNKNOWN)
        if query.gpu_count is not None:
            mask &= self._counts == query.gpu_count
        if query.max_price is not None:
            mask &= self._each <= query.max_price.micros
        if query.max_total_price is not None:
            mask &= self._total <= query.max_total_price.micros
        if query.min_memory_gb is not None:
            mask &= self._memory >= query.min_memory_gb
        return mask

    def _has_gpu(self, asked: str) -> NDArray[np.bool_]:
        if asked not in self._matches:
            self._matches[asked] = matching_names(asked, self._gpu_codes)
        codes = [self._gpu_codes[name] for name in self._matches[asked]]
        return np.isin(self._gpus, np.array(codes, dtype=np.int64))


def _matches_other_fields(query: Query, offer: Offer) -> bool:
    """Match the criteria that have no column."""
    if query.nvlink and not offer.nvlink:
        return False
    if query.rentable and offer.availability == 0:
        return False
    for ceiling in (query.max_price, query.max_total_price):
        if ceiling is not None and ceiling.currency != offer.price.currency:
            return False
    if query.provider is not None and offer.provider.lower() != query.provider.lower():
        return False
    return query.region is None or query.region.lower() in (offer.region or "").lower()


def _encode(words: list[str]) -> tuple[NDArray[np.int64], dict[str, int]]:
    codes: dict[str, int] = {}
    column = [codes.setdefault(word, len(codes)) for word in words]
    return np.array(column, dtype=np.int64), codes


def _column(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(numbers, dtype=np.int64)
