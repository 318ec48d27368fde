"""A sweep's search: what it starts next, by its plan and the states of its runs.

It keeps no state of its own that matters: everything follows from manifest and journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from outlay.sweep.grid.grid import GridEntry
from outlay.sweep.plan.plan import PlannedRun, SweepPlan
from outlay.sweep.plan.planning import finished, plan_points, seeded
from outlay.sweep.search.halving import Contest, Decisions, decide
from outlay.sweep.search.samplers import Trial, tpe_point
from outlay.sweep.search.space import Point
from outlay.sweep.state.outcomes import RunState


@dataclass(slots=True)
class Study:
    """The search of one sweep.

    Attributes:
        runs: All that are known, by id, in order.
    """

    plan: SweepPlan
    runs: dict[str, PlannedRun] = field(init=False)
    _open: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = {run.id: run for run in self.plan.runs}
        self._open = dict(self.plan.unsuggested)

    @property
    def next_entry(self) -> GridEntry | None:
        """The entry for which the next configuration is chosen; None if all are."""
        open_ = (entry for entry in self.plan.grid.entries if self._open.get(entry.name))
        return next((entry for entry in open_ if entry.search.is_adaptive), None)

    def decide(self, states: Mapping[str, RunState], *, idle: bool) -> Decisions:
        """Return which runs go on and which are pruned, by the states of all."""
        found = Decisions()
        for contest in self.contests():
            one = decide(contest, states, idle=idle)
            found.promoted |= one.promoted
            found.pruned |= one.pruned
        return found

    def contests(self) -> Iterator[Contest]:
        """Yield the halvings of the sweep, one for each entry that has one."""
        for entry in self.plan.grid.entries:
            if entry.search.halving is None:
                continue
            runs = self._configurations(entry)
            yield Contest(
                halving=entry.search.halving, runs=runs,
                size=len(runs) + self._open.get(entry.name, 0), metric=entry.target.metric,
                more_is_better=entry.target.more_is_better, retries=entry.retries,
            )  # fmt: skip

    def _configurations(self, entry: GridEntry) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for run in self.runs.values():
            if run.entry.name == entry.name:
                found.setdefault(run.configuration, []).append(run.id)
        return found

    def suggest(self, entry: GridEntry, states: Mapping[str, RunState]) -> list[PlannedRun]:
        """Return the runs of the next configuration of an entry, by what the others reported."""
        point = tpe_point(
            entry.axes, entry.search, self._trials(entry, states),
            more_is_better=entry.target.more_is_better,
        )  # fmt: skip
        made = list(seeded(entry, point))
        combo = sum(run.entry.name == entry.name for run in self.runs.values())
        planned = plan_points(
            self.plan.grid, entry, made, first=len(self.runs) + 1, start_up=self.plan.start_up,
            combo=combo,
        )  # fmt: skip
        runs = list(finished(self.plan.grid, [*self.runs.values(), *planned]))[len(self.runs) :]
        self.runs |= {run.id: run for run in runs}
        self._open[entry.name] -= 1
        return runs

    def _trials(self, entry: GridEntry, states: Mapping[str, RunState]) -> list[Trial]:
        return [
            _trial(
                self.runs[members[0]].point,
                [states.get(run, RunState()) for run in members],
                halving=entry.search.halving is not None,
            )
            for members in self._configurations(entry).values()
        ]


def _trial(point: Point, states: Sequence[RunState], *, halving: bool) -> Trial:
    """Return a configuration as the sampler sees it: the mean over its seeds at each rung."""
    ended = all(
        state.status in ("completed", "error", "pruned") or state.is_stopped for state in states
    )
    rungs = sorted({rung for state in states for rung in state.reports})
    values = []
    for rung in rungs:
        found = [s.reports[rung].metric for s in states if rung in s.reports]
        known = [value for value in found if value is not None]
        values += [fmean(known)] if known else []
    whole = any(state.status == "completed" for state in states)
    if not halving and not ended:
        values = []  # A mean of some seeds would be compared with those of all.
    return Trial(point=point, values=values, ended=ended, whole=whole)
