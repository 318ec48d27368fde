"""One look at one source: what it offered at an instant, or why nothing is known."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.errors import Finding
from outlay.prices.offer import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one fetch of one source brought.

    Attributes:
        fetched_ns: When, UTC nanoseconds; every offer of the fetch carries the same instant.
        offers: What passed screening.
        findings: What was quarantined, unreadable or, for a failed fetch, why it failed.
        failed: Nothing was loaded. Not the same as a source that has nothing to offer.
    """

    source: str
    fetched_ns: int
    offers: tuple[Offer, ...] = ()
    findings: tuple[Finding, ...] = ()
    failed: bool = False
