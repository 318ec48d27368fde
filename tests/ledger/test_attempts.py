"""Attempts are derived: from segments in any order, by rank, launch and time."""

from __future__ import annotations

from typing import Any

from ledgers import START_NS, Segment, ns
from outlay.ledger import SUPERVISOR, Attempt, alive_until, derive_attempts


def attempts(*segments: Segment) -> list[Attempt]:
    return derive_attempts(segment.life() for segment in segments)


def test_no_segments_are_no_attempts() -> None:
    assert derive_attempts([]) == []


def test_each_start_of_rank_0_is_an_attempt_oldest_first() -> None:
    late, early = Segment(start=100), Segment(start=0).heartbeat(after=5)
    assert [attempt.segment for attempt in attempts(late, early)] == [early.id, late.id]


def test_an_attempt_lasts_from_its_header_to_its_last_sign() -> None:
    (attempt,) = attempts(Segment().step(3).heartbeat(after=4))
    assert (attempt.start_ns, attempt.last_sign_ns) == (START_NS, START_NS + ns(7))


def test_ranks_that_were_launched_together_are_one_attempt() -> None:
    leader = Segment(start=0, rank=0, about={"launch": "a"}).step(1)
    # Started closest to the second attempt's leader, but with the first launch.
    follower = Segment(start=59, rank=1, about={"launch": "a"}).heartbeat(after=0.5)
    second = Segment(start=60, rank=0, about={"launch": "b"}).step(1)
    first, _ = attempts(follower, second, leader)
    assert first.ranks == (leader.id, follower.id)


def test_without_a_launch_id_ranks_join_the_nearest_start() -> None:
    leader, second = Segment(start=0).step(1), Segment(start=60).step(1)
    follower = Segment(start=61, rank=1).step(1)
    assert attempts(leader, second, follower)[1].ranks == (second.id, follower.id)


def test_another_ranks_record_is_a_sign_of_life() -> None:
    leader, follower = Segment().step(1), Segment(rank=1).step(9)
    assert attempts(leader, follower)[0].last_sign_ns == START_NS + ns(9)


def test_the_lowest_recorded_rank_makes_the_timeline() -> None:
    (attempt,) = attempts(Segment(rank=3).step(1), Segment(rank=2).step(1))
    assert attempt.segment.rank == 2


def test_an_attempt_with_an_end_is_completed() -> None:
    assert [a.completed for a in attempts(Segment().step(1).end())] == [True]


def test_an_attempt_that_failed_is_not_completed() -> None:
    assert [a.completed for a in attempts(Segment().step(1).end("failed"))] == [False]


def test_an_attempt_without_an_end_is_not_completed() -> None:
    assert [a.completed for a in attempts(Segment().step(1))] == [False]


def test_prices_are_in_order_of_time() -> None:
    story = Segment().price(2, after=10)
    story.records.insert(1, Segment().price(1, after=20).records[-1])
    (attempt,) = attempts(story)
    assert [change.price.micros_per_hour for change in attempt.prices] == [2_000_000, 1_000_000]


def test_a_supervisor_of_a_recording_process_begins_and_ends_its_attempt() -> None:
    supervisor = Segment(start=0, rank=SUPERVISOR).heartbeat(after=100).end("failed")
    recorded = Segment(start=5, rank=0).step(50)
    (attempt,) = attempts(recorded, supervisor)
    assert attempt.segment == recorded.id
    assert (attempt.start_ns, attempt.last_sign_ns) == (START_NS, START_NS + ns(100))
    assert attempt.end is not None
    assert attempt.end.status == "failed"


def restarted() -> list[Attempt]:
    """One supervisor over a command that died after 30 s and was started again 10 s later."""
    supervisor = Segment(start=0, rank=SUPERVISOR).heartbeat(after=100).end()
    died, again = Segment(start=5).step(25), Segment(start=40).step(50)
    return attempts(supervisor, died, again)


def test_the_first_of_several_starts_begins_with_their_supervisor() -> None:
    first, second = restarted()
    assert (first.start_ns, second.start_ns) == (START_NS, START_NS + ns(40))


def test_the_last_of_several_starts_ends_with_their_supervisor() -> None:
    first, second = restarted()
    assert (first.end, second.completed) == (None, True)


