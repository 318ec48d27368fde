"""What a source of offers is, and asking several of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from outlay.clock import SYSTEM, Clock
from outlay.errors import Finding, OutlayError
from outlay.prices.offer import Parsed, Snapshot, screen


class SourceFailed(OutlayError):
    """A source could not be loaded; says which, why, and what may help."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason


class OfferSource(Protocol):
    """Somewhere that offers come from."""

    @property
    def name(self) -> str:
        """What findings and stored snapshots call it."""

    def load(self, fetched_ns: int) -> Parsed:
        """Return its offers, stamped with the instant.

        Raises:
            SourceFailed: Nothing could be loaded.
        """


def fetch(source: OfferSource, *, clock: Clock = SYSTEM) -> Snapshot:
    """Return one screened snapshot of a source; a failure is a snapshot too."""
    now_ns = clock.wall_ns()
    try:
        parsed = source.load(now_ns)
    except OutlayError as error:
        reason = error.reason if isinstance(error, SourceFailed) else str(error)
        finding = Finding(source=source.name, message=f"not loaded: {reason}")
        return Snapshot(source=source.name, fetched_ns=now_ns, findings=(finding,), failed=True)
    screened = screen(parsed.offers)
    return Snapshot(
        source=source.name,
        fetched_ns=now_ns,
        offers=screened.offers,
        findings=parsed.findings + screened.findings,
    )


def fetch_all(
    sources: Sequence[OfferSource], *, on_done: Callable[[Snapshot], None] | None = None
) -> list[Snapshot]:
    """Ask every source at once and return a snapshot of each, in the order given.

    ``on_done`` is called with each snapshot as it arrives, for showing progress.
    """
    if not sources:
        return []
    with ThreadPoolExecutor(max_workers=len(sources)) as pool:
        asked = [pool.submit(fetch, source) for source in sources]
        for answer in as_completed(asked):
            if on_done is not None:
                on_done(answer.result())
        return [answer.result() for answer in asked]
