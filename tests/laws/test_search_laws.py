"""Laws of a search: its decisions follow from the reports alone, its points from seed and results.

Whatever the order in which runs report, and wherever the harness is killed, those runs go on that
synchronous halving would let go on, and never more than its rungs have places for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlay.budget.terms import Budget
from outlay.sweep.search.halving import Contest, Decisions, decide
from outlay.sweep.search.samplers import Trial, planned_points, tpe_point
from outlay.sweep.search.search_options import Halving, Search, rungs_between
from outlay.sweep.search.space import Axis, Point, Range, Space, is_in, point_count
from outlay.sweep.state.outcomes import Event, RungReport, RunState, fold
from simulated_sweep import Ending, SimulatedSweep

NAN = math.nan

# Halving: a case states how every attempt would end.


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a run ends at a rung, after it has failed there ``failures`` times."""

    failures: int = 0
    completes: bool = False
    metric: float | None = 0.0
    saved: bool = True


@dataclass(frozen=True, kw_only=True)
class Case:
    """A contest, the ends of all attempts, and an order for the simulation.

    Attributes:
        known: How many configurations are known at the beginning.
    """

    contest: Contest
    attempts: Mapping[tuple[str, int], Attempt]
    known: int
    seed: int
    kills: frozenset[int] = frozenset()

    @property
    def last(self) -> int:
        """The last rung."""
        return len(self.contest.halving.rungs) - 1

    def end(self, run: str, rung: int, failed: int) -> Ending:
        """Return how an attempt ends."""
        one = self.attempts[run, rung]
        if failed < one.failures:
            return Ending(status="error")
        ends = one.completes or rung == self.last
        return Ending(
            status="completed" if ends else "paused", metric=one.metric, saved=one.saved
        )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, *, resumable: bool = True) -> Case:
    factor, rungs = draw(st.integers(2, 3)), draw(st.integers(2, 4))
    first, last = (Budget.of("iso_tokens", {"max_tokens": n}) for n in (1, factor ** (rungs - 1)))
    halving = Halving(
        rungs=rungs_between(first, last, factor), factor=factor, resumable=resumable,
        repeat=draw(st.booleans()),
    )  # fmt: skip
    size, seeds = draw(st.integers(1, 14)), draw(st.integers(1, 3))
    runs = {f"c{n}": [f"c{n}s{seed}" for seed in range(seeds)] for n in range(size)}
    contest = Contest(
        halving=halving, size=size, runs=runs, metric="loss",
        more_is_better=draw(st.booleans()), retries=draw(st.integers(0, 2)),
    )  # fmt: skip
    chance = random.Random(draw(st.integers(0, 10**6)))
    odd = draw(st.sampled_from([0.0, 0.1, 0.4]))
    many = draw(st.sampled_from([2, 1000]))
    ends = {
        (run, rung): _random_attempt(chance, odd, draw_from=many)
        for members in runs.values()
        for run in members
        for rung in range(rungs)
    }
    return Case(
        contest=contest, attempts=ends, known=draw(st.integers(0, size)),
        seed=draw(st.integers(0, 10**6)), kills=draw(st.frozensets(st.integers(1, 80), max_size=4)),
    )  # fmt: skip


def _random_attempt(chance: random.Random, odd: float, *, draw_from: int) -> Attempt:
    """Return an attempt; ``draw_from`` two values there are many ties."""

    def is_odd() -> bool:
        return chance.random() < odd

    metric: float | None = float(chance.randrange(draw_from))
    if is_odd():
        metric = chance.choice([None, NAN, math.inf])
    failures = chance.randint(1, 3) if is_odd() else 0
    return Attempt(failures=failures, completes=is_odd(), metric=metric, saved=not is_odd())


@dataclass
class Bracket:
    """The outcome of synchronous halving, written without any of the search's code.

    Attributes:
        reached: The configurations at each rung.
        status: Of each run, in the end.
        rung: The last at which each run was started.
    """

    reached: list[set[str]] = field(default_factory=list)
    status: dict[str, str] = field(default_factory=dict)
    rung: dict[str, int] = field(default_factory=dict)


