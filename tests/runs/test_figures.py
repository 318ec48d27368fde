"""A run at a glance: status, progress, money, followed as the log grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outlay
import scripts
from command_line import python
from ledgers import HOUR, START_NS, Segment, dollars, ns
from outlay.clock import SYSTEM, ManualClock
from outlay.errors import NotARun
from outlay.goodput.follower import GoodputFollower
from outlay.ledger import EndStatus
from outlay.ledger.attempts import DEAD_AFTER_NS
from outlay.machine import boot_id
from outlay.runs.reading import RunReading, read_figures
from outlay.store.run_row import RunRow
from outlay.units import Money
from system_parts import missing

H = 3600


def figures(run_dir: Path, *segments: Segment, now: float = 0.0) -> RunRow:
    for segment in segments:
        segment.write(run_dir)
    return read_figures(run_dir, START_NS + ns(now))


def priced(start: float = 0.0, **about: Any) -> Segment:
    return Segment(start=start, about={"price": dollars(1), "gpus": 4} | about)


def test_a_directory_without_a_log_has_no_figures(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        figures(tmp_path)


@pytest.mark.parametrize(
    "status", ["completed", "failed", "interrupted", "terminated", "preempted"]
)
def test_a_run_that_ended_has_the_status_of_its_end(tmp_path: Path, status: EndStatus) -> None:
    segment = Segment().step(1).end(status)
    assert figures(tmp_path, segment, now=10**6).status == status


def test_a_run_seen_lately_is_running(tmp_path: Path) -> None:
    seen = figures(tmp_path, Segment().step(1), now=1 + DEAD_AFTER_NS / 1e9)
    assert (seen.status, seen.ended_ns) == ("running", None)


def test_a_run_not_seen_for_long_is_dead(tmp_path: Path) -> None:
    seen = figures(tmp_path, Segment().step(1), now=2 + DEAD_AFTER_NS / 1e9)
    assert (seen.status, seen.last_seen_ns) == ("dead", START_NS + ns(1))


def test_a_run_that_holds_its_lock_is_running_however_silent(
    tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, clock=clock):
        clock.advance(10 * DEAD_AFTER_NS)
        assert read_figures(tmp_path, clock.wall_ns()).status == "running"


def test_another_process_sees_that_a_run_is_running(tmp_path: Path) -> None:
    program = """
        import sys, outlay
        with outlay.run("m", dir=sys.argv[1]):
            print("ready", flush=True)
            sys.stdin.readline()
    """
    with scripts.start(program, tmp_path) as process:
        scripts.wait_for(process, "ready")
        later_ns = SYSTEM.wall_ns() + 10 * DEAD_AFTER_NS
        assert read_figures(tmp_path, later_ns).status == "running"
        process.communicate("done\n")
    assert read_figures(tmp_path, later_ns).status == "completed"


def test_a_run_killed_on_this_host_is_dead_at_once(tmp_path: Path) -> None:
    if not boot_id():
        missing("this system names no boot")
    program = "import os, sys, outlay; outlay.run('m', dir=sys.argv[1]); os.kill(os.getpid(), 9)"
    assert python(program, tmp_path).code == -9
    assert read_figures(tmp_path, SYSTEM.wall_ns()).status == "dead"


def test_progress_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    first = Segment(start=0).step(1, number=0).step(1, number=1).step(1, number=2)
    second = Segment(start=10).step(1, number=1)
    assert figures(tmp_path, first, second).steps == 2


def test_an_attempt_without_steps_takes_no_progress_back(tmp_path: Path) -> None:
    first, second = Segment(start=0).step(1, number=41), Segment(start=10)
    assert figures(tmp_path, first, second).steps == 42


def test_a_record_of_several_steps_counts_them(tmp_path: Path) -> None:
    assert figures(tmp_path, Segment().step(1, count=10)).steps == 10


def test_tokens_add_up_over_ranks_and_attempts(tmp_path: Path) -> None:
    segments = [
        Segment(start=0).step(1, tokens=1),
        Segment(start=0, rank=1).step(1, tokens=10),
        Segment(start=10).step(1, tokens=100, samples=5),
    ]
    seen = figures(tmp_path, *segments)
    assert (seen.tokens, seen.samples, seen.attempts) == (111, 5, 2)


def test_time_of_steps_is_that_of_the_timeline(tmp_path: Path) -> None:
    segments = [Segment().step(2, wait=1), Segment(rank=1).step(9, wait=9)]
    seen = figures(tmp_path, *segments)
    assert (seen.step_ns, seen.wait_ns) == (ns(2), ns(1))


def test_wall_time_leaves_out_what_follows_a_completed_attempt(tmp_path: Path) -> None:
    first, second = Segment(start=0).step(5).end(), Segment(start=100).step(7).end()
    assert figures(tmp_path, first, second, now=10**6).wall_ns == ns(12)


def test_wall_time_counts_the_wait_after_a_failure(tmp_path: Path) -> None:
    first, second = Segment(start=0).step(5).end("failed"), Segment(start=100).step(7).end()
    assert figures(tmp_path, first, second, now=10**6).wall_ns == ns(107)


def test_without_a_price_there_is_no_cost(tmp_path: Path) -> None:
    seen = figures(tmp_path, Segment().step(1))
    assert (seen.cost, seen.burn_micros_per_hour) == (None, None)


def test_finished_run_costs_its_hours_and_has_no_burn_rate(tmp_path: Path) -> None:
    seen = figures(tmp_path, priced().step(2 * H).end(), now=9 * H)
    assert (seen.cost, seen.burn_micros_per_hour) == (Money(8_000_000), 0)


def test_live_run_costs_until_now_and_has_a_burn_rate(tmp_path: Path) -> None:
    seen = figures(tmp_path, priced(stopped_price=dollars(0)).step(60), now=120)
    assert seen.cost == Money(round(4_000_000 * 120 / H))
    assert seen.burn_micros_per_hour == 4_000_000
    assert seen.assumptions == ()


def test_a_dead_run_costs_until_its_last_sign_of_life(tmp_path: Path) -> None:
    seen = figures(tmp_path, priced().step(H), now=100 * H)
    assert (seen.cost, seen.burn_micros_per_hour) == (Money(4_000_000), 0)


def test_an_assumption_is_shown(tmp_path: Path) -> None:
    seen = figures(tmp_path, priced(0).step(H), priced(5 * H).step(H).end())
    assert seen.cost == Money(6 * 4_000_000)
    assert len(seen.assumptions) == 1


def test_run_that_just_started_has_the_burn_rate_of_its_price(
    tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, clock=clock, price="1 USD/h", gpus=4):
        seen = read_figures(tmp_path, clock.wall_ns())
    assert seen.burn_micros_per_hour == 4_000_000


def test_a_refresh_reads_only_what_is_new(tmp_path: Path) -> None:
    segment = Segment().step(1, tokens=1)
    path = segment.write(tmp_path)
    follower = GoodputFollower(tmp_path)
    follower.view(START_NS)
    segment.step(1, tokens=10)
    grown = segment.write(tmp_path.parent / "other").read_bytes()
    with path.open("ab") as stream:
        stream.write(grown[path.stat().st_size :])
    assert RunReading(follower.view(START_NS)).figures.tokens == 11
    assert RunReading(follower.view(START_NS)).figures.tokens == 11


def test_findings_of_the_log_are_among_the_figures(tmp_path: Path) -> None:
    path = Segment().step(1).write(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    assert len(figures(tmp_path).findings) == 1


def test_a_live_log_that_grows_while_it_is_read_is_not_torn(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        with run.step():
            pass
        follower = GoodputFollower(tmp_path)
        follower.view(SYSTEM.wall_ns())
        with run.step():
            pass
        assert follower.view(SYSTEM.wall_ns()).findings == ()


def test_a_summary_is_flat(tmp_path: Path, clock: ManualClock) -> None:
    with outlay.run("m", dir=tmp_path, clock=clock, price="1 USD/h") as run:
        for _ in run.steps("ab", tokens=50):
            clock.advance(HOUR)
        summary = run.summary()
    assert summary == {
        "outlay/run_id": run.run_id,
        "outlay/attempts": 1,
        "outlay/steps": 2,
        "outlay/tokens": 100,
        "outlay/samples": 0,
        "outlay/wall_s": 7200.0,
        "outlay/step_s": 7200.0,
        "outlay/data_wait_s": 0.0,
        "outlay/tokens_per_s": 100 / 7200,
        "outlay/cost": 2.0,
        "outlay/currency": "USD",
        "outlay/lost_records": 0,
        "outlay/stop_reason": None,
    }


def test_a_lost_identity_is_taken_from_the_first_attempt(tmp_path: Path) -> None:
    segment = Segment(about={"run_id": "r", "model": "m", "name": "n"}).step(1)
    seen = figures(tmp_path, segment)
    assert (seen.run_id, seen.model, seen.name) == ("r", "m", "n")


def test_a_reader_whose_clock_is_behind_sees_what_was_recorded(tmp_path: Path) -> None:
    seen = figures(tmp_path, priced().step(H), now=-60)
    assert (seen.status, seen.wall_ns, seen.cost) == ("running", HOUR, Money(4_000_000))