def test_a_supervisor_is_no_sign_of_life_of_the_starts_before_the_last() -> None:
    first, second = restarted()
    assert first.last_sign_ns == START_NS + ns(30)
    assert second.last_sign_ns == START_NS + ns(100)


def test_supervisor_without_an_end_watches_a_process_that_begins_soon_after() -> None:
    supervisor = Segment(start=0, rank=SUPERVISOR)
    recorded = Segment(start=5, rank=0).step(1)
    (attempt,) = attempts(recorded, supervisor)
    assert attempt.segment == recorded.id


def test_supervisor_watches_nothing_after_its_successor_began() -> None:
    killed = Segment(start=0, rank=SUPERVISOR)
    second = Segment(start=5, rank=SUPERVISOR)
    recorded = Segment(start=9, rank=0).step(1)
    assert [a.segment for a in attempts(recorded, second, killed)] == [killed.id, recorded.id]


def test_supervisor_counts_as_dead_after_ten_silent_minutes() -> None:
    dead = Segment(start=0, rank=SUPERVISOR)
    recorded = Segment(start=601, rank=0).step(1)
    assert [a.segment for a in attempts(recorded, dead)] == [dead.id, recorded.id]


def test_supervisor_without_a_recording_process_is_its_own_attempt() -> None:
    alone = Segment(start=0, rank=SUPERVISOR).heartbeat(after=10).end()
    recorded = Segment(start=60, rank=0).step(1).end()
    assert [attempt.segment for attempt in attempts(recorded, alone)] == [alone.id, recorded.id]


def test_the_present_is_a_live_runs_last_sign() -> None:
    before = attempts(Segment().step(1))
    assert alive_until(before, START_NS + ns(99))[0].last_sign_ns == START_NS + ns(99)


def test_a_segment_whose_header_was_lost_is_an_attempt_without_facts() -> None:
    life = Segment().step(2).life()
    life.header = None
    (attempt,) = derive_attempts([life])
    assert (attempt.header.price, attempt.last_sign_ns) == (None, START_NS + ns(2))


# When an attempt begins, by logs that say when processes were started


def started(at: float, process: float = 0, agent: float = 0, **about: Any) -> Segment:
    """Return a process that recorded from ``at`` on, with when it and its agent were started."""
    instants = {
        name: START_NS + ns(seconds)
        for name, seconds in (("process_start_ns", process), ("agent_start_ns", agent))
        if seconds
    }
    return Segment(start=at, about={"nodes": 1, "pid": round(at), **instants, **about})


def begins(*segments: Segment) -> list[tuple[float, str]]:
    return [((a.start_ns - START_NS) / 1e9, a.begin) for a in attempts(*segments)]


def test_an_attempt_begins_with_its_process() -> None:
    assert begins(started(30, process=10).step(1)) == [(10, "process")]


def test_attempt_without_a_process_start_begins_with_its_first_record() -> None:
    assert begins(started(30).step(1)) == [(30, "record")]


def test_under_torchrun_an_attempt_begins_with_the_agent() -> None:
    assert begins(started(30, process=20, agent=10).step(1)) == [(10, "process")]


def test_workers_that_their_agent_starts_again_begin_by_themselves() -> None:
    first, again = started(30, process=20, agent=10).step(5), started(60, process=50, agent=10)
    assert begins(first, again) == [(10, "process"), (50, "process")]


def test_an_agent_that_was_started_anew_begins_the_next_attempt() -> None:
    first, again = started(30, process=20, agent=10).step(5), started(90, process=80, agent=70)
    assert begins(first, again) == [(10, "process"), (70, "process")]


def test_a_process_that_began_during_the_attempt_before_counts_from_its_end() -> None:
    first, early = started(10).step(20), started(50, process=5)
    assert begins(first, early) == [(10, "record"), (30, "process")]
    assert not attempts(first, early)[0].overlaps


def test_a_supervisors_times_take_precedence_over_the_process() -> None:
    supervisor = Segment(start=11, rank=SUPERVISOR, about={"nodes": 1}).heartbeat(50).end("failed")
    assert begins(supervisor, started(30, process=10.995).step(1)) == [(11, "supervisor")]


