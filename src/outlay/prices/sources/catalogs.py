"""Offers without a vendor's API: gpuhunt's and SkyPilot's catalogs, and manually set prices.

Both catalogs list dollars per hour for an instance with all its GPUs. gpuhunt has a row per
instance, location and tier; SkyPilot has both tiers in a row, with columns ordered differently per
cloud. SkyPilot's memory column is ignored: its unit differs from file to file.
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
from outlay.prices.offer import (
    MANUAL,
    Offer,
    Parsed,
    SourceFailed,
    Tier,
    nvlink_between,
    read_price,
)
from outlay.units import Rate
from outlay.units.billing_terms import BillingTerms
from outlay.units.quantity import exact_decimal


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a catalog: one priced instance type in one region.

    Attributes:
        gpu: The catalog's name for it.
        memory_gb: Per GPU, if the catalog is reliable about it.
        price: Per hour of the whole instance, as written.
    """

    instance: str
    region: str
    gpu: str
    memory_gb: float | None
    gpu_count: int
    price: str | float
    tier: Tier

    def offer(self, *, provider: str, source: str, fetched_ns: int) -> Offer:
        """Return the row as an offer; raises InvalidValue if it is not a valid one."""
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
_MAX_FIGURE = 1_000_000  # Larger figures are mistakes.


@dataclass(frozen=True, slots=True)
class CsvSource:
    """Offers in a CSV file; the provider is the file's name, or its directory's for ``vms.csv``."""

    path: Path

    @property
    def provider(self) -> str:
        """The provider whose offers these are."""
        return self.path.parent.name if self.path.stem == "vms" else self.path.stem

    @property
    def name(self) -> str:
        """The source's name; a new file of the same provider replaces the old offers."""
        return f"csv:{self.provider}"

    def load(self, fetched_ns: int) -> Parsed:
        """Read the file."""
        try:
            lines = open_csv(self.path)
            return parse_csv(lines, provider=self.provider, source=self.name, fetched_ns=fetched_ns)
        except (OSError, BadDocument) as error:
            raise SourceFailed(self.name, f"{self.path}: {error}") from None


def parse_csv(lines: Iterable[str], *, provider: str, source: str, fetched_ns: int) -> Parsed:
    """Return the offers in a catalog; an unreadable line is a finding.

    Raises:
        SourceFailed: The header is neither gpuhunt's nor SkyPilot's.
    """
    rows = csv_rows(lines)
    _, header = next(rows, (0, []))
    read = _row_parser(header, source)
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


def _row_parser(header: Sequence[str], source: str) -> Callable[[Line], Iterator[Listing]]:
    if _GPUHUNT.issubset(header):
        return _read_gpuhunt
    if _SKYPILOT.issubset(header):
        return _read_skypilot
    raise SourceFailed(source, "its first line has neither gpuhunt's nor SkyPilot's columns")


def _read_gpuhunt(line: Line) -> Iterator[Listing]:
    count = _whole(line["gpu_count"], "gpu_count")
    if count == 0 or not line["gpu_name"]:
        return  # A machine without a GPU.
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
        return  # A machine without a GPU.
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
    """Return a figure; an empty cell and a zero both mean unknown."""
    number = exact_decimal(text or "0", name=name, expected="a number")
    return float(number) if 0 < number < _MAX_FIGURE else None


@lru_cache(maxsize=1024)
def _whole(text: str, name: str) -> int:
    number = exact_decimal(text or "0", name=name, expected="a number")
    if not 0 <= number < _MAX_FIGURE or number != int(number):
        expected = "a whole number, zero or more; a fraction of a GPU cannot be compared"
        raise InvalidValue(name, text, expected)
    return int(number)


# The gpuhunt library (an extra)


@dataclass(frozen=True, slots=True)
class GpuhuntSource:
    """Offers of one provider through the gpuhunt library."""

    provider: str

    @property
    def name(self) -> str:
        """The source's name."""
        return f"gpuhunt:{self.provider}"

    def load(self, fetched_ns: int) -> Parsed:
        """Query gpuhunt for all of the provider's offers with a GPU."""
        items = self._items()
        if not items:  # gpuhunt returns an empty list if it could not load the provider.
            raise SourceFailed(self.name, "gpuhunt returned no offers, which is how it fails")
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
    """Return gpuhunt's catalog items as offers; an invalid one is a finding."""
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


# Manually set prices


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualSource:
    """One manually set offer: a contract, a quote, or the rate of one's own cluster.

    Attributes:
        price: Per GPU-hour.
        offer_id: The id of the one instance or offer that it is for, if any.
    """

    provider: str
    gpu: str
    price: Rate
    gpu_count: int = 1
    tier: Tier = Tier.ON_DEMAND
    region: str | None = None
    offer_id: str | None = None
    terms: BillingTerms | None = None

    @property
    def name(self) -> str:
        """A source name per machine and terms, so that one price does not replace another."""
        tier = "" if self.tier is Tier.ON_DEMAND else f":{self.tier}"
        size = "" if self.gpu_count == 1 else f":{self.gpu_count}x"
        instance = f":{self.offer_id}" if self.offer_id else ""
        return f"{MANUAL}{self.provider}:{resolve(self.gpu).name}{size}{tier}{instance}"

    def load(self, fetched_ns: int) -> Parsed:
        """Return the offer."""
        gpu = resolve(self.gpu)
        offer = Offer(
            provider=self.provider,
            gpu=gpu.name,
            gpu_count=self.gpu_count,
            price=(self.price * self.gpu_count).per_hour,
            tier=self.tier,
            memory_gb=gpu.memory_gb,
            region=self.region,
            offer_id=self.offer_id,
            fetched_ns=fetched_ns,
            source=self.name,
            terms=self.terms,
        )
        return Parsed(offers=(offer,))
