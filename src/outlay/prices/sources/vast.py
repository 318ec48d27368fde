"""Vast.ai: a market place of other people's machines.

``POST /api/v0/bundles/`` answers ``{"offers": [...]}``. Prices are dollars an hour for **all** GPUs
of an offer; ``dph_total`` includes the storage asked for, ``min_bid`` (what an interruptible
rental must bid) does not. Memory is in MB.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from outlay.prices.gpus import resolve
from outlay.prices.offer import Offer, Parsed, Tier
from outlay.prices.sources.http import Amount, Count, HttpVendor, numbered, read_answer, read_rows
from outlay.units import Money

NAME = "vast"
_SEARCH = {
    "verified": {"eq": True},
    "external": {"eq": False},
    "rentable": {"eq": True},
    "rented": {"eq": False},
    "order": [["dph_total", "asc"]],
    "type": "on-demand",
    "limit": 10_000,
    "allocated_storage": 10.0,
}


class VastAnswer(msgspec.Struct):
    """The whole answer; a row is read on its own, so that a bad one is alone."""

    offers: list[msgspec.Raw]


class VastOffer(msgspec.Struct):
    """The fields of an offer that outlay reads, in the vendor's words and units."""

    id: int
    gpu_name: str
    num_gpus: Count
    dph_total: Amount | None = None
    dph_base: Amount | None = None
    min_bid: Amount | None = None
    storage_total_cost: Amount | None = None
    storage_cost: Amount | None = None
    gpu_ram: float | None = None
    bw_nvlink: float | None = None
    inet_down: float | None = None
    cuda_max_good: float | None = None
    geolocation: str | None = None
    rentable: bool | None = None
    rented: bool | None = None
    hosting_type: int | None = None


def parse(body: bytes, fetched_ns: int) -> Parsed:
    """Return the offers in an answer; pure."""
    answer = read_answer(NAME, body, VastAnswer)
    return read_rows(
        NAME, numbered(answer.offers), VastOffer, lambda row: _offers_of(row, fetched_ns)
    )


def _offers_of(row: VastOffer, fetched_ns: int) -> Iterator[Offer]:
    whole = row.dph_total if row.dph_total is not None else row.dph_base
    if whole is not None:
        yield _offer(row, Money.parse(whole), Tier.ON_DEMAND, fetched_ns)
    if row.min_bid is not None:
        # Both tiers pay for the same storage, so that they compare.
        bid = Money.parse(row.min_bid) + Money.parse(row.storage_total_cost or 0)
        yield _offer(row, bid, Tier.SPOT, fetched_ns)


def _offer(row: VastOffer, price: Money, tier: Tier, fetched_ns: int) -> Offer:
    gpu = resolve(row.gpu_name, _small(row.gpu_ram, 1 << 30, per=1024))
    taken = row.rentable is False or row.rented is True
    mbps = _small(row.inet_down, 1 << 40)
    return Offer(
        provider=NAME,
        gpu=gpu.name,
        gpu_count=row.num_gpus,
        price=price,
        tier=tier,
        # Hosting type 1 is a data centre that Vast has checked; the rest are private machines.
        community=row.hosting_type != 1,
        memory_gb=gpu.memory_gb,
        nvlink=_nvlink(row),
        interconnect="NVLink" if _nvlink(row) else None,
        bandwidth_mbps=None if mbps is None else round(mbps),
        region=row.geolocation or None,
        availability=0 if taken else 1,
        storage_price=None if row.storage_cost is None else Money.parse(row.storage_cost),
        cuda=None if row.cuda_max_good is None else f"{row.cuda_max_good:g}",
        offer_id=str(row.id)[:64],
        fetched_ns=fetched_ns,
        source=NAME,
    )


def _nvlink(row: VastOffer) -> bool | None:
    if row.num_gpus < 2 or row.bw_nvlink is None:
        return None
    return row.bw_nvlink > 0


def _small(number: float | None, most: int, *, per: int = 1) -> float | None:
    """Return a figure in its larger unit, or None where it is missing or out of range."""
    return None if number is None or not 0 < number <= most else number / per


VAST = HttpVendor(
    name=NAME,
    method="POST",
    url="https://console.vast.ai",
    url_name="OUTLAY_VAST_URL",
    path="/api/v0/bundles/",
    body=_SEARCH,
    key_name="VAST_API_KEY",
    parse=parse,
)
