"""Several writers: a second process, a forked child, many threads; and clocks that step."""

from __future__ import annotations

import threading
from pathlib import Path
from textwrap import dedent

import pytest

import outlay
import scripts
from command_line import python
from ledgers import HOUR, SECOND, Segment
from outlay.clock import ManualClock
from outlay.errors import RunInUse
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    Heartbeat,
    Metric,
    Note,
    Record,
    SpanBegun,
    SpanEnded,
    Step,
    derive_attempts,
    read_run,
)
from outlay.record.lock import is_held
from waiting import until

HOLDER = """
    import sys
    import outlay
    run = outlay.run("m", dir=sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_second_live_writer_of_a_rank_is_refused_with_the_holders_name(tmp_path: Path) -> None:
    with scripts.start(HOLDER, tmp_path) as holder:
        scripts.wait_for(holder, "ready")
        with pytest.raises(RunInUse, match=f"rank 0 is already .* by pid {holder.pid}"):
            outlay.run("m", dir=tmp_path)
        assert len(read_run(tmp_path).segments) == 1  # The refused one left none.
        holder.communicate("done\n")


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with (
        outlay.run("m", dir=tmp_path),
        pytest.raises(RunInUse, match="by this process"),
    ):
        outlay.run("m", dir=tmp_path)


def test_a_refusal_does_not_free_the_rank(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path):
        for _ in range(2):
            with pytest.raises(RunInUse):
                outlay.run("m", dir=tmp_path)


def test_another_rank_may_record_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with outlay.run("m", dir=tmp_path):
        monkeypatch.setenv("RANK", "1")
        with outlay.run("m", dir=tmp_path):
            pass
    assert [segment.rank for segment in sorted(read_run(tmp_path).segments)] == [0, 1]


def test_a_killed_writer_frees_its_rank(tmp_path: Path) -> None:
    with scripts.start(HOLDER, tmp_path) as holder:
        scripts.wait_for(holder, "ready")
        assert is_held(tmp_path / "ledger", 0)
        holder.kill()
    assert is_held(tmp_path / "ledger", 0) is False
    with outlay.run("m", dir=tmp_path):
        pass
    assert len(read_run(tmp_path).segments) == 2


def test_a_run_that_ended_may_be_reopened_by_the_same_process(tmp_path: Path) -> None:
    for _ in range(2):
        with outlay.run("m", dir=tmp_path) as run:
            pass
    assert run.run_id == next(iter(read_run(tmp_path).records)).run_id  # type: ignore[union-attr]
    assert len(read_run(tmp_path).segments) == 2


FORKING = """
    import os, sys
    import outlay
    from outlay.record.lock import is_held
    with outlay.run("m", dir=sys.argv[1], heartbeat="1h") as run:
        with run.step(tokens=1):
            pass
        child = os.fork()
        if child == 0:
            with run.step(tokens=100):
                run.metric("loss", 1)
            run.checkpoint_committed()
            {leaving}
        assert os.waitpid(child, 0)[1] == 0
        with run.step(tokens=2):
            pass
        probe = os.fork()
        if probe == 0:
            os._exit(0 if is_held(run.dir / "ledger", 0) else 9)
        assert os.waitpid(probe, 0)[1] == 0, "the child took the lock with it"
