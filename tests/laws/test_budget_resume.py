"""Law: a run that is interrupted anywhere stops where an uninterrupted one does.

Progress limits give the same last step and the same totals; resource totals never fall and count
each unit once. The oracle below does not use outlay: it replays the script with plain numbers.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlay.budget.gate import BudgetGate
from outlay.budget.history import read_history
from outlay.budget.terms import Budget, iso_cost, iso_time
from outlay.clock import ManualClock
from outlay.ledger import AttemptStarted, Price, SegmentId, SegmentWriter, ledger_dir
from outlay.record import Recorder

MICROS_PER_HOUR = 3_600_000
NS = 10**9


@dataclass
class Training:
    """A training on a manual clock: step n has ``sizes[n]`` tokens and lasts ``seconds[n]`` s."""

    run_dir: Path
    budget: Budget
    sizes: list[int]
    seconds: list[int]
    checkpoint_every: int
    currency: str = "USD"

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.committed = -1
        self.executed: list[int] = []
        self.seen: list[dict[str, int | float]] = []

    def train(self, kills: list[int]) -> None:
        """Train to the end, through at most one attempt more than there are kills."""
        for steps in kills:
            if self.attempt(len(self.executed) + steps):
                return
        self.attempt(None)

    def attempt(self, dies_after: int | None) -> bool:
        """Train until the budget or the script ends, or the process dies; return which."""
        self.clock.advance(5 * NS)
        start_ns = self.clock.wall_ns()
        price = Price(MICROS_PER_HOUR, self.currency)
        header = AttemptStarted(t_ns=start_ns, price=price, boot_id="same")
        segment = SegmentId(start_ns, pid=len(self.seen))
        gate = BudgetGate(self.budget, self.run_dir, price=header.price, clock=self.clock)
        writer = SegmentWriter(ledger_dir(self.run_dir) / segment.file_name, header, self.clock)
        offset_ns = start_ns - self.clock.monotonic_ns()
        first_step = self.committed + 1
        recorder = Recorder(writer, self.clock, wall_offset_ns=offset_ns, first_step=first_step)
        gate.begin(recorder, header, segment)
        script = range(first_step, len(self.sizes))
        for step in recorder.steps(script, tokens=lambda number: self.sizes[number]):
            self.clock.advance(self.seconds[step] * NS)
            self.executed.append(step)
            if len(self.executed) == dies_after:
                break  # The step ran, and the process died before anybody could record it.
            if (step + 1) % self.checkpoint_every == 0:
                recorder.checkpoint_committed()
                self.committed = step
        died = len(self.executed) == dies_after
        if died:
            self.executed.pop()
        self.seen.append(gate.tracker.totals)
        writer.close()
        return not died


scripts = st.integers(1, 25).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 9), min_size=count, max_size=count),
        st.lists(st.integers(1, 5), min_size=count, max_size=count),
    )
)


currencies = st.sampled_from(["USD", "EUR"])


@settings(max_examples=60, deadline=None)
@given(
    script=scripts,
    max_tokens=st.integers(1, 120),
    checkpoint_every=st.integers(1, 6),
    kills=st.lists(st.integers(1, 12), max_size=4),
    currency=currencies,
)
def test_interrupted_anywhere_a_run_stops_at_the_same_step_with_the_same_progress(
    script: tuple[list[int], list[int]],
    max_tokens: int,
    checkpoint_every: int,
    kills: list[int],
    currency: str,
) -> None:
    sizes, seconds = script
    money = f"max_cost_{currency.lower()}"
    budget = Budget.of("iso_tokens", {"max_tokens": max_tokens, money: 10**6})
    with tempfile.TemporaryDirectory() as directory:
        training = Training(Path(directory), budget, sizes, seconds, checkpoint_every, currency)
        training.train(kills)
        last = training.seen[-1]
        everything = read_history(training.run_dir).spend(training.clock.wall_ns())

    fitting = max(n for n in range(len(sizes) + 1) if sum(sizes[:n]) <= max_tokens)
    assert last["tokens"] == sum(sizes[:fitting])
    assert last["steps"] == fitting
    assert last["time_ms"] == 1000 * sum(seconds[step] for step in training.executed)
    for key in ("time_ms", f"cost_{currency.lower()}"):
        assert all(before[key] <= after[key] for before, after in pairwise(training.seen))
    replayed = everything.total(charge="training")
    assert replayed.tokens == last["tokens"]
    assert replayed.time_ns == last["time_ms"] * 10**6
    assert replayed.cost_micros >= MICROS_PER_HOUR // 3600 * sum(seconds[:fitting])


@settings(max_examples=80, deadline=None)
@given(
    script=scripts,
    limit_s=st.integers(1, 60),
    checkpoint_every=st.integers(1, 6),
    kills=st.lists(st.integers(1, 12), max_size=4),
    limited=st.sampled_from(["time", "USD", "EUR"]),
)
def test_interrupted_anywhere_a_run_passes_its_time_or_money_by_at_most_one_step(
    script: tuple[list[int], list[int]],
    limit_s: int,
    checkpoint_every: int,
    kills: list[int],
    limited: str,
) -> None:
    sizes, seconds = script
    if limited == "time":
        budget, key, second = iso_time(f"{limit_s}s"), "time_ms", 1000.0
        currency = "USD"
    else:
        micros = MICROS_PER_HOUR // 3600
        budget = iso_cost(f"{limit_s * micros}e-6 {limited}", charge="training")
        key, second, currency = f"cost_{limited.lower()}", micros / 10**6, limited
    with tempfile.TemporaryDirectory() as directory:
        training = Training(Path(directory), budget, sizes, seconds, checkpoint_every, currency)
        training.train(kills)
    spent = [seconds[step] for step in training.executed]
    assert training.seen[-1][key] == pytest.approx(second * sum(spent))
    assert sum(spent[:-1]) < limit_s
