"""Law: ranks that agree now and then stop together, and where their limits say.

Threads stand for ranks, and a barrier for the network; torchrun is tried elsewhere.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlay.budget.agreement import FAR, AgreementLost, RankAgreement, Report, settle
from outlay.budget.terms import Budget, iso_tokens
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import ZERO, Usage
from outlay.clock import ManualClock
from outlay.decoding import decode
from waiting import PATIENCE_S


@dataclass
class FakeNetwork:
    """Lets threads exchange payloads as ranks would; not a real process group."""

    size: int
    sums_on_host: bool = True
    posted: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=PATIENCE_S)

    def exchange(self, rank: int, payload: bytes) -> list[bytes]:
        try:
            self.posted[rank] = payload
            self.barrier.wait()
            answers = [self.posted[other] for other in range(self.size)]
            self.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise AgreementLost(rank, error) from error
        return answers


class FakeGroup:
    """One thread's end of a FakeNetwork."""

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.size = network.size
        self.sums_on_host = network.sums_on_host

    def gather(self, payload: bytes) -> list[bytes]:
        return self.network.exchange(self.rank, payload)

    def total(self, number: int) -> int:
        return sum(map(int, self.gather(str(number).encode())))


@dataclass
class Rank:
    """One rank's training: how many tokens and nanoseconds each of its steps takes."""

    sizes: list[int]
    times_ns: list[int]
    tracker: BudgetTracker
    clock: ManualClock
    steps: int = 0

    def train(self, group: FakeGroup, agreement_ns: int) -> None:
        agreement = RankAgreement(group, self.tracker, self.clock)
        agreement.steady = len(set(self.sizes)) == 1
        for size, time_ns in zip(self.sizes, self.times_ns, strict=True):
            if self._stops(agreement, Usage(tokens=size, steps=1), agreement_ns):
                return
            usage = Usage(tokens=size, steps=1, time_ns=time_ns)
            self.tracker.count(usage)
            agreement.record_step(usage)
            self.steps += 1

    def _stops(self, agreement: RankAgreement, step: Usage, agreement_ns: int) -> bool:
        agreement._agreement_ns = agreement_ns  # What it would have measured on a real network.
        verdict = agreement.before_step(step)
        return verdict is not None and verdict.reason is not None