"""


@pytest.mark.parametrize(
    "leaving", ["os._exit(0)", "sys.exit(0)", "run.close(); os._exit(0)", "del run; os._exit(0)"]
)
def test_a_forked_child_neither_writes_nor_closes(tmp_path: Path, leaving: str) -> None:
    done = python(dedent(FORKING.format(leaving=leaving)), tmp_path)
    assert (done.code, done.err) == (0, "")
    records = read_run(tmp_path).records
    assert [type(record) for record in records] == [AttemptStarted, Step, Step, AttemptEnded]
    assert [record.tokens for record in records if isinstance(record, Step)] == [1, 2]


def test_a_forked_child_may_record_a_run_of_its_own(tmp_path: Path) -> None:
    program = """
        import os, sys
        import outlay
        with outlay.run("m", dir=sys.argv[1]):
            child = os.fork()
            if child == 0:
                with outlay.run("n", dir=sys.argv[2]) as mine:
                    with mine.step():
                        pass
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """
    done = python(dedent(program), tmp_path / "parent", tmp_path / "child")
    assert done.code == 0, done.err
    types = [type(record) for record in read_run(tmp_path / "child").records]
    assert types == [AttemptStarted, Step, AttemptEnded]


def test_threads_lose_nothing(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:

        def work(worker: int) -> None:
            for number in range(300):
                with run.span(f"work {worker}"):
                    run.metric("number", number, step=worker)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for _ in run.steps(range(300)):
            pass
        for thread in threads:
            thread.join()
    log = read_run(tmp_path)
    assert log.findings == []
    assert [record.seq for record in log.records] == list(range(2 + 300 + 8 * 300 * 3))


def test_every_span_of_a_thread_ends_the_one_it_began(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        begin = threading.Barrier(4)

        def work() -> None:
            begin.wait()
            for _ in range(100):
                with run.span("work"):
                    pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = read_run(tmp_path).records
    begun = {record.seq for record in records if isinstance(record, SpanBegun)}
    ended = [record.begun for record in records if isinstance(record, SpanEnded)]
    assert sorted(ended) == sorted(begun)


def test_a_wall_clock_set_back_an_hour_does_not_move_the_records(
    tmp_path: Path, clock: ManualClock
) -> None:
    start_ns = clock.wall_ns()
    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        clock.advance(SECOND)
        run.heartbeat()
        clock.step_wall(-HOUR)
        clock.advance(SECOND)
        run.heartbeat()
        clock.step_wall(3 * HOUR)
        clock.advance(SECOND)
        with run.step():
            clock.advance(SECOND)
    times = [record.t_ns - start_ns for record in read_run(tmp_path).records]
    assert times == [0, SECOND, 2 * SECOND, 4 * SECOND, 4 * SECOND]


def test_a_wall_clock_set_back_between_attempts_is_read_without_a_loss(
    tmp_path: Path, clock: ManualClock
) -> None:
    for text in ("before", "after"):
        with outlay.run("m", dir=tmp_path, clock=clock) as run:
            clock.advance(60 * SECOND)
            run.note(text)
        clock.step_wall(-HOUR)
    log = read_run(tmp_path)
    assert [r.text for r in log.records if isinstance(r, Note)] == ["after", "before"]
    assert log.findings == []


def test_attempts_that_overlap_are_cut_where_the_later_one_begins() -> None:
    first = Segment(start=0, about={"pid": 1}).heartbeat(after=100)
    second = Segment(start=60, about={"pid": 2}).heartbeat(after=100)
    before, after = derive_attempts([second.life(), first.life()])
    assert (before.overlaps, after.overlaps) == (True, False)
    assert before.last_sign_ns == after.start_ns


def test_heartbeats_are_recorded_in_the_background(tmp_path: Path) -> None:
    def beats() -> list[Record]:
        return [r for r in read_run(tmp_path).records if isinstance(r, Heartbeat)]

    with outlay.run("m", dir=tmp_path, heartbeat="1ms"):
        until(beats, "no heartbeat was recorded")


def test_a_heartbeat_does_not_write_a_left_step(tmp_path: Path) -> None:
    def train() -> None:
        with outlay.run("m", dir=tmp_path) as run:
            try:
                for number in run.steps(range(5)):
                    if number == 2:
                        raise RuntimeError
            finally:
                run.heartbeat()

    with pytest.raises(RuntimeError):
        train()
    assert [r.step for r in read_run(tmp_path).records if isinstance(r, Step)] == [0, 1]


def test_metrics_of_threads_carry_the_step_that_runs(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        for number in run.steps(range(3)):
            thread = threading.Thread(target=run.metric, args=("loss", number))
            thread.start()
            thread.join()
    metrics = [record for record in read_run(tmp_path).records if isinstance(record, Metric)]
    assert [(metric.number, metric.step) for metric in metrics] == [(0, 0), (1, 1), (2, 2)]
