"""A limit on emissions: one on energy, at the factor that ``outlay.toml`` states."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from outlay.budget.terms import Budget
from outlay.budget.tracker import BudgetTracker
from outlay.errors import InvalidValue

KEY = "max_carbon_g_at_420000"  # 350 g/kWh times 1.2, in milligrams


@pytest.fixture
def factors(private_home: Path) -> Path:
    private_home.mkdir(parents=True, exist_ok=True)
    path = private_home / "outlay.toml"
    path.write_text('carbon = "350 g/kWh"\npue = 1.2\n')
    return path


@pytest.mark.usefixtures("factors")
@pytest.mark.parametrize("limit", [420, "420", "420 g", "0.42 kg"])
def test_a_limit_on_emissions_binds_at_the_energy_that_emits_them(limit: object) -> None:
    tracker = BudgetTracker("carbon_cap", {"max_carbon_g": limit})
    tracker.update(1, 1.0, energy_Wh=999)
    assert not tracker.should_stop()
    tracker.update(1, 1.0, energy_Wh=1)
    assert tracker.should_stop()
    assert str(tracker.stop_reason).startswith("emissions: 420.000 gCO2e of 420.000 gCO2e")


def test_a_budget_keeps_the_factor_that_it_was_made_with(factors: Path) -> None:
    budget = outlay.carbon_cap("1.3 kg", max_energy_Wh=5000)
    assert set(budget.limits) == {"max_energy_Wh", KEY}
    factors.write_text('carbon = "20 g/kWh"\n')
    again = Budget.stated_in(budget.document())
    assert again.limits == budget.limits
    assert again.changed_from(budget.mode, budget.limits) == {}


@pytest.mark.usefixtures("factors")
def test_of_two_limits_on_energy_each_has_its_thresholds() -> None:
    limits = {"max_energy_Wh": 100_000, "max_carbon_g": 420}
    tracker = BudgetTracker("energy_cap", limits)
    tracker.update(1, 1.0, energy_Wh=1000)
    assert tracker.should_stop()


def test_a_limit_without_a_factor_names_where_to_state_one() -> None:
    with pytest.raises(InvalidValue, match=r"outlay\.toml"):
        outlay.carbon_cap("1 kg")


@pytest.mark.usefixtures("factors")
@pytest.mark.parametrize("limit", [0, -1, "1 lb", "much", float("nan")])
def test_a_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(InvalidValue):
        outlay.carbon_cap(limit)


@pytest.mark.usefixtures("factors")
def test_a_limit_on_emissions_is_refused_where_nothing_measures_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlay.record.meters.energy.PowercapSource.detect", list)
    with pytest.raises(outlay.BudgetRefused, match=f"{KEY} is set, but nothing here measures"):
        outlay.run("m", dir=tmp_path, budget=outlay.carbon_cap("1 kg"))
