"""What a search found: its rungs, who went on, and what it cost against the whole grid. Pure.

A pruned run is censored: it was ended at a smaller budget, and how it would have ended is not
known. So nothing here compares it with the runs of a later rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from statistics import fmean
from typing import Final

from outlay.budget.limits import dimension_of
from outlay.sweep.grid.parsing import Target, target_in
from outlay.sweep.plan.plan import total_of
from outlay.sweep.search.doubt import RankChange, order_change
from outlay.sweep.state.manifest import ManifestRun
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money
from outlay.units.shown import counted, money_text

SearchedRun = tuple[ManifestRun, RunState]
"""A run of a search, and its state."""
_OPEN: Final = ("pending", "running", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRow:
    """One rung of an entry.

    Attributes:
        entry: Its name in the grid.
        rung: From 1, of ``rungs``.
        budget: Up to this rung, in words.
        runs: How many were started at it.
        went_on: How many reached the next.
        completed: How many did all that they were to do: at the last rung, the survivors.
        open: How many run, or wait for a decision.
        failed: How many failed, were cancelled or got no money.
        cost: Of this rung alone, start-ups included; None if unknown.
        is_estimated: Whether the cost of runs that do not pause is divided by time.
        metric: What runs are compared by.
        best: The best mean over seeds of a configuration; None without.
        best_run: The first run of that configuration.
    """

    entry: str
    rung: int
    rungs: int
    budget: str
    runs: int
    went_on: int
    pruned: int
    completed: int
    open: int
    failed: int
    cost: Money | None
    is_estimated: bool
    metric: str
    best: float | None
    best_run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedRun:
    """A run that did not go on.

    Attributes:
        rung: The last that it reported at, from 1.
        t_ns: When that was decided, or when it ended after that.
    """

    run: str
    rung: int
    metric: float | None
    cost: Money | None
    t_ns: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """What a search found so far; amounts are None where unknown.

    Attributes:
        runs: Those of entries with rungs.
        started: How many of them were started.
        survivors: How many completed.
        order: For each entry, whether the order of its configurations changed between rungs.
        spent: By ended attempts.
        whole_planned: The prediction for all runs up to the last rung, each in one attempt.
        whole_estimated: The same at the mean cost of the runs that completed.
    """

    rungs: tuple[RungRow, ...]
    pruned: tuple[PrunedRun, ...]
    runs: int
    started: int
    survivors: int
    order: tuple[RankChange, ...]
    spent: Money | None
    whole_planned: Money | None
    whole_estimated: Money | None


def search_results(runs: Iterable[SearchedRun]) -> SearchResults | None:
    """Return what the searches of a sweep found; None if no run of it has rungs."""
    entries: dict[str, list[SearchedRun]] = {}
    for run, state in runs:
        if run.rungs:
            entries.setdefault(run.group or "", []).append((run, state))
    members = [each for every in entries.values() for each in every]
    if not members:
        return None
    survivors = [each for each in members if each[1].status == "completed"]
    paid = [run.cost(state) for run, state in members if state.cost_micros is not None]
    return SearchResults(
        rungs=tuple(row for name, every in entries.items() for row in _rows(name, every)),
        pruned=tuple(_pruned(*each) for each in members if each[1].status == "pruned"),
        runs=len(members),
        started=sum(state.attempts > 0 for _, state in members),
        survivors=len(survivors),
        order=tuple(_order_of(every) for every in entries.values()),
        spent=total_of(paid) if paid else None,
        whole_planned=total_of([run.whole_cost for run, _ in members]),
        whole_estimated=_at_cost_of(survivors, len(members)),
    )


def _order_of(members: Sequence[SearchedRun]) -> RankChange:
    runs: dict[str, list[str]] = {}
    for run, _ in members:
        runs.setdefault(run.configuration or run.id, []).append(run.id)
    states = {run.id: state for run, state in members}
    return order_change(runs, len(members[0][0].rungs), states)


def _at_cost_of(survivors: Sequence[SearchedRun], count: int) -> Money | None:
    """Return what ``count`` runs cost at the mean cost of some."""
    total = total_of([run.cost(state) for run, state in survivors]) if survivors else None
    if total is None:
        return None
    return total.unit.money(round(Fraction(total.micros * count, len(survivors))))


def reached_rung(run: ManifestRun, state: RunState) -> int:
    """Return the last rung that a run was at, from 0.

    One that does not pause is past those it reported at.
    """
    last = len(run.rungs) - 1
    if run.resumable or last < 0:
        return state.rung
    if state.status == "completed":
        return last
    passed = max(state.reports, default=-1)
    return max(passed, 0) if state.status == "pruned" else min(passed + 1, last)


def rung_text(run: ManifestRun, state: RunState) -> str:
    """Return at which rung a run is, and the metric of a paused one; "" without rungs."""
    if not run.rungs or not state.attempts:
        return ""
    rung = reached_rung(run, state)
    text = f"rung {rung + 1} of {len(run.rungs)}"
    report = state.reports.get(rung)
    if state.status != "paused" or report is None or report.metric is None:
        return text
    return f"{text}: {target_in(run.metadata).metric} {report.metric:.4g}"


# Rungs.


def _rows(entry: str, members: Sequence[SearchedRun]) -> Iterator[RungRow]:
    first, target = members[0][0], target_in(members[0][0].metadata)
    costs = [cost_by_rung(*each) for each in members]
    for rung, limits in enumerate(first.limits_by_rung):
        here = [each for each in members if each[1].attempts and reached_rung(*each) >= rung]
        stay = [state.status for run, state in here if reached_rung(run, state) == rung]
        paid = [by_rung[rung] for by_rung in costs if rung in by_rung]
        best, best_run = _best(here, rung, target)
        yield RungRow(
            entry=entry, rung=rung + 1, rungs=len(first.rungs), budget=limits_text(limits),
            runs=len(here), went_on=len(here) - len(stay), pruned=stay.count("pruned"),
            completed=stay.count("completed"), open=sum(status in _OPEN for status in stay),
            failed=sum(s not in (*_OPEN, "pruned", "completed") for s in stay),
            cost=total_of(paid) if paid else None, is_estimated=not first.resumable,
            metric=target.metric, best=best, best_run=best_run,
        )  # fmt: skip


def _best(
    members: Sequence[SearchedRun], rung: int, target: Target
) -> tuple[float | None, str | None]:
    """Return the best mean over seeds at a rung, and the first run of that configuration."""
    values: dict[str, list[float]] = {}
    names: dict[str, str] = {}
    for run, state in members:
        report = state.reports.get(rung)
        if report is not None and report.metric is not None:
            key = run.configuration or run.id
            values.setdefault(key, []).append(report.metric)
            names.setdefault(key, run.id)
    means = {key: fmean(found) for key, found in values.items()}
    if not means:
        return None, None
    best = (max if target.more_is_better else min)(means, key=lambda key: means[key])
    return means[best], names[best]


def limits_text(limits: Mapping[str, object]) -> str:
    """Return the limits of a rung in words."""
    found = [(dimension_of(key), limit) for key, limit in limits.items()]
    return ", ".join(one.text(one.read(limit)) for one, limit in found if one is not None)


def cost_by_rung(run: ManifestRun, state: RunState) -> dict[int, Money]:
    """Return what a run cost at each rung; the parts sum to what it cost.

    What an attempt cost that did not report belongs to the rung that it was at. The cost of a run
    that does not pause is divided by the time at which it passed its rungs.
    """
    cost = run.cost(state)
    if cost is None:
        return {}
    if run.resumable:
        ends = {rung: report.cost_micros or 0 for rung, report in sorted(state.reports.items())}
    else:
        ends = _by_time(state, cost.micros)
    ends[max([reached_rung(run, state), *ends])] = cost.micros
    amounts = [0, *(ends[rung] for rung in sorted(ends))]
    parts = zip(sorted(ends), pairwise(amounts), strict=True)
    return {rung: cost.unit.money(after - before) for rung, (before, after) in parts}


def _by_time(state: RunState, micros: int) -> dict[int, int]:
    """Return the cost up to each rung that a running attempt passed, by time."""
    start_ns, end_ns = state.started_ns, state.finished_ns
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return {}
    return {
        rung: micros * min(max(report.t_ns - start_ns, 0), end_ns - start_ns) // (end_ns - start_ns)
        for rung, report in sorted(state.reports.items())
    }


def _pruned(run: ManifestRun, state: RunState) -> PrunedRun:
    rung = max(state.reports, default=reached_rung(run, state))
    report = state.reports.get(rung)
    return PrunedRun(
        run=run.id, rung=rung + 1, metric=None if report is None else report.metric,
        cost=run.cost(state), t_ns=state.finished_ns, why=state.reason,
    )  # fmt: skip


# In words.

_COUNTS: Final = ("runs", "went_on", "pruned", "completed", "open", "failed")


def rung_cells(found: SearchResults) -> tuple[list[str], list[list[object]]]:
    """Return the rungs as the headings and rows of a table; columns of zeros are left out."""
    rows = found.rungs
    counts = [name for name in _COUNTS if name == "runs" or any(getattr(r, name) for r in rows)]
    named = ["entry"] if len({row.entry for row in rows}) > 1 else []
    metrics = {row.metric for row in rows}
    best = f"best {metrics.pop()}" if len(metrics) == 1 else "best"
    headings = [*named, "rung", "budget", *(name.replace("_", " ") for name in counts)]
    return [*headings, "cost", best], [
        [
            *(row.entry for _ in named), row.rung, row.budget,
            *(getattr(row, name) for name in counts), row.cost, row.best,
        ]
        for row in rows
    ]  # fmt: skip


def result_sentences(found: SearchResults) -> list[str]:
    """Return who survived, and what the search cost against the whole grid."""
    waiting = sum(row.open for row in found.rungs) + found.runs - found.started
    survived = f"{found.survivors} of {counted(found.runs, 'run')} completed"
    pruned = f"{len(found.pruned)} pruned at smaller budgets"
    said = [f"{survived}, {pruned}, {waiting} open." if waiting else f"{survived}, {pruned}."]
    if not waiting:
        said += [f"How sure: {order}." for order in found.order]
    if found.spent is not None and not waiting:
        said.append(f"The search cost {money_text(found.spent)}. {_whole_text(found)}".rstrip())
    return said


def _whole_text(found: SearchResults) -> str:
    every = f"All {counted(found.runs, 'run')} up to the last rung"
    if found.whole_estimated is not None:
        whole = money_text(found.whole_estimated)
        mean = "at the mean cost of those that completed"
        return f"{every} would have cost about {whole}, {mean} (estimated)."
    if found.whole_planned is not None:
        return f"{every} were predicted to cost {money_text(found.whole_planned)}."
    return ""
