"""Tokens per second, and model FLOPs utilisation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from command_line import outlay
from ledgers import HOUR, SECOND, START_NS, Segment, ns
from outlay.errors import InvalidValue
from outlay.goodput.follower import GoodputFollower, GoodputSummary, summarise
from outlay.goodput.throughput import ModelFlops
from outlay.goodput.timeline import Window

# 1,000 tokens in five steps of a second, each after a second of waiting, on two GPUs.
MODEL = ModelFlops(per_token=6e9, peak=1e12)


def write_run(directory: Path) -> None:
    run = Segment(about={"gpus": 2})
    for _ in range(5):
        run.step(1.0, wait=1.0, tokens=200)
    run.end().write(directory)


def summary(directory: Path, model: ModelFlops | None = MODEL) -> GoodputSummary:
    write_run(directory)
    return summarise(GoodputFollower(directory).view(START_NS + HOUR), model=model)


def test_tokens_count_over_wall_time_and_over_productive_time(tmp_path: Path) -> None:
    rate = summary(tmp_path).throughput
    assert (rate.tokens, rate.per_wall_second, rate.per_productive_second) == (1000, 100.0, 200.0)


def test_utilisation_is_needed_flops_over_those_of_all_gpus_at_their_peak(tmp_path: Path) -> None:
    used = summary(tmp_path).mfu
    assert used is not None
    assert used.of_wall == pytest.approx(100 * 6e9 / 2e12)
    assert used.of_productive == pytest.approx(200 * 6e9 / 2e12)


def test_a_step_counts_in_the_window_where_it_ended(tmp_path: Path) -> None:
    write_run(tmp_path)
    view = GoodputFollower(tmp_path).view(START_NS + HOUR)
    edges = [START_NS + ns(second) for second in (0, 3.5, 4, 10)]
    found = [summarise(view, Window(*pair)).throughput.tokens for pair in pairwise(edges)]
    assert found == [200, 200, 600]


def test_a_window_has_a_utilisation_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path)
    view = GoodputFollower(tmp_path).view(START_NS + HOUR)
    used = summarise(view, Window(START_NS + ns(5), START_NS + ns(10)), model=MODEL).mfu
    assert used is not None
    assert used.of_wall == pytest.approx(600 / 5 * 6e9 / 2e12)
    assert used.of_productive == pytest.approx(600 / 3 * 6e9 / 2e12)


def test_what_is_excluded_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    view = GoodputFollower(tmp_path).view(START_NS + HOUR)
    left_out = Window(START_NS + ns(2), START_NS + ns(8))
    rate = summarise(view, exclusions=(left_out,)).throughput
    assert (rate.tokens, rate.per_wall_second) == (400, 100.0)


def test_gpus_count_while_the_run_had_them(tmp_path: Path) -> None:
    """Two seconds on two GPUs, one on eight, a second in which nothing ran, four on four."""
    first = Segment(about={"gpus": 2}).step(2.0, tokens=100).price(1, gpus=8).step(1.0, tokens=100)
    first.write(tmp_path)
    second = Segment(start=4, about={"gpus": 4, "pid": 8}).step(4.0, number=2, tokens=100)
    second.end().write(tmp_path)
    used = summarise(GoodputFollower(tmp_path).view(START_NS + HOUR), model=MODEL).mfu
    assert used is not None
    assert used.of_wall == pytest.approx(300 * 6e9 / (1e12 * (2 * 2 + 8 + 8 + 4 * 4)))
    assert used.of_productive == pytest.approx(300 * 6e9 / (1e12 * (2 * 2 + 8 + 4 * 4)))


def test_work_that_was_undone_is_no_faster_than_it_was(tmp_path: Path) -> None:
    run = Segment().step(1.0, tokens=100).step(1.0, tokens=100).step(1.0, number=1, tokens=100)
    run.end().write(tmp_path)
    found = summarise(GoodputFollower(tmp_path).view(START_NS + HOUR))
    assert {row.phase: row.ns for row in found.phases} == {
        "step": 2 * SECOND,
        "wasted_progress": SECOND,
    }
    assert found.throughput.per_productive_second == 100


def test_tokens_beyond_64_bits_are_summed_exactly(tmp_path: Path) -> None:
    run = Segment()
    for _ in range(5):
        run.step(1.0, tokens=2**62 - 1)
    run.end().write(tmp_path)
    found = summarise(GoodputFollower(tmp_path).view(START_NS + HOUR))
    assert found.throughput.tokens == 5 * (2**62 - 1)


def test_a_record_of_several_steps_is_no_slow_rank(tmp_path: Path) -> None:
    for rank, count in ((0, 1), (1, 10)):
        run = Segment(rank=rank)
        for _ in range(10 // count):
            run.step(1.0 * count, wait=0.5 * count, count=count)
        run.end().write(tmp_path)
    rows = GoodputFollower(tmp_path).view(START_NS + HOUR).ranks()
    assert {row.rank: row.slowdown for row in rows} == {0: 1.0, 1: 1.0}
    assert {(row.median_step_ns, row.median_wait_ns) for row in rows} == {(SECOND, SECOND // 2)}


def test_without_model_flops_there_is_no_mfu(tmp_path: Path) -> None:
    assert summary(tmp_path, None).mfu is None


def test_the_command_shows_mfu_when_both_figures_are_given(tmp_path: Path) -> None:
    write_run(tmp_path)
    done = outlay("goodput", tmp_path, "--flops-per-token", "6e9", "--peak-flops", "1e12")
    assert "MFU         30.0% of wall time, 60.0% while productive" in done.out


def test_the_command_shows_it_for_a_window(tmp_path: Path) -> None:
    write_run(tmp_path)
    flops = ("--flops-per-token", "6e9", "--peak-flops", "1e12")
    done = outlay("goodput", tmp_path, "--since", "2023-11-14T22:13:25Z", *flops)
    assert "MFU         36.0% of wall time, 60.0% while productive" in done.out


def test_one_figure_alone_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    done = outlay("goodput", tmp_path, "--peak-flops", "1e12")
    assert done.code == 2
    assert "--flops-per-token" in done.err


@pytest.mark.parametrize("peak", [0, -1.0, float("nan"), float("inf")])
def test_an_invalid_peak_is_refused(peak: float) -> None:
    with pytest.raises(InvalidValue, match="peak_flops"):
        ModelFlops(per_token=6e9, peak=peak)
