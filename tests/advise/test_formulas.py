"""The formulas of advice, compared with published figures and independent oracles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.advise.batch_size import (
    GB,
    estimated_memory,
    examples_factor,
    fit_throughput,
    measured_memory,
    noise_scale,
)
from outlay.advise.curves import (
    FAMILIES,
    draw_curves,
    families_at,
    probability_of_beating,
    probability_of_passing,
)
from outlay.advise.dataset import ScalingLaw, SmallRun, effective_data, fit_scaling_law
from outlay.advise.overhead import Reliability, expected_ratio, optimal_interval
from outlay.advise.stopping import is_level
from outlay.errors import InvalidValue


class TestCheckpointInterval:
    @pytest.mark.parametrize(("mttf", "expected"), [(1440, 116.690), (60, 21.281), (10, 6.983)])
    def test_of_published_examples(self, mttf: float, expected: float) -> None:
        assert optimal_interval(Reliability(save=5, mttf=mttf)) == pytest.approx(expected, abs=6e-4)

    def test_the_least_overhead_of_a_day_between_failures(self) -> None:
        of = Reliability(save=5, mttf=1440)
        assert expected_ratio(of, optimal_interval(of)) - 1 == pytest.approx(0.0882, abs=5e-5)

    @given(st.floats(1e-3, 1e3), st.floats(1e-2, 1e5), st.floats(0, 100))
    def test_the_exact_interval_is_the_lambert_function(
        self, save: float, mttf: float, restart: float
    ) -> None:
        from scipy.special import lambertw

        of = Reliability(save=save, mttf=mttf, restart=restart)
        oracle = mttf * (1 + float(lambertw(-math.exp(-save / mttf - 1)).real))
        assert optimal_interval(of) == pytest.approx(oracle, rel=1e-6, abs=1e-9 * mttf)

    @pytest.mark.parametrize(("save", "mttf"), [(5, 1440), (5, 60), (5, 10), (0.1, 24)])
    def test_no_other_interval_wastes_less(self, save: float, mttf: float) -> None:
        from scipy.optimize import minimize_scalar

        of = Reliability(save=save, mttf=mttf, restart=3)
        best = minimize_scalar(
            lambda tau: expected_ratio(of, tau), bounds=(1e-6, 5 * mttf), method="bounded"
        )
        assert optimal_interval(of) == pytest.approx(best.x, rel=1e-3)

    def test_an_interval_that_never_ends_is_infinite(self) -> None:
        assert expected_ratio(Reliability(save=1, mttf=1), 1e6) == math.inf

    def test_a_restart_that_never_ends_is_infinite(self) -> None:
        assert expected_ratio(Reliability(save=1, mttf=1, restart=1e6), 1) == math.inf

    @pytest.mark.parametrize("wrong", [{"mttf": 0.0}, {"save": -1.0}, {"restart": math.inf}])
    def test_invalid_times_are_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            Reliability(**({"save": 1.0, "mttf": 1.0} | wrong))


class TestNoiseScale:
    @pytest.mark.parametrize(("share", "examples"), [(1, 2), (0.25, 1.25), (4, 5)])
    def test_larger_batches_need_more_examples(self, share: float, examples: float) -> None:
        assert examples_factor(share * 1000, 1000) == examples

    @given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e6), st.integers(1, 100), st.integers(2, 50))
    def test_two_batch_sizes_give_back_signal_and_noise(
        self, signal: float, noise: float, small: int, ratio: int
    ) -> None:
        large = small * ratio
        found = noise_scale((small, signal + noise / small), (large, signal + noise / large))
        assert found == pytest.approx(noise / signal, rel=1e-3)

    def test_norms_without_a_signal_are_refused(self) -> None:
        with pytest.raises(InvalidValue, match="enough batches"):
            noise_scale((1, 1.0), (10, 2.0))


def test_throughput_is_recovered_from_measurements() -> None:
    speed = fit_throughput({b: 1000 * b / (b + 50) for b in (8, 32, 128)})
    assert (speed.peak, speed.half) == pytest.approx((1000, 50))
    assert speed.at(64) == pytest.approx(1000 * 64 / 114)


@pytest.mark.parametrize(
    ("epochs", "worth"), [(1, 1.0), (2, 0.984), (4, 0.931), (8, 0.828), (16, 0.661), (40, 0.379)]
)
def test_the_value_of_repeated_data_decays(epochs: int, worth: float) -> None:
    assert effective_data(1e9, epochs) / (1e9 * epochs) == pytest.approx(worth, abs=5e-4)


CHINCHILLA = ScalingLaw(e=1.8172, a=477.6, b=2142.7, alpha=0.3473, beta=0.3672)


def test_compute_is_split_between_model_and_data() -> None:
    parameters, tokens = CHINCHILLA.optimum(5.76e23)
    assert parameters / 1e9 == pytest.approx(73.2, abs=0.5)
    assert tokens / 1e12 == pytest.approx(1.31, abs=0.01)
    assert tokens / parameters == pytest.approx(17.9, abs=0.2)


@given(st.floats(1e18, 1e26), st.floats(0.3, 3))
def test_no_other_split_of_the_compute_is_better(flops: float, off: float) -> None:
    parameters, tokens = CHINCHILLA.optimum(flops)
    best = CHINCHILLA.loss(parameters, tokens)
    assert CHINCHILLA.loss(parameters * off, tokens / off) >= best * (1 - 1e-12)


def test_a_scaling_law_is_recovered_from_small_runs() -> None:
    sizes = [(n, d) for n in (1e7, 1e8, 1e9, 1e10) for d in (1e9, 1e10, 1e11)]
    found = fit_scaling_law([SmallRun(n, d, CHINCHILLA.loss(n, d)) for n, d in sizes])
    for n, d in sizes:
        assert found.loss(n, d) == pytest.approx(CHINCHILLA.loss(n, d), rel=1e-3)
    assert found.alpha == pytest.approx(CHINCHILLA.alpha, rel=0.01)
    assert found.beta == pytest.approx(CHINCHILLA.beta, rel=0.01)


def learning_curve(
    g: np.random.Generator, kind: int, epochs: int
) -> tuple[list[float], list[float]]:
    """A noisy curve of one of eight kinds, the last three of no fitted family; and the true one."""
    t = np.arange(1, epochs + 1)
    c, a = g.uniform(0.6, 0.95), g.uniform(0.1, 0.5)
    kinds: list[Callable[[], Any]] = [
        lambda: c - a * t ** -g.uniform(0.3, 1.5),
        lambda: c - a * np.exp(-g.uniform(0.03, 0.5) * t),
        lambda: c - a * np.exp(-g.uniform(0.1, 0.4) * t) - 0.1 * np.exp(-0.02 * t),
        lambda: c - a * np.exp(-g.uniform(0.2, 0.6) * t) - g.uniform(0, 0.003) * t,
        lambda: c - a / (1 + (t / g.uniform(3, 15)) ** g.uniform(1, 2)),
        lambda: c - a * (1 - np.exp(-np.exp(-g.uniform(0.1, 0.3) * (t - g.uniform(2, 8))))),
        lambda: c - a * np.log(t + g.uniform(1.5, 4)) ** -g.uniform(1, 2.5),
        lambda: c - a * t**-0.3 * (1 + (t / g.uniform(5, 15)) ** 4) ** -g.uniform(0.05, 0.2),
    ]
    true = kinds[kind]()
    noisy = true + g.normal(0, g.uniform(0.001, 0.015), epochs)
    return noisy.tolist(), true.tolist()


EPOCHS, CURVES, STATED, KINDS = 60, 200, 0.05, 8


@pytest.mark.timeout(900)  # Minutes on a busy machine.
def test_on_200_noisy_curves_false_stops_are_rarer_than_stated() -> None:
    """Checked every fifth epoch; false if the measurement at the true peak ahead is better."""
    g, stops, false = np.random.default_rng(11), 0, 0
    running = [learning_curve(g, index % KINDS, EPOCHS) for index in range(CURVES)]
    for seen in range(10, EPOCHS, 5):  # All curves at the same epoch: families are prepared once.
        left = EPOCHS - seen
        checked, running = running, []
        for curve, true in checked:
            if (
                not is_level(curve[:seen], left, 0.001)
                and probability_of_beating(curve[:seen], left, margin=0.001, draws=300) >= STATED
            ):
                running.append((curve, true))
                continue
            stops += 1
            peak = max(range(seen, EPOCHS), key=true.__getitem__)
            false += curve[peak] > max(curve[:seen]) + 0.001
    assert false / CURVES <= STATED
    assert stops >= CURVES // 4  # A rule that never stops has no false stops.


def test_curves_that_are_unlikely_to_pass_a_level_seldom_do() -> None:
    """At half of their epochs; the level is that of another run, above all so far."""
    g, unlikely, passed, half = np.random.default_rng(12), 0, 0, EPOCHS // 2
    for index in range(CURVES // 2):
        curve, true = learning_curve(g, index % KINDS, EPOCHS)
        level = max(curve[:half]) + g.uniform(0, 0.03)
        if probability_of_passing(curve[:half], half, level, draws=300) < STATED:
            unlikely += 1
            passed += curve[max(range(half, EPOCHS), key=true.__getitem__)] > level
    assert passed <= STATED * unlikely
    assert unlikely >= CURVES // 8


def covered(kind: int, *, seen: int, count: int) -> float:
    """Return the share of 80 % intervals that contain the measurement at twice the length."""
    g, inside = np.random.default_rng(5 + kind), 0
    for _ in range(count):
        curve, _ = learning_curve(g, kind, 2 * seen)
        draws = draw_curves(curve[:seen], [2.0 * seen], draws=300)
        ahead = draws.curve[:, 0] + draws.noise * np.random.default_rng(1).standard_normal(300)
        low, high = np.quantile(ahead, [0.1, 0.9])
        inside += bool(low <= curve[-1] <= high)
    return inside / count


def test_intervals_have_their_nominal_coverage() -> None:
    """For each kind of curve, also those of no fitted family, and for all together."""
    each = [covered(kind, seen=20, count=100) for kind in range(KINDS)]
    assert min(each) >= 0.70
    assert 0.75 <= sum(each) / KINDS <= 0.90


@pytest.mark.parametrize("seen", [5, 8])
def test_intervals_of_short_curves_have_at_least_their_nominal_coverage(seen: int) -> None:
    each = [covered(kind, seen=seen, count=40) for kind in range(KINDS)]
    assert sum(each) / KINDS >= 0.80


@pytest.mark.parametrize("kind", [0, 1, 4])
def test_a_curve_without_noise_is_extrapolated(kind: int) -> None:
    _, true = learning_curve(np.random.default_rng(3), kind, 60)
    found = draw_curves(true[:30], [60.0]).curve
    assert float(np.median(found)) == pytest.approx(true[59], abs=0.01)


def test_every_family_is_fitted() -> None:
    assert len(families_at((1.0, 2.0, 3.0, 4.0), (5.0,), 4)) == FAMILIES


def test_a_finer_grid_begins_with_the_shape_that_it_is_about() -> None:
    """Of shapes that fit equally the first is taken, so that grids do not move away from it."""
    for family in families_at((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (60.0,), 6):
        if family.form.bounds:
            assert family.near(0, 0.5).shapes[0].tolist() == family.shapes[0].tolist()


def test_a_level_curve_stays_where_it_is() -> None:
    assert draw_curves([0.5] * 6, [50.0]).curve == pytest.approx(0.5, abs=1e-4)


def test_a_curve_of_too_few_values_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least 4"):
        draw_curves([1.0, 2.0, 3.0], [4.0])


class TestMemory:
    def test_a_large_model_does_not_fit_a_small_gpu(self) -> None:
        assert estimated_memory(70_000_000_000).largest_batch(8) == 0

    def test_two_peaks_give_the_line(self) -> None:
        memory = measured_memory((8, 10.0 * GB), (16, 14.0 * GB))
        assert memory.largest_batch(24.0) == 32
        assert memory.measured

    @given(st.integers(1, 10**12), st.floats(1, 300))
    def test_the_largest_batch_fits_in_memory(self, parameters: int, gpu_gb: float) -> None:
        memory = estimated_memory(parameters)
        batch = memory.largest_batch(gpu_gb)
        assert batch == 0 or memory.fixed_bytes + batch * memory.bytes_per_sample <= gpu_gb * GB

    def test_a_smaller_peak_with_a_larger_batch_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="needs more memory"):
            measured_memory((8, 2.0), (16, 1.0))