def train(
    budget: Budget,
    sizes: list[list[int]],
    times_ns: list[list[int]],
    agreement_ns: int,
    *,
    sums_on_host: bool = True,
) -> list[Rank]:
    ranks = [
        Rank(rank_sizes, rank_times, BudgetTracker.of(budget), ManualClock())
        for rank_sizes, rank_times in zip(sizes, times_ns, strict=True)
    ]
    network = FakeNetwork(len(ranks), sums_on_host)
    threads = [
        threading.Thread(target=rank.train, args=(FakeGroup(network, number), agreement_ns))
        for number, rank in enumerate(ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ranks


@st.composite
def fleets(draw: st.DrawFn, *, sizes: st.SearchStrategy[int]) -> list[list[int]]:
    ranks, steps = draw(st.integers(2, 4)), draw(st.integers(1, 30))
    return draw(
        st.lists(st.lists(sizes, min_size=steps, max_size=steps), min_size=ranks, max_size=ranks)
    )


agreement_costs = st.sampled_from([0, 10, 10_000, 10**9])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(1, 9), st.integers(1, 300), agreement_costs)
def test_ranks_with_steady_steps_use_exactly_what_fits(
    ranks: int, size: int, max_tokens: int, agreement_ns: int
) -> None:
    sizes, times_ns = [[size] * 60] * ranks, [[1000] * 60] * ranks
    trained = train(iso_tokens(max_tokens), sizes, times_ns, agreement_ns)
    fitting = min(60, max_tokens // (size * ranks))
    assert [rank.steps for rank in trained] == [fitting] * ranks
    if fitting < 60:
        assert {rank.tracker.used.tokens for rank in trained} == {fitting * size * ranks}


@settings(max_examples=60, deadline=None)
@given(fleets(sizes=st.integers(0, 10) | st.integers(0, 900)), st.integers(1, 900), agreement_costs)
def test_ranks_with_uneven_steps_stop_together_and_never_pass_a_predictable_limit(
    sizes: list[list[int]], max_tokens: int, agreement_ns: int
) -> None:
    times_ns = [[1000] * len(sizes[0])] * len(sizes)
    trained = train(iso_tokens(max_tokens), sizes, times_ns, agreement_ns)
    (steps,) = {rank.steps for rank in trained}
    joint = [sum(each) for each in zip(*sizes, strict=True)]
    assert sum(joint[:steps]) <= max_tokens
    exhausted = sum(joint[:steps]) == max_tokens or sum(joint[: steps + 1]) > max_tokens
    assert exhausted or steps == len(joint)


@settings(max_examples=60, deadline=None)
@given(fleets(sizes=st.integers(5, 10)), st.integers(1, 900), agreement_costs)
def test_without_a_sum_on_the_host_steps_up_to_twice_the_largest_never_pass_a_limit(
    sizes: list[list[int]], max_tokens: int, agreement_ns: int
) -> None:
    times_ns = [[1000] * len(sizes[0])] * len(sizes)
    trained = train(iso_tokens(max_tokens), sizes, times_ns, agreement_ns, sums_on_host=False)
    (steps,) = {rank.steps for rank in trained}
    assert sum(sum(rank.sizes[:steps]) for rank in trained) <= max_tokens


@settings(max_examples=60, deadline=None)
@given(fleets(sizes=st.just(1)), st.data(), st.integers(1, 60), agreement_costs)
def test_ranks_with_a_straggler_pass_a_time_limit_by_at_most_one_step(
    sizes: list[list[int]], data: st.DataObject, limit_s: int, agreement_ns: int
) -> None:
    pace = [data.draw(st.integers(1, 5)) * 10**9 for _ in sizes]
    times_ns = [[each] * len(sizes[0]) for each in pace]
    budget = Budget.of("iso_time", {"max_minutes": f"{limit_s}s"})
    trained = train(budget, sizes, times_ns, agreement_ns)
    (steps,) = {rank.steps for rank in trained}
    slowest_ns = max(pace)
    assert (steps - 1) * slowest_ns < limit_s * 10**9
    enough = steps * slowest_ns >= limit_s * 10**9
    assert enough or steps == len(sizes[0])


def report(**changes: object) -> Report:
    known: dict[str, object] = {
        "base": ZERO,
        "own": Usage(tokens=100, steps=10, time_ns=10 * 20_000_000),
    }
    known |= {"next": Usage(tokens=10, steps=1), "largest": Usage(tokens=10, steps=1)}
    known |= {"steady": True}
    return Report(**(known | {"step_ns": 20_000_000} | changes))  # type: ignore[arg-type]


def test_all_gathers_are_spaced_to_take_a_hundredth_of_the_time() -> None:
    bounds = iso_tokens(10**9).bounds
    verdict = settle([report(agreement_ns=1_000_000)] * 2, 0, bounds)
    assert verdict.steps == 5  # 1 ms for every 100 ms


def test_a_next_step_larger_than_all_before_counts_as_the_largest() -> None:
    bounds = iso_tokens(1000).bounds  # 200 used, and the next step of both takes 100
    larger = report(agreement_ns=10**9, steady=False, next=Usage(tokens=50, steps=1))
    assert settle([larger] * 2, 0, bounds).steps == 4


def test_all_gathers_are_more_frequent_close_to_a_limit() -> None:
    bounds = iso_tokens(260).bounds  # 200 used, 20 a step
    verdict = settle([report(agreement_ns=10**9)] * 2, 0, bounds)
    assert verdict.steps == 3


def test_steps_of_unknown_size_are_given_twice_the_room() -> None:
    bounds = iso_tokens(280).bounds  # 200 used, 20 a step so far
    verdict = settle([report(agreement_ns=10**9, steady=False)] * 2, 0, bounds)
    assert verdict.steps == 2


@given(st.integers(1, 10**6), st.integers(0, 10**9), agreement_costs)
def test_far_from_a_limit_steps_a_thousand_times_the_largest_do_not_pass_it(
    each: int, max_tokens: int, agreement_ns: int
) -> None:
    sized = {"next": Usage(tokens=each, steps=1), "largest": Usage(tokens=each, steps=1)}
    reports = [report(agreement_ns=agreement_ns, steady=False, **sized)] * 2
    verdict = settle(reports, 0, iso_tokens(max_tokens + 201).bounds, sums=True)
    left = max_tokens + 1
    assert verdict.tokens_left in (None, left)
    assert verdict.tokens_left == left or verdict.steps * FAR * 2 * each <= left


def test_tokens_that_can_be_summed_before_every_step_do_not_shorten_the_spacing() -> None:
    bounds = iso_tokens(280).bounds  # 200 used, 20 a step so far
    verdict = settle([report(agreement_ns=10**9, steady=False)] * 2, 0, bounds, sums=True)
    assert verdict.steps == 500  # ten seconds of steps
    assert verdict.tokens_left == 80


def test_use_before_the_attempt_is_taken_from_rank_zero() -> None:
    reports = [report(base=Usage(tokens=50)), report(base=Usage(tokens=999))]
    verdict = settle(reports, 1, iso_tokens(250).bounds)
    assert verdict.base.tokens == 50
    assert verdict.reason is not None


def test_a_report_round_trips_however_large_its_numbers() -> None:
    large = report(base=Usage(flops=10**25, cost_units=10**24))
    assert decode(msgspec.json.encode(large), Report) == large


def test_a_lost_rank_is_an_error_and_no_hang() -> None:
    network = FakeNetwork(2)
    network.barrier.abort()
    agreement = RankAgreement(FakeGroup(network, 0), BudgetTracker.of(iso_tokens(5)), ManualClock())
    with pytest.raises(AgreementLost, match="rank 0: the ranks can no longer agree"):
        agreement.before_step(Usage(tokens=1, steps=1))
