"""The price book: fetched snapshots in the store, and the offers at any point in time.

Append-only. A source's snapshot replaces its previous one: offers missing from it are gone. Two
sets of offers of one source at the same instant are one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, RowMapping, Select, func, or_, select

from outlay.clock import SYSTEM, Clock
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, OutlayError
from outlay.prices.alerts import AlertRules
from outlay.prices.current import write_quotes
from outlay.prices.gpus import matching_names
from outlay.prices.names import Quote
from outlay.prices.offer import (
    MANUAL,
    Offer,
    OfferSource,
    Snapshot,
    SourceFailed,
    Tier,
    cheapest_first,
    screen,
)
from outlay.prices.recording import (
    MACHINE_COLUMNS,
    offer_from,
    read_rows,
    record_snapshots,
    series_key,
)
from outlay.store.connection import LARGEST, report_damage, writing
from outlay.store.schema import price_offers, price_series, price_snapshots
from outlay.units.quantity import NS_PER_HOUR


def fetch(source: OfferSource, *, clock: Clock = SYSTEM) -> Snapshot:
    """Load a source and return a screened snapshot; a failure is a snapshot too."""
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
    """Fetch all sources concurrently and return their snapshots in the given order.

    ``on_done`` is called with each snapshot as it arrives, to show progress.
    """
    if not sources:
        return []
    with ThreadPoolExecutor(max_workers=len(sources)) as pool:
        fetches = [pool.submit(fetch, source) for source in sources]
        for done in as_completed(fetches):
            if on_done is not None:
                on_done(done.result())
        return [each.result() for each in fetches]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The state of a source.

    Attributes:
        loaded_ns: When it was last loaded; None means never, which is not "no offers".
        offers: Number of offers in that snapshot.
        failure: Why the latest fetch failed, if it did.
    """

    source: str
    loaded_ns: int | None = None
    offers: int = 0
    quarantined: int = 0
    failure: str | None = None


_by_name = attrgetter("provider", "gpu", "gpus", "tier", "community", "region", "offer_id")


class _SnapshotCells(msgspec.Struct):
    fetched_ns: int
    offers: int
    quarantined: int
    failed: bool
    findings: list[dict[str, Any]] | None


MAX_AGE_NS = 30 * 24 * NS_PER_HOUR
"""Older prices are ignored unless the user asks for them."""


