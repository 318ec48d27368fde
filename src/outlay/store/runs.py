"""Runs and their figures: the row of each, stored, listed and filtered."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import ceil
from operator import add
from typing import Any

import msgspec
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    CursorResult,
    Engine,
    Result,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)

from outlay.decoding import BadDocument, convert
from outlay.errors import Finding
from outlay.files import FileStamp
from outlay.machine import host_key
from outlay.store.connection import (
    LARGEST,
    Excluded,
    database_ns,
    is_damaged,
    is_newer,
    upsert,
    writing,
)
from outlay.store.run_row import RunRow
from outlay.store.schema import cost_reports, runs, sightings
from outlay.units import Money
from outlay.units.money import KINDS, MICROS, sum_by_unit

FINDINGS_KEPT = 20
DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter of runs; None means any.

    Attributes:
        since_ns: Only runs with a sign of life at or after this instant.
        until_ns: Only runs started before this instant.
        tag: Name of a tag, and ``tag_value`` its value, if it matters.
        below: Only runs in directories below this one.
        offer: A part of the name of an offer at whose price they ran.
        text: Words that must all occur in name, id, model, user, host, status, directory or tags.
    """

    status: str | None = None
    model: str | None = None
    user: str | None = None
    tag: str | None = None
    tag_value: str | None = None
    since_ns: int | None = None
    is_priced: bool | None = None
    until_ns: int | None = None
    text: str = ""
    below: str = ""
    offer: str = ""

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield the WHERE conditions."""
        for name in ("status", "model", "user"):
            if (wanted := getattr(self, name)) is not None:
                yield runs.c[name] == wanted
        if self.tag is not None:
            value = runs.c.tags[self.tag].as_string()
            yield value.is_not(None) if self.tag_value is None else value == self.tag_value
        if self.since_ns is not None:
            yield runs.c.last_seen_ns >= self.since_ns
        if self.is_priced is not None:
            cost = runs.c.cost_micros
            yield cost.is_not(None) if self.is_priced else cost.is_(None)
        if self.until_ns is not None:
            yield runs.c.started_ns < self.until_ns
        if self.offer:
            yield cast(runs.c.charges, String).contains(self.offer, autoescape=True)
        if self.below:
            yield runs.c.dir.startswith(f"{self.below}/", autoescape=True)
        if self.text:
            # Searching one concatenated text is several times as fast as searching each column.
            every = reduce(add, (runs.c[name] + "\n" for name in _SEARCHED), literal(""))
            found = func.lower(every + cast(runs.c.tags, String))
            for word in self.text.lower().split():
                yield found.contains(word, autoescape=True)


_EVERY = RunFilter()
_SEARCHED = ("name", "run_id", "model", "user", "host", "status", "dir")
SORTED_BY = (
    "started_ns", "last_seen_ns", "name", "model", "user", "host", "status", "steps", "attempts",
    "cost_micros", "goodput", "metric_value",
)  # fmt: skip


GROUPED_BY = ("model", "user", "team", "project")
"""What runs are grouped by: a column, or the tag of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs with the same model, user, team or project, and what they cost.

    Attributes:
        name: "" of those without any.
        costs: One sum for each unit.
    """

    name: str
    count: int
    costs: tuple[Money, ...]


def register(engine: Engine, rows: Iterable[RunRow]) -> None:
    """Insert or update runs, as seen from this host; idempotent.

    A run that several hosts see is one run. Its row is the one from the longest log, and of the
    same host, or the same length, the last.
    """
    # In one order, so that two hosts that register the same runs do not wait for each other.
    values = [_values(row) for row in sorted(rows, key=lambda row: row.run_id)]
    if not values:
        return
    with writing(engine) as connection:
        seen = {"seen_from": host_key(), "seen_ns": database_ns(connection)}
        upsert(connection, runs, [each | seen for each in values], wins=_wins)
        sighted = [
            {name: each[name] for name in ("run_id", "dir", "log_bytes", "log_mtime_ns")}
            | {"host": seen["seen_from"], "seen_ns": seen["seen_ns"]}
            for each in values
        ]
        upsert(connection, sightings, sighted, newer="seen_ns")


def _wins(new: Excluded) -> ColumnElement[bool]:
    """Return the condition that a row replaces the one in the store.

    Clocks of two hosts are not compared: the one that is ahead would always win.
    """
    kept = runs.c
    is_same_host = func.coalesce(kept.seen_from, new.seen_from) == new.seen_from
    is_as_long = func.coalesce(kept.log_bytes, -1) <= func.coalesce(new.log_bytes, -1)
    is_damaged_size = kept.log_bytes > LARGEST
    return or_(
        and_(is_same_host, is_newer(runs, new, "updated_ns")),
        and_(~is_same_host, or_(is_as_long, is_damaged_size)),
    )


def delete_runs(engine: Engine, run_ids: Iterable[str]) -> None:
    """Delete runs from the store; their logs are not touched."""
    names = list(run_ids)
    if names:
        with writing(engine) as connection:
            for table in (runs, sightings):
                connection.execute(delete(table).where(table.c.run_id.in_(names)))


def end_replaced(engine: Engine, run_ids: Mapping[str, str]) -> None:
    """Mark runs of this host as dead whose log another has replaced; ``run_ids`` by directory.

    Their figures stay as they were last read: the log that is there now is not theirs.
    """
    column = runs.c
    unended = select(column.run_id, column.dir).where(
        column.ended_ns.is_(None),
        column.status != DEAD,
        func.coalesce(column.seen_from, host_key()) == host_key(),
    )
    with engine.begin() as connection:
        found = connection.execute(unended).all()
    replaced = [run_id for run_id, path in found if run_ids.get(path, run_id) != run_id]
    if replaced:
        named = column.run_id.in_(replaced)
        with writing(engine) as connection:
            connection.execute(update(runs).where(named).values(status=DEAD))


def list_runs(
    engine: Engine,
    wanted: RunFilter = _EVERY,
    *,
    limit: int | None = None,
    offset: int = 0,
    sort: str = "-started_ns",
    with_charges: bool = False,
    group: str = "",
) -> list[RunRow]:
    """Return registered runs: at most ``limit``, after the first ``offset``.

    ``sort`` is one of ``SORTED_BY``, with a leading minus for descending order; NULLs come last.
    ``group`` is one of ``GROUPED_BY``: its runs come one after another, those without any last.
    """
    by = runs.c[sort.removeprefix("-")]
    order = by.desc() if sort.startswith("-") else by.asc()
    columns = EVERY if with_charges else LISTED
    query = select(*columns).where(*wanted.conditions()).limit(limit).offset(offset or None)
    if group:
        query = query.order_by(_group_name(group) == "", _group_name(group))
    query = query.order_by(by.is_(None), order, runs.c.run_id)
    with engine.begin() as connection:
        return rows_from(connection.execute(query))


def count_runs(engine: Engine, wanted: RunFilter = _EVERY) -> int:
    """Return how many runs are registered."""
    query = select(func.count()).select_from(runs).where(*wanted.conditions())
    with engine.begin() as connection:
        return connection.execute(query).scalar_one()


def version_of_runs(engine: Engine) -> object:
    """Return a value that changes when a run or a stated training does."""
    with engine.begin() as connection:
        found = [
            connection.execute(select(func.count(), func.max(table.c.updated_ns))).one()
            for table in (runs, cost_reports)
        ]
    return tuple(map(tuple, found))


def _group_name(by: str) -> ColumnElement[str]:
    own = runs.c[by] if by in runs.c else runs.c.tags[by].as_string()
    return func.coalesce(own, "")


def run_groups(engine: Engine, wanted: RunFilter = _EVERY, by: str = "") -> list[RunGroup]:
    """Return how many runs there are and what they cost, by one of ``GROUPED_BY``.

    Without ``by`` they are one group. Groups are in the order of ``list_runs``.
    """
    cells, name = runs.c, (_group_name(by) if by else literal("")).label("name")
    beside = cells.figures["cost_beside"]
    has_beside = cells.figures["cost_beside", 0, "currency"].as_string().is_not(None)
    # Whole units and micro-units apart, because a database's sum must not exceed 64 bits.
    parts = (func.sum(cells.cost_micros // MICROS), func.sum(cells.cost_micros % MICROS))
    sums = select(name, cells.currency, cells.kind, func.count(), *parts)
    sums = sums.where(*wanted.conditions()).group_by(name, cells.currency, cells.kind)
    others = select(name, cells.kind, beside).where(has_beside)
    with engine.begin() as connection:
        found = connection.execute(sums).all()
        found_beside = connection.execute(others.where(*wanted.conditions())).all()
    counts: Counter[str] = Counter()
    costs: dict[str, Counter[tuple[str, str]]] = {}
    for group, currency, kind, count, whole, rest in found:
        counts[group] += count
        own = costs.setdefault(group, Counter())
        if currency is not None and whole is not None:
            own[currency, kind or KINDS[0]] += int(whole) * MICROS + int(rest)
    for group, kind, amounts in found_beside:
        for each in amounts:
            costs[group][each["currency"], kind or KINDS[0]] += each["micros"]
    return [
        RunGroup(name=group, count=counts[group], costs=_amounts(costs[group]))
        for group in sorted(counts, key=lambda each: (not each, each))
    ]


def _amounts(micros: Mapping[tuple[str, str], int]) -> tuple[Money, ...]:
    known = (
        Money(whole, currency).as_kind(kind)
        for (currency, stated), whole in micros.items()
        for kind in KINDS
        if kind == stated
    )
    return tuple(sum_by_unit(known))


def run_dirs(engine: Engine) -> list[str]:
    """Return the directories of registered runs, latest start first."""
    with engine.begin() as connection:
        found = connection.execute(select(runs.c.dir).order_by(runs.c.started_ns.desc()))
        return [str(directory) for (directory,) in found]


def runs_in(engine: Engine, dirs: Sequence[str]) -> dict[str, str]:
    """Return the ids of the registered runs in some directories, by directory."""
    column = runs.c
    found = select(column.dir, column.run_id).where(column.dir.in_(dirs))
    with engine.begin() as connection:
        return {str(path): str(run_id) for path, run_id in connection.execute(found)}


def sighted_here(engine: Engine) -> dict[str, FileStamp]:
    """Return the size and mtime of each log when it was last read from this host, by directory."""
    seen = sightings.c
    query = select(seen.dir, seen.log_bytes, seen.log_mtime_ns).where(seen.host == host_key())
    with engine.begin() as connection:
        rows = connection.execute(query.order_by(seen.seen_ns)).all()
    return {path: FileStamp(size or 0, mtime_ns or 0) for path, size, mtime_ns in rows}


def values_of(engine: Engine, column: str, *, limit: int) -> list[str]:
    """Return the distinct non-empty values of a column, or of a tag, of registered runs, sorted."""
    cell = _group_name(column)
    with engine.begin() as connection:
        query = select(cell).where(cell != "").distinct().order_by(cell).limit(limit)
        return [str(value) for (value,) in connection.execute(query)]


def outdated_runs(engine: Engine, *, figures_version: int, newest: int) -> list[RunRow]:
    """Return the runs whose rows may be outdated.

    These are runs without an end, damaged rows, rows of an older ``figures_version``, and of those
    seen from this host the ``newest`` by last sign of life.
    """
    is_own = func.coalesce(runs.c.seen_from, host_key()) == host_key()
    last_seen = select(runs.c.run_id).where(is_own).order_by(runs.c.last_seen_ns.desc())
    version = runs.c.figures_version
    query = select(*LISTED).where(
        or_(
            runs.c.ended_ns.is_(None),
            version.is_(None),
            version < figures_version,
            is_damaged(runs),
            runs.c.run_id.in_(last_seen.limit(newest).scalar_subquery()),
        )
    )
    with engine.begin() as connection:
        return rows_from(connection.execute(query))


def damaged_logs(engine: Engine) -> list[Finding]:
    """Return the first error in the log of each registered run that has one."""
    query = select(runs.c.dir, runs.c.findings).where(runs.c.findings.is_not(None))
    with engine.begin() as connection:
        rows = connection.execute(query.order_by(runs.c.started_ns, runs.c.run_id)).all()
    found = []
    for directory, kept in rows:
        with contextlib.suppress(BadDocument):
            findings = convert(kept or (), tuple[Finding, ...])
            errors = [each for each in findings if each.severity == "error"]
            if errors:
                more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
                found.append(Finding(source=str(directory), message=errors[0].message + more))
    return found


def get(engine: Engine, run_id: str) -> RunRow | None:
    """Return one run, or None if it is not registered."""
    with engine.begin() as connection:
        found = rows_from(connection.execute(select(*EVERY).where(runs.c.run_id == run_id)))
    return found[0] if found else None


def _values(row: RunRow) -> dict[str, Any]:
    """Return the cells of a row: its columns, and the document of its other figures."""
    figures = msgspec.to_builtins(row)
    del figures["log_host"], figures["as_of_ns"]  # Of who reads it.
    if isinstance(row.gpus, int):
        del figures["gpus"]  # The column has it.
    cells = {name: figures.pop(name) for name in _PLAIN}
    cost = row.cost
    return cells | {
        "cost_micros": None if cost is None else cost.micros,
        "currency": None if cost is None else cost.currency,
        "assumed_micros": 0 if row.assumed is None else row.assumed.micros,
        "gpus": ceil(Fraction(row.gpus)),
        "findings": figures.pop("findings")[:FINDINGS_KEPT] or None,
        "figures": {n: v for n, v in figures.items() if v is not None and n != "cost"},
    }


def unstorable(row: RunRow) -> str | None:
    """Return why the database would reject a row (and the batch with it), or None."""
    for name, value in _values(row).items():
        if isinstance(value, int) and abs(value) > LARGEST:
            return f"its {name} of {value} is more than a database holds"
        if isinstance(value, str) and not _is_storable(value):
            return f"its {name} is no text that a database holds"
    return None


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # A path need not be Unicode.
        return False


_PLAIN = [
    name for name in RunRow.__struct_fields__ if name in runs.c and name not in ("gpus", "findings")
]
"""The figures that a column of the same name holds as they are."""
_NEVER_NULL = {column.name for column in runs.c if not column.nullable}
_HERE: BindParameter[str] = bindparam("here", callable_=host_key, type_=String)
_OWN_DIR = case(
    (or_(runs.c.seen_from.is_(None), runs.c.seen_from == _HERE), runs.c.dir),
    else_=select(sightings.c.dir)
    .where(sightings.c.run_id == runs.c.run_id, sightings.c.host == _HERE)
    .correlate(runs)
    .scalar_subquery(),
).label("own_dir")
"""The directory of a run's log on this host; NULL if it was never read from here."""
EVERY: list[ColumnElement[Any]] = [*runs.c, _OWN_DIR]
"""What ``rows_from`` reads."""
LISTED = [column for column in EVERY if column is not runs.c.charges]
"""The same for a list: nested charges are parsed only on request."""


