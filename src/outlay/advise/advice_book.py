"""Recommendations in the store, without duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Engine, select

from outlay.advise.recommendation import OptimizationRecommendation, merged
from outlay.advise.run_advice import Circumstances, advise_run
from outlay.clock import as_utc, utc_datetime, wall_ns_of
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding
from outlay.goodput.follower import RunView
from outlay.store.connection import report_damage, upsert, writing
from outlay.store.schema import recommendations


class AdviceBook:
    """The table of recommendations.

    Attributes:
        damage: Findings about unreadable rows, which are skipped.
    """

    def __init__(self, store: Engine, damage: list[Finding] | None = None) -> None:
        self._store = store
        self.damage = [] if damage is None else damage

    def advise(
        self, view: RunView, around: Circumstances | None, now_ns: int
    ) -> list[OptimizationRecommendation]:
        """Return all recommendations for a run, and store them instead of its earlier ones."""
        at = utc_datetime(now_ns)
        found = [replace(each, timestamp=at) for each in advise_run(view, around)]
        self.record(found, instead_of=view.identity.run_id)
        return found

    def record(
        self, found: Sequence[OptimizationRecommendation], *, instead_of: str | None = None
    ) -> None:
        """Store recommendations; ``instead_of`` is a subject whose earlier ones are deleted."""
        rows = [
            {
                "key": each.key,
                "category": each.category,
                "subject": each.subject,
                "body": each.to_dict(),
                "at_ns": wall_ns_of(as_utc(each.timestamp)),
            }
            for each in found
        ]
        with writing(self._store) as connection:
            if instead_of is not None:
                mine = recommendations.c.subject == instead_of
                connection.execute(recommendations.delete().where(mine))
            upsert(connection, recommendations, rows, newer="at_ns")

    def since(self, since_ns: int) -> list[OptimizationRecommendation]:
        """Return the recommendations after an instant, largest saving first."""
        column = recommendations.c
        query = select(column.key, column.body).where(column.at_ns > since_ns)
        with self._store.begin() as connection:
            rows = connection.execute(query).all()
        found = []
        for key, body in rows:
            try:
                found.append(convert(body, OptimizationRecommendation))
            except BadDocument as error:
                report_damage(self.damage, f"advice {key!s}", str(error))
        return merged(found)
