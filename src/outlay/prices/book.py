"""The price book: every snapshot ever taken, and what was offered at any instant.

Append-only. A snapshot replaces the one before it of the same source: an offer that is missing
from it is gone. Two sets of offers of one source at one instant are one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, or_, select

from outlay.prices.alerts import AlertRules
from outlay.prices.current import write_quotes
from outlay.prices.gpus import matching_names
from outlay.prices.offer import Offer, Tier, cheapest_first
from outlay.prices.recording import record_snapshot
from outlay.prices.rows import offer_from
from outlay.prices.snapshot import Snapshot
from outlay.store.engine import writing
from outlay.store.schema import price_offers, price_series, price_snapshots


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How a source stands.

    Attributes:
        loaded_ns: When it was last loaded; None means never, which is not "no offers".
        offers: What that snapshot held.
        failure: Why the latest attempt failed, where it did.
    """

    source: str
    loaded_ns: int | None
    offers: int
    quarantined: int
    failure: str | None


class PriceBook:
    """Snapshots in the store."""

    def __init__(self, store: Engine, *, rules: AlertRules | None = None) -> None:
        self._store = store
        self._rules = rules or AlertRules()

    def record(self, snapshots: Iterable[Snapshot], *, alerting: bool = True) -> None:
        """Append snapshots, all or none; alerts are judged against the snapshots before them.

        Args:
            snapshots: Of any sources.
            alerting: Off for history that is imported: nobody wants last year's alerts today.
        """
        with writing(self._store) as connection:
            for snapshot in snapshots:
                record_snapshot(connection, snapshot, self._rules if alerting else None)

    def publish(self) -> None:
        """Write what is on offer now to the price file, where runs find prices by name.

        Of two processes that publish at once the later has seen what both recorded.
        """
        with writing(self._store):
            write_quotes(self.offers())

    def offers(
        self, *, at_ns: int | None = None, gpu: str | None = None, tier: Tier | None = None
    ) -> list[Offer]:
        """Return what was on offer at an instant (now if None), in every source's last word.

        Args:
            at_ns: Snapshots after it do not count.
            gpu: A card or a family.
            tier: Only these terms.
        """
        query = _offers_in(latest_snapshots(at_ns))
        with self._store.begin() as connection:
            if gpu is not None:
                query = query.where(price_offers.c.gpu.in_(_names_of(connection, gpu)))
            if tier is not None:
                query = query.where(price_offers.c.tier == tier.value)
            return [offer_from(row) for row in connection.execute(query).mappings()]

    def price_at(
        self,
        gpu: str,
        at_ns: int,
        *,
        tier: Tier | None = None,
        provider: str | None = None,
        currency: str = "USD",
    ) -> Offer | None:
        """Return the cheapest offer of a GPU as of an instant, or None where none was known.

        Args:
            gpu: A card or a family.
            at_ns: Snapshots after it do not count.
            tier: Only these terms.
            provider: Only this provider's.
            currency: Prices of different currencies are not compared.
        """
        column = price_offers.c
        query = _offers_in(latest_snapshots(at_ns)).where(column.currency == currency).limit(1)
        query = query.order_by(
            column.per_gpu_micros, column.price_micros, price_snapshots.c.source, column.position
        )
        if tier is not None:
            query = query.where(column.tier == tier.value)
        if provider is not None:
            query = query.where(column.provider == provider)
        with self._store.begin() as connection:
            names = _names_of(connection, gpu)
            row = connection.execute(query.where(column.gpu.in_(names))).mappings().first()
        return None if row is None else offer_from(row)

    def cheapest_rentable(self) -> list[Offer]:
        """Return, for each provider, GPU and tier, the cheapest offer not known to be sold out.

        Where several sources speak of the same, the one that looked last is believed.
        """
        column = price_offers.c
        rank = func.row_number().over(
            partition_by=[column.provider, column.gpu, column.tier, column.currency],
            order_by=[price_snapshots.c.fetched_ns.desc(), column.per_gpu_micros, column.position],
        )
        rentable = or_(column.availability.is_(None), column.availability > 0)
        ranked = _offers_in(latest_snapshots(None)).where(rentable).add_columns(rank.label("rank"))
        first = ranked.subquery()
        with self._store.begin() as connection:
            rows = connection.execute(select(first).where(first.c.rank == 1)).mappings()
            return sorted((offer_from(row) for row in rows), key=cheapest_first)

    def observed(self, *, source_prefix: str) -> Iterator[Offer]:
        """Return every offer ever seen in sources whose name starts so, in the order of time."""
        column = price_snapshots.c
        query = _offers_in(select(column.id).where(column.source.startswith(source_prefix)))
        query = query.order_by(column.fetched_ns, column.id, price_offers.c.position)
        with self._store.begin() as connection:
            for row in connection.execute(query).mappings():
                yield offer_from(row)

    def sources(self) -> list[SourceState]:
        """Return how every source stands, by name."""
        column = price_snapshots.c
        with self._store.begin() as connection:
            names = connection.scalars(select(column.source).distinct().order_by(column.source))
            return [_state_of(connection, name) for name in names.all()]


def latest_snapshots(at_ns: int | None) -> Select[tuple[int]]:
    """Select the id of each source's last loaded snapshot, by one index look-up per source."""
    sources = select(price_series.c.source).distinct().subquery()
    column = price_snapshots.c
    last = (
        select(column.id)
        .where(column.source == sources.c.source, column.failed.is_(False))
        .order_by(column.fetched_ns.desc())
        .limit(1)
    )
    if at_ns is not None:
        last = last.where(column.fetched_ns <= at_ns)
    return select(last.scalar_subquery()).select_from(sources)


def _offers_in(snapshots: Select[tuple[int]]) -> Select[Any]:
    column = price_snapshots.c
    joined = price_offers.join(price_snapshots, price_offers.c.snapshot_id == column.id)
    query = select(price_offers, column.source, column.fetched_ns).select_from(joined)
    return query.where(price_offers.c.snapshot_id.in_(snapshots))


def _names_of(connection: Connection, gpu: str) -> Sequence[str]:
    known = connection.scalars(select(price_series.c.gpu).distinct()).all()
    return sorted(matching_names(gpu, known))


def _state_of(connection: Connection, source: str) -> SourceState:
    column = price_snapshots.c
    newest = (
        select(price_snapshots)
        .where(column.source == source)
        .order_by(column.fetched_ns.desc())
        .limit(1)
    )
    last = connection.execute(newest).one()
    loaded = connection.execute(newest.where(column.failed.is_(False))).one_or_none()
    return SourceState(
        source=source,
        loaded_ns=None if loaded is None else loaded.fetched_ns,
        offers=0 if loaded is None else loaded.offers,
        quarantined=0 if loaded is None else loaded.quarantined,
        failure=last.findings[0]["message"] if last.failed and last.findings else None,
    )
