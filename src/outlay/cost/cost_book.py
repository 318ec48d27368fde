"""The costs of runs, model budgets and their alerts, in the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Engine, Integer, String, cast, or_, select

from outlay.clock import utc_datetime
from outlay.cost.thresholds import PERCENTS, BudgetAlert, percent_used, reached
from outlay.decoding import BadDocument, convert
from outlay.errors import Finding, InvalidValue
from outlay.store.connection import LARGEST, report_damage, upsert, writing
from outlay.store.run_row import RunRow
from outlay.store.runs import EVERY, LISTED, rows_from
from outlay.store.schema import budget_alerts, cost_reports, model_budgets, runs
from outlay.units import Money
from outlay.units.money import sum_by_unit


def by_currency(row: RunRow) -> list[RunRow]:
    """Return a run with a price, and a row for each other currency in which it paid.

    Work and time are only in the first.
    """
    others = (
        replace(
            row, cost=cost, assumed=assumed, gpu_ns=0, wall_ns=0, energy_mj=0, samples=0,
            epochs=None, tokens=0, cost_beside=(), assumed_beside=(),
        )
        for cost, assumed in zip(row.cost_beside, row.assumed_beside, strict=True)
    )  # fmt: skip
    return [row, *others]


# Stated trainings are rows of a table of their own, which had those of runs, too.

_INTEGERS = [column.name for column in cost_reports.c if isinstance(column.type, Integer)]


def report_cells(row: RunRow) -> dict[str, Any]:
    """Return a run with a price as a row of the table, which is also its JSON."""
    return {
        "run_id": row.run_id, "model": row.model, "source": row.source,
        "cost_micros": row.paid.micros, "currency": row.paid.currency,
        "gpu_us": row.gpu_ns // 1000, "wall_us": row.wall_ns // 1000,
        "energy_mj": row.energy_mj or None, "samples": row.samples, "epochs": row.epochs or 0.0,
        "tokens": row.tokens or None, "accuracy": row.accuracy, "loss": row.loss,
        "at_ns": row.at_ns, "metrics": None, "updated_ns": row.updated_ns, "kind": row.kind,
        "assumed_micros": row.paid_assumed.micros, "charges": msgspec.to_builtins(row.charges),
    }  # fmt: skip


def _row_from(cells: dict[str, Any]) -> RunRow:
    """Return the run of a row of the table.

    Raises:
        BadDocument: The row is damaged.
    """
    known = convert({name: cells[name] or 0 for name in _INTEGERS}, dict[str, int])
    currency, at_ns, wall_ns = cells["currency"], known["at_ns"], known["wall_us"] * 1000
    same = ("run_id", "model", "source", "epochs", "accuracy", "loss", "charges")
    row = {name: cells[name] for name in same} | {
        "name": cells["run_id"], "dir": "", "status": "completed", "attempts": 1, "steps": 0,
        "tokens": known["tokens"], "samples": known["samples"], "energy_mj": known["energy_mj"],
        "started_ns": at_ns - wall_ns, "last_seen_ns": at_ns, "wall_ns": wall_ns,
        "gpu_ns": known["gpu_us"] * 1000, "updated_ns": known["updated_ns"],
        "cost": {"micros": known["cost_micros"], "currency": currency},
        "assumed": {"micros": known["assumed_micros"], "currency": currency},
        "kind": cells["kind"] or "cash",
    }  # fmt: skip
    return _with_beside(convert(row, RunRow))


def _with_beside(row: RunRow) -> RunRow:
    """Return a row with what its charges say that it paid in other currencies."""
    others: dict[str, tuple[int, int]] = {}
    for charge in row.charges or ():
        if charge.currency:
            cost, assumed = others.get(charge.currency, (0, 0))
            others[charge.currency] = cost + charge.micros, assumed + charge.assumed_micros
    return replace(
        row,
        cost_beside=tuple(Money(cost, each) for each, (cost, _) in others.items()),
        assumed_beside=tuple(Money(assumed, each) for each, (_, assumed) in others.items()),
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


def budgeted(rows: Iterable[RunRow], limit: Money) -> Budgeted:
    """Return the cost of some runs that counts towards a limit that is stated without a kind."""
    rows = [part for row in rows for part in by_currency(row)]
    units = {row.paid.unit for row in rows if row.paid.currency == limit.currency}
    (unit,) = units if len(units) == 1 else (limit.unit,)
    counted = [row for row in rows if row.paid.unit == unit]
    return Budgeted(
        limit=unit.money(limit.micros),
        spent=sum((row.paid for row in counted), start=unit.money(0)),
        assumed=sum((row.paid_assumed for row in counted), start=unit.money(0)),
        not_counted=tuple(sum_by_unit(row.paid for row in rows if row.paid.unit != unit)),
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

    def record(self, row: RunRow, metrics: dict[str, Any]) -> None:
        """Insert or update a stated training, with the documented metrics as stated; idempotent."""
        with writing(self._store) as connection:
            values = report_cells(row) | {"metrics": metrics}
            upsert(connection, cost_reports, [values], newer="updated_ns")

    def reports(
        self, model: str | None = None, *, run_id: str | None = None, with_charges: bool = False
    ) -> list[RunRow]:
        """Return all runs with a cost, or those of a model, oldest first.

        Registered runs, and stated trainings; if a run is both, the later row of the two.
        """
        stated, run = cost_reports.c, runs.c
        is_stated = stated.updated_ns.between(run.updated_ns, LARGEST)
        of_both = runs.outerjoin(cost_reports, stated.run_id == run.run_id)
        of_logs = select(*(EVERY if with_charges else LISTED)).select_from(of_both)
        of_logs = of_logs.where(run.cost_micros.is_not(None), is_stated.is_not(True))
        of_books = cost_reports.outerjoin(runs, stated.run_id == run.run_id)
        others = select(cost_reports).select_from(of_books)
        others = others.where(or_(run.cost_micros.is_(None), is_stated))
        for column, wanted in (("model", model), ("run_id", run_id)):
            if wanted is not None:
                of_logs = of_logs.where(run[column] == wanted)
                others = others.where(stated[column] == wanted)
        with self._store.begin() as connection:
            rows = [row for row in rows_from(connection.execute(of_logs)) if self._is_whole(row)]
            cells = connection.execute(others).mappings().all()
        rows += (row for each in cells if (row := self._stated(dict(each))) is not None)
        return sorted(rows, key=lambda row: (row.at_ns, row.run_id))

    def has_billing_terms(self) -> bool:
        """Return whether the price of any run states how the vendor bills."""
        stated = cast(runs.c.charges, String).contains('"terms"')
        with self._store.begin() as connection:
            return (
                connection.execute(select(runs.c.run_id).where(stated).limit(1)).first() is not None
            )

    def report(self, run_id: str) -> RunRow | None:
        """Return one run with its charges; None if its cost is unknown."""
        return next(iter(self.reports(run_id=run_id, with_charges=True)), None)

    def _is_whole(self, row: RunRow) -> bool:
        """Return whether a row could be read; the next collection derives it anew if not."""
        if row.cost is None:
            self.damage.extend(each for each in row.findings if each not in self.damage)
        return row.cost is not None

    def _stated(self, cells: dict[str, Any]) -> RunRow | None:
        try:
            return _row_from(cells)
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

    def check_budget(
        self, model: str, now_ns: int, stated: object = None, *, each_time: bool = False
    ) -> BudgetAlert | None:
        """Return an alert if a model's cost reaches a threshold of its budget for the first time.

        Of several at once the highest is returned; None without a budget.

        Args:
            model: The model.
            now_ns: The present.
            stated: The cost so far; the total of the model's reports is used if it is higher.
            each_time: Return it also if that threshold was reached before.
        """
        budget = self.budget(model)
        if budget is None:
            return None
        found = budgeted(self.reports(model), budget.limit)
        limit, spent = found.limit, found.spent
        if stated is not None:
            said = Money.parse(stated, name="current_cost", currency=limit.currency)
            spent = max(spent, said.as_kind(spent.kind))
        percents = list(reached(spent, limit))
        fresh = self._record_thresholds(budget, percents, spent, now_ns)
        told = percents if each_time else fresh
        if not told:
            return None
        return BudgetAlert(
            model_name=model,
            alert_type=PERCENTS[max(told)],
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
