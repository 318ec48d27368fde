"""The recorder: steps and their numbers, spans, metrics, checkpoints, gates and observers."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

import outlay
from ledgers import SECOND
from outlay.clock import ManualClock
from outlay.ledger import (
    AttemptEnded,
    BudgetEvent,
    CheckpointCommitted,
    EndStatus,
    Heartbeat,
    KnownRecord,
    Metric,
    Note,
    PriceChanged,
    Record,
    SpanBegun,
    SpanEnded,
    Step,
    read_run,
)

R = TypeVar("R", bound=Record)


@pytest.fixture
def run(tmp_path: Path, clock: ManualClock) -> Iterator[outlay.Run]:
    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        yield run


def recorded(run: outlay.Run, kind: type[R]) -> list[R]:
    return [record for record in read_run(run.dir).records if isinstance(record, kind)]


# Steps


def test_a_step_is_timed_apart_from_the_wait_for_its_data(
    run: outlay.Run, clock: ManualClock
) -> None:
    def loader() -> Iterator[int]:
        for batch in range(2):
            clock.advance(3 * SECOND)
            yield batch

    for _ in run.steps(loader()):
        clock.advance(10 * SECOND)
    steps = recorded(run, Step)
    assert [(s.wait_ns, s.dur_ns) for s in steps] == [(3 * SECOND, 10 * SECOND)] * 2


def test_a_steps_time_is_when_it_ended(run: outlay.Run, clock: ManualClock) -> None:
    with run.step():
        clock.advance(SECOND)
    assert recorded(run, Step)[0].t_ns == clock.wall_ns()


def test_steps_are_numbered_from_zero(run: outlay.Run) -> None:
    assert [run.step_number for _ in run.steps("abc")] == [0, 1, 2]
    assert [step.step for step in recorded(run, Step)] == [0, 1, 2]


def test_both_shapes_of_loop_share_their_numbers(run: outlay.Run) -> None:
    for _ in run.steps("ab"):
        pass
    with run.step() as timer:
        assert timer.number == 2
    for _ in run.steps("c"):
        pass
    assert [step.step for step in recorded(run, Step)] == [0, 1, 2, 3]


def test_loop_may_set_its_first_step_number(run: outlay.Run) -> None:
    assert [run.step_number for _ in run.steps("ab", start=100)] == [100, 101]


def test_timer_may_count_several_steps(run: outlay.Run) -> None:
    with run.step() as timer:
        timer.count = 10
    with run.step():
        pass
    assert [(step.step, step.count) for step in recorded(run, Step)] == [(0, 10), (10, 1)]


def test_tokens_and_samples_of_a_batch_are_counted(run: outlay.Run) -> None:
    for _ in run.steps([[1, 2], [3, 4, 5]], tokens=len, samples=1):
        pass
    assert [(step.tokens, step.samples) for step in recorded(run, Step)] == [(2, 1), (3, 1)]


def test_the_amounts_of_a_step_may_be_set_while_it_runs(run: outlay.Run) -> None:
    with run.step(tokens=1, samples=2) as timer:
        timer.tokens = 5
        timer.comm_bytes, timer.energy_mj, timer.flops = 6, 7, 8
    (step,) = recorded(run, Step)
    used = (step.tokens, step.samples, step.comm_bytes, step.energy_mj, step.flops)
    assert used == (5, 2, 6, 7, 8)


def test_batches_come_through_unchanged(run: outlay.Run) -> None:
    batches = [object(), object()]
    assert list(run.steps(batches)) == batches


def test_an_empty_loader_is_no_steps(run: outlay.Run) -> None:
    assert list(run.steps([])) == []
    assert recorded(run, Step) == []


def test_a_step_left_by_break_counts(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        for _ in run.steps(range(9)):
            if run.step_number == 2:
                break
    assert [step.step for step in recorded(run, Step)] == [0, 1, 2]


def test_the_step_after_a_break_has_the_next_number(run: outlay.Run) -> None:
    for _ in run.steps(range(9)):
        break
    for _ in run.steps(range(1)):
        pass
    assert [step.step for step in recorded(run, Step)] == [0, 1]


def test_a_step_left_by_break_ends_there(run: outlay.Run, clock: ManualClock) -> None:
    for _ in run.steps(range(9)):
        clock.advance(SECOND)
        break
    clock.advance(50 * SECOND)
    run.metric("accuracy", 1)
    assert recorded(run, Step)[0].dur_ns == SECOND


def test_step_left_by_break_counts_in_a_preempted_run(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        for _ in run.steps(range(9)):
            run.preempted("spot reclaim")
            break
    assert [step.step for step in recorded(run, Step)] == [0]
    assert recorded(run, AttemptEnded)[0].status == "preempted"


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_a_step_left_by_an_exception_does_not_count(tmp_path: Path, error: BaseException) -> None:
    def train(run: outlay.Run) -> None:
        with run:
            for number in run.steps(range(9)):
                if number == 2:
                    raise error

    run = outlay.run("m", dir=tmp_path)
    with pytest.raises(type(error)):
        train(run)
    assert [step.step for step in recorded(run, Step)] == [0, 1]


def test_a_timed_step_that_fails_does_not_count(run: outlay.Run) -> None:
    with pytest.raises(ValueError, match="oom"), run.step():
        raise ValueError("oom")
    with run.step():
        pass
    assert [step.step for step in recorded(run, Step)] == [0]


def test_a_loaders_own_error_reaches_the_loop(run: outlay.Run) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("the data is gone")

    with pytest.raises(OSError, match="the data is gone"):
        list(run.steps(broken()))


# Resuming


def test_a_new_attempt_continues_after_the_last_committed_checkpoint(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        for number in run.steps(range(6)):
            if number == 3:
                run.checkpoint_committed()
    with outlay.run("m", dir=tmp_path) as again:
        assert again.resume_step == 4
        assert [again.step_number for _ in again.steps("ab")] == [4, 5]


def test_a_new_attempt_without_a_checkpoint_starts_from_zero(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        list(run.steps(range(6)))
    with outlay.run("m", dir=tmp_path) as again:
        assert again.resume_step == 0


def test_a_checkpoint_is_of_the_last_step_unless_named(run: outlay.Run) -> None:
    list(run.steps(range(3)))
    run.checkpoint_committed()
    run.checkpoint_committed(1)
    assert [record.step for record in recorded(run, CheckpointCommitted)] == [2, 1]


# Spans


def span_names(run: outlay.Run) -> list[tuple[str, bool]]:
    return [(record.name, record.overlapped) for record in recorded(run, SpanBegun)]


def test_a_span_has_a_begin_and_an_end(run: outlay.Run, clock: ManualClock) -> None:
    with run.span("evaluation"):
        clock.advance(SECOND)
    (begun,), (ended,) = recorded(run, SpanBegun), recorded(run, SpanEnded)
    assert (ended.begun, ended.t_ns - begun.t_ns) == (begun.seq, SECOND)


def test_a_spans_begin_is_on_disk_before_the_work(run: outlay.Run) -> None:
    with run.span("checkpoint_save"):
        assert span_names(run) == [("checkpoint_save", False)]


def test_a_span_ends_though_its_work_fails(run: outlay.Run) -> None:
    with pytest.raises(ValueError, match="no"), run.span("evaluation"):
        raise ValueError("no")
    assert len(recorded(run, SpanEnded)) == 1


def test_a_decorated_function_is_a_span_each_time(run: outlay.Run) -> None:
    @run.span("evaluation")
    def evaluate(x: int) -> int:
        """Say what it is."""
        return x + 1

    assert [evaluate(1), evaluate(2)] == [2, 3]
    assert evaluate.__doc__ == "Say what it is."
    assert span_names(run) == [("evaluation", False)] * 2


def test_a_decorated_function_may_call_itself(run: outlay.Run) -> None:
    @run.span("nested")
    def down(depth: int) -> int:
        return depth and down(depth - 1)

    assert down(2) == 0
    begun = [record.seq for record in recorded(run, SpanBegun)]
    assert [record.begun for record in recorded(run, SpanEnded)] == begun[::-1]


def test_an_async_span_is_a_span(run: outlay.Run) -> None:
    async def work() -> None:
        async with run.span("upload"):
            await asyncio.sleep(0)

    asyncio.run(work())
    assert span_names(run) == [("upload", False)]
    assert len(recorded(run, SpanEnded)) == 1


def test_a_decorated_coroutine_is_a_span_until_it_is_done(
    run: outlay.Run, clock: ManualClock
) -> None:
    @run.span("upload")
    async def upload() -> str:
        await asyncio.sleep(0)
        clock.advance(SECOND)
        return "done"

    assert asyncio.run(upload()) == "done"
    (begun,), (ended,) = recorded(run, SpanBegun), recorded(run, SpanEnded)
    assert ended.t_ns - begun.t_ns == SECOND


def test_coroutines_at_once_each_end_their_own_span(run: outlay.Run) -> None:
    @run.span("upload")
    async def upload(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(upload(3), upload(1))

    asyncio.run(both())
    first, second = recorded(run, SpanBegun)
    assert [record.begun for record in recorded(run, SpanEnded)] == [second.seq, first.seq]


def test_a_span_of_another_thread_is_overlapped(run: outlay.Run) -> None:
    def save() -> None:
        with run.span("checkpoint_save"):
            pass

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    assert span_names(run) == [("checkpoint_save", True)]


def test_a_span_may_be_marked_as_overlapped(run: outlay.Run) -> None:
    with run.span("checkpoint_save", overlapped=True):
        pass
    assert span_names(run) == [("checkpoint_save", True)]


def test_the_thread_that_steps_is_the_one_that_counts(run: outlay.Run) -> None:
    def train() -> None:
        for _ in run.steps("a"):
            with run.span("evaluation"):
                pass

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert span_names(run) == [("evaluation", False)]


# Everything else


@pytest.mark.parametrize("value", [0.91, math.inf, -math.inf, 3])
def test_a_metric_reads_back_as_its_number(run: outlay.Run, value: float) -> None:
    run.metric("accuracy", value)
    assert [record.number for record in recorded(run, Metric)] == [value]


def test_a_metric_that_is_not_a_number_is_kept_as_such(run: outlay.Run) -> None:
    run.metric("loss", math.nan)
    assert math.isnan(recorded(run, Metric)[0].number)
    assert read_run(run.dir).findings == []


def test_a_metric_belongs_to_the_step_that_runs(run: outlay.Run) -> None:
    for _ in run.steps("ab"):
        run.metric("loss", 1)
    run.metric("accuracy", 1, step=77)
    assert [record.step for record in recorded(run, Metric)] == [0, 1, 77]


def test_a_price_change_carries_the_gpus(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, gpus=8, price="1 USD/h") as run:
        run.set_price("2 USD/h")
        run.set_price("2 USD/h", gpus=4)
    changes = [(c.price.micros_per_hour, c.gpus) for c in recorded(run, PriceChanged)]
    assert changes == [(2_000_000, 8), (2_000_000, 4)]


def test_notes_heartbeats_and_budget_events_are_kept(run: outlay.Run) -> None:
    run.note("changed the batch size", batch=32)
    run.heartbeat()
    run.recorder.budget_event("threshold", {"share": 0.9})
    assert [(n.text, n.data) for n in recorded(run, Note)] == [
        ("changed the batch size", {"batch": 32})
    ]
    assert len(recorded(run, Heartbeat)) == 1
    assert [e.event for e in recorded(run, BudgetEvent)] == ["threshold"]


# Gates


class CountingGate:
    """Allows so many steps, and keeps its calls."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.asked: list[int] = []
        self.told: list[int] = []
        self.finished: list[tuple[EndStatus, int]] = []

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        del samples
        self.asked.append(tokens)
        return "enough" if len(self.told) >= self.allowed else None

    def after_step(self, step: Step) -> str | None:
        self.told.append(step.step)
        return None

    def finish(self, status: EndStatus) -> None:
        self.finished.append((status, len(self.told)))