def play(case: Case) -> Bracket:
    """Run all of a rung, compare, run all of the next."""
    contest, found = case.contest, Bracket()
    names = list(contest.runs)
    final: dict[str, float | None] = {}
    places = contest.size
    for rung in range(case.last + 1):
        found.reached.append(set(names))
        scores: dict[str, float] = {}
        for name in names:
            score = _play_configuration(case, name, rung, found, final)
            if score is not None:
                scores[name] = score
        places = max(1, places // contest.halving.factor)
        beaten_by = {
            name: sum((scores[other], _place(other)) < (scores[name], _place(name))
                      for other in scores)
            for name in scores
        }  # fmt: skip
        names = [name for name in names if beaten_by.get(name, math.inf) < places]
        if rung < case.last:
            _end_rung(case, rung, set(names), found)
    return found


def _place(name: str) -> int:
    return int(name.removeprefix("c"))


def _play_configuration(
    case: Case, name: str, rung: int, found: Bracket, final: dict[str, float | None]
) -> float | None:
    """Return its score, the less the better; None if it cannot be compared or cannot go on."""
    numbers, goes_on = [], False
    for run in case.contest.runs[name]:
        one = case.attempts[run, rung]
        status = found.status.get(run, "paused")
        if status in ("error", "pruned"):
            continue
        if status == "paused":
            found.rung[run] = rung
            if one.failures > case.contest.retries:
                found.status[run] = "error"
                continue
            done = one.completes or rung == case.last
            found.status[run] = "completed" if done else "paused"
            final[run] = one.metric
        metric = final[run]
        if metric is not None and math.isfinite(metric):
            numbers.append(metric)
        goes_on = goes_on or found.status[run] == "completed" or _is_kept(case, run, rung)
    if not numbers or not goes_on:
        return None
    mean = sum(numbers) / len(numbers)
    return -mean if case.contest.more_is_better else mean


def _is_kept(case: Case, run: str, rung: int) -> bool:
    halving = case.contest.halving
    return case.attempts[run, rung].saved or halving.repeat or not halving.resumable


def _end_rung(case: Case, rung: int, names: set[str], found: Bracket) -> None:
    for name in found.reached[rung]:
        for run in case.contest.runs[name]:
            goes_on = name in names and _is_kept(case, run, rung)
            if found.status[run] == "paused" and not goes_on:
                found.status[run] = "pruned"


def simulated(case: Case) -> SimulatedSweep:
    """Return the sweep of a case; of its configurations, some are suggested later."""
    names = list(case.contest.runs)
    known = names[: case.known]

    def decide_now(states: Mapping[str, RunState], *, idle: bool) -> Decisions:
        runs = {name: case.contest.runs[name] for name in known}
        found = decide(replace(case.contest, runs=runs), states, idle=idle)
        _check_places(case, states, found)
        return found

    def suggest(states: Mapping[str, RunState]) -> list[str]:
        del states
        more = names[len(known) : len(known) + 1]
        known.extend(more)
        return [run for name in more for run in case.contest.runs[name]]

    return SimulatedSweep(
        runs=[run for name in known for run in case.contest.runs[name]], decide=decide_now,
        attempt=case.end, order=random.Random(case.seed), retries=case.contest.retries,
        suggest=suggest, kills=case.kills,
    )  # fmt: skip


def _check_places(case: Case, states: Mapping[str, RunState], found: Decisions) -> None:
    """Check that no rung has more configurations than places, and no run two decisions."""
    assert not found.promoted.keys() & found.pruned.keys()
    for rung, places in enumerate(case.contest.halving.sizes(case.contest.size)):
        there = {
            name
            for name, members in case.contest.runs.items()
            for run in members
            if states.get(run, RunState()).rung >= rung > 0
            or found.promoted.get(run, 0) >= rung > 0
        }
        assert len(there) <= places


@settings(max_examples=300)
@given(cases())
def test_any_order_and_any_kill_end_as_synchronous_halving(case: Case) -> None:
    states = simulated(case).run()
    expected = play(case)
    assert {run: state.status for run, state in states.items()} == expected.status
    assert {run: state.rung for run, state in states.items()} == expected.rung


@settings(max_examples=100)
@given(cases(), st.data())
def test_a_prefix_of_the_journal_has_no_decision_that_the_whole_contradicts(
    case: Case, data: st.DataObject
) -> None:
    whole = simulated(case)
    last = whole.run()
    events = whole.events[: data.draw(st.integers(0, len(whole.events)))]
    found = decide(case.contest, fold(events))
    assert all(last[run].rung >= rung for run, rung in found.promoted.items())
    assert all(last[run].status == "pruned" for run in found.pruned)


@settings(max_examples=100)
@given(cases())
def test_deciding_twice_decides_nothing_new(case: Case) -> None:
    states = simulated(case).run()
    found = decide(case.contest, states, idle=True)
    assert (found.promoted, found.pruned) == ({}, {})


@settings(max_examples=150)
@given(cases(), st.sampled_from([0.1, 0.5, 1.0]))
def test_a_sweep_whose_money_runs_out_leaves_no_run_without_a_decision(
    case: Case, refused: float
) -> None:
    sweep, chance = simulated(case), random.Random(case.seed)
    sweep.may_hold = lambda *_: chance.random() >= refused
    states = sweep.run()
    ended = {"completed", "error", "pruned", "skipped"}
    assert {state.status for state in states.values()} <= ended
    # With more money, those that were refused go on, and no rung gets more than its places.
    sweep.may_hold, sweep.kills = (lambda *_: True), frozenset()
    assert {state.status for state in sweep.run().values()} <= ended - {"skipped"}


# Runs that are not paused: they pass rungs while they run.


def _race(case: Case) -> dict[str, RunState]:
    """Return the states after all runs have passed their rungs, in any order."""
    chance, events = random.Random(case.seed), list[Event]()
    passed = {run: 0 for members in case.contest.runs.values() for run in members}
    active = list(passed)
    events += [Event(t_ns=0, run=run, status="running") for run in active]
    while active:
        run = chance.choice(active)
        event = _passes(case, run, passed[run])
        passed[run] += 1
        events.append(event)
        for beaten, reason in decide(case.contest, fold(events)).pruned.items():
            events.append(Event(t_ns=0, run=beaten, status="pruned", reason=reason))
        active = [one for one, state in fold(events).items() if state.status == "running"]
    return fold(events)


def _passes(case: Case, run: str, rung: int) -> Event:
    end = case.end(run, rung, case.contest.retries)
    if end.status == "error":
        return Event(t_ns=0, run=run, status="error")
    done = end.status == "completed"
    return Event(
        t_ns=0, run=run, status="completed" if done else "running", reports=True,
        rung=case.last if done else rung, metric=end.metric, passes=not done,
    )  # fmt: skip


@settings(max_examples=100)
@given(cases(resumable=False))
def test_runs_that_go_on_are_ended_only_if_synchronous_halving_ends_them(case: Case) -> None:
    states, expected = _race(case), play(case)
    for run, state in states.items():
        if state.status == "pruned":
            assert expected.status[run] == "pruned"
        elif expected.status[run] != "pruned":  # Else it ended before others were known to win.
            assert state.status == expected.status[run]


# Decisions that the cases above do not single out.


def _state(status: str, rung: int, *metrics: float | None, saved: bool = True) -> RunState:
    reports = {at: RungReport(metric=value, saved=saved) for at, value in enumerate(metrics)}
    return RunState(status=status, rung=rung, starts=1, reports=reports)  # type: ignore[arg-type]


def _small(**more: object) -> Contest:
    first, last = (Budget.of("iso_tokens", {"max_tokens": n}) for n in (1, 9))
    halving = Halving(rungs=rungs_between(first, last, 3), factor=3)
    runs = {"a": ["a0", "a1"], "b": ["b0", "b1"], "c": ["c0", "c1"]}
    return replace(Contest(halving=halving, size=3, runs=runs, metric="loss"), **more)  # type: ignore[arg-type]


LOSERS = {run: _state("pruned", 0, 9.0) for run in ("b0", "b1", "c0", "c1")}


def test_a_seed_that_was_not_started_when_the_harness_died_follows_the_others() -> None:
    states = {"a0": _state("running", 1, 1.0), "a1": _state("paused", 0, 1.0), **LOSERS}
    assert decide(_small(), states).promoted == {"a1": 1}


def test_a_seed_without_a_checkpoint_does_not_repeat_its_work() -> None:
    unsaved = _state("paused", 0, 1.0, saved=False)
    found = decide(_small(), {"a0": _state("paused", 0, 1.0), "a1": unsaved, **LOSERS})
    assert found.promoted == {"a0": 1}
    assert found.pruned["a1"].startswith("rung 1 of 3: it has no committed checkpoint")


def test_a_run_that_is_done_needs_no_checkpoint_to_win() -> None:
    done = _state("completed", 0, 1.0, saved=False)
    others = {run: _state("paused", 0, 2.0) for run in LOSERS}
    found = decide(_small(), {"a0": done, "a1": done, **others})
    assert found.promoted == {}
    assert found.pruned.keys() == LOSERS.keys()


def test_a_configuration_that_the_ceiling_refused_may_still_go_on() -> None:
    refused = _state("skipped", 0, 1.0)
    found = decide(_small(), {"a0": refused, "a1": refused, **LOSERS}, idle=True)
    assert (found.promoted, found.pruned) == ({"a0": 1, "a1": 1}, {})


def test_what_an_idle_sweep_promotes_is_awaited_at_the_next_rung() -> None:
    contest = _small(size=9, runs={f"{n}": [f"{n}"] for n in range(9)})
    states = {f"{n}": _state("pruned", 0, 9.0) for n in range(9)}
    states |= {"0": _state("paused", 1, 1.0, 5.0), "1": _state("paused", 1, 1.0, 6.0)}
    states |= {"2": _state("paused", 0, 2.0)}
    assert decide(contest, states, idle=True).promoted == {"2": 1}


def test_a_seed_that_the_ceiling_refused_is_pruned_with_the_others() -> None:
    contest = _small(size=9, runs={f"{n}": [f"{n}s0", f"{n}s1"] for n in range(9)})
    pruned = _state("pruned", 0, 9.0)
    states = {run: pruned for members in contest.runs.values() for run in members}
    for name, metric in (("0", 1.0), ("1", 2.0), ("2", 3.0)):
        states |= {f"{name}s0": _state("paused", 1, 1.0, metric)}
        states |= {f"{name}s1": _state("skipped", 0, 1.0)}
    found = decide(contest, states, idle=True)
    assert found.promoted == {"0s0": 2, "0s1": 1}
    assert found.pruned.keys() == {"1s0", "1s1", "2s0", "2s1"}


@pytest.mark.parametrize("metric", [None, NAN, math.inf])
def test_a_metric_that_the_journal_cannot_keep_is_none(metric: float | None) -> None:
    states = {"a0": _state("paused", 0, metric), "a1": _state("paused", 0, metric), **LOSERS}
    found = decide(_small(), states)
    assert found.pruned["a0"] == "rung 1 of 3: no run of it recorded loss"


def test_an_attempt_that_was_cancelled_does_not_use_up_a_retry() -> None:
    contest = _small(size=1, runs={"a": ["a0"]}, retries=1)
    statuses = ("running", "cancelled", "running", "error")
    events = [Event(t_ns=0, run="a0", status=status) for status in statuses]  # type: ignore[arg-type]
    assert fold(events)["a0"].tries == contest.retries


# Samplers.


def _ranges() -> Iterator[st.SearchStrategy[Axis]]:
    whole, real = st.integers(-50, 50), st.floats(-1e6, 1e6)
    size = st.integers(1, 60)
    yield st.builds(lambda low, more: Range(low=low, high=low + more), whole, size)
    yield st.builds(
        lambda low, more, step: Range(low=low, high=low + more, step=min(step, more)),
        whole, size, st.integers(1, 7),
    )  # fmt: skip
    yield st.builds(lambda low, more: Range(low=low, high=low + more, log=True), size, size)
    yield st.builds(
        lambda low, step, more: Range(low=low / 100, high=(low + more * step) / 100,
                                      step=step / 100),
        whole, size, size,
    )  # fmt: skip
    yield st.builds(
        lambda one, two: Range(low=min(one, two), high=max(one, two)), real, real
    ).filter(lambda found: found.high - found.low > 0.01 * max(abs(found.low), abs(found.high)))
    yield st.builds(
        lambda low, ratio: Range(low=low, high=low * ratio, log=True),
        st.floats(1e-300, 1e6), st.floats(1.05, 1e6),
    )  # fmt: skip
    yield st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True).map(tuple)