class PriceBook:
    """Snapshots in the store.

    Attributes:
        damage: Findings about unreadable rows, which are skipped.
    """

    def __init__(self, store: Engine, *, rules: AlertRules | None = None) -> None:
        self._store = store
        self._rules = rules or AlertRules()
        self.damage: list[Finding] = []

    def record(self, snapshots: Iterable[Snapshot]) -> None:
        """Append snapshots in one transaction, with the alerts that they raise."""
        with writing(self._store) as connection:
            record_snapshots(connection, snapshots, self._rules)

    def publish(self) -> None:
        """Write the current offers to the price file, where runs look up prices by name.

        The write lock makes concurrent publishers take turns, so the last one sees all offers.
        """
        with writing(self._store):
            write_quotes(self._quotes())

    def _quotes(self) -> list[Quote]:
        column, snapshot = price_offers.c, price_snapshots.c
        columns = (  # In the order of a quote's fields.
            column.provider, column.gpu, column.gpu_count, column.tier, column.community,
            func.coalesce(column.region, ""), func.coalesce(column.offer_id, ""),
            column.per_gpu_micros, column.price_micros, column.currency, snapshot.source,
            snapshot.fetched_ns, column.terms,
        )  # fmt: skip
        joined = price_offers.join(price_snapshots, column.snapshot_id == snapshot.id)
        query = select(*columns).select_from(joined)
        query = query.where(column.snapshot_id.in_(latest_snapshots(None)))
        with self._store.begin() as connection:
            rows = connection.execute(query).all()
        try:
            names = Quote.__struct_fields__
            found = convert([dict(zip(names, row, strict=True)) for row in rows], list[Quote])
        except BadDocument:  # Skip only the damaged rows.
            found = list(map(Quote.of, self.offers()))
        return sorted(found, key=_by_name)

    def offers(
        self,
        *,
        at_ns: int | None = None,
        gpu: str | None = None,
        tier: Tier | None = None,
        source_prefix: str = "",
    ) -> list[Offer]:
        """Return the offers in each source's last snapshot at an instant (None: now).

        ``gpu`` is a card or a family.
        """
        query = _offers_in(latest_snapshots(at_ns))
        if source_prefix:
            query = query.where(price_snapshots.c.source.startswith(source_prefix))
        with self._store.begin() as connection:
            if gpu is not None:
                query = query.where(price_offers.c.gpu.in_(_names_of(connection, gpu)))
            if tier is not None:
                query = query.where(price_offers.c.tier == tier.value)
            return list(self._read(connection.execute(query).mappings()))

    def cheapest_rentable(self, *, since_ns: int = 0) -> list[Offer]:
        """Return the cheapest offer not known to be sold out per machine and terms.

        A machine is a provider, a GPU with its form factor, and a GPU count. If several sources
        offer the same one, the newest snapshot wins. Offers last seen before ``since_ns`` are
        excluded, except manually set ones.
        """
        column, snapshot = price_offers.c, price_snapshots.c
        rank = func.row_number().over(
            partition_by=[column[name] for name in MACHINE_COLUMNS],
            order_by=[snapshot.fetched_ns.desc(), column.per_gpu_micros, column.position],
        )
        rentable = or_(column.availability.is_(None), column.availability > 0)
        recent = or_(snapshot.fetched_ns >= since_ns, snapshot.source.startswith(MANUAL))
        known_now = _offers_in(latest_snapshots(None)).where(rentable, recent)
        ranked = known_now.add_columns(rank.label("rank"))
        first, known = ranked.subquery(), len(self.damage)
        query = select(first).order_by(first.c.rank)
        with self._store.begin() as connection:
            rows = connection.execute(query.where(first.c.rank == 1)).mappings()
            offers = list(self._read(rows))
            if len(self.damage) > known:  # The next offer replaces a damaged one.
                offers = list(self._read(connection.execute(query).mappings()))
        cheapest: dict[tuple[object, ...], Offer] = {}
        for offer in offers:
            cheapest.setdefault(series_key(offer)[1:], offer)
        return sorted(cheapest.values(), key=cheapest_first)

    def observed(self, *, source_prefix: str) -> Iterator[Offer]:
        """Return every recorded offer of the sources with a name prefix, in order of time."""
        column = price_snapshots.c
        query = _offers_in(select(column.id).where(column.source.startswith(source_prefix)))
        query = query.order_by(column.fetched_ns, column.id, price_offers.c.position)
        with self._store.begin() as connection:
            yield from self._read(connection.execute(query).mappings())

    def sources(self) -> list[SourceState]:
        """Return the state of every source, sorted by name."""
        column = price_snapshots.c
        with self._store.begin() as connection:
            names = connection.scalars(select(column.source).distinct().order_by(column.source))
            undated = select(column.source).where(column.fetched_ns > LARGEST)
            for name in connection.scalars(undated):
                report_damage(self.damage, f"snapshot of {name!s}", "it has no instant")
            states = [self._state_of(connection, name) for name in names.all()]
        return [state for state in states if state is not None]

    def _read(self, rows: Iterable[RowMapping]) -> Iterator[Offer]:
        return read_rows(rows, offer_from, "offer", self.damage)

    def _state_of(self, connection: Connection, source: object) -> SourceState | None:
        """Return a source's state; None if nothing of it can be read."""
        if not isinstance(source, str):
            report_damage(self.damage, f"snapshot of {source!s}", "its source is not text")
            return None
        column = price_snapshots.c
        names = _SnapshotCells.__struct_fields__
        newest = (
            select(*(column[name] for name in names))
            .where(column.source == source, column.fetched_ns <= LARGEST)
            .order_by(column.fetched_ns.desc())
            .limit(1)
        )
        last = connection.execute(newest).first()
        loaded = connection.execute(newest.where(column.failed.is_(False))).first()
        try:
            latest, held = (
                None if row is None else convert(dict(zip(names, row, strict=True)), _SnapshotCells)
                for row in (last, loaded)
            )
        except BadDocument as error:
            report_damage(self.damage, f"snapshot of {source}", str(error))
            at_ns = None if loaded is None else loaded.fetched_ns
            return SourceState(source=source, loaded_ns=at_ns if isinstance(at_ns, int) else None)
        failure = None
        if latest is not None and latest.failed and latest.findings:
            failure = str(latest.findings[0].get("message", "it failed"))
        if held is None:
            return SourceState(source=source, failure=failure)
        return SourceState(
            source=source,
            loaded_ns=held.fetched_ns,
            offers=held.offers,
            quarantined=held.quarantined,
            failure=failure,
        )


def latest_snapshots(at_ns: int | None) -> Select[tuple[int]]:
    """Select the id of each source's last loaded snapshot, with one index lookup per source."""
    sources = select(price_series.c.source).distinct().subquery()
    column = price_snapshots.c
    last = (
        select(column.id)
        .where(
            column.source == sources.c.source,
            column.failed.is_(False),
            column.fetched_ns <= (LARGEST if at_ns is None else at_ns),
        )
        .order_by(column.fetched_ns.desc())
        .limit(1)
    )
    return select(last.scalar_subquery()).select_from(sources)


def _offers_in(snapshots: Select[tuple[int]]) -> Select[Any]:
    column = price_snapshots.c
    joined = price_offers.join(price_snapshots, price_offers.c.snapshot_id == column.id)
    query = select(price_offers, column.source, column.fetched_ns).select_from(joined)
    return query.where(price_offers.c.snapshot_id.in_(snapshots))


def _names_of(connection: Connection, gpu: str) -> Sequence[str]:
    known = connection.scalars(select(price_series.c.gpu).distinct()).all()
    return sorted(matching_names(gpu, [name for name in known if isinstance(name, str)]))


# Search


class NothingLoaded(OutlayError):
    """No prices were ever loaded, as opposed to no matching offers."""

    def __init__(self) -> None:
        super().__init__(
            "no prices have been loaded yet. Load some: outlay prices fetch, set or import."
        )


def anything_loaded(book: PriceBook) -> bool:
    """Return whether any source was ever loaded."""
    return any(state.loaded_ns is not None for state in book.sources())


def require_loaded(book: PriceBook) -> list[SourceState]:
    """Return the state of every source.

    Raises:
        NothingLoaded: No source was ever loaded.
    """
    states = book.sources()
    if all(state.loaded_ns is None for state in states):
        raise NothingLoaded
    return states