class LastStepGate(CountingGate):
    """Stops the loop after its last step."""

    def after_step(self, step: Step) -> str | None:
        super().after_step(step)
        return "reached" if len(self.told) >= self.allowed else None


def test_a_gate_refuses_a_step_before_it_runs(run: outlay.Run) -> None:
    gate = CountingGate(allowed=2)
    run.recorder.attach(gate=gate)
    assert list(run.steps(range(9), tokens=5)) == [0, 1]
    assert (gate.asked, gate.told, run.stop_reason) == ([5, 5, 5], [0, 1], "enough")


def test_a_gate_stops_the_loop_after_a_step(run: outlay.Run) -> None:
    gate = LastStepGate(allowed=2)
    run.recorder.attach(gate=gate)
    assert list(run.steps(range(9))) == [0, 1]
    assert (len(gate.asked), run.stop_reason) == (2, "reached")


def test_every_gate_binds(run: outlay.Run) -> None:
    run.recorder.attach(gate=CountingGate(allowed=9))
    run.recorder.attach(gate=CountingGate(allowed=1))
    assert list(run.steps(range(9))) == [0]


def test_attached_callbacks_fill_steps_and_observe_records_in_order(
    run: outlay.Run,
) -> None:
    seen: list[tuple[str, int, int]] = []

    def observe(name: str) -> Callable[[KnownRecord, int], None]:
        return lambda record, seq: seen.append(
            (name, seq, record.tokens if isinstance(record, Step) else -1)
        )

    run.recorder.attach(fill_step=lambda step: replace(step, tokens=7), observe=observe("a"))
    run.recorder.attach(fill_step=lambda step: replace(step, tokens=2 * step.tokens))
    run.recorder.attach(observe=observe("b"))
    list(run.steps(range(1)))
    run.note("after")
    assert seen == [("a", 1, 14), ("b", 1, 14), ("a", 2, -1), ("b", 2, -1)]
    assert recorded(run, Step)[0].tokens == 14


def test_a_stopped_run_runs_no_further_loop(run: outlay.Run) -> None:
    run.recorder.attach(gate=LastStepGate(allowed=1))
    assert list(run.steps(range(9))) == [0]
    assert list(run.steps(range(9))) == []


def test_a_step_left_by_break_reaches_the_gates_before_the_end(tmp_path: Path) -> None:
    gate = CountingGate(allowed=9)
    with outlay.run("m", dir=tmp_path) as run:
        run.recorder.attach(gate=gate)
        for _ in run.steps(range(9)):
            break
    assert gate.finished == [("completed", 1)]


def test_the_end_says_why_the_loop_stopped(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.recorder.attach(gate=LastStepGate(allowed=1))
        list(run.steps(range(9)))
    assert recorded(run, AttemptEnded)[0].reason == "reached"
