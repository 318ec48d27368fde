"""Cost reports of runs, model budgets and their alerts, in the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Engine, Text, cast, or_, select

from outlay.clock import utc_datetime
from outlay.cost.charges import AttemptCharge, charges_of
from outlay.cost.thresholds import PERCENTS, BudgetAlert, percent_used, reached
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.store.connection import is_damaged, report_damage, upsert, writing
from outlay.store.run_row import RunRow
from outlay.store.runs import rows_from
from outlay.store.schema import budget_alerts, cost_reports, model_budgets, runs
from outlay.units import Money, Unit
from outlay.units.money import Kind, sum_by_unit

if TYPE_CHECKING:
    from outlay.goodput.follower import RunView


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run's cost report in the store.

    Attributes:
        source: ``stated`` by a training, or derived from its ``ledger``.
        gpu_us: GPUs times microseconds.
        at_ns: When the training ended, or when the report was made.
        metrics: The documented metrics as stated.
        updated_ns: Of two rows of one run the later one is kept.
        kind: Rows of different kinds are never added.
        assumed_micros: The part of the cost for which no record says that it is charged.
        charges: The cost by attempt and month; None if stated, or if it is in one currency and
            was not queried.
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
        """The run's cost."""
        return self.unit.money(self.cost_micros)

    @property
    def assumed(self) -> Money:
        """The assumed part of the cost."""
        return self.unit.money(self.assumed_micros)

    @property
    def unit(self) -> Unit:
        """The unit of its cost."""
        return Unit(self.currency, self.kind)

    def unit_of(self, charge: AttemptCharge) -> Unit:
        """Return the unit of one of its charges."""
        return Unit(charge.currency or self.currency, self.kind)

    def by_currency(self) -> list[CostRow]:
        """Return this row, and one for each other currency in which the run paid.

        Work and time are only in the first.
        """
        rows = {self.currency: self}
        for charge in self.charges or ():
            if charge.currency:
                known = rows.get(charge.currency) or replace(
                    self, cost_micros=0, currency=charge.currency, gpu_us=0, wall_us=0,
                    energy_mj=None, samples=0, epochs=0.0, tokens=None, assumed_micros=0,
                )  # fmt: skip
                rows[charge.currency] = replace(
                    known,
                    cost_micros=known.cost_micros + charge.micros,
                    assumed_micros=known.assumed_micros + charge.assumed_micros,
                )
        return list(rows.values())


_NULL_DEFAULTS: dict[str, Any] = {"kind": "cash", "assumed_micros": 0}
"""Values for NULL in columns that a migration added."""
# Nested columns are parsed only on request: summaries read thousands of rows.
_FIGURES = [name for name in CostRow.__struct_fields__ if name not in ("metrics", "charges")]


