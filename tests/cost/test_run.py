"""The cost of a run from its log: by phase, per unit, across prices, attempts and GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgers import HOUR, START_NS, Segment, dollars
from outlay.clock import ManualClock
from outlay.compat.cost_module.training import TrainingCostReport, TrainingMetrics
from outlay.cost.run_cost import LOSS, RunCost, best_accuracy, best_loss, cost_of
from outlay.errors import InvalidValue, NotARun
from outlay.goodput.follower import read_view
from outlay.goodput.timeline import Window
from outlay.ledger import (
    SUPERVISOR,
    Metric,
    Price,
    PriceChanged,
    RunIdentity,
    claim_identity,
)
from outlay.units import Money

LATER_NS = START_NS + 1000 * HOUR


def cost(run_dir: Path, *segments: Segment, window: Window | None = None) -> RunCost:
    for segment in segments:
        segment.write(run_dir)
    return cost_of(read_view(run_dir, LATER_NS), window)


def priced(per_hour: float = 3.6, *, start: float = 0.0, rank: int = 0, gpus: int = 1) -> Segment:
    about = {"price": dollars(per_hour), "gpus": gpus, "model": "m", "run_id": "r1"}
    return Segment(start=start, rank=rank, about=about)


def metric(segment: Segment, name: str, value: float) -> Segment:
    return segment.add(Metric(t_ns=segment.now_ns, name=name, value=value))


def test_a_wrapped_training_costs_under_the_model_that_it_names(tmp_path: Path) -> None:
    claim_identity(tmp_path, RunIdentity(run_id="r1", model="", name="python", created_ns=START_NS))
    assert cost(tmp_path, priced().step(1).end()).model == "m"


def test_a_command_that_names_no_model_costs_under_its_own_name(tmp_path: Path) -> None:
    claim_identity(tmp_path, RunIdentity(run_id="r1", model="", name="python", created_ns=START_NS))
    about = {"price": dollars(3.6)}
    wrapped = Segment(rank=SUPERVISOR, about=about).heartbeat(after=5).end()
    assert cost(tmp_path, wrapped).model == "python"


def test_phases_have_their_dollars_and_sum_to_the_cost(tmp_path: Path) -> None:
    run = priced(3.6)  # A thousandth of a dollar a second.
    for _ in range(10):
        run.step(1.0, wait=0.5)
    run.span("checkpoint_save", 5).end()
    found = cost(tmp_path, run)
    assert found.cost == Money(20_000)
    assert found.by_phase == {
        "step": Money(10_000),
        "data_loading": Money(5_000),
        "checkpoint_save": Money(5_000),
    }
    assert found.productive == Money(10_000)


def test_unit_costs_are_cost_divided_by_units(tmp_path: Path) -> None:
    run = priced(3600)  # A dollar a second.
    for _ in range(4):
        run.step(1.0, tokens=500_000, samples=8)
    run.checkpoint(1)
    metric(metric(run, "accuracy", 0.8), "epochs", 2).end()
    assert cost(tmp_path, run).unit_costs() == {
        "step": 1.0,
        "committed_step": 2.0,
        "sample": 0.125,
        "epoch": 2.0,
        "token": 2e-06,
        "million_tokens": 2.0,
        "accuracy_point": 5.0,
    }


def test_the_best_accuracy_counts_not_the_last(tmp_path: Path) -> None:
    run = priced().step(1)
    for value in (0.5, 0.9, float("nan"), 0.7):
        metric(run, "test_accuracy", value)
    assert cost(tmp_path, run.end()).accuracy == 0.9


def test_a_price_change_counts_from_its_instant(tmp_path: Path) -> None:
    run = priced(3600).step(10).price(7200).step(10).end()
    assert cost(tmp_path, run).cost == Money.parse(30)


def test_gpus_are_charged_once_however_many_ranks_record(tmp_path: Path) -> None:
    ranks = [priced(3600, rank=rank, gpus=8).step(10, tokens=5).end() for rank in range(4)]
    found = cost(tmp_path, *ranks)
    assert found.cost == Money.parse(80)
    assert found.gpu_ns == 80 * 10**9
    assert (found.steps, found.tokens) == (1, 20)


def test_work_that_was_repeated_is_badput_of_its_own(tmp_path: Path) -> None:
    first = priced(3600).step(1).step(1).checkpoint().step(1).step(1)
    second = priced(3600, start=4)
    second.step(1, number=2).step(1).step(1).checkpoint().end()
    found = cost(tmp_path, first, second)
    assert found.cost == Money.parse(7)
    assert found.by_phase["wasted_progress"] == Money.parse(2)
    assert (found.steps, found.committed_steps) == (7, 5)


def test_an_unmeasured_gap_is_listed_as_an_assumption(tmp_path: Path) -> None:
    found = cost(tmp_path, priced(3600).step(1), priced(3600, start=11).step(1).end())
    assert found.cost == Money.parse(12)
    assert "assumed" in found.assumptions[0]


def test_adjacent_windows_add_up(tmp_path: Path) -> None:
    run = priced(1.234567).step(1.1).step(2.3).step(3.7).end()
    middle_ns = START_NS + 2_500_000_001
    whole = cost(tmp_path, run)
    parts = [
        cost(tmp_path, window=Window(START_NS, middle_ns)),
        cost(tmp_path, window=Window(middle_ns, whole.window.end_ns)),
    ]
    assert sum(part.gpu_ns for part in parts) == whole.gpu_ns
    assert whole.cost is not None
    assert abs(sum(p.cost.micros for p in parts if p.cost) - whole.cost.micros) <= 1


def test_a_run_without_a_price_has_no_cost(tmp_path: Path) -> None:
    found = cost(tmp_path, Segment().step(1, samples=3).end())
    assert (found.cost, found.productive, found.by_phase) == (None, None, {})
    assert set(found.unit_costs().values()) == {None}


def test_a_directory_without_a_log_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        cost(tmp_path)


class TestMetricsFromARun:
    clock = ManualClock(LATER_NS)

    def metrics(self, run_dir: Path, run: Segment, **options: object) -> TrainingMetrics:
        run.write(run_dir)
        return TrainingMetrics.from_run(run_dir, clock=self.clock, **options)

    def test_carry_the_exact_cost(self, tmp_path: Path) -> None:
        run = priced(1.5, gpus=8).step(1800, samples=32, tokens=99).step(1800, samples=32)
        found = self.metrics(tmp_path, metric(run, "accuracy", 0.9).end())
        assert (found.model_name, found.gpu_count, found.gpu_price_per_hour) == ("m", 8, 1.5)
        assert (found.batch_size, found.num_samples, found.tokens_processed) == (32, 64, 99)
        report = TrainingCostReport.of(found)
        assert (report.total_cost, report.gpu_hours) == (12.0, 8.0)
        assert found.test_accuracy == 0.9

    def test_without_any_price_metrics_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidValue, match="pass price="):
            self.metrics(tmp_path, Segment().step(3600).end())

    def test_take_a_stated_price_where_none_was_recorded(self, tmp_path: Path) -> None:
        found = self.metrics(tmp_path, Segment().step(3600).end(), price="2 USD/h")
        assert TrainingCostReport.of(found).total_cost == 2.0

    def test_keep_the_recorded_price_whatever_is_stated(self, tmp_path: Path) -> None:
        found = self.metrics(tmp_path, priced(3.0).step(3600).end(), price="2 USD/h")
        assert TrainingCostReport.of(found).total_cost == 3.0


def test_a_metric_reported_by_several_ranks_counts_once(tmp_path: Path) -> None:
    for rank in (1, 0):
        run = priced(rank=rank)
        for value in (0.7, 0.5, 0.6):
            metric(run.step(1.0), "loss", value + rank)
        run.end().write(tmp_path)
    account = read_view(tmp_path, LATER_NS).account
    assert [point.value for point in account.series(*LOSS)] == [0.7, 0.5, 0.6]
    assert best_loss(account) == 0.5


@pytest.mark.parametrize("values", [("nan", "inf"), ("nan", 0.5, "-inf", 0.4)])
def test_values_are_those_of_the_finite_points(tmp_path: Path, values: tuple[Any, ...]) -> None:
    run = priced()
    for value in values:
        metric(run.step(1.0), "val_loss", value)
    metric(run, "loss", 0.1).end().write(tmp_path)
    account = read_view(tmp_path, LATER_NS).account
    assert [*account.values(*LOSS)] == [point.value for point in account.series(*LOSS)]
    assert best_loss(account) == min((v for v in values if isinstance(v, float)), default=None)


def test_a_metric_of_another_rank_is_used(tmp_path: Path) -> None:
    priced().step(1.0).end().write(tmp_path)
    metric(priced(rank=1).step(1.0), "accuracy", 0.9).end().write(tmp_path)
    assert best_accuracy(read_view(tmp_path, LATER_NS).account) == 0.9


def test_metrics_are_in_the_currency_that_the_run_pays_in(tmp_path: Path) -> None:
    """A price in a second currency is a finding, and charged in the first."""
    run = priced(3.6).step(10)
    euros = Price(micros_per_hour=1_000_000, currency="EUR")
    run.add(PriceChanged(t_ns=run.now_ns, price=euros, gpus=1)).step(10).end().write(tmp_path)
    found = TrainingMetrics.from_run(tmp_path)
    assert found.currency == "USD"
