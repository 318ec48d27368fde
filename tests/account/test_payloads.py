"""Payloads give the same timeline as native records, in any order and shape."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_log import START_S, Job
from outlay.account.payloads import PayloadTranslator, ns_of_seconds
from outlay.account.run import SegmentAccount
from outlay.errors import Finding
from outlay.goodput.timeline import Timeline, TimelineBuilder

SECOND = 1_000_000_000


def translated(batches: Sequence[Sequence[Any]]) -> tuple[TimelineBuilder, list[Finding]]:
    builder = TimelineBuilder()
    translator = PayloadTranslator("log")
    for batch in batches:
        for chunk in translator.translate(batch):
            builder.account.fold(chunk.segment, chunk.records)
    return builder, translator.findings()


def timeline_of(job: Job, now: float = 10**6) -> Timeline:
    builder, _ = translated([job.payloads])
    timeline = builder.build(round((START_S + now) * SECOND))
    assert timeline is not None
    return timeline


def seconds_of(job: Job) -> dict[str, float]:
    """Return the whole job's phases in seconds."""
    timeline = timeline_of(job)
    phases = timeline.between(timeline.start_ns, timeline.end_ns)
    assert sum(phases.values()) == timeline.end_ns - timeline.start_ns - timeline.idle_between(
        timeline.start_ns, timeline.end_ns
    )
    return {name: ns / SECOND for name, ns in phases.items()}


def step_rows(of: SegmentAccount) -> list[tuple[int, float, float, int]]:
    """Return (number, start, end, count) of an attempt's steps, in seconds of the tests' time."""
    columns = (of.steps.number, of.steps.start, of.steps.end, of.steps.count)
    return [
        (int(n), int(s) / SECOND - START_S, int(e) / SECOND - START_S, int(c))
        for n, s, e, c in zip(*columns, strict=True)
    ]


def attempts_of(job: Job) -> list[list[tuple[int, float, float, int]]]:
    builder, _ = translated([job.payloads])
    return [step_rows(fold) for _, fold in sorted(builder.account.segments.items())]


def findings_of(payloads: Sequence[Any]) -> list[str]:
    _, findings = translated([payloads])
    return [finding.message for finding in findings]


def test_a_step_lasts_until_the_next_and_the_last_until_the_job_ends() -> None:
    job = Job().start(0).step(0, 5).step(1, 7).end(12)
    assert attempts_of(job) == [[(0, 5, 7, 1), (1, 7, 12, 1)]]


def test_a_last_step_without_a_job_end_has_no_duration() -> None:
    assert attempts_of(Job().start(0).step(0, 5).step(1, 7)) == [[(0, 5, 7, 1)]]


def test_from_p_to_c_are_c_minus_p_steps() -> None:
    job = Job().start(0).step(0, 0).step(10, 20).step(15, 30).end(32)
    assert attempts_of(job) == [[(0, 0, 20, 10), (10, 20, 30, 5), (15, 30, 32, 1)]]


def test_a_job_start_opens_an_attempt() -> None:
    job = Job().start(0).steps(0, 3, at=0).start(100).steps(3, 3, at=100)
    assert attempts_of(job) == [[(0, 0, 1, 1), (1, 1, 2, 1)], [(3, 100, 101, 1), (4, 101, 102, 1)]]


@pytest.mark.parametrize("resumed", [0, 1, 2])
def test_without_a_job_start_a_step_that_is_not_beyond_the_last_opens_one(resumed: int) -> None:
    job = Job().start(0).steps(0, 3, at=0).steps(resumed, 2, at=50)
    assert attempts_of(job) == [[(0, 0, 1, 1), (1, 1, 2, 1)], [(resumed, 50, 51, 1)]]


def test_what_happens_before_the_job_start_belongs_to_the_same_attempt() -> None:
    job = Job().span("tpu_init", 0, 4).start(5).steps(0, 3, at=5).end(8)
    assert timeline_of(job).attempts[0].start_ns == START_S * SECOND
    assert len(timeline_of(job).attempts) == 1


def test_steps_after_the_job_ended_are_a_new_attempt() -> None:
    job = Job().start(0).steps(0, 2, at=0).end(2).steps(2, 2, at=60).end(62)
    timeline = timeline_of(job)
    assert len(timeline.attempts) == 2
    assert timeline.idle_between(timeline.start_ns, timeline.end_ns) == 58 * SECOND


def test_a_job_name_used_again_is_a_finding() -> None:
    job = Job().start(0).steps(0, 2, at=0).end(2).start(60).steps(0, 2, at=60).end(62)
    assert findings_of(job.payloads) == [
        "the job started again after its end; was its name re-used?"
    ]


@pytest.mark.parametrize("entry", [7, None, "text", ["list"]])
def test_an_entry_that_is_no_object_is_a_finding(entry: object) -> None:
    assert findings_of([entry]) == ["an entry is no JSON object"]


