"""Vendors with an HTTP API (Lambda, RunPod, Vast.ai), and sources by the name that a user types.

Each vendor has a pure function from a response body to offers. Another package adds a source with
an entry point in ``outlay.prices`` for a function that returns an ``OfferSource``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from outlay import plugins
from outlay.errors import InvalidValue, choices
from outlay.prices.gpus import resolve
from outlay.prices.offer import Offer, OfferSource, Parsed, SourceFailed, Tier, nvlink_between
from outlay.prices.sources.catalogs import GpuhuntSource
from outlay.prices.sources.http import (
    Amount,
    Count,
    HttpVendor,
    VendorSource,
    numbered,
    parse_body,
    parse_rows,
)
from outlay.units import Money

# Lambda
#
# ``GET /api/v1/instance-types`` returns a map from type name to type and regions. Prices are whole
# cents per hour **per instance**; there is no spot. An empty list of regions means sold out.

_MICROS_PER_CENT = 10_000
_SIZE_IN_NAME = re.compile(r"^gpu_\d+x_")


class _LambdaResponse(msgspec.Struct):
    data: dict[str, msgspec.Raw]


class _Specs(msgspec.Struct):
    gpus: Count | None = None


class _InstanceType(msgspec.Struct):
    name: str
    price_cents_per_hour: Annotated[int, msgspec.Meta(ge=0, le=10**8)]
    specs: _Specs
    gpu_description: str | None = None


class _Region(msgspec.Struct):
    name: str


class _LambdaEntry(msgspec.Struct):
    instance_type: _InstanceType
    regions_with_capacity_available: list[_Region] = []


def parse_lambda(body: bytes, fetched_ns: int) -> Parsed:
    """Return the offers in a response."""
    response = parse_body("lambda", body, _LambdaResponse)
    return parse_rows(
        "lambda",
        response.data.items(),
        _LambdaEntry,
        lambda entry: _lambda_offers(entry, fetched_ns),
    )


def _lambda_offers(entry: _LambdaEntry, fetched_ns: int) -> Iterator[Offer]:
    kind = entry.instance_type
    gpus = kind.specs.gpus or 0
    if gpus == 0:
        return  # A CPU instance.
    described = kind.gpu_description or _SIZE_IN_NAME.sub("", kind.name)
    gpu = resolve(described)
    nvlink = nvlink_between(f"{kind.name} {described}", gpu.name, gpus)
    regions: list[str | None] = [region.name for region in entry.regions_with_capacity_available]
    for region in regions or [None]:
        yield Offer(
            provider="lambda",
            gpu=gpu.name,
            gpu_count=gpus,
            price=Money(kind.price_cents_per_hour * _MICROS_PER_CENT),
            memory_gb=gpu.memory_gb,
            nvlink=nvlink,
            interconnect="NVLink" if nvlink else None,
            region=region,
            availability=0 if region is None else 1,
            offer_id=kind.name,
            fetched_ns=fetched_ns,
            source="lambda",
        )


LAMBDA = HttpVendor(
    name="lambda",
    method="GET",
    url="https://cloud.lambda.ai",
    url_name="OUTLAY_LAMBDA_URL",
    path="/api/v1/instance-types",
    key_name="LAMBDA_API_KEY",
    needs_key=True,
    parse=parse_lambda,
)


# RunPod
#
# ``POST /graphql`` returns ``{"data": {"gpuTypes": [...]}}``, or HTTP 200 with ``errors``. Prices
# are dollars per hour **per GPU**, so an offer of several GPUs costs that many times the figure.

_RUNPOD_QUERY = """
query GpuTypes {
  gpuTypes {
    id displayName memoryInGb maxGpuCount maxGpuCountCommunityCloud maxGpuCountSecureCloud
    secureCloud communityCloud securePrice communityPrice secureSpotPrice communitySpotPrice
    oneWeekPrice oneMonthPrice threeMonthPrice sixMonthPrice
    lowestPrice(input: {gpuCount: 1}) { minimumBidPrice uninterruptablePrice stockStatus }
  }
}
"""


class _GraphqlError(msgspec.Struct):
    message: str = "no message"


class _GpuTypes(msgspec.Struct):
    gpuTypes: list[msgspec.Raw] | None = None  # noqa: N815  (RunPod's spelling)


class _RunpodResponse(msgspec.Struct):
    data: _GpuTypes | None = None
    errors: list[_GraphqlError] | None = None


class _LowestPrice(msgspec.Struct):
    stock: str | msgspec.UnsetType | None = msgspec.field(name="stockStatus", default=msgspec.UNSET)


class _RunpodGpuType(msgspec.Struct, rename="camel"):
    id: str
    display_name: str | None = None
    memory_in_gb: Count | None = None
    max_gpu_count: Count | None = None
    max_gpu_count_community_cloud: Count | None = None
    max_gpu_count_secure_cloud: Count | None = None
    secure_cloud: bool | None = None
    community_cloud: bool | None = None
    secure_price: Amount | None = None
    community_price: Amount | None = None
    secure_spot_price: Amount | None = None
    community_spot_price: Amount | None = None
    one_week_price: Amount | None = None
    one_month_price: Amount | None = None
    three_month_price: Amount | None = None
    six_month_price: Amount | None = None
    lowest_price: _LowestPrice | None = None


def parse_runpod(body: bytes, fetched_ns: int) -> Parsed:
    """Return the offers in a response."""
    response = parse_body("runpod", body, _RunpodResponse)
    if response.data is None or response.data.gpuTypes is None:
        errors = "; ".join(error.message for error in response.errors or [])
        raise SourceFailed("runpod", (errors or "a response without data")[:300])
    return parse_rows(
        "runpod",
        numbered(response.data.gpuTypes),
        _RunpodGpuType,
        lambda row: _runpod_offers(row, fetched_ns),
    )


def _runpod_offers(row: _RunpodGpuType, fetched_ns: int) -> Iterator[Offer]:
    gpu = resolve(row.id, row.memory_in_gb)
    secure = _first(row.max_gpu_count_secure_cloud, row.max_gpu_count)
    community = _first(row.max_gpu_count_community_cloud, row.max_gpu_count)

    def offers(
        price: float | None, tier: Tier, most_gpus: int, *, suffix: str = "", shared: bool = False
    ) -> Iterator[Offer]:
        if not price:  # RunPod sends 0 as well as null for terms that it does not offer.
            return
        each = Money.parse(price)
        for count in _pod_sizes(most_gpus):
            nvlink = nvlink_between(f"{row.id} {row.display_name or ''}", gpu.name, count)
            yield Offer(
                provider="runpod",
                gpu=gpu.name,
                gpu_count=count,
                price=each * count,
                tier=tier,
                community=shared,
                memory_gb=gpu.memory_gb,
                nvlink=nvlink,
                interconnect="NVLink" if nvlink else None,
                availability=_runpod_availability(row),
                offer_id=row.id + suffix,
                fetched_ns=fetched_ns,
                source="runpod",
            )

    if row.secure_cloud is not False:
        yield from offers(row.secure_price, Tier.ON_DEMAND, secure)
        yield from offers(row.secure_spot_price, Tier.SPOT, secure)
        yield from offers(row.one_week_price, Tier.RESERVED, secure, suffix=" (1 week)")
        yield from offers(row.one_month_price, Tier.RESERVED, secure, suffix=" (1 month)")
        yield from offers(row.three_month_price, Tier.RESERVED, secure, suffix=" (3 months)")
        yield from offers(row.six_month_price, Tier.RESERVED, secure, suffix=" (6 months)")
    if row.community_cloud is not False:
        yield from offers(row.community_price, Tier.ON_DEMAND, community, shared=True)
        yield from offers(row.community_spot_price, Tier.SPOT, community, shared=True)


def _first(*counts: int | None) -> int:
    return next((count for count in counts if count is not None), 1)


def _pod_sizes(most: int) -> list[int]:
    """Return the GPU counts that pods come in: powers of two, and the maximum."""
    powers = [1 << power for power in range(10) if 1 << power <= most]
    return powers if not most or most in powers else [*powers, most]


def _runpod_availability(row: _RunpodGpuType) -> int | None:
    """RunPod sends High, Medium or Low, and null for sold out; older responses omit the field."""
    if row.lowest_price is None or row.lowest_price.stock is msgspec.UNSET:
        return None
    return 1 if row.lowest_price.stock else 0


RUNPOD = HttpVendor(
    name="runpod",
    method="POST",
    url="https://api.runpod.io",
    url_name="OUTLAY_RUNPOD_URL",
    path="/graphql",
    body={"query": _RUNPOD_QUERY},
    key_name="RUNPOD_API_KEY",
    parse=parse_runpod,
)


# Vast.ai: a marketplace of third-party machines
#
# ``POST /api/v0/bundles/`` returns ``{"offers": [...]}``. Prices are dollars per hour for **all**
# GPUs of an offer; ``dph_total`` includes the requested storage, ``min_bid`` (the minimum bid for
# an interruptible rental) does not. Memory is in MB.

_VAST_SEARCH = {
    "verified": {"eq": True},
    "external": {"eq": False},
    "rentable": {"eq": True},
    "rented": {"eq": False},
    "order": [["dph_total", "asc"]],
    "type": "on-demand",
    "limit": 10_000,
    "allocated_storage": 10.0,
}


class _VastResponse(msgspec.Struct):
    offers: list[msgspec.Raw]


class _VastOffer(msgspec.Struct):
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


def parse_vast(body: bytes, fetched_ns: int) -> Parsed:
    """Return the offers in a response."""
    response = parse_body("vast", body, _VastResponse)
    return parse_rows(
        "vast", numbered(response.offers), _VastOffer, lambda row: _vast_offers(row, fetched_ns)
    )


def _vast_offers(row: _VastOffer, fetched_ns: int) -> Iterator[Offer]:
    whole = row.dph_total if row.dph_total is not None else row.dph_base
    if whole is not None:
        yield _vast_offer(row, Money.parse(whole), Tier.ON_DEMAND, fetched_ns)
    if row.min_bid is not None:
        # Both tiers include the same storage, so that they are comparable.
        bid = Money.parse(row.min_bid) + Money.parse(row.storage_total_cost or 0)
        yield _vast_offer(row, bid, Tier.SPOT, fetched_ns)


def _vast_offer(row: _VastOffer, price: Money, tier: Tier, fetched_ns: int) -> Offer:
    gpu = resolve(row.gpu_name, _in_range(row.gpu_ram, 1 << 30, per=1024))
    taken = row.rentable is False or row.rented is True
    mbps = _in_range(row.inet_down, 1 << 40)
    nvlink = None
    if row.num_gpus > 1 and row.bw_nvlink is not None:
        nvlink = row.bw_nvlink > 0
    return Offer(
        provider="vast",
        gpu=gpu.name,
        gpu_count=row.num_gpus,
        price=price,
        tier=tier,
        # Hosting type 1 is a data centre verified by Vast; the others are private machines.
        community=row.hosting_type != 1,
        memory_gb=gpu.memory_gb,
        nvlink=nvlink,
        interconnect="NVLink" if nvlink else None,
        bandwidth_mbps=None if mbps is None else round(mbps),
        region=row.geolocation or None,
        availability=0 if taken else 1,
        storage_price=None if row.storage_cost is None else Money.parse(row.storage_cost),
        cuda=None if row.cuda_max_good is None else f"{row.cuda_max_good:g}",
        offer_id=str(row.id)[:64],
        fetched_ns=fetched_ns,
        source="vast",
    )


def _in_range(number: float | None, most: int, *, per: int = 1) -> float | None:
    """Return a figure divided by ``per``; None if it is missing or out of range."""
    return None if number is None or not 0 < number <= most else number / per


VAST = HttpVendor(
    name="vast",
    method="POST",
    url="https://console.vast.ai",
    url_name="OUTLAY_VAST_URL",
    path="/api/v0/bundles/",
    body=_VAST_SEARCH,
    key_name="VAST_API_KEY",
    parse=parse_vast,
)


# Sources by name

VENDORS = {vendor.name: vendor for vendor in (RUNPOD, LAMBDA, VAST)}
_GPUHUNT = "gpuhunt:"


def sources_named(names: Iterable[str]) -> list[OfferSource]:
    """Return the sources with the given names, without duplicates.

    Raises:
        InvalidValue: There is no source of that name.
    """
    return [_source(name) for name in dict.fromkeys(names)]


def _source(name: str) -> OfferSource:
    if name in VENDORS:
        return VendorSource(VENDORS[name])
    if name.startswith(_GPUHUNT) and len(name) > len(_GPUHUNT):
        return GpuhuntSource(name.removeprefix(_GPUHUNT))
    plugin = plugins.load(plugins.PRICES, name)
    if plugin is not None:
        source: OfferSource = plugin()
        return source
    known = [*VENDORS, f"{_GPUHUNT}PROVIDER", *plugins.names(plugins.PRICES)]
    raise InvalidValue("source", name, choices(known))
