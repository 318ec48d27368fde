"""Catalogs that others publish: gpuhunt's and SkyPilot's CSV, and the gpuhunt library.

Both price an instance, all its GPUs included, in dollars an hour. gpuhunt has a row per instance,
location and tier; SkyPilot has both prices in a row, in columns whose order differs per cloud.
What SkyPilot says about memory is not read: its unit differs from file to file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from outlay.decoding import BadDocument, csv_rows, open_csv
from outlay.errors import Finding, InvalidValue, MissingExtra
from outlay.prices.gpus import resolve
from outlay.prices.offer import Offer, Parsed, Tier, nvlink_between, read_price
from outlay.prices.sources.base import SourceFailed
from outlay.units.quantity import exact_decimal

# A line of somebody else's catalog, whichever catalog it is.


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """One priced instance type in one region.

    Attributes:
        gpu: In the catalog's words.
        memory_gb: Of one GPU, where the catalog is reliable about it.
        price: Of an hour of the whole instance, as it was written.
    """

    instance: str
    region: str
    gpu: str
    memory_gb: float | None
    gpu_count: int
    price: str | float
    tier: Tier

    def offer(self, *, provider: str, source: str, fetched_ns: int) -> Offer:
        """Return the line as an offer; raises InvalidValue where it makes none."""
        gpu = resolve(self.gpu, self.memory_gb)
        if not gpu.form and _FORM.search(self.instance):
            gpu = resolve(f"{self.gpu} {_FORM.findall(self.instance)[0]}", self.memory_gb)
        nvlink = nvlink_between(f"{self.gpu} {self.instance}", gpu.name, self.gpu_count)
        return Offer(
            provider=provider,
            gpu=gpu.name,
            gpu_count=self.gpu_count,
            price=read_price(self.price),
            tier=self.tier,
            memory_gb=gpu.memory_gb,
            nvlink=nvlink,
            interconnect="NVLink" if nvlink else None,
            region=self.region or None,
            offer_id=self.instance or None,
            fetched_ns=fetched_ns,
            source=source,
        )


Line = Mapping[str, str]
_GPUHUNT = {"instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot"}
_SKYPILOT = {"InstanceType", "AcceleratorName", "AcceleratorCount", "Region", "Price", "SpotPrice"}
_FORM = re.compile(r"(?<![a-z])(sxm|pcie)", re.IGNORECASE)  # gpu_8x_h100_sxm5
_MOST = 1_000_000  # Beyond this a figure is a mistake.


@dataclass(frozen=True, slots=True)
class CsvSource:
    """Offers in a file; the provider is the file's name, or its directory's for ``vms.csv``."""

    path: Path

    @property
    def provider(self) -> str:
        """Whose offers these are."""
        return self.path.parent.name if self.path.stem == "vms" else self.path.stem

    @property
    def name(self) -> str:
        """The source's name; a new file of the same provider replaces the old."""
        return f"csv:{self.provider}"

    def load(self, fetched_ns: int) -> Parsed:
        """Read the file."""
        try:
            lines = open_csv(self.path)
            return parse_csv(lines, provider=self.provider, source=self.name, fetched_ns=fetched_ns)
        except (OSError, BadDocument) as error:
            raise SourceFailed(self.name, f"{self.path}: {error}") from None


def parse_csv(lines: Iterable[str], *, provider: str, source: str, fetched_ns: int) -> Parsed:
    """Return the offers in a catalog; a line that cannot be read is a finding.

    Raises:
        SourceFailed: The header is of neither dialect.
    """
    rows = csv_rows(lines)
    _, header = next(rows, (0, []))
    read = _dialect(header, source)
    offers: list[Offer] = []
    findings: list[Finding] = []
    for number, cells in rows:
        line = dict(zip(header, cells, strict=False))
        try:
            for found in read(line):
                offers.append(found.offer(provider=provider, source=source, fetched_ns=fetched_ns))
        except (InvalidValue, KeyError) as error:
            why = f"no {error} column" if isinstance(error, KeyError) else str(error)
            findings.append(Finding(source=source, line=number, message=why))
    return Parsed(offers=tuple(offers), findings=tuple(findings))


