"""Which runs of a halving go on, and which are pruned: a pure fold of what runs reported.

Decisions are those of successive halving that waits for every run of a rung (Jamieson and
Talwalkar, 2016), each made as soon as nothing that is still open can change it. So they depend on
the reports alone and not on their order, and the most that can be spent is known in advance.
(Asynchronous halving decides earlier and spends more: it promotes runs that later turn out not to
be the best.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from outlay.sweep.search.terms import Halving
from outlay.sweep.state.outcomes import RungReport, RunState

_NOTHING: Final = RunState()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The configurations that compete for the rungs of one entry.

    Attributes:
        size: How many configurations there will be; more than are known while some are suggested.
        runs: The runs of each configuration that is known, one for each seed, in order.
        more_is_better: Whether the metric is to be large.
        retries: How often a failed run is started again at a rung.
    """

    halving: Halving
    size: int
    runs: Mapping[str, Sequence[str]]
    metric: str = ""
    more_is_better: bool = False
    retries: int = 0


@dataclass(slots=True)
class Decisions:
    """What follows from the reports so far.

    Attributes:
        promoted: The rung that each run goes on to, if it has not been there.
        pruned: Why each run does not go on.
    """

    promoted: dict[str, int] = field(default_factory=dict)
    pruned: dict[str, str] = field(default_factory=dict)

    def goes_on(self, runs: Iterable[str]) -> bool:
        """Say whether one of these runs is promoted now."""
        return any(run in self.promoted for run in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """A configuration at a rung.

    Attributes:
        value: The mean of its metric over seeds; None while a run is open, or if it cannot go on.
        open: Whether a run has not reported yet.
        why_out: Why it cannot go on.
        went_on: Whether one of its runs was started at the next rung already.
    """

    name: str
    place: int
    value: float | None = None
    open: bool = False
    why_out: str = ""
    went_on: bool = False


def decide(contest: Contest, states: Mapping[str, RunState], *, idle: bool = False) -> Decisions:
    """Return which runs go on and which are pruned.

    Args:
        contest: What competes.
        states: The runs' states, which the journal folds to.
        idle: Whether nothing runs and nothing waits to: then runs without a report get none.
    """
    found = Decisions()
    sizes = contest.halving.sizes(contest.size)
    entrants, missing = set(contest.runs), contest.size - len(contest.runs)
    for rung, quota in enumerate(sizes[1:]):
        standings = [
            _standing(
                contest, place, name, rung, states, closed=idle and not found.goes_on(members)
            )
            for place, (name, members) in enumerate(contest.runs.items())
            if name in entrants
        ]
        gone, missing = _decide_rung(
            contest, standings, rung, quota, 0 if idle else missing, states, found
        )
        entrants = set(gone)
    return found


def _decide_rung(
    contest: Contest,
    standings: Sequence[_Standing],
    rung: int,
    quota: int,
    missing: int,
    states: Mapping[str, RunState],
    found: Decisions,
) -> tuple[list[str], int]:
    """Decide one rung; return who went on, and how many more may."""
    gone = [one.name for one in standings if one.went_on]
    waiting = [one for one in standings if one.value is not None and not one.went_on]
    waiting.sort(key=lambda one: _order(one, more_is_better=contest.more_is_better))
    unknown = missing + sum(one.open and not one.went_on for one in standings)
    places = quota - len(gone)
    for rank, one in enumerate(waiting):
        if rank + unknown < places:
            gone.append(one.name)
            _promote(contest, one.name, rung + 1, states, found)
        elif rank >= places:
            _prune(contest, one.name, rung, _beaten(contest, one, quota), states, found)
    for one in standings:
        if one.why_out:
            _prune(contest, one.name, rung, one.why_out, states, found)
    undecided = sum(rank + unknown >= places > rank for rank in range(len(waiting)))
    return gone, min(quota - len(gone), undecided + unknown)


def _order(one: _Standing, *, more_is_better: bool) -> tuple[float, int]:
    assert one.value is not None
    return (-one.value if more_is_better else one.value, one.place)


def _standing(
    contest: Contest,
    place: int,
    name: str,
    rung: int,
    states: Mapping[str, RunState],
    *,
    closed: bool,
) -> _Standing:
    """Return a configuration at a rung; ``closed`` if its open runs get no report any more."""
    every = [states.get(run, _NOTHING) for run in contest.runs[name]]
    went_on = any(state.rung > rung for state in every)
    members = [state for state in every if not state.is_stopped]
    if not members and not went_on:
        return _Standing(name=name, place=place, why_out="a person stopped it")
    reports = [report_at(state, rung) for state in members]
    known = [report for report in reports if report is not None]
    is_open = not closed and any(
        report is None and _may_report(state, contest.retries)
        for state, report in zip(members, reports, strict=True)
    )
    if is_open or went_on:
        return _Standing(name=name, place=place, open=is_open, went_on=went_on)
    values = [report.metric for report in known if report.metric is not None]
    if why := _why_out(contest, known, values):
        return _Standing(name=name, place=place, why_out=why)
    return _Standing(name=name, place=place, value=fmean(values))


def report_at(state: RunState, rung: int) -> RungReport | None:
    """Return a run's report at a rung; that of its end, if it completed before."""
    if rung not in state.reports and state.status == "completed" and state.reports:
        rung = max(state.reports)
    return state.reports.get(rung)


def awaits_decision(state: RunState) -> bool:
    """Say whether a run is paused; one that the ceiling refused to continue is, too."""
    return state.status in ("paused", "skipped") and state.rung in state.reports


def _may_report(state: RunState, retries: int) -> bool:
    """Say whether a run without a report may have one later."""
    if state.status in ("pruned", "completed"):
        return False
    return state.status != "error" or state.starts <= retries


def _why_out(contest: Contest, known: Sequence[RungReport], values: Sequence[float]) -> str:
    """Return why a configuration cannot go on; "" if it can."""
    if not known:
        return "no run of it ended well"
    if not values:
        return f"no run of it recorded {contest.metric}"
    halving = contest.halving
    if halving.resumable and not halving.repeat and not any(one.saved for one in known):
        return "it has no committed checkpoint to continue from (see `repeat` in the grid)"
    return ""


def _beaten(contest: Contest, one: _Standing, quota: int) -> str:
    better = "configuration is" if quota == 1 else "configurations are"
    return f"{contest.metric} {one.value:.4g}: {quota} other {better} better"


def _promote(
    contest: Contest, name: str, rung: int, states: Mapping[str, RunState], found: Decisions
) -> None:
    for run in contest.runs[name]:
        if awaits_decision(states.get(run, _NOTHING)):
            found.promoted[run] = rung


def _prune(
    contest: Contest,
    name: str,
    rung: int,
    why: str,
    states: Mapping[str, RunState],
    found: Decisions,
) -> None:
    for run in contest.runs[name]:
        state = states.get(run, _NOTHING)
        if state.status in ("completed", "error", "pruned") or state.is_stopped:
            continue
        if rung in state.reports:
            found.pruned[run] = f"rung {rung + 1} of {len(contest.halving.rungs)}: {why}"
