"""Losses logged at every step: long series are reduced to blocks, with the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers import Segment, dollars
from outlay.advise.curves import (
    MOST,
    Floats,
    block_sizes,
    curve_in_blocks,
    draw_curves,
    in_blocks,
    nodes_of,
    probability_of_beating,
    some_between,
)
from outlay.advise.stopping import EpochPrice, recommend_epoch_count
from outlay.clock import ManualClock
from outlay.compat.cost_module.optimizer import CostOptimizer
from outlay.ledger import Metric

LONG = 3000
STEPS = np.arange(1, LONG + 1, dtype=np.float64)
NOISE = np.random.default_rng(3).normal(0, 0.05, LONG)


@given(st.integers(1, 10**6))
def test_every_value_is_in_one_block(count: int) -> None:
    sizes = block_sizes(count)
    assert int(sizes.sum()) == count
    assert len(sizes) <= MOST
    assert int(sizes.min()) >= 1


def test_a_series_of_ordinary_length_is_left_as_it_is() -> None:
    values = NOISE[:MOST]
    assert in_blocks(values).tolist() == values.tolist()
    assert nodes_of(MOST).tolist() == list(range(MOST))


def test_blocks_of_a_curve_are_computed_from_its_nodes() -> None:
    curve: Floats = STEPS**-0.7
    nodes = curve_in_blocks(curve[nodes_of(LONG), None], LONG)[:, 0]
    assert nodes == pytest.approx(in_blocks(curve), rel=1e-3)


def test_a_block_has_the_noise_of_a_single_measurement() -> None:
    generator = np.random.default_rng(1)
    blocks = [in_blocks(generator.standard_normal(20_000)) for _ in range(50)]
    assert float(np.std(blocks)) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("first", "last"), [(1, 10), (5, 5), (1, LONG), (LONG, 10**6)])
def test_instants_asked_about_reach_from_the_first_to_the_last(first: int, last: int) -> None:
    asked = some_between(first, last)
    assert (asked[0], asked[-1]) == (first, last)
    assert asked == sorted(set(asked))
    assert len(asked) <= MOST


def test_a_long_curve_without_noise_is_extrapolated() -> None:
    found = draw_curves((0.9 - 0.5 * STEPS**-0.4).tolist(), [2.0 * LONG]).curve
    assert float(np.median(found)) == pytest.approx(0.9 - 0.5 * (2 * LONG) ** -0.4, abs=1e-4)


def test_the_noise_of_single_measurements_is_found_in_blocks() -> None:
    found = draw_curves((0.9 - 0.5 * STEPS**-0.4 + NOISE).tolist(), [1.0])
    assert float(np.median(found.noise)) == pytest.approx(0.05, rel=0.1)


def test_a_long_run_that_still_learns_is_not_stopped_by_its_luckiest_step() -> None:
    learning = -(2 + 3 * STEPS**-0.4) + NOISE
    assert probability_of_beating(learning.tolist(), LONG, margin=0.001) > 0.5


def test_a_long_plateau_is_unlikely_to_be_beaten() -> None:
    plateau = 0.5 - 2.0 * np.exp(-STEPS / 100) - 1e-5 * STEPS + NOISE / 10
    assert probability_of_beating(plateau.tolist(), LONG, margin=0.001) < 0.05


def test_a_million_steps_ahead_are_extrapolated() -> None:
    plateau = 0.5 - 2.0 * np.exp(-STEPS / 100) - 1e-5 * STEPS + NOISE / 10
    assert probability_of_beating(plateau.tolist(), 10**6, margin=0.001, draws=100) < 0.05


def test_a_long_training_is_cut_where_its_curve_is_flat() -> None:
    flat_from = 500
    values = np.minimum(STEPS / flat_from, 1.0) + NOISE / 50
    epoch = EpochPrice(hours=0.1, price_per_hour=1.0)
    found = recommend_epoch_count(values.tolist(), epoch)
    assert found is not None
    assert flat_from * 0.8 <= int(found.title.split()[2]) <= 2 * flat_from


def test_a_run_that_logs_its_loss_at_every_step_is_advised_in_steps(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(3600), "run_id": "r", "model": "m"})
    for number in range(400):
        run.step(1)
        loss = 0.4 + 0.9 * 0.9**number
        run.add(Metric(t_ns=run.now_ns, name="loss", value=loss))
    run.end().write(tmp_path)
    found = CostOptimizer(clock=ManualClock()).advise_run(tmp_path)
    (epochs,) = (each for each in found if each.category == "epochs")
    assert "steps instead of 400" in epochs.title
    assert epochs.title.startswith("End after ")


def test_losses_that_brought_nothing_are_told_as_they_were_logged(tmp_path: Path) -> None:
    run = Segment(about={"price": dollars(3600), "run_id": "r", "model": "m"})
    for number in range(40):
        run.step(1)
        run.add(Metric(t_ns=run.now_ns, name="loss", value=0.5 if number == 0 else 0.25))
    run.end().write(tmp_path)
    found = CostOptimizer(clock=ManualClock()).advise_run(tmp_path)
    (epochs,) = (each for each in found if each.category == "epochs")
    assert epochs.title.startswith("End after ")
    assert epochs.evidence == ["40 values from 0.25 to 0.5"]