SPACES: st.SearchStrategy[Space] = st.dictionaries(
    st.sampled_from(["lr", "width", "depth", "kind"]), st.one_of(list(_ranges())), min_size=1
)


def _key(point: Point) -> tuple[float, ...]:
    return tuple(point.values())


@settings(max_examples=150)
@given(SPACES, st.sampled_from(["random", "sobol"]), st.integers(0, 1000), st.integers(1, 40))
def test_planned_points_are_in_the_space_unique_and_the_same_again(
    space: Space, method: str, seed: int, trials: int
) -> None:
    count = point_count(space)
    search = Search(method=method, trials=min(trials, count or trials), seed=seed)
    found = list(islice(planned_points(space, search), search.trials))
    assert all(is_in(space, point) for point in found)
    assert len({_key(point) for point in found}) == len(found)
    assert found == list(islice(planned_points(space, search), search.trials))


@settings(max_examples=10)
@given(
    SPACES.filter(lambda space: (point_count(space) or 9) >= 6), st.integers(0, 99), st.booleans()
)
def test_a_study_rebuilt_from_its_points_suggests_the_same_next_point(
    space: Space, seed: int, more_is_better: bool
) -> None:
    search = Search(method="tpe", trials=6, seed=seed)
    trials: list[Trial] = []
    for number in range(6):
        point = tpe_point(space, search, trials, more_is_better=more_is_better)
        assert is_in(space, point)
        rebuilt = [replace(trial, point=dict(trial.point)) for trial in trials]
        assert tpe_point(space, search, rebuilt, more_is_better=more_is_better) == point
        trials.append(Trial(point=point, values=(float(number % 3),), ended=number != 4))
    assert len({_key(trial.point) for trial in trials}) == len(trials)
