"""Comparison of runs: means over seeds, equality of budgets, the best configuration. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final

from outlay.budget.limits import COST, cost_in, currency_in
from outlay.sweep.aggregate.rows import Cells, SweepRow, unit_of
from outlay.sweep.grid.parsing import NO_TARGET
from outlay.units.shown import amount_text, counted

# Student's t at 97.5 % for 1, 2, 3, ... degrees of freedom; beyond, the last is slightly wide.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


_MOST_SEEDS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """One configuration over its seeds: the mean of the metric, and half its 95 % interval.

    ``half_width`` is None for a single run; ``cost``, the mean, where costs are unknown or have
    several currencies or kinds. ``currency`` includes the kind if it is showback. ``bounds`` are
    the least and the largest value that the metric can have, where that is known.
    """

    label: str
    runs: tuple[str, ...]
    mean: float
    half_width: float | None
    cost: float | None
    currency: str | None
    bounds: tuple[float, float] | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The interval, without what the metric cannot be; this leaves its coverage as it is."""
        half = self.half_width or 0.0
        least, most = self.bounds or (-math.inf, math.inf)
        return max(self.mean - half, least), min(self.mean + half, most)

    @property
    def is_cut(self) -> bool:
        """Whether the interval ends at a bound of the metric."""
        half = self.half_width or 0.0
        return self.ends != (self.mean - half, self.mean + half)

    def __str__(self) -> str:
        if self.is_cut:
            low, high = self.ends
            return f"{self.mean:.4g} ({low:.3g} to {high:.3g})"
        spread = "" if self.half_width is None else f" ± {self.half_width:.3g}"
        return f"{self.mean:.4g}{spread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How equally the runs used one limit: the least and the most used, as shares of it."""

    limit: str
    runs: int
    least: float
    most: float

    @property
    def spread(self) -> float:
        """The difference of most and least, as a share of the limit."""
        return self.most - self.least


def half_width(values: Sequence[float]) -> float | None:
    """Return half the 95 % interval of a mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    return _factor(len(values)) * stdev(values) / math.sqrt(len(values))


def _factor(count: int) -> float:
    """Return Student's t for a mean of ``count`` values."""
    return _T[min(max(count - 1, 1), len(_T)) - 1]


def replicates(rows: Sequence[Cells]) -> list[Replicates]:
    """Return completed runs with a metric, grouped by configuration."""
    groups: dict[str, list[Cells]] = {}
    for row in rows:
        if row["status"] == "completed" and row.get("accuracy_value") is not None:
            groups.setdefault(row["configuration"], []).append(row)
    return [_replicates(label, members) for label, members in groups.items()]


def _replicates(label: str, rows: list[Cells]) -> Replicates:
    values = [row["accuracy_value"] for row in rows]
    costs = [row["cost"] for row in rows if row.get("cost") is not None]
    units = {unit_of(row.get("currency"), row.get("cost_kind")) for row in rows}
    return Replicates(
        label=label,
        runs=tuple(row["run_id"] for row in rows),
        mean=mean(values),
        half_width=half_width(values),
        cost=mean(costs) if len(costs) == len(rows) and len(units) == 1 else None,
        currency=units.pop() if len(units) == 1 else None,
        bounds=bounds_of(str(rows[0].get("accuracy_metric") or ""), values),
    )


_SHARES: Final = frozenset({
    "acc", "accuracy", "ap", "auc", "auroc", "dice", "f1", "iou", "map", "miou", "precision",
    "recall", "top1", "top5", "rate", "share",
})  # fmt: skip
"""Words in the names of metrics that are shares of a whole."""


def bounds_of(metric: str, values: Sequence[float]) -> tuple[float, float] | None:
    """Return the least and the largest value of a share, as a number or in percent.

    None for a metric that is not named as one, or has values that no share has.
    """
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    if not words & _SHARES or min(values) < 0:
        return None
    return next(((0.0, whole) for whole in (1.0, 100.0) if max(values) <= whole), None)


_USED: Final = {
    "max_minutes": "time_minutes", "max_tokens": "tokens", "max_epochs": "epochs",
    "max_comm_bytes": "comm_bytes", "max_cost_usd": "charged_cost", "max_energy_Wh": "energy_Wh",
    "max_flops": "flops",
}  # fmt: skip


def _used_columns(row: Cells) -> dict[str, str]:
    """Return the column of the used amount by limit; the cost limit's key has its currency."""
    money = cost_in(currency_in(name.removeprefix("limit_") for name in row)).key
    return {money if key == COST.key else key: column for key, column in _USED.items()}


def shares_used(row: Cells) -> dict[str, float]:
    """Return how much of each of its limits a run has used."""
    shares = {}
    for key, column in _used_columns(row).items():
        limit, used = row.get(f"limit_{key}"), row.get(column)
        if used is None and column == "charged_cost":
            used = row.get("cost")  # No budget recorded what it charged.
        if limit and used is not None:
            shares[f"{key} = {limit:g}"] = used / limit
    return shares


