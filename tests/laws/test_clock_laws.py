"""Clocks that jump between attempts, between ranks and within one change no figure of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlay
from outlay.budget.fold import RunSpend
from outlay.budget.history import read_since_statements
from outlay.budget.report import budget_report, replay
from outlay.clock import ManualClock
from outlay.goodput.follower import RunView, read_view, view_of
from outlay.goodput.timeline import TimelineBuilder
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    Price,
    PriceChanged,
    Record,
    SegmentId,
    SpanBegun,
    SpanEnded,
    Step,
)
from outlay.machine import ProcessStart
from outlay.record import facts
from outlay.runs import attempt_start
from outlay.units import Money

SECOND = 10**9
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
EPOCH = 1_700_000_000 * SECOND
PRICE = Price(micros_per_hour=4_000_000, currency="USD")
jumps = st.integers(-180, 180).map(lambda minutes: minutes * MINUTE)


@dataclass(frozen=True)
class Start:
    """One attempt: how far the clock was set before it and before its second rank, if any."""

    gap_ns: int
    steps: int
    step_ns: int
    resumes: int
    set_ns: int
    rank_set_ns: int | None
    is_killed: bool


starts = st.lists(
    st.builds(
        Start,
        gap_ns=st.integers(0, 20 * MINUTE),
        steps=st.integers(0, 5),
        step_ns=st.integers(1, HOUR),
        resumes=st.integers(0, 5),
        set_ns=jumps,
        rank_set_ns=st.none() | jumps,
        is_killed=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)

Segments = dict[SegmentId, list[Record]]


def segments_of(run: Sequence[Start], *, jumping: bool, with_boot_clock: bool = True) -> Segments:
    """Return the log of a run on one machine, with a steady clock or a jumping one."""
    segments: Segments = {}
    true_ns, wall_ns = HOUR, EPOCH  # Since boot, and what the clock adds to it.
    for number, start in enumerate(run):
        true_ns += start.gap_ns + SECOND
        wall_ns += start.set_ns if jumping else 0
        segments |= _segment(start, 0, number, true_ns, wall_ns, with_boot_clock=with_boot_clock)
        if start.rank_set_ns is not None:
            wall_ns += start.rank_set_ns if jumping else 0
            segments |= _segment(
                start, 1, number, true_ns, wall_ns, with_boot_clock=with_boot_clock
            )
        true_ns += start.steps * start.step_ns
    return segments


def _segment(
    start: Start, rank: int, number: int, true_ns: int, wall_ns: int, *, with_boot_clock: bool
) -> Segments:
    now_ns = wall_ns + true_ns
    records: list[Record] = [
        AttemptStarted(
            t_ns=now_ns, rank=rank, world_size=2, pid=10 * number + rank, host="h", nodes=1,
            boot_id="b", init_start="1", launch=f"launch-{number}", price=PRICE,
            process_start_ns=now_ns - SECOND, since_boot_ns=true_ns if with_boot_clock else 0,
        )
    ]  # fmt: skip
    for step in range(start.steps):
        now_ns += start.step_ns
        records += [
            Step(t_ns=now_ns, step=start.resumes + step, dur_ns=start.step_ns // 2, tokens=7),
            SpanBegun(t_ns=now_ns - start.step_ns // 4, name="evaluation"),
            SpanEnded(t_ns=now_ns, begun=3 * step + 2),
        ]
    if start.steps > 2 and with_boot_clock:  # Else a gap in the wrong place has another price.
        records.append(PriceChanged(t_ns=now_ns - 2 * start.step_ns, price=PRICE, gpus=3))
    if not start.is_killed:
        records.append(AttemptEnded(t_ns=now_ns, status="failed"))
    numbered = [msgspec.structs.replace(record, seq=seq) for seq, record in enumerate(records)]
    return {SegmentId.of(records[0]): numbered}  # type: ignore[arg-type]


def view_at_end(segments: Segments) -> RunView:
    builder = TimelineBuilder()
    for segment, records in segments.items():
        builder.account.fold(segment, records)
    timeline = builder.build(0, alive=False)
    assert timeline is not None
    return view_of(timeline, builder.account)


def spend_of(view: RunView) -> RunSpend:
    return replay(view.account).spend(view.timeline.end_ns)


@given(starts)
@settings(max_examples=200, deadline=None)
def test_figures_of_one_boot_do_not_depend_on_its_wall_clock(run: list[Start]) -> None:
    steady = view_at_end(segments_of(run, jumping=False))
    moved = view_at_end(segments_of(run, jumping=True))
    expected, found = steady.break_down(), moved.break_down()
    assert (found.phases, found.wall_ns) == (expected.phases, expected.wall_ns)
    assert (found.cost, found.cost_by_phase) == (expected.cost, expected.cost_by_phase)
    assert spend_of(moved).parts == spend_of(steady).parts
    assert spend_of(moved).total(charge="all") == spend_of(steady).total(charge="all")
    first, last = (steady.timeline.attempts[-1], moved.timeline.attempts[-1])
    assert first.segment.pid == last.segment.pid
    assert last.moved_ns == 0  # The last attempt is on its own clock, which is the reader's.


@pytest.mark.parametrize("with_boot_clock", [True, False])
@given(run=starts)
@settings(max_examples=100, deadline=None)
def test_a_further_attempt_never_lowers_the_cost(
    run: list[Start], *, with_boot_clock: bool
) -> None:
    before = Money(0, "USD")
    for length in range(1, len(run) + 1):
        # A second rank adds signs of life only as far as clocks can be compared.
        one_rank = [replace(start, rank_set_ns=None) for start in run[:length]]
        logged = segments_of(one_rank, jumping=True, with_boot_clock=with_boot_clock)
        view = view_at_end(logged)
        whole = view.break_down()
        assert sum(whole.phases.values()) == whole.wall_ns == view.whole.length_ns
        assert whole.cost is not None
        assert whole.cost >= before
        assert sum(spend_of(view).parts.micros().values()) == whole.cost.micros
        before = whole.cost


# Through the door that training has -------------------------------------------------------------

LIMIT = Money.parse("8 USD")
STEP = Money.parse("1 USD")  # A quarter of an hour at 4 USD an hour.


@dataclass(frozen=True)
class Restart:
    """A start on a node, after its clock was set, and how far it is set within the attempt."""

    node: str
    steps: int
    set_ns: int
    set_within_ns: int


restarts = st.lists(
    st.builds(
        Restart,
        node=st.sampled_from(["n1", "n2"]),
        steps=st.integers(0, 6),
        set_ns=jumps,
        set_within_ns=jumps,
    ),
    min_size=1,
    max_size=7,
)


started = count()


@contextmanager
def on_node(name: str, clock: ManualClock, *, with_boot_clock: bool) -> Iterator[None]:
    gather = facts.gather

    def gather_there(*args: object) -> AttemptStarted:
        about = gather(*args)  # type: ignore[arg-type]
        # A number for each start: two never begin in the same nanosecond.
        pid = about.pid + next(started)
        return msgspec.structs.replace(about, pid=pid, host=name, boot_id=name, init_start="1")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "gather", gather_there)
        if with_boot_clock:
            since_boot_ns = HOUR + clock.monotonic_ns()
            patch.setattr(attempt_start, "since_boot_ns", lambda _: since_boot_ns)
            patch.setattr(attempt_start, "process_start", lambda *_: ProcessStart())
        yield


def train(run_dir: Path, restart: Restart, clock: ManualClock) -> int:
    budget = outlay.iso_cost(str(LIMIT))
    with outlay.run("m", dir=run_dir, budget=budget, price="4 USD/h", clock=clock) as run:
        trained = 0
        for _ in run.steps(range(restart.steps)):
            clock.advance(HOUR // 4)
            clock.step_wall(restart.set_within_ns)
            trained += 1
        return trained


def used_before_next_start(run_dir: Path, clock: ManualClock) -> int:
    """Return the micro-dollars that a start would find as used."""
    header = AttemptStarted(t_ns=clock.wall_ns(), pid=1, host="n3", nodes=1, boot_id="n3")
    spend = read_since_statements(run_dir).spend_before(header, SegmentId.of(header))
    return spend.total(charge="training").cost_micros


@pytest.mark.parametrize("with_boot_clock", [True, False])
@given(run=restarts)
@settings(max_examples=40, deadline=None)
def test_restarts_train_no_more_than_the_limit_and_a_step(
    run: list[Restart], *, with_boot_clock: bool
) -> None:
    clock, trained, recorded = ManualClock(), 0, 0
    with tempfile.TemporaryDirectory() as name:
        for restart in run:
            clock.advance(SECOND)
            clock.step_wall(restart.set_ns)
            with on_node(restart.node, clock, with_boot_clock=with_boot_clock):
                trained += train(Path(name), restart, clock)
            used = used_before_next_start(Path(name), clock)
            assert used >= max(recorded, trained * STEP.micros)
            recorded = used
            _check_documents(Path(name), clock, run, with_boot_clock=with_boot_clock)
    assert trained * STEP.micros <= (LIMIT + STEP).micros


def _check_documents(
    run_dir: Path, clock: ManualClock, run: list[Restart], *, with_boot_clock: bool
) -> None:
    view = read_view(run_dir, clock.wall_ns())
    whole, budget = view.break_down(), budget_report(view)
    assert whole.cost is not None
    assert whole.assumed is not None
    assert budget is not None
    charged = whole.cost - whole.assumed
    if with_boot_clock and len({restart.node for restart in run}) == 1:
        assert budget.used.cost_micros == charged.micros
    assert budget.used.cost_micros >= charged.micros