def _dialect(header: Sequence[str], source: str) -> Callable[[Line], Iterator[Listing]]:
    if _GPUHUNT.issubset(header):
        return _read_gpuhunt
    if _SKYPILOT.issubset(header):
        return _read_skypilot
    raise SourceFailed(source, "neither gpuhunt's nor SkyPilot's columns in its first line")


def _read_gpuhunt(line: Line) -> Iterator[Listing]:
    count = _whole(line["gpu_count"], "gpu_count")
    if count == 0 or not line["gpu_name"]:
        return  # a machine without a GPU
    spot = line["spot"].lower() == "true"
    yield Listing(
        instance=line["instance_name"],
        region=line["location"],
        gpu=line["gpu_name"],
        memory_gb=_number(line["gpu_memory"], "gpu_memory"),
        gpu_count=count,
        price=line["price"],
        tier=Tier.SPOT if spot else Tier.ON_DEMAND,
    )


def _read_skypilot(line: Line) -> Iterator[Listing]:
    if not line["AcceleratorName"]:
        return  # a machine without a GPU
    count = _whole(line["AcceleratorCount"], "AcceleratorCount")
    for column, tier in (("Price", Tier.ON_DEMAND), ("SpotPrice", Tier.SPOT)):
        if line[column]:
            yield Listing(
                instance=line["InstanceType"],
                region=line["Region"],
                gpu=line["AcceleratorName"],
                memory_gb=None,
                gpu_count=count,
                price=line[column],
                tier=tier,
            )


@lru_cache(maxsize=1024)
def _number(text: str, name: str) -> float | None:
    """Return a figure; an empty cell and a zero both mean that it is not known."""
    number = exact_decimal(text or "0", name=name, expected="a number")
    return float(number) if 0 < number < _MOST else None


@lru_cache(maxsize=1024)
def _whole(text: str, name: str) -> int:
    number = exact_decimal(text or "0", name=name, expected="a number")
    if not 0 <= number < _MOST or number != int(number):
        expected = "a whole number, zero or more; part of a GPU is not compared with GPUs"
        raise InvalidValue(name, text, expected)
    return int(number)


# Other providers, through the gpuhunt library (an extra).
#
# gpuhunt answers "no offers" where it has loaded nothing, so its catalog is loaded here first,
# and a provider that it could not load is a failure.


@dataclass(frozen=True, slots=True)
class GpuhuntSource:
    """Offers of one provider that gpuhunt knows."""

    provider: str

    @property
    def name(self) -> str:
        """The source's name."""
        return f"gpuhunt:{self.provider}"

    def load(self, fetched_ns: int) -> Parsed:
        """Ask gpuhunt for everything that the provider rents out with a GPU."""
        items = self._items()
        if not items:
            raise SourceFailed(self.name, "gpuhunt returned nothing, which is how it fails")
        return parse_gpuhunt(items, source=self.name, fetched_ns=fetched_ns)

    def _items(self) -> list[Any]:
        try:
            import gpuhunt
        except ImportError:
            raise MissingExtra("fetching prices of other providers", "gpuhunt") from None
        try:
            return list(gpuhunt.query(provider=self.provider, min_gpu_count=1))
        except Exception as error:
            raise SourceFailed(self.name, f"{type(error).__name__}: {error}"[:300]) from error


def parse_gpuhunt(items: Iterable[Any], *, source: str, fetched_ns: int) -> Parsed:
    """Return gpuhunt's catalog items as offers; one that makes none is a finding."""
    offers: list[Offer] = []
    findings: list[Finding] = []
    for item in items:
        listing = Listing(
            instance=item.instance_name,
            region=item.location,
            gpu=item.gpu_name or "",
            memory_gb=item.gpu_memory or None,
            gpu_count=item.gpu_count,
            price=item.price,
            tier=Tier.SPOT if item.spot else Tier.ON_DEMAND,
        )
        try:
            offers.append(
                listing.offer(provider=item.provider, source=source, fetched_ns=fetched_ns)
            )
        except InvalidValue as error:
            findings.append(Finding(source=source, message=f"{item.instance_name}: {error}"))
    return Parsed(offers=tuple(offers), findings=tuple(findings))
