"""BudgetTracker: the documented behaviours, one by one, and the laws of stopping."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.budget.limits import Threshold
from outlay.budget.snapshots import BudgetChanged
from outlay.budget.terms import Budget, iso_epochs, iso_tokens
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import Usage
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.units import Money

SECOND_MS = 1000.0


def tokens_tracker(limit: int = 50_000, **caps: object) -> BudgetTracker:
    return BudgetTracker("iso_tokens", {"max_tokens": limit, **caps})


def test_an_unsupported_mode_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"iso_beauty.*comm_cap.*iso_tokens"):
        BudgetTracker("iso_beauty", {})


def test_a_limit_that_is_no_number_is_a_value_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="max_comm_bytes"):
        tokens_tracker(max_comm_bytes="lots")


def test_iso_time_stops_once_the_time_is_reached() -> None:
    tracker = BudgetTracker("iso_time", {"max_minutes": 0.05})
    tracker.update(1, SECOND_MS)
    tracker.update(1, SECOND_MS)
    assert not tracker.should_stop()
    assert not tracker.would_exceed(step_wall_ms=500)
    tracker.update(1, SECOND_MS)
    assert tracker.should_stop()
    assert tracker.would_exceed(step_wall_ms=SECOND_MS)


def test_iso_tokens_counts_every_micro_batch_of_an_accumulated_step() -> None:
    tracker = tokens_tracker(8)
    for _ in range(2):  # two micro-batches of two samples in two views each
        tracker.update(2 * 2, SECOND_MS)
    assert tracker.totals["tokens"] == 8
    assert tracker.totals["steps"] == 2
    assert tracker.should_stop()


def test_hitting_a_limit_exactly_is_allowed_and_passing_it_is_not() -> None:
    tracker = tokens_tracker(8)
    tracker.update(4, SECOND_MS)
    assert not tracker.would_exceed(step_samples=4)
    assert tracker.would_exceed(step_samples=5)


def test_would_exceed_counts_one_more_step() -> None:
    tracker = BudgetTracker("iso_epochs", {"max_epochs": 1, "steps_per_epoch": 2})
    tracker.update(1, SECOND_MS)
    assert not tracker.would_exceed()
    tracker.update(1, SECOND_MS)
    assert tracker.would_exceed()
    assert tracker.should_stop()


@pytest.mark.parametrize(
    ("mode", "limits", "use"),
    [
        ("comm_cap", {"max_comm_bytes": 10}, {"comm_bytes": 10}),
        ("energy_cap", {"max_energy_Wh": 0.5}, {"energy_Wh": 0.5}),
        ("iso_cost", {"max_cost_usd": 5}, {"cost": 5}),
        ("iso_flops", {"max_flops": 10**18}, {"flops": 10**18}),
        ("iso_tokens", {"max_tokens": 99, "max_comm_bytes": 10}, {"comm_bytes": 10}),
        ("iso_tokens", {"max_tokens": 99, "max_energy_Wh": 1}, {"energy_Wh": 1.0}),
        ("iso_tokens", {"max_tokens": 99, "max_minutes": 1}, {"step_wall_ms": 60_000}),
        ("iso_time", {"max_minutes": 9, "max_tokens": 99}, {"step_samples": 99}),
        (
            "iso_time",
            {"max_minutes": 9, "max_comm_bytes": 9, "max_energy_Wh": 9},
            {"energy_Wh": 9.0},
        ),
    ],
)
def test_every_limit_that_is_set_binds(
    mode: str, limits: dict[str, object], use: dict[str, Any]
) -> None:
    tracker = BudgetTracker(mode, limits)
    tracker.update(**({"step_samples": 1, "step_wall_ms": 1.0} | use))
    assert tracker.should_stop()


@pytest.mark.parametrize(
    "name", ["step_samples", "step_wall_ms", "comm_bytes", "energy_Wh", "cost", "flops"]
)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "much"])
@pytest.mark.parametrize("method", ["update", "would_exceed"])
def test_impossible_amounts_are_a_value_error_and_change_nothing(
    name: str, value: Any, method: str
) -> None:
    tracker = tokens_tracker()
    with pytest.raises(ValueError, match=name):
        getattr(tracker, method)(**({"step_samples": 1, "step_wall_ms": 1.0} | {name: value}))
    assert tracker.totals["tokens"] == 0
    assert tracker.totals["steps"] == 0


def test_counts_may_come_as_the_items_of_arrays_and_whole_floats() -> None:
    tracker = tokens_tracker()
    tracker.update(np.int64(3), 1.0, comm_bytes=4.0)  # type: ignore[arg-type]
    assert (tracker.totals["tokens"], tracker.totals["comm_bytes"]) == (3, 4)


@pytest.mark.parametrize("value", [True, 2.5, 10**40])
def test_invalid_counts_are_refused(value: Any) -> None:
    with pytest.raises(InvalidValue, match="step_samples"):
        tokens_tracker().update(value, 1.0)


def test_a_cost_in_another_currency_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"cost.*USD"):
        tokens_tracker().update(1, 1.0, cost=Money.parse("1 EUR"))


def test_snapshots_carry_the_documented_fields() -> None:
    tracker = BudgetTracker("iso_epochs", {"max_epochs": 2, "steps_per_epoch": 4})
    tracker.update(3, 1500.0, comm_bytes=7, energy_Wh=0.25, cost=0.5, flops=11)
    assert tracker.snapshot() == {
        "mode": "iso_epochs",
        "limits": {"max_epochs": 2},
        "steps_per_epoch": 4,
        "charge": "training",
        "totals": {
            "tokens": 3,
            "time_ms": 1500.0,
            "time_minutes": 0.025,
            "comm_bytes": 7,
            "energy_Wh": 0.25,
            "cost_usd": 0.5,
            "flops": 11,
            "steps": 1,
            "epochs": 0.25,
        },
        "clocks_ms": {"training": 1500.0, "evaluation": 0.0, "checkpoint": 0.0, "logging": 0.0},
        "stop_reason": None,
    }
    assert json.loads(json.dumps(tracker.snapshot())) == tracker.snapshot()


def test_counts_stay_whole() -> None:
    tracker = tokens_tracker()
    tracker.update(3, 1.0, comm_bytes=4)
    assert all(type(tracker.totals[key]) is int for key in ("tokens", "steps", "comm_bytes"))


def test_totals_are_a_copy() -> None:
    tracker = tokens_tracker()
    tracker.totals["tokens"] = 99
    assert tracker.totals["tokens"] == 0


def test_epochs_are_zero_while_their_length_is_unknown() -> None:
    tracker = tokens_tracker()
    tracker.update(1, 1.0)
    assert tracker.totals["epochs"] == 0.0


def test_loading_nothing_changes_nothing() -> None:
    tracker = tokens_tracker()
    tracker.update(3, 1.0)
    tracker.load(None)
    tracker.load({})
    assert tracker.totals["tokens"] == 3


def test_loading_a_snapshot_preserves_what_remains() -> None:
    before = tokens_tracker(10)
    before.update(6, 250.0, comm_bytes=5, energy_Wh=0.1)
    after = tokens_tracker(10)
    after.load(before.snapshot())
    assert after.totals == before.totals
    assert after.remaining == {"max_tokens": 4}


def test_an_exhausted_budget_stops_before_the_first_step_after_loading() -> None:
    before = tokens_tracker(4)
    before.update(4, 1.0)
    after = tokens_tracker(4)
    after.load(before.snapshot())
    assert after.should_stop()
    assert not after.admit(Usage(tokens=1, steps=1))


def test_loading_another_mode_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="iso_time"):
        tokens_tracker().load(BudgetTracker("iso_time", {"max_minutes": 1}).snapshot())


def test_loading_another_limit_is_an_error_that_shows_both() -> None:
    with pytest.raises(BudgetChanged, match="max_tokens 10 -> 20"):
        tokens_tracker(20).load(tokens_tracker(10).snapshot())


def test_a_changed_limit_is_taken_when_that_is_allowed() -> None:
    before = tokens_tracker(10)
    before.update(10, 1.0)
    after = tokens_tracker(20)
    after.load(before.snapshot(), allow_change=True)
    assert after.remaining == {"max_tokens": 10}
    lenient = BudgetTracker.of(Budget.of("iso_tokens", {"max_tokens": 20}, allow_change=True))
    lenient.load(before.snapshot())
    assert lenient.remaining == {"max_tokens": 10}


@pytest.mark.parametrize("value", [-5, math.nan, -math.inf, "lots", True, None])
@pytest.mark.parametrize("key", ["tokens", "time_ms", "comm_bytes", "energy_Wh", "steps"])
def test_snapshot_with_an_impossible_total_is_refused(key: str, value: Any) -> None:
    tracker = tokens_tracker()
    tracker.update(3, 1.0, comm_bytes=3, energy_Wh=0.5)
    before = tracker.totals
    with pytest.raises(ValueError, match=key):
        tracker.load({"totals": before | {key: value}})
    assert tracker.totals == before


@pytest.mark.parametrize("key", ["tokens", "time_ms", "comm_bytes", "energy_Wh", "steps"])
def test_a_snapshot_that_lacks_a_total_is_a_value_error(key: str) -> None:
    tracker = tokens_tracker()
    before = tracker.totals
    with pytest.raises(ValueError, match=key):
        tracker.load({"totals": {name: each for name, each in before.items() if name != key}})


@pytest.mark.parametrize("totals", [[0], None, {}])
def test_snapshot_whose_totals_are_no_table_is_refused(totals: object) -> None:
    tracker = BudgetTracker("iso_tokens", {"max_tokens": 100})
    tracker.update(30, 10.0)
    with pytest.raises(ValueError, match="total"):
        tracker.load({"mode": "iso_tokens", "totals": totals})
    assert tracker.totals["tokens"] == 30


def test_a_snapshot_of_the_older_tracker_has_neither_money_nor_flops() -> None:
    totals = {"tokens": 6.0, "time_ms": 250.0, "comm_bytes": 0.0, "energy_Wh": 0.0, "steps": 2}
    tracker = tokens_tracker(10)
    tracker.load({"mode": "iso_tokens", "limits": {"max_tokens": 10.0}, "totals": totals})
    assert tracker.remaining == {"max_tokens": 4}


def test_a_tracker_counts_money_in_the_currency_of_its_limit() -> None:
    tracker = BudgetTracker("iso_cost", {"max_cost_eur": 1})
    tracker.update(1, SECOND_MS, cost=0.25)
    tracker.update(1, SECOND_MS, cost=Money.parse("0.5 EUR"))
    assert tracker.remaining == {"max_cost_eur": 0.25}
    resumed = BudgetTracker("iso_cost", {"max_cost_eur": 1}, rate="3.6 EUR/h")
    resumed.load_state_dict(tracker.state_dict())
    assert resumed.totals["cost_eur"] == 0.75
    resumed.charge("evaluation", 250 * 10**9)
    assert resumed.should_stop()
    with pytest.raises(InvalidValue, match=r"cost.*an amount in EUR"):
        tracker.update(1, SECOND_MS, cost=Money.parse("0.5 USD"))


@pytest.mark.parametrize("limits", [{"max_tokens": 5, "max_cost_eur": 5}, {"max_tokens": 5}])
def test_a_rate_in_another_currency_than_is_counted_is_refused(limits: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=r"rate.*GBP.*per hour in (EUR|USD)"):
        BudgetTracker("iso_tokens", limits, rate="1 GBP/h")


def test_snapshot_in_euros_refunds_no_dollars() -> None:
    euros = BudgetTracker("iso_cost", {"max_cost_eur": 1})
    dollars = BudgetTracker("iso_cost", {"max_cost_usd": 1})
    dollars.update(1, SECOND_MS, cost=0.5)
    with pytest.raises(BudgetChanged, match=r"max_cost_usd None -> 1, max_cost_eur 1 -> None"):
        dollars.load(euros.snapshot())
    dollars.load(euros.snapshot(), allow_change=True)
    assert dollars.totals["cost_usd"] == 0.5


DOLLARS = """{
  "charge": "training",
  "clocks_ms": {
    "checkpoint": 0.0,
    "evaluation": 0.0,
    "logging": 0.0,
    "training": 1000.0
  },
  "limits": {
    "max_cost_usd": 1
  },
  "mode": "iso_cost",
  "steps_per_epoch": null,
  "stop_reason": {
    "before_step": false,
    "limit": 3600000000000000000,
    "limit_key": "max_cost_usd",
    "over": 900000000000000000,
    "text": "cost: 1.25 USD of 1.00 USD used, 0.25 USD over",
    "unit": "cost_units",
    "used": 4500000000000000000
  },
  "totals": {
    "comm_bytes": 0,
    "cost_usd": 1.25,
    "energy_Wh": 0.0,
    "epochs": 0.0,
    "flops": 0,
    "steps": 1,
    "time_minutes": 0.016666666666666666,
    "time_ms": 1000.0,
    "tokens": 7
  }
}
"""


def test_snapshot_in_dollars_keeps_its_form() -> None:
    tracker = BudgetTracker("iso_cost", {"max_cost_usd": 1})
    tracker.update(7, SECOND_MS, cost=1.25)
    assert tracker.state_dict() == {"budget": DOLLARS}


def test_negative_time_is_refused() -> None:
    tracker = BudgetTracker("iso_cost", {"max_cost_usd": 1}, rate="1 USD/h")
    with pytest.raises(InvalidValue, match="time_ns"):
        tracker.charge("evaluation", -1)


def test_loading_an_older_snapshot_takes_back_progress_but_no_resource() -> None:
    tracker = tokens_tracker(100)
    tracker.update(10, SECOND_MS, comm_bytes=5)
    older = tracker.snapshot()
    tracker.update(10, SECOND_MS, comm_bytes=5)
    tracker.load(older)
    assert tracker.totals["tokens"] == 10
    assert tracker.totals["steps"] == 1
    assert tracker.totals["time_ms"] == 2 * SECOND_MS
    assert tracker.totals["comm_bytes"] == 10


def test_a_step_with_a_lower_number_takes_back_what_it_undoes() -> None:
    tracker = tokens_tracker(100)
    for step in range(5):
        tracker.update(10, SECOND_MS, step=step)
    tracker.update(10, SECOND_MS, step=2)
    assert tracker.totals["tokens"] == 30
    assert tracker.totals["time_ms"] == 6 * SECOND_MS


def test_a_rollback_reopens_a_reached_progress_limit() -> None:
    tracker = tokens_tracker(20)
    tracker.update(10, 1.0, step=0)
    tracker.update(10, 1.0, step=1)
    assert tracker.should_stop()
    tracker.update(5, 1.0, step=1)
    assert not tracker.should_stop()


def test_remaining_and_fraction_name_what_is_left() -> None:
    tracker = tokens_tracker(100, max_minutes=1)
    tracker.update(25, 45_000)
    assert tracker.remaining == {"max_tokens": 75, "max_minutes": 0.25}
    assert tracker.fraction_used == 0.75


def test_remaining_epochs_are_counted_in_epochs() -> None:
    tracker = BudgetTracker("iso_epochs", {"max_epochs": 3, "steps_per_epoch": 4})
    tracker.update(1, 1.0)
    assert tracker.remaining == {"max_epochs": 2.75}


def test_stop_reason_distinguishes_a_refused_step_from_a_reached_limit() -> None:
    tracker = tokens_tracker(50)
    tracker.update(32, 1.0)
    assert tracker.admit(Usage(tokens=18, steps=1))
    assert not tracker.admit(Usage(tokens=32, steps=1))
    assert tracker.should_stop()
    reason = tracker.snapshot()["stop_reason"]
    assert (reason["limit_key"], reason["before_step"], reason["over"]) == ("max_tokens", True, 14)


def test_asking_would_exceed_does_not_stop_a_run() -> None:
    tracker = tokens_tracker(50)
    assert tracker.would_exceed(step_samples=99)
    assert not tracker.should_stop()


def test_thresholds_are_reported_once_each() -> None:
    tracker = tokens_tracker(100)
    reported: list[Threshold] = []
    tracker.on_threshold(reported.append)
    for _ in range(10):
        tracker.update(10, 1.0)
    assert [(each.percent, each.used) for each in reported] == [
        (50, 50),
        (75, 80),
        (90, 90),
        (100, 100),
    ]


def test_a_threshold_is_not_reported_before_it_is_reached() -> None:
    tracker = tokens_tracker(3)
    reported: list[int] = []
    tracker.on_threshold(lambda threshold: reported.append(threshold.percent))
    tracker.update(1, 1.0)
    assert reported == []  # A third.
    tracker.update(1, 1.0)
    assert reported == [50]  # Two thirds.


def test_thresholds_crossed_before_a_resume_are_not_reported_again() -> None:
    before = tokens_tracker(100)
    before.update(80, 1.0)
    after = tokens_tracker(100)
    after.load(before.snapshot())
    reported: list[int] = []
    after.on_threshold(lambda threshold: reported.append(threshold.percent))
    after.update(11, 1.0)
    assert reported == [90]


def test_a_listener_that_fails_does_not_end_the_training() -> None:
    tracker = tokens_tracker(2)

    @tracker.on_threshold
    def _broken(threshold: Threshold) -> None:
        raise RuntimeError(str(threshold))

    tracker.update(2, 1.0)
    assert tracker.should_stop()
    assert "a threshold listener failed" in tracker.findings[0].message


def test_the_forecast_is_when_the_first_limit_will_stop_the_run() -> None:
    tracker = tokens_tracker(100, max_minutes=60)
    assert tracker.forecast() is None
    tracker.update(10, SECOND_MS)
    tracker.update(20, SECOND_MS)
    forecast = tracker.forecast()
    assert forecast is not None
    assert forecast.bound.dimension.key == "max_tokens"
    assert forecast.steps_left == 4  # 70 tokens left at 15 a step
    assert forecast.at_step == 6
    assert forecast.time_left_ns == 4 * 10**9


def test_a_limit_that_nothing_was_used_of_stops_no_forecast() -> None:
    tracker = tokens_tracker(100, max_comm_bytes=1)
    tracker.update(10, SECOND_MS)
    forecast = tracker.forecast()
    assert forecast is not None
    assert forecast.bound.dimension.key == "max_tokens"


def test_evaluation_has_a_clock_of_its_own(clock: ManualClock) -> None:
    tracker = BudgetTracker("iso_time", {"max_minutes": 1}, clock=clock)
    with tracker.spend("evaluation"):
        clock.advance(40 * 10**9)
    assert tracker.totals["time_ms"] == 0
    assert tracker.snapshot()["clocks_ms"]["evaluation"] == 40_000


def test_charging_all_counts_evaluation_as_time(clock: ManualClock) -> None:
    tracker = BudgetTracker("iso_time", {"max_minutes": 1}, charge="all", clock=clock)
    with tracker.spend("evaluation"):
        clock.advance(40 * 10**9)
    assert tracker.totals["time_ms"] == 40_000


def test_an_evaluation_is_skipped_when_it_would_overshoot_by_earlier_ones(
    clock: ManualClock,
) -> None:
    tracker = BudgetTracker("iso_time", {"max_minutes": 1}, charge="all", clock=clock)
    assert tracker.allows("evaluation")
    with tracker.spend("evaluation"):
        clock.advance(25 * 10**9)
    assert tracker.allows("evaluation")
    tracker.update(1, 11_000)
    assert not tracker.allows("evaluation")
    assert not tracker.should_stop()


def test_an_evaluation_costs_money_whatever_is_charged_as_time(clock: ManualClock) -> None:
    tracker = BudgetTracker("iso_cost", {"max_cost_usd": 3}, rate="2 USD/h", clock=clock)
    with tracker.spend("evaluation"):
        clock.advance(3600 * 10**9)
    assert tracker.totals["cost_usd"] == 2
    assert not tracker.allows("evaluation")


def test_an_unknown_clock_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(InvalidValue, match=r"lunch.*evaluation"), tokens_tracker().spend("lunch"):
        pass


def test_steps_are_priced_at_the_rate() -> None:
    tracker = BudgetTracker("iso_cost", {"max_cost_usd": 1}, rate="3.6 USD/h")
    for _ in range(1000):
        tracker.update(1, SECOND_MS)
    assert tracker.totals["cost_usd"] == 1
    assert tracker.should_stop()


def test_wall_clock_set_back_refunds_no_time(clock: ManualClock) -> None:
    tracker = BudgetTracker("iso_time", {"max_minutes": 1}, charge="all", clock=clock)
    with tracker.spend("checkpoint"):
        clock.advance(30 * 10**9)
        clock.step_wall(-3600 * 10**9)
    assert tracker.totals["time_ms"] == 30_000


def test_updates_from_many_threads_are_all_counted() -> None:
    tracker = tokens_tracker(10**9)

    def train() -> None:
        for _ in range(500):
            tracker.update(3, 1.0, comm_bytes=2)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.totals["tokens"] == 6000
    assert tracker.totals["steps"] == 2000


@pytest.mark.xdist_group("torch")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_state_dict_round_trips_through_torch_checkpoints_of_both_kinds(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    before = tokens_tracker(10)
    before.update(6, 250.0)
    torch.save(before.state_dict(), tmp_path / "plain.pt")
    dcp_save({"budget": before}, checkpoint_id=tmp_path / "dcp")
    plain, distributed = tokens_tracker(10), tokens_tracker(10)
    plain.load_state_dict(torch.load(tmp_path / "plain.pt", weights_only=True))
    dcp_load({"budget": distributed}, checkpoint_id=tmp_path / "dcp")
    assert plain.totals == distributed.totals == before.totals


def test_the_length_of_an_epoch_may_come_with_the_loader() -> None:
    tracker = BudgetTracker.of(iso_epochs(1))
    tracker.set_steps_per_epoch(2)
    tracker.update(1, 1.0)
    tracker.update(1, 1.0)
    assert tracker.should_stop()


def test_epochs_of_unknown_length_are_refused_by_the_documented_constructor() -> None:
    with pytest.raises(ValueError, match="steps_per_epoch"):
        BudgetTracker("iso_epochs", {"max_epochs": 3})


steps = st.tuples(
    st.integers(0, 50), st.floats(0, 100), st.integers(0, 50), st.floats(0, 1), st.integers(0, 50)
)


@given(
    st.lists(steps, max_size=30),
    st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 200)},
        optional={
            "max_minutes": st.floats(0.001, 0.1),
            "max_comm_bytes": st.integers(1, 300),
            "max_energy_Wh": st.floats(0.01, 5),
            "max_flops": st.integers(1, 200),
        },
    ),
)
def test_would_exceed_is_exactly_whether_the_update_then_exceeds(
    history: list[tuple[int, float, int, float, int]], limits: dict[str, object]
) -> None:
    tracker = BudgetTracker("iso_tokens", limits)
    for tokens, wall_ms, comm, energy, flops in history:
        predicted = tracker.would_exceed(tokens, wall_ms, comm, energy, flops=flops)
        tracker.update(tokens, wall_ms, comm, energy, flops=flops)
        assert predicted == any(left < 0 for left in tracker.remaining.values())


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 50)), min_size=1), st.integers(1, 300))
def test_a_run_never_passes_a_predictable_limit_and_another_by_at_most_one_step(
    history: list[tuple[int, float]], max_tokens: int
) -> None:
    tracker = BudgetTracker("iso_tokens", {"max_tokens": max_tokens, "max_minutes": 0.002})
    limit_ms = 0.002 * 60_000
    for tokens, wall_ms in history:
        if tracker.should_stop() or not tracker.admit(Usage(tokens=tokens, steps=1)):
            break
        before_ms = tracker.totals["time_ms"]
        tracker.update(tokens, wall_ms)
        assert before_ms < limit_ms
        assert tracker.totals["tokens"] <= max_tokens


def test_iso_tokens_admits_exactly_what_fits() -> None:
    tracker = BudgetTracker.of(iso_tokens(100))
    done = 0
    while tracker.admit(Usage(tokens=7, steps=1)):
        tracker.update(7, 1.0)
        done += 1
    assert done == 14
