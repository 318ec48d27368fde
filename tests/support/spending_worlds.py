"""Generated months of spending: long, short and mixed runs, and spend that doubles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from outlay.cost.spending import Spending, SpendItem
from outlay.units import Money

DAY_NS = 86_400 * 10**9
KINDS = ("long", "short", "mixed", "doubling")


@dataclass(frozen=True)
class Use:
    """Money used at a constant rate, in days since the month began."""

    start: float
    end: float
    dollars: float

    def until(self, day: float) -> Use | None:
        """Return what is known of it on a day."""
        if self.start >= day:
            return None
        end = min(self.end, day)
        return Use(self.start, end, self.dollars * (end - self.start) / (self.end - self.start))

    def between(self, start: float, end: float) -> float:
        """Return what it used between two days."""
        inside = max(0.0, min(self.end, end) - max(self.start, start))
        return self.dollars * inside / (self.end - self.start)


def is_reported(kind: str, seed: int) -> bool:
    """Return whether a world is of the half on which nothing was tuned."""
    return bool(hashlib.sha256(f"{kind}{seed}".encode()).digest()[0] % 2)


def world(kind: str, seed: int) -> list[Use]:
    """Return what was used from 10 to 60 days before a month of 30 days to its end."""
    generator = np.random.default_rng([1 + KINDS.index(kind), seed])
    history = int(generator.integers(10, 61))
    weekends = generator.random() < 0.5
    uses: list[Use] = []
    if kind != "long":
        uses += _short(generator, history, weekends=weekends, doubles=kind == "doubling")
    if kind in ("long", "mixed"):
        uses += _long(generator, history)
    return uses


def _short(
    generator: np.random.Generator, history: int, *, weekends: bool, doubles: bool
) -> Iterator[Use]:
    per_day = np.exp(generator.uniform(np.log(1.5), np.log(20)))
    dollars, spread = np.exp(generator.normal(3, 0.5)), generator.uniform(0.3, 1.2)
    growth = np.log(2) / generator.uniform(12, 40) if doubles else 0.0
    for day in range(-history, 30):
        quiet = 0.3 if weekends and day % 7 in (5, 6) else 1.0
        shock = np.exp(generator.normal(0, generator.choice([0, 0.3])))
        for _ in range(generator.poisson(per_day * quiet * shock * np.exp(growth * day))):
            start = day + generator.random()
            end = start + np.exp(generator.normal(-2.2, 0.8))
            yield Use(start, end, float(dollars * np.exp(generator.normal(0, spread))))


def _long(generator: np.random.Generator, history: int) -> Iterator[Use]:
    mean_days = np.exp(generator.uniform(np.log(4), np.log(40)))
    at_once, shape = generator.uniform(0.7, 4), generator.choice([0.6, 1.0, 2.0])
    per_day = np.exp(generator.normal(4.5, 0.7))
    at = -history - 3 * mean_days
    while (at := at + generator.exponential(mean_days / at_once)) < 30:
        start, end = max(at, -history), at + generator.gamma(shape, mean_days / shape)
        price = per_day * generator.choice([1, 1, 2, 4])
        if end > start:
            yield Use(start, end, float((end - start) * price))


def spending_on(uses: list[Use], day: float, month_ns: int) -> Spending:
    """Return the books of a day: each use one charge, booked at its begin."""
    spends = []
    for number, use in enumerate(uses):
        if (known := use.until(day)) is None:
            continue
        start_ns, end_ns = (month_ns + round(at * DAY_NS) for at in (known.start, known.end))
        # Cut at the begin of the month, like the charges of runs.
        edges = [start_ns, *([month_ns] if start_ns < month_ns < end_ns else []), end_ns]
        for first_ns, last_ns in pairwise(edges):
            part = (last_ns - first_ns) / (end_ns - start_ns)
            spends.append(
                SpendItem(
                    source="ledger", run_id=str(number), model="m", name="m", start_ns=first_ns,
                    end_ns=last_ns, booked_ns=first_ns, assumed=Money(0),
                    cost=Money(round(known.dollars * part * 10**6)),
                )
            )  # fmt: skip
    return Spending(spends=tuple(spends))
