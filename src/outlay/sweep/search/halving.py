"""Which runs of a halving go on, and which are pruned: a pure fold of what runs reported.

Decisions are those of successive halving that waits for every run of a rung (Jamieson and
Talwalkar, 2016), each made as soon as nothing that is still open can change it. So they depend on
the reports alone and not on their order, and the most that can be spent is known in advance.
(Asynchronous halving decides earlier and spends more: it promotes runs that later turn out not to
be the best.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from outlay.sweep.search.search_options import Halving
from outlay.sweep.state.outcomes import RungReport, RunState

_NOTHING: Final = RunState()
_UNSAVED: Final = "it has no committed checkpoint to continue from (see `repeat` in the grid)"
_ENDED: Final = ("completed", "error", "pruned")


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
            _standing(contest, place, name, rung, states, found if idle else None)
            for place, name in enumerate(contest.runs)
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
        if one.went_on:  # Of several seeds, one may not have been started there yet.
            _promote(contest, one.name, rung + 1, states, found)
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
    idle: Decisions | None,
) -> _Standing:
    """Return how a configuration stands; of an idle sweep, ``idle`` has the decisions so far."""
    every = {run: states.get(run, _NOTHING) for run in contest.runs[name]}
    went_on = any(state.rung > rung for state in every.values())
    members = {run: state for run, state in every.items() if not state.is_stopped}
    if not members and not went_on:
        return _Standing(name=name, place=place, why_out="a person stopped it")
    reports = [report_at(state, rung) for state in members.values()]
    is_open = any(
        report is None and _may_report(state, contest.retries) and _is_awaited(run, state, idle)
        for (run, state), report in zip(members.items(), reports, strict=True)
    )
    if is_open or went_on:
        return _Standing(name=name, place=place, open=is_open, went_on=went_on)
    known = [report for report in reports if report is not None]
    # The journal keeps no number that is not finite, and a resumed sweep decides as this one.
    values = [one.metric for one in known if one.metric is not None and math.isfinite(one.metric)]
    done = any(state.status == "completed" for state in members.values())
    if why := _why_out(contest, known, values, done=done):
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
    return state.status != "error" or state.tries <= retries


def _is_awaited(run: str, state: RunState, idle: Decisions | None) -> bool:
    """Say whether a run is going to report; of an idle sweep, those that now go on."""
    return idle is None or (state.status == "paused" and run in idle.promoted)


def _why_out(
    contest: Contest, known: Sequence[RungReport], values: Sequence[float], *, done: bool
) -> str:
    """Return why a configuration cannot go on; "" if it can, or if it is done."""
    if not known:
        return "no run of it ended well"
    if not values:
        return f"no run of it recorded {contest.metric}"
    if not done and not any(_may_continue(contest, report) for report in known):
        return _UNSAVED
    return ""


def _may_continue(contest: Contest, report: RungReport) -> bool:
    halving = contest.halving
    return report.saved or halving.repeat or not halving.resumable


def _beaten(contest: Contest, one: _Standing, quota: int) -> str:
    better = "configuration is" if quota == 1 else "configurations are"
    return f"{contest.metric} {one.value:.4g}: {quota} other {better} better"


def _promote(
    contest: Contest, name: str, rung: int, states: Mapping[str, RunState], found: Decisions
) -> None:
    """Promote the runs of a configuration that wait at the rung below."""
    for run in contest.runs[name]:
        state = states.get(run, _NOTHING)
        if not awaits_decision(state) or state.rung != rung - 1:
            continue
        if _may_continue(contest, state.reports[state.rung]):
            found.promoted[run] = rung
        else:
            found.pruned[run] = _reason(contest, rung - 1, _UNSAVED)


def _prune(
    contest: Contest,
    name: str,
    rung: int,
    why: str,
    states: Mapping[str, RunState],
    found: Decisions,
) -> None:
    """Prune the runs of a configuration; those that wait below the rung for money, too.

    If none of them reported at the rung, all that wait may still reach it with more money.
    """
    members = {run: states.get(run, _NOTHING) for run in contest.runs[name]}
    if all(report_at(state, rung) is None for state in members.values()):
        return
    for run, state in members.items():
        if state.reports and state.status not in _ENDED and not state.is_stopped:
            found.promoted.pop(run, None)
            found.pruned[run] = _reason(contest, rung, why)


def _reason(contest: Contest, rung: int, why: str) -> str:
    return f"rung {rung + 1} of {len(contest.halving.rungs)}: {why}"
