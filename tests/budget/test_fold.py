"""From records to totals: rollbacks, ranks, clocks, sampled steps, and the law of replay."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from ledgers import fold_segments
from outlay.budget.fold import FORM, ProcessSpend, RunSpend, join_attempts, restore_spend
from outlay.budget.surviving import Surviving
from outlay.budget.usage import Usage
from outlay.ledger import (
    SUPERVISOR,
    AttemptStarted,
    BudgetStatement,
    Heartbeat,
    Record,
    SegmentId,
    SegmentLife,
    SpanBegun,
    SpanEnded,
    Step,
)

SECOND = 10**9
Log = dict[SegmentId, list[Record]]

LARGE = 10**20  # FLOPs of a large model's step, which no 64-bit integer holds

executions = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 4), st.integers(0, 3) | st.just(LARGE)),
    max_size=40,
)


def survivors(history: Sequence[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    """The rule, naively: executing step m forgets every step numbered m or higher."""
    alive: dict[int, tuple[int, int]] = {}
    for step, tokens, flops in history:
        alive = {number: kept for number, kept in alive.items() if number < step}
        alive[step] = (tokens, flops)
    return alive


@example([(0, 0, 0), (2, 0, 0), (2, 0, 0)], 2)  # a gap in the numbers, gone back behind
@given(executions, st.integers(0, 16))
def test_what_survives_is_what_no_later_execution_undid(
    history: list[tuple[int, int, int]], cut: int
) -> None:
    surviving = Surviving()
    undone = executed = 0
    for step, tokens, flops in history:
        undone += surviving.execute(step, tokens, flops).tokens
        executed += tokens
    alive = survivors(history)
    below = [kept for number, kept in alive.items() if number < cut]
    assert surviving.below(cut) == Usage(
        sum(tokens for tokens, _ in below), len(below), sum(flops for _, flops in below)
    )
    assert surviving.below().tokens == executed - undone
    assert surviving.lowest == min((step for step, _, _ in history), default=None)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 12), st.integers(0, 12))
def test_a_record_for_many_steps_is_shared_out_among_them(
    tokens: int, flops: int, count: int, cut: int
) -> None:
    surviving = Surviving()
    surviving.execute(0, tokens, flops, count)
    kept = min(cut, count)
    assert surviving.below() == Usage(tokens, count, flops)
    below = surviving.below(cut)
    assert below.steps == kept
    assert tokens * kept // count <= below.tokens <= -(-tokens // count) * kept
    assert surviving.rewind(cut) == surviving_total(tokens, count, flops, below)


def surviving_total(tokens: int, count: int, flops: int, below: Usage) -> Usage:
    return Usage(tokens, count, flops) - below


def segment(start_s: int, rank: int = 0) -> SegmentId:
    return SegmentId(start_s * SECOND, rank=rank, pid=start_s * 10 + rank)


def process(start_s: int, rank: int, *records: Record, launch: str = "") -> Log:
    """A process that started at a second, and what it recorded after its header."""
    header = AttemptStarted(t_ns=start_s * SECOND, rank=rank, launch=launch)
    numbered = [replace(record, seq=seq) for seq, record in enumerate((header, *records))]
    return {segment(start_s, rank): numbered}


def step(number: int, end_s: int, seconds: int = 1, **used: int) -> Step:
    return Step(t_ns=end_s * SECOND, step=number, dur_ns=seconds * SECOND, **used)


def spend_of(*logs: Log) -> RunSpend:
    joined = {key: records for log in logs for key, records in log.items()}
    return join_attempts(fold_segments(joined), 2**62)


def test_tokens_add_over_ranks_and_time_is_the_slowest_ranks() -> None:
    spend = spend_of(
        process(1, 0, step(0, 3, seconds=2, tokens=5, comm_bytes=10, energy_mj=7)),
        process(1, 1, step(0, 4, seconds=3, tokens=6, comm_bytes=20, energy_mj=8)),
    )
    total = spend.total(charge="training")
    assert (total.tokens, total.steps) == (11, 1)
    assert total.time_ns == 3 * SECOND
    assert (total.comm_bytes, total.energy_mj) == (30, 15)


def test_an_attempt_with_fewer_ranks_undoes_the_work_of_those_that_are_gone() -> None:
    first = [step(n, 10 + n, tokens=5) for n in range(4)]
    spend = spend_of(
        process(1, 0, *first),
        process(1, 1, *first),
        process(50, 0, step(2, 60, tokens=5)),
    )
    assert spend.progress_below().tokens == 2 * 2 * 5 + 5
    assert spend.executed.tokens == 2 * 4 * 5 + 5


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5))
def test_over_attempts_the_rule_of_survival_is_the_same(spans: list[tuple[int, int]]) -> None:
    history, logs = [], []
    for attempt, (first, count) in enumerate(spans):
        numbers = range(first, first + count)
        history += [(number, attempt + 1, 0) for number in numbers]
        start_s = 1000 * (attempt + 1)
        steps = [step(n, start_s + 2 * i + 2, tokens=attempt + 1) for i, n in enumerate(numbers)]
        logs.append(process(start_s, 0, *steps))
    alive = survivors(history)
    total = spend_of(*logs).total(charge="training")
    assert total.tokens == sum(tokens for tokens, _ in alive.values())
    assert total.steps == len(alive)
    assert total.time_ns == len(history) * SECOND


def span(name: str, start_s: int, end_s: int, seq: int, *, beside: bool = False) -> list[Record]:
    begun = SpanBegun(t_ns=start_s * SECOND, name=name, overlapped=beside)
    return [begun, SpanEnded(t_ns=end_s * SECOND, begun=seq)]


def test_an_evaluation_inside_a_step_is_taken_out_of_its_time() -> None:
    spend = spend_of(process(0, 0, *span("evaluation", 2, 5, seq=1), step(0, 6, seconds=5)))
    assert spend.total(charge="training").time_ns == 2 * SECOND
    assert spend.total(charge="all").time_ns == 5 * SECOND
    assert spend.clocks_ns["evaluation"] == 3 * SECOND


def test_an_evaluation_between_steps_takes_nothing_from_them() -> None:
    records = [*span("evaluation", 1, 3, seq=1), step(0, 6, seconds=2)]
    spend = spend_of(process(0, 0, *records))
    assert spend.total(charge="training").time_ns == 2 * SECOND


def test_outermost_of_nested_spans_counts() -> None:
    inner = span("checkpoint_save", 2, 3, seq=2)
    outer = span("evaluation", 1, 5, seq=1)
    spend = spend_of(process(0, 0, outer[0], *inner, outer[1]))
    assert spend.clocks_ns["evaluation"] == 4 * SECOND
    assert spend.clocks_ns["checkpoint"] == 0


def test_work_beside_training_and_other_spans_have_no_clock() -> None:
    records = [*span("evaluation", 1, 5, seq=1, beside=True), *span("forward", 5, 6, seq=3)]
    spend = spend_of(process(0, 0, *records, step(0, 7, seconds=6)))
    assert spend.total(charge="all").time_ns == 6 * SECOND


def test_a_span_cut_short_by_a_kill_is_charged_up_to_the_last_sign_of_life() -> None:
    begun = span("checkpoint_save", 1, 99, seq=1)[0]
    spend = spend_of(process(0, 0, begun, Heartbeat(t_ns=4 * SECOND)))
    assert spend.clocks_ns["checkpoint"] == 3 * SECOND


def test_a_supervisors_energy_counts_only_if_the_training_measured_none() -> None:
    outside = process(0, SUPERVISOR, Heartbeat(t_ns=9 * SECOND, energy_mj=100))
    inside = process(1, 0, step(0, 5, energy_mj=90))
    assert spend_of(outside).total(charge="training").energy_mj == 100
    assert spend_of(outside, inside).total(charge="training").energy_mj == 90


def test_a_run_without_attempts_has_used_nothing() -> None:
    assert RunSpend(()).total(charge="all") == Usage()


@given(executions, st.integers(0, 40))
def test_a_fold_restored_from_its_snapshot_continues_as_if_it_had_not_stopped(
    history: list[tuple[int, int, int]], cut: int
) -> None:
    records: list[Record] = [
        Step(t_ns=(n + 1) * SECOND, step=number, dur_ns=SECOND, tokens=tokens, flops=flops, seq=n)
        for n, (number, tokens, flops) in enumerate(history)
    ]
    whole, first = ProcessSpend(SegmentLife(segment(0))), ProcessSpend(SegmentLife(segment(0)))
    for record in records:
        whole.apply(record)
    for record in records[:cut]:
        first.apply(record)
    state = to_builtins(first.snapshot())
    statement = BudgetStatement(seq=cut + 1, t_ns=0, form=FORM, covers=cut + 1, state=state)
    rest = restore_spend(segment(0), None, statement)
    for record in records[cut:]:
        rest.apply(record)
    assert rest.surviving.runs() == whole.surviving.runs()
    assert rest.executed == whole.executed
    assert rest.periods == whole.periods
    assert rest.life == whole.life


def test_the_order_of_files_does_not_matter() -> None:
    logs = [process(s, 0, *(step(n, s + n + 2, tokens=3) for n in range(4))) for s in (10, 20, 30)]
    assert spend_of(*logs).total(charge="all") == spend_of(*reversed(logs)).total(charge="all")
