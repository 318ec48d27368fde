"""Registered runs: where each is, and how it stood when it was last looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from sqlalchemy import Engine, Row, select

from outlay.decoding import BadDocument, convert
from outlay.errors import Finding
from outlay.store.engine import upsert, writing
from outlay.store.schema import runs
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One registered run. Instants are UTC nanoseconds; a cost of None means "no price".

    Attributes:
        dir: The run's directory, absolute.
        updated_ns: When this row was derived from the run log; of two rows the later one stays.
    """

    run_id: str
    dir: str
    model: str
    name: str
    status: str
    attempts: int
    steps: int
    tokens: int
    started_ns: int
    last_seen_ns: int
    user: str = ""
    host: str = ""
    gpu: str = ""
    gpus: int = 1
    tags: Mapping[str, str] = field(default_factory=dict)
    cost_micros: int | None = None
    currency: str | None = None
    ended_ns: int | None = None
    updated_ns: int

    @property
    def cost(self) -> Money | None:
        """What the run cost so far, where it had a price."""
        if self.cost_micros is None or self.currency is None:
            return None
        return Money(self.cost_micros, self.currency)


_COLUMNS = [field.name for field in fields(RunRow)]


def register(engine: Engine, rows: Iterable[RunRow]) -> None:
    """Insert or refresh runs; the same rows any number of times leave the same store."""
    values = [{name: getattr(row, name) for name in _COLUMNS} for row in rows]
    with writing(engine) as connection:
        upsert(connection, runs, values, newer="updated_ns")


def list_runs(
    engine: Engine,
    *,
    status: str | None = None,
    model: str | None = None,
    since_ns: int | None = None,
    limit: int | None = None,
    findings: list[Finding] | None = None,
) -> list[RunRow]:
    """Return registered runs, the latest started first.

    A row with a damaged cell is left out; collecting its run again mends it.

    Args:
        engine: From ``open_store``.
        status: Only runs with this status.
        model: Only runs of this model.
        since_ns: Only runs seen alive at or after this instant.
        limit: At most this many.
        findings: Where to put what is wrong with rows that were left out.
    """
    query = select(runs).order_by(runs.c.started_ns.desc(), runs.c.run_id).limit(limit)
    if status is not None:
        query = query.where(runs.c.status == status)
    if model is not None:
        query = query.where(runs.c.model == model)
    if since_ns is not None:
        query = query.where(runs.c.last_seen_ns >= since_ns)
    with engine.begin() as connection:
        found = connection.execute(query).all()
    rows: list[RunRow] = []
    for each in found:
        try:
            rows.append(_row(each))
        except BadDocument as error:
            if findings is not None:
                message = f"its row in the store is damaged ({error}); collect it again"
                findings.append(Finding(source=f"{each.dir or each.run_id}", message=message))
    return rows


def get(engine: Engine, run_id: str) -> RunRow | None:
    """Return one run, or None when it is not registered."""
    with engine.begin() as connection:
        found = connection.execute(select(runs).where(runs.c.run_id == run_id)).one_or_none()
    return None if found is None else _row(found)


def _row(found: Row[tuple[object, ...]]) -> RunRow:
    return convert({name: found._mapping[name] for name in _COLUMNS}, RunRow)