# Only a charge that is not in the currency of its run has one, and few runs have such charges.
_SEVERAL_CURRENCIES = select(cost_reports.c.run_id, cost_reports.c.charges).where(
    cast(cost_reports.c.charges, Text).like('%"currency"%')
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted:
    """The cost of some runs that counts towards a limit.

    Attributes:
        limit: As stated, of the kind of ``spent``.
        spent: Cash; showback only if there is no cash.
        not_counted: The rest, one amount for each unit.
    """

    limit: Money
    spent: Money
    assumed: Money
    not_counted: tuple[Money, ...] = ()


def budgeted(rows: Iterable[CostRow], limit: Money) -> Budgeted:
    """Return the cost of some runs that counts towards a limit that is stated without a kind."""
    rows = [part for row in rows for part in row.by_currency()]
    units = {row.unit for row in rows if row.currency == limit.currency}
    (unit,) = units if len(units) == 1 else (limit.unit,)
    counted = [row for row in rows if row.unit == unit]
    return Budgeted(
        limit=unit.money(limit.micros),
        spent=sum((row.cost for row in counted), start=unit.money(0)),
        assumed=sum((row.assumed for row in counted), start=unit.money(0)),
        not_counted=tuple(sum_by_unit(row.cost for row in rows if row.unit != unit)),
    )


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """The spending limit of all runs of a model; a changed limit has a new ``set_ns``."""

    model: str
    limit: Money
    set_ns: int


class CostBook:
    """Cost tables of the store.

    Attributes:
        damage: Findings about unreadable rows, which are skipped.
    """

    def __init__(self, store: Engine, damage: list[Finding] | None = None) -> None:
        self._store = store
        self.damage = [] if damage is None else damage

    def record(self, rows: Iterable[CostRow]) -> None:
        """Insert or update reports; idempotent."""
        values = [msgspec.to_builtins(row) for row in rows]
        if not values:
            return
        with writing(self._store) as connection:
            upsert(connection, cost_reports, values, newer="updated_ns")

    def reports(
        self, model: str | None = None, *, run_id: str | None = None, with_charges: bool = False
    ) -> list[CostRow]:
        """Return all reports, or those of a model, oldest first; without nested metrics."""
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
            several = {} if with_charges else dict(connection.execute(_SEVERAL_CURRENCIES).all())
        cells = (dict(zip(names, row, strict=True)) for row in rows)
        if several:
            cells = (each | {"charges": several.get(each["run_id"])} for each in cells)
        return [report for each in cells if (report := self._report(each)) is not None]

    def report(self, run_id: str) -> CostRow | None:
        """Return one run's report with its charges, without nested metrics; None if unknown."""
        return next(iter(self.reports(run_id=run_id, with_charges=True)), None)

    def _report(self, cells: dict[str, Any]) -> CostRow | None:
        nulls = {name: value for name, value in _NULL_DEFAULTS.items() if cells[name] is None}
        try:
            return convert(cells | nulls, CostRow)
        except BadDocument as error:
            report_damage(self.damage, f"cost of run {cells['run_id']!s}", str(error))
            return None

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the nested metrics of every report that has them, by run."""
        column = cost_reports.c
        with self._store.begin() as connection:
            rows = connection.execute(select(column.run_id, column.metrics)).all()
        return {
            run_id: metrics
            for run_id, metrics in rows
            if isinstance(run_id, str) and isinstance(metrics, dict)
        }

    def runs_without_report(self) -> list[RunRow]:
        """Return the runs that changed since their last report, or have none."""
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

    def set_budget(self, model: str, limit: object, now_ns: int) -> None:
        """Set a model's budget; setting the same limit again changes nothing.

        Args:
            model: It need not have a run yet.
            limit: Money, a number (US dollars), or text such as ``"1000 EUR"``.
            now_ns: The present.
        """
        if not model:
            raise InvalidValue("model_name", model, "a non-empty name")
        limit = Money.parse(limit, name="limit")
        known = self.budget(model)
        if known is not None and known.limit == limit:
            return
        row = {
            "model": model,
            "limit_micros": limit.micros,
            "currency": limit.currency,
            # Two limits must have different times even if the clock did not advance.
            "set_ns": now_ns if known is None else max(now_ns, known.set_ns + 1),
        }
        with writing(self._store) as connection:
            upsert(connection, model_budgets, [row], newer="set_ns")

    def budget(self, model: str) -> ModelBudget | None:
        """Return a model's budget, or None."""
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
                report_damage(self.damage, f"budget of {row.model!s}", str(error))
            else:
                found[budget.model] = budget
        return found

    def check_budget(self, model: str, now_ns: int, stated: object = None) -> BudgetAlert | None:
        """Return an alert if a model's cost reaches a threshold of its budget for the first time.

        Of several at once the highest is returned; None without a budget.

        Args:
            model: The model.
            now_ns: The present.
            stated: The cost so far; the total of the model's reports is used if it is higher.
        """
        budget = self.budget(model)
        if budget is None:
            return None
        found = budgeted(self.reports(model), budget.limit)
        limit, spent = found.limit, found.spent
        if stated is not None:
            said = Money.parse(stated, name="current_cost", currency=limit.currency)
            spent = max(spent, said.as_kind(spent.kind))
        fresh = self._record_thresholds(budget, reached(spent, limit), spent, now_ns)
        if not fresh:
            return None
        return BudgetAlert(
            model_name=model,
            alert_type=PERCENTS[max(fresh)],
            current_cost=float(spent.amount),
            budget_limit=float(limit.amount),
            percent_used=percent_used(spent, limit),
            timestamp=utc_datetime(now_ns),
            currency=limit.currency,
        )

    def _record_thresholds(
        self, budget: ModelBudget, percents: Iterable[int], spent: Money, now_ns: int
    ) -> set[int]:
        """Record reached thresholds; return those that were not recorded before."""
        column = budget_alerts.c
        mine = (column.model == budget.model, column.set_ns == budget.set_ns)
        with writing(self._store) as connection:
            known = set(connection.scalars(select(column.percent).where(*mine)))
            fresh = set(percents) - known
            if fresh:
                same = {"model": budget.model, "set_ns": budget.set_ns, "at_ns": now_ns}
                rows = [same | {"percent": p, "spent_micros": spent.micros} for p in sorted(fresh)]
                connection.execute(budget_alerts.insert(), rows)
        return fresh


# Reports derived from run logs


def refresh_reports(store: Engine, now_ns: int) -> list[Finding]:
    """Derive the report of every registered run that changed since its last one; idempotent.

    Logs of runs without a price are not opened. An unreadable log is a finding and does not stop
    the others.
    """
    book, rows, findings = CostBook(store), list[CostRow | None](), list[Finding]()
    for run in book.runs_without_report():
        if run.cost is not None:
            # Lazy: a summary that opens no log does not load the log reader.
            from outlay.goodput.follower import read_view

            try:
                rows.append(report_of(read_view(Path(run.dir), now_ns), now_ns))
            except (OutlayError, OSError) as error:
                findings.append(Finding(source=run.dir, message=str(error)))
    book.record(row for row in rows if row is not None)
    return findings


def report_of(view: RunView, now_ns: int) -> CostRow | None:
    """Return a run's cost report; None for a run without a price."""
    from outlay.cost.run_cost import best_loss, cost_of

    cost = cost_of(view)
    if cost.cost is None or cost.assumed is None:
        return None
    return CostRow(
        run_id=cost.run_id,
        model=cost.model,
        source="ledger",
        cost_micros=cost.cost.micros,
        currency=cost.cost.currency,
        kind=cost.kind,
        gpu_us=cost.gpu_ns // 1000,
        wall_us=cost.wall_ns // 1000,
        energy_mj=view.energy_mj() or None,
        samples=cost.samples,
        epochs=cost.epochs or 0.0,
        tokens=cost.tokens or None,
        accuracy=cost.accuracy,
        loss=best_loss(view.account),
        at_ns=cost.window.end_ns,
        updated_ns=now_ns,
        assumed_micros=cost.assumed.micros,
        charges=charges_of(view),
    )