def rows_from(found: Result[Any]) -> list[RunRow]:
    """Return the result of a query of ``EVERY`` column, or of all ``LISTED`` ones."""
    names = [str(name) for name in found.keys()]  # noqa: SIM118
    # A store in a file is on a file system that the logs are on, too.
    is_shared = isinstance(found, CursorResult) and found.dialect.name != "sqlite"
    rows = (dict(zip(names, values, strict=True)) for values in found.all())
    return [_row(_placed(cells, is_shared=is_shared)) for cells in rows]


def _placed(cells: dict[str, Any], *, is_shared: bool) -> dict[str, Any]:
    """Return the cells of a row as seen from this host.

    The directory of a log on another host begins with its name: a path of here may be another's.
    """
    own, host, seen_ns = (cells.pop(name) for name in ("own_dir", "seen_from", "seen_ns"))
    if own is not None:
        return cells | {"dir": own}
    name = str(host).partition("@")[0]
    if not is_shared:
        return cells
    return cells | {"dir": f"{name}:{cells['dir']}", "log_host": name, "as_of_ns": seen_ns}


def _row(cells: dict[str, Any]) -> RunRow:
    currency, micros = cells.pop("currency"), cells.pop("cost_micros")
    assumed, more = cells.pop("assumed_micros"), cells.pop("figures")
    known = {name: cell for name, cell in cells.items() if cell is not None or name in _NEVER_NULL}
    if micros is not None and currency is not None:
        known["cost"] = {"micros": micros, "currency": currency}
        known["assumed"] = {"micros": assumed or 0, "currency": currency}
    try:
        figures = more if isinstance(more, dict) else convert(more or {}, dict[str, Any])
        return convert(known | figures, RunRow)
    except BadDocument as error:
        return _damaged(cells, str(error))


def _damaged(cells: dict[str, Any], problem: str) -> RunRow:
    """Return the readable part of a damaged row, which the next collection derives anew."""
    directory = str(cells["dir"])
    message = f"its row in the store is damaged ({problem}); collect it again"
    return RunRow(
        run_id=str(cells["run_id"]), dir=directory, model=str(cells["model"]),
        name=str(cells["name"]), status="damaged", attempts=0, steps=0, tokens=0, started_ns=0,
        last_seen_ns=0, updated_ns=0, findings=(Finding(source=directory, message=message),),
    )  # fmt: skip