def test_a_rank_that_began_first_begins_the_attempt() -> None:
    other = started(40, process=5, rank=1, host="b")
    assert begins(started(30, process=10), other) == [(5, "process")]


def test_each_node_has_its_own_begin_and_end() -> None:
    leader = started(30, process=10, host="a").step(10).end()
    other = started(90, process=80, rank=1, host="b").step(5)
    (attempt,) = attempts(leader, other)
    stays = [(node.name, node.start_ns, node.end_ns, node.ended) for node in attempt.nodes]
    assert stays == [
        ("a", START_NS + ns(10), START_NS + ns(40), True),
        ("b", START_NS + ns(80), START_NS + ns(95), False),
    ]


def test_the_reap_ends_the_node_of_a_supervised_process() -> None:
    supervisor = Segment(rank=SUPERVISOR, about={"nodes": 1}).heartbeat(100).end("failed")
    (attempt,) = attempts(supervisor, started(30).step(1))
    assert [(node.end_ns, node.ended) for node in attempt.nodes] == [(START_NS + ns(100), True)]


def test_logs_without_nodes_give_attempts_without_nodes() -> None:
    assert attempts(Segment().step(1))[0].nodes == ()


# Clocks that were set


def on_machine(at: float, *, since_boot: float = 0, **about: Any) -> Segment:
    machine = {"boot_id": "b", "init_start": "1", "since_boot_ns": ns(since_boot)}
    return started(at, **{"host": "h", **machine, **about})


def bounds(*segments: Segment) -> list[tuple[float, float]]:
    return [
        ((a.start_ns - START_NS) / 1e9, (a.last_sign_ns - START_NS) / 1e9)
        for a in attempts(*segments)
    ]


def test_overlapping_attempts_of_one_machine_are_end_to_end_on_the_later_clock() -> None:
    first, again = on_machine(100).step(50), on_machine(120, process=118).step(10)
    assert bounds(first, again) == [(68, 118), (118, 130)]
    assert [a.clock_set_ns for a in attempts(first, again)] == [-ns(32), 0]


def test_everything_before_a_moved_attempt_moves_with_it() -> None:
    other = on_machine(10, boot_id="c", host="g").step(20)
    first, again = on_machine(100).step(50), on_machine(120).step(10)
    assert bounds(other, first, again) == [(-20, 0), (70, 120), (120, 130)]


def test_overlapping_attempts_on_different_nodes_are_clipped() -> None:
    first, again = on_machine(100).step(50), on_machine(120, boot_id="c", host="g").step(10)
    assert bounds(first, again) == [(100, 120), (120, 130)]
    assert attempts(first, again)[0].overlaps


def test_attempts_of_one_boot_that_did_run_at_once_are_clipped() -> None:
    first = on_machine(100, since_boot=1100).step(50)
    again = on_machine(120, since_boot=1120).step(10)
    assert bounds(first, again) == [(100, 120), (120, 130)]
    assert attempts(first, again)[0].overlaps


def test_a_clock_set_ahead_makes_no_gap_if_the_time_since_boot_is_known() -> None:
    first = on_machine(100, since_boot=1100).step(50)
    again = on_machine(5000, since_boot=1153).step(10)
    assert bounds(first, again) == [(4947, 4997), (5000, 5010)]


def test_attempts_of_one_boot_are_in_the_order_of_the_time_since_it() -> None:
    first = on_machine(100, since_boot=1100).step(50)
    again = on_machine(20, since_boot=1160).step(10)
    assert [a.segment for a in attempts(again, first)] == [first.id, again.id]
    assert bounds(again, first) == [(-40, 10), (20, 30)]


def test_a_rank_that_began_after_the_clock_was_set_is_on_its_leaders_clock() -> None:
    leader = on_machine(100, since_boot=1100).step(50)
    rank = on_machine(4701, since_boot=1101, rank=1).step(40)
    assert bounds(leader, rank) == [(100, 150)]


def test_a_supervisor_that_began_before_the_clock_was_set_watches_its_command() -> None:
    supervisor = on_machine(4000, since_boot=1098, rank=SUPERVISOR).heartbeat(60).end("failed")
    command = on_machine(100, since_boot=1100).step(50)
    assert bounds(supervisor, command) == [(98, 158)]
