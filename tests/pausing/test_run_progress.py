"""How far a run is, by its log: speed, start-up, unsaved steps, pauses. All times by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ledgers import START_NS, Segment, dollars, ns
from outlay.goodput.follower import read_view
from outlay.pausing.pause_plan import PausePlan, RunProgress, decide_now, progress_of
from outlay.policy.policies import FixedThreshold
from outlay.policy.situation import Action, PauseCost
from outlay.units import Rate

CHEAP, DEAR = Rate.parse("1 USD/h"), Rate.parse("2 USD/h")
PLAN = PausePlan(
    policy=FixedThreshold(below=CHEAP),
    deadline_ns=START_NS + ns(3600),
    steps=10,
    stopped=Rate.parse("0 USD/h"),
)


def first_attempt() -> Segment:
    """Steps 0 to 4 of a second each, and a save of 2 s after step 2: 7 s."""
    first = Segment(about={"price": dollars(1.0), "gpus": 1}).step(1).step(1).step(1)
    return first.span("checkpoint_save", 2).checkpoint().step(1).step(1)


def again(start: float, pid: int) -> Segment:
    return Segment(start=start, about={"pid": pid, "price": dollars(2.0), "gpus": 1})


def progress(run_dir: Path, at_s: float, plan: PausePlan = PLAN) -> RunProgress:
    now_ns = START_NS + ns(at_s)
    return progress_of(read_view(run_dir, now_ns), plan, now_ns)


def test_while_it_runs_each_step_counts(tmp_path: Path) -> None:
    first_attempt().write(tmp_path)
    found = progress(tmp_path, 7)
    assert (found.begun_ns, found.done_ns, found.left_ns) == (START_NS, ns(7), ns(7))
    assert (found.pauses, found.rate, found.is_done) == (0, CHEAP, False)
    assert found.pause.save_ns == ns(2)


def test_while_it_is_paused_steps_that_were_not_saved_are_still_to_be_done(tmp_path: Path) -> None:
    """Three of five steps are saved, and seven of ten are left, at 1.4 s each."""
    first_attempt().end("paused").write(tmp_path)
    found = progress(tmp_path, 60)
    assert (found.done_ns, found.left_ns) == (ns(4.2), ns(9.8))
    assert (found.pauses, found.ended_ns) == (1, START_NS + ns(7))


def test_without_a_number_of_steps_the_stated_work_counts(tmp_path: Path) -> None:
    first_attempt().end("paused").write(tmp_path)
    stated = replace(PLAN, steps=None, work_ns=ns(100))
    assert progress(tmp_path, 60, stated).left_ns == ns(100 - 4.2)
    assert progress(tmp_path, 60, replace(stated, work_ns=ns(3))).left_ns == 0
    assert progress(tmp_path, 60, replace(stated, work_ns=None)).left_ns is None


def test_of_a_command_that_records_no_steps_the_stated_work_is_known(tmp_path: Path) -> None:
    Segment(about={"price": dollars(1.0)}).heartbeat(5).write(tmp_path)
    assert progress(tmp_path, 6).left_ns is None
    assert progress(tmp_path, 6, replace(PLAN, work_ns=ns(50))).left_ns == ns(50 - 6)
    now_ns = START_NS + ns(6)
    assert progress_of(None, PLAN, now_ns) == RunProgress(begun_ns=now_ns)


def test_a_restart_and_what_it_repeats_are_measured_and_are_no_work(tmp_path: Path) -> None:
    """It restores for 3 s, its first step takes 4 s longer than others, and 2 are repeated."""
    first_attempt().end("paused").write(tmp_path)
    second = again(20, pid=8).span("checkpoint_restore", 3).step(5, number=3).step(1).step(1)
    second.step(1).write(tmp_path)
    found = progress(tmp_path, 31)
    assert found.pause == PauseCost(save_ns=ns(2), start_ns=ns(7), repeated_ns=ns(2))
    # Seven steps of a second and the save; three steps are left.
    assert (found.done_ns, found.left_ns) == (ns(9), ns(9) * 3 // 7)
    assert (found.pauses, found.rate, found.setup_left_ns) == (1, DEAR, 0)


def test_of_a_start_that_is_under_way_the_rest_is_left(tmp_path: Path) -> None:
    first_attempt().end("paused").write(tmp_path)
    second = again(20, pid=8).span("checkpoint_restore", 3).step(5, number=3).step(1).step(1)
    second.end("paused").write(tmp_path)
    again(40, pid=9).heartbeat(2).write(tmp_path)
    found = progress(tmp_path, 43)
    assert found.setup_left_ns == found.pause.start_ns - ns(3) > 0
    assert found.pauses == 2


def test_it_is_not_paused_more_often_than_stated_as_its_log_counts(tmp_path: Path) -> None:
    first_attempt().end("paused").write(tmp_path)
    again(20, pid=8).step(1, number=3).step(1).end("paused").write(tmp_path)
    again(40, pid=9).step(1, number=4).step(1).write(tmp_path)
    run, now_ns = progress(tmp_path, 43), START_NS + ns(43)
    decisions = [
        decide_now(replace(PLAN, most_pauses=most), run, Action.RUN, (DEAR, DEAR), now_ns)
        for most in (3, 2)
    ]
    assert [decision.action for decision in decisions] == [Action.WAIT, Action.RUN]
    assert decisions[1].reason == "it was paused 2 times already"


def test_a_run_that_completed_is_done(tmp_path: Path) -> None:
    first_attempt().end().write(tmp_path)
    found = progress(tmp_path, 60)
    assert (found.is_done, found.ended_ns) == (True, None)
