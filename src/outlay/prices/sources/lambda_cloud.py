"""Lambda: instance types at a price, in the regions that have some left.

``GET /api/v1/instance-types`` answers a map from type name to type and regions. Prices are whole
cents an hour **per instance**; there is no spot. An empty list of regions means sold out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from outlay.prices.gpus import resolve
from outlay.prices.offer import Offer, Parsed, nvlink_between
from outlay.prices.sources.http import Count, HttpVendor, read_answer, read_rows
from outlay.units import Money

NAME = "lambda"
MICROS_PER_CENT = 10_000
_SIZE_IN_NAME = re.compile(r"^gpu_\d+x_")


class LambdaAnswer(msgspec.Struct):
    """The whole answer; a type is read on its own."""

    data: dict[str, msgspec.Raw]


class Specs(msgspec.Struct):
    """What an instance is made of."""

    gpus: Count | None = None


class InstanceType(msgspec.Struct):
    """One type of instance."""

    name: str
    price_cents_per_hour: Annotated[int, msgspec.Meta(ge=0, le=10**8)]
    specs: Specs
    gpu_description: str | None = None


class Region(msgspec.Struct):
    """A place that has some left."""

    name: str


class LambdaType(msgspec.Struct):
    """One entry of the map."""

    instance_type: InstanceType
    regions_with_capacity_available: list[Region] = []


def parse(body: bytes, fetched_ns: int) -> Parsed:
    """Return the offers in an answer; pure."""
    answer = read_answer(NAME, body, LambdaAnswer)
    return read_rows(
        NAME, answer.data.items(), LambdaType, lambda entry: _offers_of(entry, fetched_ns)
    )


def _offers_of(entry: LambdaType, fetched_ns: int) -> Iterator[Offer]:
    kind = entry.instance_type
    gpus = kind.specs.gpus or 0
    if gpus == 0:
        return  # a CPU instance
    described = kind.gpu_description or _SIZE_IN_NAME.sub("", kind.name)
    gpu = resolve(described)
    nvlink = nvlink_between(f"{kind.name} {described}", gpu.name, gpus)
    regions: list[str | None] = [region.name for region in entry.regions_with_capacity_available]
    for region in regions or [None]:
        yield Offer(
            provider=NAME,
            gpu=gpu.name,
            gpu_count=gpus,
            price=Money(kind.price_cents_per_hour * MICROS_PER_CENT),
            memory_gb=gpu.memory_gb,
            nvlink=nvlink,
            interconnect="NVLink" if nvlink else None,
            region=region,
            availability=0 if region is None else 1,
            offer_id=kind.name,
            fetched_ns=fetched_ns,
            source=NAME,
        )


LAMBDA = HttpVendor(
    name=NAME,
    method="GET",
    url="https://cloud.lambda.ai",
    url_name="OUTLAY_LAMBDA_URL",
    path="/api/v1/instance-types",
    key_name="LAMBDA_API_KEY",
    needs_key=True,
    parse=parse,
)