def fairness(rows: Sequence[Cells]) -> list[Fairness]:
    """Return how much of each limit the completed runs used."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row["status"] == "completed":
            for limit, share in shares_used(row).items():
                shares.setdefault(limit, []).append(share)
    return [
        Fairness(limit=limit, runs=len(used), least=min(used), most=max(used))
        for limit, used in shares.items()
    ]


def ranked(rows: Sequence[SweepRow]) -> list[Replicates]:
    """Return the configurations, the best mean of the target metric first."""
    more_is_better = any(r.target.metric and r.target.more_is_better for r in rows)
    return sorted(replicates(rows), key=lambda one: one.mean, reverse=more_is_better)


def verdict(rows: Sequence[SweepRow]) -> str:
    """Return which configuration was best, and how certain that is.

    Only completed runs with the first target metric are compared. Pruned ones are censored: they
    were ended at smaller budgets.
    """
    pruned = _pruned(rows)
    found = _verdict(rows, alone=pruned == 0)
    if not pruned:
        return found
    were = "was" if pruned == 1 else "were"
    how = "it" if pruned == 1 else "they"
    return (
        f"{found} {counted(pruned, 'configuration')} {were} pruned at smaller budgets, and how "
        f"{how} would have ended is not known."
    )


def _pruned(rows: Sequence[SweepRow]) -> int:
    """Return the number of configurations of which runs were pruned, and none completed."""
    pruned = {row.label for row in rows if row.state.status == "pruned"}
    return len(pruned - {row.label for row in rows if row.completed})


def _verdict(rows: Sequence[SweepRow], *, alone: bool) -> str:
    target = next((row.target for row in rows if row.target.metric), NO_TARGET)
    found = replicates([row for row in rows if row.get("accuracy_metric") == target.metric])
    if not target.metric or not found:
        return "No configuration can be called best: no completed run recorded a target metric."
    best, *others = sorted(found, key=lambda one: one.mean, reverse=target.more_is_better)
    money = "" if best.cost is None else f" for {amount_text(best.cost, best.currency or '')} a run"
    sentence = f"Best: {best.label} with {target.metric} {best}{money}"
    if not others:
        if not alone:
            is_open = any(row.state.status in ("pending", "running", "paused") for row in rows)
            far = "has got that far yet" if is_open else "got that far"
            return f"{sentence}; no other configuration {far}."
        return f"{sentence}; it is the only configuration."
    second = others[0]
    if second.mean == best.mean:
        tied = ", ".join(one.label for one in found if one.mean == best.mean)
        return f"A tie: {tied}, each with {target.metric} {best.mean:.4g}. {_more(best, second)}"
    after = f"next: {second.label} with {second}"
    if single := [one.label for one in (best, second) if one.half_width is None]:
        runs = "each" if len(single) == 2 else f"of {single[0]}"
        return f"{sentence}; {after} (with one run {runs}, this may be chance)."
    if is_clear(best, second):
        return f"{sentence}; {after} (their intervals do not overlap)."
    leads = f"{best.label} leads with {target.metric} {best}{money}"
    return f"No winner yet: {leads}; {after}. {_more(best, second)}"


def is_clear(best: Replicates, second: Replicates) -> bool:
    """Say whether the intervals of two configurations do not overlap."""
    if best.half_width is None or second.half_width is None:
        return False
    return abs(best.mean - second.mean) > best.half_width + second.half_width


def _more(best: Replicates, second: Replicates) -> str:
    """Return a sentence on what would distinguish two configurations."""
    if best.half_width is None or second.half_width is None:
        return "More seeds of each would distinguish them."
    count = seeds_to_tell(best, second)
    if count is None:
        return "Their intervals overlap, and more seeds are unlikely to separate them."
    seeds = "seed" if count == 1 else "seeds"
    more = f"about {count:,} more {seeds} of each would separate them"
    return f"Their intervals overlap: {more}{_price_of(count, best, second)}."


def _price_of(count: int, best: Replicates, second: Replicates) -> str:
    """Return what more seeds of two configurations cost, in words; "" if unknown."""
    if not best.cost or not second.cost or best.currency != second.currency:
        return ""
    total = amount_text(count * (best.cost + second.cost), best.currency or "")
    each = amount_text((best.cost + second.cost) / 2, best.currency or "")
    return f", for about {total} ({count:,} x 2 configurations x {each} a run)"


def seeds_to_tell(best: Replicates, second: Replicates) -> int | None:
    """Return an estimate of how many more seeds of each would separate two intervals.

    It assumes that means and deviations stay as they are. None for 1,000 or more in all.
    """
    apart = abs(best.mean - second.mean)
    spread = sum(_deviation(one) for one in (best, second))
    fewest = min(len(best.runs), len(second.runs))
    for count in range(fewest, _MOST_SEEDS):
        if _factor(count) * spread / math.sqrt(count) < apart:
            return max(count - fewest, 1)
    return None


def _deviation(one: Replicates) -> float:
    """Return the standard deviation behind an interval."""
    count = len(one.runs)
    return (one.half_width or 0.0) * math.sqrt(count) / _factor(count)
