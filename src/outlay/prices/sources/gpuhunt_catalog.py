"""Other providers, through the gpuhunt library (an extra).

gpuhunt answers "no offers" where it has loaded nothing, so its catalog is loaded here first, and a
provider that it could not load is a failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlay.errors import Finding, InvalidValue, MissingExtra
from outlay.prices.offer import Offer, Tier
from outlay.prices.sources.base import Parsed, SourceFailed
from outlay.prices.sources.listing import Listing


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
        return parse(items, source=self.name, fetched_ns=fetched_ns)

    def _items(self) -> list[Any]:
        try:
            import gpuhunt
        except ImportError:
            raise MissingExtra("fetching prices of other providers", "gpuhunt") from None
        try:
            return list(gpuhunt.query(provider=self.provider, min_gpu_count=1))
        except Exception as error:
            raise SourceFailed(self.name, f"{type(error).__name__}: {error}"[:300]) from error


def parse(items: Iterable[Any], *, source: str, fetched_ns: int) -> Parsed:
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
