"""Prediction of cost by configuration, on histories of known scaling."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import pytest

from command_line import outlay
from ledgers import Segment, dollars
from outlay.cost.prediction import (
    Configuration,
    PastRun,
    backtest_prediction,
    changed,
    predict_cost,
    proven_prediction,
)
from outlay.errors import InvalidValue
from run_histories import KINDS, demo_runs, is_learned_from, run_history, seeds_of

TUNED = list(seeds_of(KINDS[0], 80, tuned_on=True))


def proportional(count: int, model: str = "m") -> list[PastRun]:
    """Return runs that cost a dollar per million tokens, exactly."""
    return [
        PastRun(
            run_id=f"r{index}",
            of=Configuration(model=model, gpu="H100", tokens=1e6 * 2**index, gpus=8),
            cost=float(2**index),
        )
        for index in range(count)
    ]


def test_twice_the_tokens_cost_twice_as_much() -> None:
    asked = Configuration(model="m", gpu="H100", tokens=64e6, gpus=8)
    found = predict_cost(asked, proportional(6))
    assert found is not None
    assert found.cost == pytest.approx(64, rel=0.05)
    assert found.low < 64 < found.high
    assert found.runs == tuple(f"r{index}" for index in range(6))


@dataclass
class Errors:
    """Errors of predictions and of the median of the model, as logarithms."""

    ours: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    held: int = 0

    def add(self, new: PastRun, past: Sequence[PastRun]) -> None:
        found = predict_cost(new.of, past)
        assert found is not None
        alike = [run.cost for run in past if run.of.model == new.of.model]
        self.ours.append(abs(math.log(found.cost / new.cost)))
        usual = median(alike or [run.cost for run in past])
        self.naive.append(abs(math.log(usual / new.cost)))
        self.held += found.low <= new.cost <= found.high


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_at_most_half_of_the_medians(kind: str) -> None:
    errors = Errors()
    for seed in seeds_of(kind, 60, tuned_on=True):
        *past, new = run_history(kind, seed, 13)
        errors.add(new, past)
    assert median(errors.ours) <= median(errors.naive) / 2
    assert 0.65 <= errors.held / len(errors.ours) <= 1


def test_half_of_the_demos_sweep_is_predicted_from_the_other() -> None:
    """Real runs of three sizes and four numbers of steps, as a benchmark recorded them."""
    text = (Path(__file__).parent.parent / "data" / "demo_sweep.json").read_text()
    runs, errors = demo_runs(json.loads(text)), Errors()
    past = [each for each in runs if is_learned_from(each)]
    for run in runs:
        if run not in past:
            errors.add(run, past)
    assert len(errors.ours) >= 10
    assert median(errors.ours) <= median(errors.naive) / 2
    assert errors.held / len(errors.ours) >= 0.75


def test_what_it_extrapolates_is_said() -> None:
    asked = Configuration(model="n", gpu="H100", tokens=320e6, gpus=8)
    found = predict_cost(asked, proportional(6))
    assert found is not None
    assert found.beyond == (
        "tokens: 10 times the largest (32,000,000.00)",
        "no run of model n is known, only 1 other",
    )


def test_a_new_model_is_less_certain_than_a_known_one() -> None:
    known, new = (
        predict_cost(Configuration(model=name, gpu="H100", tokens=8e6, gpus=8), proportional(6))
        for name in ("m", "n")
    )
    assert known is not None
    assert new is not None
    assert new.high / new.low > known.high / known.low


def test_too_few_runs_predict_nothing() -> None:
    assert predict_cost(Configuration(tokens=1e6), proportional(2)) is None
    assert predict_cost(Configuration(model="m"), proportional(6)) is None


def test_runs_test_the_prediction() -> None:
    *past, new = run_history(KINDS[0], TUNED[0], 21)
    found = backtest_prediction(new.of, past)
    assert found is not None
    assert found.is_better
    assert found.held <= found.runs <= 20
    assert backtest_prediction(new.of, proportional(3)) is None


def test_a_run_is_left_out_as_if_it_had_never_been() -> None:
    """The closed form against predictions without each run, where noise and pooling are known."""
    past = run_history(KINDS[0], TUNED[0], 30)
    found = backtest_prediction(past[0].of, past)
    assert found is not None
    errors = []
    for index, run in enumerate(past):
        without = predict_cost(run.of, [*past[:index], *past[index + 1 :]])
        assert without is not None
        errors.append(abs(math.log(without.cost / run.cost)))
    assert found.error == pytest.approx(median(errors), rel=0.15)


def test_only_what_beats_the_median_is_used() -> None:
    asked = Configuration(model="m", gpu="H100", tokens=64e6, gpus=8)
    found = proven_prediction(asked, proportional(6))
    assert found is not None
    assert found.basis.startswith("from 6 runs (r1, r2, r3, r4, r5 and 1 more), by tokens, gpus:")
    assert "extrapolates tokens: 2 times the largest (32,000,000.00)" in found.basis
    alike = [
        replace(run, cost=7.0, of=replace(run.of, tokens=1e6 * (index + 1)))
        for index, run in enumerate(proportional(6))
    ]
    assert proven_prediction(asked, alike) is None
    assert proven_prediction(asked, proportional(3)) is None


def test_stated_tokens_replace_steps_and_samples() -> None:
    of = Configuration(model="m", tokens=1e6, samples=10, steps=5, gpus=8)
    assert changed(of, tokens=2e9, gpus=16) == Configuration(model="m", tokens=2e9, gpus=16)
    assert changed(of) == of


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_a_figure_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="tokens"):
        Configuration(tokens=wrong)


def test_the_command_predicts_from_registered_runs(tmp_path: Path) -> None:
    for index in range(5):
        about = {"price": dollars(36), "run_id": f"r{index}", "model": "m", "gpu": "H100"}
        run = Segment(start=1000.0 * index, about=about)
        for _ in range(4):
            run.step(10 * 2**index, tokens=1000 * 2**index)
        run.end().write(tmp_path / f"r{index}")
    outlay("import", "runs", tmp_path)
    shown = outlay("cost", "predict", "--like", tmp_path / "r4", "--tokens", "128e3")
    assert shown.code == 0
    assert "from 5 runs (r0, r1, r2, r3, r4), by tokens, gpus" in shown.out
    assert "extrapolates tokens: 2 times the largest" in shown.out
    found = outlay("cost", "predict", "--like", tmp_path / "r4", "--tokens", "128e3", "--json").json
    assert found["cost"] == pytest.approx(12.8, rel=0.1)
    assert found["low"] < 12.8 < found["high"]
    of = ("--mode", "iso_tokens", "--limit", "64k", "--from", tmp_path / "r4")
    shown = outlay("budget", "plan", *of)
    assert "By configuration: cost 6." in shown.out
    assert "from 5 runs (r0, r1, r2, r3, r4), by tokens, gpus: median error" in shown.out
    predicted = outlay("budget", "plan", *of, "--json").json["predicted"]
    assert predicted["cost"] == pytest.approx(6.4, rel=0.1)
    refused = outlay("cost", "predict", "--like", tmp_path / "r4", "--tokens", "-1")
    assert refused.code == 2
