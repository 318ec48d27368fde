"""Cost reports, model budgets and what was told about them, in the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Engine, or_, select

from outlay.decoding import BadDocument, convert
from outlay.errors import Finding
from outlay.ledger.price import Kind
from outlay.store.engine import is_damaged, upsert, writing
from outlay.store.runs import RunRow, rows_from
from outlay.store.schema import budget_alerts, cost_reports, model_budgets, runs
from outlay.units import Money


class AttemptCharge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt of a run cost within one UTC month, or the time between it and the next.

    Attributes:
        start_ns: The time that is paid for; ``end_ns`` does not belong to it.
        booked_ns: In which month it counts. Time between two attempts counts when the next one
            begins: until then nobody knows that it is to be paid, and a month that is over does not
            change.
        micros: What it cost; the charges of a run sum to its cost exactly.
        assumed_micros: What of that is assumed.
        gpu_us: GPUs times microseconds that the attempt ran.
        user: Who started the attempt; ``tags`` and ``machine`` (its vendor's id) likewise.
        provider: Whom its price names; "" where the price was typed.
        between: It is the time after the attempt, up to the next.
    """

    start_ns: int
    end_ns: int
    booked_ns: int
    micros: int
    assumed_micros: int = 0
    gpu_us: int = 0
    user: str = ""
    tags: dict[str, str] = {}
    machine: str = ""
    provider: str = ""
    between: bool = False


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the store keeps of a run's cost.

    Attributes:
        source: ``stated`` by a training, or derived from its ``ledger``.
        gpu_us: GPUs times microseconds; ``wall_us`` likewise without the GPUs.
        at_ns: When the training ended, or was looked at.
        metrics: The documented metrics as they were stated.
        updated_ns: Of two rows of one run the later stays.
        kind: Of the cost; rows of two kinds are never added.
        assumed_micros: What of the cost is assumed: no record says whether it was to be paid.
        charges: The cost by attempt and month; None of a stated one, and where not asked for.
    """

    run_id: str
    model: str
    source: str
    cost_micros: int
    currency: str
    gpu_us: int
    wall_us: int
    energy_mj: int | None = None
    samples: int = 0
    epochs: float = 0.0
    tokens: int | None = None
    accuracy: float | None = None
    loss: float | None = None
    at_ns: int
    metrics: dict[str, Any] | None = None
    updated_ns: int
    kind: Kind = "cash"
    assumed_micros: int = 0
    charges: tuple[AttemptCharge, ...] | None = None

    @property
    def cost(self) -> Money:
        """What the run cost."""
        return Money(self.cost_micros, self.currency)

    @property
    def assumed(self) -> Money:
        """What of the cost is assumed."""
        return Money(self.assumed_micros, self.currency)


# What is nested is parsed only where it is asked for: thousands of rows are summarised.
_COLUMNS = CostRow.__struct_fields__
_ABSENT: dict[str, Any] = {"kind": "cash", "assumed_micros": 0}
"""What a column that was added later holds where it is null."""
_FIGURES = [name for name in _COLUMNS if name not in ("metrics", "charges")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted:
    """What a budget of one currency counts of some runs, and what it does not.

    Attributes:
        spent: In cash; only where no run was paid for, in showback.
        beside: What was paid in other currencies, or is of the other kind, by currency.
    """

    spent: Money
    assumed: Money
    beside: tuple[Money, ...] = ()


def budgeted(rows: Iterable[CostRow], currency: str) -> Budgeted:
    """Return what of some runs counts in a budget of a currency."""
    rows = list(rows)
    kinds = {row.kind for row in rows if row.currency == currency}
    kind: Kind = "showback" if kinds == {"showback"} else "cash"
    counted = [row for row in rows if (row.currency, row.kind) == (currency, kind)]
    beside: dict[str, int] = {}
    for row in rows:
        if (row.currency, row.kind) != (currency, kind):
            beside[row.currency] = beside.get(row.currency, 0) + row.cost_micros
    return Budgeted(
        spent=Money(sum(row.cost_micros for row in counted), currency),
        assumed=Money(sum(row.assumed_micros for row in counted), currency),
        beside=tuple(Money(micros, other) for other, micros in sorted(beside.items())),
    )


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """What may be spent on all runs of a model together; another limit has another ``set_ns``."""

    model: str
    limit: Money
    set_ns: int


def _filled(cells: dict[str, Any]) -> dict[str, Any]:
    return cells | {name: value for name, value in _ABSENT.items() if cells[name] is None}


class CostBook:
    """The store's tables about cost.

    Attributes:
        damage: Rows that were to be read and could not be; they are left out.
    """

    def __init__(self, store: Engine, damage: list[Finding] | None = None) -> None:
        self._store = store
        self.damage = [] if damage is None else damage

    def record(self, rows: Iterable[CostRow]) -> None:
        """Insert or refresh reports; the same any number of times leave the same store."""
        values = [msgspec.to_builtins(row) for row in rows]
        if not values:
            return
        with writing(self._store) as connection:
            upsert(connection, cost_reports, values, newer="updated_ns")

    def reports(
        self, model: str | None = None, *, run_id: str | None = None, with_charges: bool = False
    ) -> list[CostRow]:
        """Return all reports, or those of a model, oldest first; without the nested metrics."""
        names = [*_FIGURES, "charges"] if with_charges else _FIGURES
        query = select(*(cost_reports.c[name] for name in names)).order_by(
            cost_reports.c.at_ns, cost_reports.c.run_id
        )
        if model is not None:
            query = query.where(cost_reports.c.model == model)
        if run_id is not None:
            query = query.where(cost_reports.c.run_id == run_id)
        with self._store.begin() as connection:
            rows = connection.execute(query).all()
        cells = (_filled(dict(zip(names, row, strict=True))) for row in rows)
        return [report for each in cells if (report := self._report(each)) is not None]

    def report(self, run_id: str) -> CostRow | None:
        """Return one run's report with its charges, without the nested metrics; None if unknown."""
        return next((r for r in self.reports(run_id=run_id, with_charges=True)), None)

    def _report(self, cells: dict[str, Any]) -> CostRow | None:
        try:
            return convert(cells, CostRow)
        except BadDocument as error:
            self.report_damage(f"cost of run {cells['run_id']!s}", str(error))
            return None

    def report_damage(self, source: str, problem: str) -> None:
        """Add a row that cannot be read to the damage, once."""
        message = f"its row in the store is damaged ({problem}) and was left out"
        finding = Finding(source=source, message=message)
        if finding not in self.damage:
            self.damage.append(finding)

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the nested metrics of every report that has some, by run."""
        column = cost_reports.c
        with self._store.begin() as connection:
            rows = connection.execute(select(column.run_id, column.metrics)).all()
        return {
            run_id: metrics
            for run_id, metrics in rows
            if isinstance(run_id, str) and isinstance(metrics, dict)
        }

    def runs_without_report(self) -> list[RunRow]:
        """Return the runs that were registered anew since their last report, or have none."""
        report = cost_reports.c
        joined = runs.outerjoin(cost_reports, report.run_id == runs.c.run_id)
        changed = or_(
            report.updated_ns.is_(None),
            report.updated_ns < runs.c.updated_ns,
            is_damaged(cost_reports),
        )
        query = select(runs).select_from(joined).where(changed)
        with self._store.begin() as connection:
            return rows_from(connection.execute(query))

    def spent(self, model: str, currency: str) -> Money:
        """Return what all runs of a model cost together, in one currency.

        In cash; only where no run was paid for, in showback.
        """
        return budgeted(self.reports(model), currency).spent

    def set_budget(self, model: str, limit: Money, now_ns: int) -> None:
        """Set a model's budget; the same limit again changes nothing."""
        known = self.budget(model)
        if known is not None and known.limit == limit:
            return
        row = {
            "model": model,
            "limit_micros": limit.micros,
            "currency": limit.currency,
            # A clock that stands still must not make two limits look like one.
            "set_ns": now_ns if known is None else max(now_ns, known.set_ns + 1),
        }
        with writing(self._store) as connection:
            upsert(connection, model_budgets, [row], newer="set_ns")

    def budget(self, model: str) -> ModelBudget | None:
        """Return a model's budget; None where none was set."""
        return self.budgets().get(model)

    def budgets(self) -> dict[str, ModelBudget]:
        """Return every budget, by model."""
        with self._store.begin() as connection:
            rows = connection.execute(select(model_budgets).order_by(model_budgets.c.model)).all()
        found = {}
        for row in rows:
            cells = {"limit": {"micros": row.limit_micros, "currency": row.currency}}
            try:
                budget = convert(cells | {"model": row.model, "set_ns": row.set_ns}, ModelBudget)
            except BadDocument as error:
                self.report_damage(f"budget of {row.model!s}", str(error))
            else:
                found[budget.model] = budget
        return found

    def record_thresholds(
        self, budget: ModelBudget, reached: Iterable[int], spent: Money, now_ns: int
    ) -> set[int]:
        """Note that thresholds were reached; return those that nobody was told of before."""
        column = budget_alerts.c
        mine = (column.model == budget.model, column.set_ns == budget.set_ns)
        with writing(self._store) as connection:
            told = set(connection.scalars(select(column.percent).where(*mine)))
            fresh = set(reached) - told
            if fresh:
                same = {"model": budget.model, "set_ns": budget.set_ns, "at_ns": now_ns}
                rows = [same | {"percent": p, "spent_micros": spent.micros} for p in sorted(fresh)]
                connection.execute(budget_alerts.insert(), rows)
        return fresh