def test_only_the_first_load_of_an_attempt_blocks_training() -> None:
    job = Job().start(0).span("data_loading", 0, 2).step(0, 2).span("data_loading", 2.5, 2.7)
    job.step(1, 3).end(4)
    assert seconds_of(job) == {"data_loading": 2, "step": 2}
    builder, _ = translated([job.payloads])
    (fold,) = builder.account.segments.values()
    assert [(span.end_ns - span.begin_ns) / SECOND for span in fold.overlapped] == [0.2]


@pytest.mark.parametrize(
    ("stem", "phase"),
    [
        ("tpu_init", "accelerator_init"),
        ("training_prep", "training_prep"),
        ("elastic_reinit", "elastic_reinitialization"),
    ],
)
def test_spans_are_counted_under_their_phase(stem: str, phase: str) -> None:
    job = Job().start(0).span(stem, 0, 3).steps(0, 3, at=3).end(6)
    assert seconds_of(job) == {phase: 3, "step": 3}


def test_a_custom_event_may_be_called_like_a_phase() -> None:
    job = Job().start(0).custom("checkpoint_save", 1, 3).end(4)
    assert seconds_of(job) == {"custom:checkpoint_save": 2, "other": 2}


def test_an_elastic_wait_has_the_phase_of_its_type() -> None:
    job = Job().start(0)
    for kind, begin in (("slice_down_wait", 1), ("WAIT_FOR_SCALE_UP", 5)):
        job.add(elastic_wait_event_type=kind, elastic_wait_start_time=START_S + begin)
        job.add(elastic_wait_event_type=kind, elastic_wait_end_time=START_S + begin + 2)
    job.end(8)
    assert seconds_of(job) == {"elastic_slice_down": 2, "elastic_scale_up": 2, "other": 4}


def save(step: int, begin: float | None, seconds: float | None) -> dict[str, object]:
    return {
        "job_name": "job",
        "event_type": "save",
        "step": step,
        "directory": "gs://bucket/run",
        "checkpoint_manager_blocking_start_time": None if begin is None else START_S + begin,
        "checkpoint_manager_blocking_duration_secs": seconds,
    }


def test_a_checkpoint_save_blocks_the_step_it_falls_in() -> None:
    job = Job().start(0).steps(0, 5, at=0)
    job.payloads.append(save(4, 4.5, 3.0))
    job.steps(5, 5, at=8).end(13)
    assert seconds_of(job) == {"step": 10, "checkpoint_save": 3}


def test_hosts_that_report_the_same_save_do_not_multiply_it() -> None:
    job = Job().start(0).steps(0, 5, at=0)
    job.payloads += [save(4, 4.5, 3.0), save(4, 4.5, 3.0) | {"directory": "local"}]
    job.payloads.append(save(4, 4.6, 2.9))
    job.steps(5, 5, at=8).end(13)
    assert seconds_of(job)["checkpoint_save"] == 3


def test_a_save_without_a_begin_is_placed_by_its_order_in_the_log() -> None:
    job = Job().start(0).steps(0, 5, at=0)
    job.payloads.append(save(4, None, 3.0))
    job.steps(5, 5, at=8).end(13)
    assert seconds_of(job) == {"step": 10, "checkpoint_save": 3}


def test_a_save_without_a_begin_that_comes_first_is_a_finding_and_no_start() -> None:
    job = Job()
    job.payloads.append(save(4, None, 3.0))
    job.start(0).steps(0, 5, at=0).end(5)
    assert timeline_of(job).attempts[0].start_ns == START_S * SECOND
    assert findings_of(job.payloads) == [
        "checkpoint_save has no begin and comes before everything else"
    ]


def test_a_save_that_was_not_finished_is_a_finding() -> None:
    job = Job().start(0).steps(0, 5, at=0)
    job.payloads.append(save(4, 4.5, None))
    job.end(5)
    assert seconds_of(job) == {"step": 5}
    assert findings_of(job.payloads) == [
        "an entry is a save without a duration: it was not finished"
    ]


@pytest.mark.parametrize("kind", ["restore", "emergency_restore"])
def test_restores_are_counted(kind: str) -> None:
    job = Job().start(0)
    job.add(
        event_type=kind,
        step=4,
        checkpoint_manager_start_time=START_S + 1,
        checkpoint_manager_duration_secs=2.5,
    )
    job.end(5)
    assert seconds_of(job) == {"checkpoint_restore": 2.5, "other": 2.5}


def test_a_span_that_never_ends_lasts_until_the_last_sign_of_life() -> None:
    job = Job().start(0).steps(0, 5, at=0).add(tpu_init_start_time=START_S + 5.0)
    job.start(100).steps(5, 3, at=100)
    assert seconds_of(job)["recovery"] == 95


def test_a_late_entry_is_not_a_restart() -> None:
    job = Job().start(0).steps(0, 3, at=0).steps(4, 2, at=4).step(3, 3).end(6)
    assert len(timeline_of(job).attempts) == 1
    assert findings_of(job.payloads) == [
        "the start of a step comes after a later one and is not counted"
    ]


