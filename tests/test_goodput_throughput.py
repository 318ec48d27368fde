"""Tokens per second, and how much of what the GPUs could do the model needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import outlay
from ledgers import HOUR, START_NS, Segment
from outlay.errors import InvalidValue
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.summary import GoodputSummary, summarise
from outlay.goodput.throughput import ModelFlops

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
    assert rate is not None
    assert (rate.tokens, rate.per_wall_second, rate.per_productive_second) == (1000, 100.0, 200.0)


def test_utilisation_is_needed_flops_over_those_of_all_gpus_at_their_peak(tmp_path: Path) -> None:
    used = summary(tmp_path).mfu
    assert used is not None
    assert used.of_wall == pytest.approx(100 * 6e9 / 2e12)
    assert used.of_productive == pytest.approx(200 * 6e9 / 2e12)


def test_without_a_description_of_the_model_nothing_is_claimed(tmp_path: Path) -> None:
    assert summary(tmp_path, None).mfu is None


def test_the_command_shows_it_when_both_figures_are_given(tmp_path: Path) -> None:
    write_run(tmp_path)
    done = outlay("goodput", tmp_path, "--flops-per-token", "6e9", "--peak-flops", "1e12")
    assert "MFU          30.0% of wall time, 60.0% while productive" in done.out


def test_one_figure_alone_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    done = outlay("goodput", tmp_path, "--peak-flops", "1e12")
    assert done.code == 2
    assert "--flops-per-token" in done.err


@pytest.mark.parametrize("peak", [0, -1.0, float("nan"), float("inf")])
def test_a_gpu_that_cannot_be_is_refused(peak: float) -> None:
    with pytest.raises(InvalidValue, match="peak_flops"):
        ModelFlops(per_token=6e9, peak=peak)
