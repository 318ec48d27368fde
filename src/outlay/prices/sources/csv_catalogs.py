"""Catalogs that others publish as CSV: gpuhunt's and SkyPilot's, told apart by their header.

Both price an instance, all its GPUs included, in dollars an hour. gpuhunt has a row per instance,
location and tier; SkyPilot has both prices in a row, in columns whose order differs per cloud. What
SkyPilot says about memory is not read: its unit differs from file to file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlay.decoding import BadDocument, csv_rows, open_csv
from outlay.errors import Finding, InvalidValue
from outlay.prices.offer import Offer, Tier
from outlay.prices.sources.base import Parsed, SourceFailed
from outlay.prices.sources.listing import Listing
from outlay.units.numbers import exact_decimal

Line = Mapping[str, str]
_GPUHUNT = {"instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot"}
_SKYPILOT = {"InstanceType", "AcceleratorName", "AcceleratorCount", "Region", "Price", "SpotPrice"}
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
            return parse(lines, provider=self.provider, source=self.name, fetched_ns=fetched_ns)
        except (OSError, BadDocument) as error:
            raise SourceFailed(self.name, f"{self.path}: {error}") from None


def parse(lines: Iterable[str], *, provider: str, source: str, fetched_ns: int) -> Parsed:
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


def _number(text: str, name: str) -> float | None:
    """Return a figure; an empty cell and a zero both mean that it is not known."""
    number = exact_decimal(text or "0", name=name, expected="a number")
    return float(number) if 0 < number < _MOST else None


def _whole(text: str, name: str) -> int:
    number = exact_decimal(text or "0", name=name, expected="a number")
    if not 0 <= number < _MOST or number != int(number):
        expected = "a whole number, zero or more; part of a GPU is not compared with GPUs"
        raise InvalidValue(name, text, expected)
    return int(number)