BAD = [
    {"step_count": 3, "step_start_time": math.nan},
    {"step_count": 3, "step_start_time": "nan"},
    {"step_count": 3, "step_start_time": math.inf},
    {"step_count": 3, "step_start_time": -5.0},
    {"step_count": 3, "step_start_time": 1e300},
    {"step_count": 3, "step_start_time": 10**400},
    {"step_count": 3},
    {"step_start_time": START_S + 3.0},
    {"step_count": "3", "step_start_time": START_S + 3.0},
    {"step_count": True, "step_start_time": START_S + 3.0},
    {"step_count": 3.5, "step_start_time": START_S + 3.0},
    {"step_count": 10**400, "step_start_time": START_S + 3.0},
    {"step_count": -1, "step_start_time": START_S + 3.0},
    {"job_start_time": math.nan},
    {"job_end_time": None},
    {"tpu_init_start_time": "soon"},
    {"tpu_init_end_time": START_S + 1.0},
    {"custom_badput_event_type": 7, "custom_badput_event_start_time": START_S + 1.0},
    {"custom_badput_event_type": "a"},
    {"active_slices": 9, "total_slices": 2, "elastic_slice_counts_timestamp": START_S + 1.0},
    {"event_type": "save", "checkpoint_manager_blocking_duration_secs": math.nan},
    {"event_type": "save", "checkpoint_manager_blocking_duration_secs": 8.9e9},
    {
        "event_type": "save",
        "checkpoint_manager_blocking_duration_secs": 8.9e9,
        "checkpoint_manager_blocking_start_time": START_S + 1.0,
    },
    {"checkpoint_step": None, "checkpoint_start_time": START_S + 1.0},
    {"checkpoint_step": 2**70, "checkpoint_start_time": START_S + 1.0},
    {"job_start_time": 10**400},
    {"hello": "world"},
    {},
    None,
    [],
    7,
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_bad_payload_is_one_finding_and_affects_nothing_else(bad: Any) -> None:
    good = Job().start(0).steps(0, 5, at=0).end(5)
    job = Job()
    job.payloads = [*good.payloads[:4], bad, *good.payloads[4:]]
    assert seconds_of(job) == seconds_of(good)
    _, findings = translated([job.payloads])
    assert [finding.line for finding in findings] == [5]


def test_findings_of_one_kind_are_reported_once_with_their_number() -> None:
    assert findings_of([{"hello": 1}] * 3) == ["an entry is of no known kind (and 2 more like it)"]


@given(st.integers(0, 4_000_000_000_000_000))
def test_microseconds_round_trip(micros: int) -> None:
    assert ns_of_seconds(micros / 1e6) == micros * 1000


def random_job(chance: random.Random) -> list[Any]:
    """Return the payloads of a job with attempts, rollbacks, spans and ends."""
    job, second, step = Job(), 0.0, 0
    for _ in range(chance.randint(1, 4)):
        if chance.random() < 0.5:
            job.start(second)
        if chance.random() < 0.5:
            job.span("tpu_init", second, second + 1)
            second += 1
        if chance.random() < 0.5:
            job.span("data_loading", second, second + 0.5)
            second += 0.5
        for _ in range(chance.randint(0, 6)):
            job.step(step, second)
            if chance.random() < 0.5:
                job.custom("x", second + 0.1, second + 0.3)
            second += chance.choice([0.5, 1.0, 1.0, 30.0])
            step += chance.choice([1, 1, 1, 3])
        if chance.random() < 0.5:
            job.end(second)
        second += chance.choice([0.0, 1.0, 100.0]) + 0.25
        step = max(0, step - chance.randint(0, 4))
    return job.payloads


# Hypothesis draws only the seed: a draw per choice would take longer than the test.
chances = st.integers(0, 2**32).map(random.Random)
jobs = chances.map(random_job)


def state(builder: TimelineBuilder) -> object:
    timeline = builder.build((START_S + 5000) * SECOND)
    if timeline is None:
        return None
    return timeline.before(timeline.now_ns), [attempt.start_ns for attempt in timeline.attempts]


@given(jobs, chances)
def test_an_entry_delivered_twice_counts_once(payloads: list[Any], chance: random.Random) -> None:
    index = chance.randint(0, max(0, len(payloads) - 1))
    twice = payloads[: index + 1] + payloads[index : index + 1] + payloads[index + 1 :]
    once, findings = translated([payloads])
    again, findings_again = translated([twice])
    assert state(again) == state(once)
    assert len(findings_again) == len(findings)


@given(jobs)
def test_a_whole_log_delivered_twice_counts_once(payloads: list[Any]) -> None:
    once, findings = translated([payloads])
    again, findings_again = translated([payloads, payloads])
    assert state(again) == state(once)
    assert len(findings_again) == len(findings)


@given(jobs)
def test_phases_sum_to_wall_time(payloads: list[Any]) -> None:
    builder, _ = translated([payloads])
    timeline = builder.build((START_S + 5000) * SECOND)
    if timeline is not None:
        phases = timeline.between(timeline.start_ns, timeline.end_ns)
        idle_ns = timeline.idle_between(timeline.start_ns, timeline.end_ns)
        assert sum(phases.values()) == timeline.end_ns - timeline.start_ns - idle_ns
        assert min(phases.values(), default=0) >= 0
