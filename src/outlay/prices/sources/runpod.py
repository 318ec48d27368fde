"""RunPod: GPU types with secure and community prices, each on demand and spot.

``POST /graphql`` answers ``{"data": {"gpuTypes": [...]}}``, or HTTP 200 with ``errors``. Prices are
dollars an hour **per GPU**, so an offer of several GPUs costs that many times the figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from outlay.prices.gpus import resolve
from outlay.prices.offer import Offer, Parsed, Tier, nvlink_between
from outlay.prices.sources.base import SourceFailed
from outlay.prices.sources.http import Amount, Count, HttpVendor, numbered, read_answer, read_rows
from outlay.units import Money

NAME = "runpod"
QUERY = """
query GpuTypes {
  gpuTypes {
    id displayName memoryInGb maxGpuCount maxGpuCountCommunityCloud maxGpuCountSecureCloud
    secureCloud communityCloud securePrice communityPrice secureSpotPrice communitySpotPrice
    oneWeekPrice oneMonthPrice threeMonthPrice sixMonthPrice
    lowestPrice(input: {gpuCount: 1}) { minimumBidPrice uninterruptablePrice stockStatus }
  }
}
"""


class GraphqlError(msgspec.Struct):
    """One error of a GraphQL answer."""

    message: str = "no message"


class GpuTypes(msgspec.Struct):
    """The data of the answer; a row is read on its own."""

    gpuTypes: list[msgspec.Raw] | None = None  # noqa: N815  (RunPod's spelling)


class RunpodAnswer(msgspec.Struct):
    """The whole answer: data, errors, or both."""

    data: GpuTypes | None = None
    errors: list[GraphqlError] | None = None


class LowestPrice(msgspec.Struct):
    """How much of a GPU type is left."""

    stock: str | msgspec.UnsetType | None = msgspec.field(name="stockStatus", default=msgspec.UNSET)


class RunpodGpuType(msgspec.Struct, rename="camel"):
    """The fields of a GPU type that outlay reads, in the vendor's units."""

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
    lowest_price: LowestPrice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One price of a GPU type and what it is for."""

    price: float
    tier: Tier
    community: bool
    most_gpus: int
    suffix: str = ""


def parse(body: bytes, fetched_ns: int) -> Parsed:
    """Return the offers in an answer; pure."""
    answer = read_answer(NAME, body, RunpodAnswer)
    if answer.data is None or answer.data.gpuTypes is None:
        said = "; ".join(error.message for error in answer.errors or []) or "an answer without data"
        raise SourceFailed(NAME, said[:300])
    return read_rows(
        NAME,
        numbered(answer.data.gpuTypes),
        RunpodGpuType,
        lambda row: _offers_of(row, fetched_ns),
    )


def _offers_of(row: RunpodGpuType, fetched_ns: int) -> Iterator[Offer]:
    gpu = resolve(row.id, row.memory_in_gb)
    for term in _terms(row):
        each = Money.parse(term.price)
        for count in usual_counts(term.most_gpus):
            nvlink = nvlink_between(f"{row.id} {row.display_name or ''}", gpu.name, count)
            yield Offer(
                provider=NAME,
                gpu=gpu.name,
                gpu_count=count,
                price=each * count,
                tier=term.tier,
                community=term.community,
                memory_gb=gpu.memory_gb,
                nvlink=nvlink,
                interconnect="NVLink" if nvlink else None,
                availability=_availability(row),
                offer_id=row.id + term.suffix,
                fetched_ns=fetched_ns,
                source=NAME,
            )


def _terms(row: RunpodGpuType) -> Iterator[Term]:
    secure = _first(row.max_gpu_count_secure_cloud, row.max_gpu_count)
    community = _first(row.max_gpu_count_community_cloud, row.max_gpu_count)
    if row.secure_cloud is not False:
        yield from _term(row.secure_price, Tier.ON_DEMAND, secure)
        yield from _term(row.secure_spot_price, Tier.SPOT, secure)
        yield from _term(row.one_week_price, Tier.RESERVED, secure, suffix=" (1 week)")
        yield from _term(row.one_month_price, Tier.RESERVED, secure, suffix=" (1 month)")
        yield from _term(row.three_month_price, Tier.RESERVED, secure, suffix=" (3 months)")
        yield from _term(row.six_month_price, Tier.RESERVED, secure, suffix=" (6 months)")
    if row.community_cloud is not False:
        yield from _term(row.community_price, Tier.ON_DEMAND, community, community=True)
        yield from _term(row.community_spot_price, Tier.SPOT, community, community=True)


def _term(
    price: float | None, tier: Tier, most: int, *, community: bool = False, suffix: str = ""
) -> Iterator[Term]:
    # RunPod writes 0 as well as null where it does not offer something.
    if price is not None and price != 0:
        yield Term(price=price, tier=tier, community=community, most_gpus=most, suffix=suffix)


def _first(*counts: int | None) -> int:
    return next((count for count in counts if count is not None), 1)


def usual_counts(most: int) -> list[int]:
    """Return the numbers of GPUs that pods are made of: powers of two, and the most there is."""
    powers = [1 << power for power in range(10) if 1 << power <= most]
    return powers if not most or most in powers else [*powers, most]


def _availability(row: RunpodGpuType) -> int | None:
    """RunPod says High, Medium or Low, and null for sold out; older answers do not say."""
    if row.lowest_price is None or row.lowest_price.stock is msgspec.UNSET:
        return None
    return 1 if row.lowest_price.stock else 0


RUNPOD = HttpVendor(
    name=NAME,
    method="POST",
    url="https://api.runpod.io",
    url_name="OUTLAY_RUNPOD_URL",
    path="/graphql",
    body={"query": QUERY},
    key_name="RUNPOD_API_KEY",
    parse=parse,
)
