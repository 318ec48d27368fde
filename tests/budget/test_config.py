"""Budgets parsed from dicts, text, files, the environment, OmegaConf and Hydra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from outlay.budget.config import as_text, read_budget, stated_in_environ
from outlay.budget.display import read_document, write_document
from outlay.budget.terms import Budget, iso_cost, iso_time, iso_tokens
from outlay.budget.tracker import BudgetTracker
from outlay.errors import InvalidValue

DOCUMENTED = """
budget:
  enabled: true
  mode: iso_tokens        # iso_time | iso_tokens | iso_epochs | comm_cap | energy_cap
  max_tokens: 50_000      # required for iso_tokens
  max_minutes: null       # required for iso_time
  max_epochs: null        # required for iso_epochs
  max_comm_bytes: null    # optional hard cap in any mode
  max_energy_Wh: null     # optional hard cap in any mode
  steps_per_epoch: null   # optional override when loader length is unknown
"""


def test_the_documented_block_is_parsed() -> None:
    assert read_budget(DOCUMENTED) == iso_tokens(50_000)


def test_modes_are_read_in_any_case() -> None:
    assert read_budget({"mode": "ISO_Tokens", "max_tokens": 50_000}) == iso_tokens(50_000)
    tracker = BudgetTracker("ISO_TOKENS", {"max_tokens": 50_000})
    assert tracker.state_dict() == BudgetTracker("iso_tokens", {"max_tokens": 50_000}).state_dict()


def test_a_yaml_file_reads_as_its_text(tmp_path: Path) -> None:
    file = tmp_path / "default.yaml"
    file.write_text(DOCUMENTED)
    assert read_budget(file) == read_budget(str(file)) == iso_tokens(50_000)


def test_mistyped_mode_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(InvalidValue, match=r"'iso_toknes'; expected one of .*iso_tokens"):
        read_budget("iso_toknes=3")


def test_disabled_block_is_no_budget() -> None:
    assert read_budget(DOCUMENTED.replace("enabled: true", "enabled: false")) is None
    assert read_budget({"enabled": False, "mode": "iso_time", "max_minutes": None}) is None


def test_whole_configuration_is_disabled_unless_enabled_is_true() -> None:
    block = {"mode": "iso_time", "max_minutes": 5}
    assert read_budget({"runtime": {"budget": block}}) is None
    assert read_budget({"runtime": {"budget": {**block, "enabled": True}}}) == iso_time("5min")
    assert read_budget({"runtime": {}}) is None


def test_a_block_on_its_own_is_enabled() -> None:
    assert read_budget({"mode": "iso_time", "max_minutes": 5}) == iso_time("5min")


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("iso_time=2h", iso_time("2h")),
        ("iso_tokens=50_000", iso_tokens(50_000)),
        ("iso_tokens=50k, max_cost_usd=5", iso_tokens("50k", max_cost_usd=5)),
        ("iso_cost=5 EUR", iso_cost("5 EUR")),
        ("iso_cost=5", iso_cost("5 USD")),
        ("iso_tokens=50k,max_cost_eur=5", iso_tokens("50k", max_cost_eur="5 EUR")),
        ('{"mode": "iso_cost", "max_cost_usd": null, "max_cost_eur": 5}', iso_cost("5 EUR")),
        ("iso_time=1h,charge=all", iso_time("1h", charge="all")),
        ('{"mode": "iso_tokens", "max_tokens": 50000}', iso_tokens(50_000)),
        ('{"mode": "iso_tokens", "max_tokens": "50k", "enabled": true}', iso_tokens(50_000)),
    ],
)
def test_a_launcher_states_a_budget_in_one_variable(text: str, budget: Budget) -> None:
    assert stated_in_environ({"OUTLAY_BUDGET": text}) == budget


@pytest.mark.parametrize("environ", [{}, {"OUTLAY_BUDGET": ""}, {"OUTLAY_BUDGET": "  "}])
def test_no_variable_is_no_budget(environ: dict[str, str]) -> None:
    assert stated_in_environ(environ) is None


@pytest.mark.parametrize(
    "budget",
    [
        iso_time("2h", charge="all"),
        iso_tokens(7, max_epochs=2.5, allow_change=True),
        iso_cost("5 EUR", max_minutes=3),
    ],
)
def test_a_budget_as_text_reads_back_as_itself(budget: Budget) -> None:
    assert stated_in_environ({"OUTLAY_BUDGET": as_text(budget)}) == budget


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("iso_time", "OUTLAY_BUDGET"),
        ("iso_time=", "OUTLAY_BUDGET"),
        ("2h", "OUTLAY_BUDGET"),
        ("{not json}", "OUTLAY_BUDGET"),
        ("iso_time=two hours", "max_minutes"),
        ("max_tokens=5", r"mode.*iso_tokens"),
        ("iso_time=2h,max_token=5", r"max_token.*max_tokens"),
        ("iso_time=2h,enabled=perhaps", "enabled"),
        ("iso_cost=5 EUR,max_cost_usd=5", "one limit on money"),
        ("iso_cost=5 euros", "max_cost_usd"),
        ("1: 2\nmode: iso_cost", "OUTLAY_BUDGET key"),
        ("missing.yaml", r"missing\.yaml"),
        ("a: [", "OUTLAY_BUDGET"),
        ("mode: ${nowhere}", r"OUTLAY_BUDGET.*nowhere"),
        ("mode: ${", "OUTLAY_BUDGET"),
    ],
)
def test_invalid_budget_text_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        stated_in_environ({"OUTLAY_BUDGET": text})


@pytest.mark.parametrize("value", [3, ["iso_time"], object()])
def test_values_of_other_types_are_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="expected a budget such as"):
        read_budget(value)


def test_omegaconf_interpolations_are_resolved() -> None:
    config = OmegaConf.create(
        {"size": 1000, "budget": {"enabled": True, "mode": "iso_tokens", "max_tokens": "${size}"}}
    )
    assert read_budget(config) == iso_tokens(1000)
    assert read_budget(config.budget) == iso_tokens(1000)


def test_unresolvable_interpolation_is_refused() -> None:
    config = OmegaConf.create({"budget": {"mode": "iso_tokens", "max_tokens": "${nowhere}"}})
    with pytest.raises(InvalidValue, match="nowhere"):
        read_budget(config)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "budget.yaml").write_bytes(b"mode: \xff")
    with pytest.raises(InvalidValue, match="a file that can be read"):
        read_budget(tmp_path / "budget.yaml")


def hydra_budget(directory: Path, *overrides: str) -> Budget | None:
    (directory / "config.yaml").write_text(
        "defaults:\n  - runtime: default\n  - _self_\n"
        "hydra:\n  searchpath:\n    - pkg://outlay.budget.conf\n"
    )
    with initialize_config_dir(str(directory), version_base="1.3"):
        return read_budget(compose("config", overrides=list(overrides)))


@pytest.mark.hydra
def test_the_shipped_hydra_group_is_disabled_by_default(tmp_path: Path) -> None:
    assert hydra_budget(tmp_path) is None


@pytest.mark.hydra
def test_the_shipped_hydra_group_takes_the_documented_overrides(tmp_path: Path) -> None:
    overrides = ("enabled=true", "mode=iso_tokens", "max_tokens=50_000")
    budget = hydra_budget(tmp_path, *(f"runtime.budget.{each}" for each in overrides))
    assert budget == iso_tokens(50_000)


@pytest.mark.hydra
def test_an_override_file_goes_over_the_shipped_hydra_group(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "short.yaml").write_text(
        "defaults:\n  - default\n"
        "budget:\n  enabled: true\n  mode: iso_time\n  max_minutes: 5\n  max_comm_bytes: 1_000\n"
    )
    assert hydra_budget(tmp_path, "runtime=short") == iso_time("5min", max_comm_bytes=1000)
    overridden = hydra_budget(tmp_path, "runtime=short", "runtime.budget.max_minutes=2.5")
    assert overridden == iso_time("2.5min", max_comm_bytes=1000)


def test_the_document_is_indented_sorted_and_ends_with_a_newline(tmp_path: Path) -> None:
    tracker = BudgetTracker("iso_tokens", {"max_tokens": 5})
    tracker.update(5, 1.0)
    assert write_document(tmp_path, tracker.snapshot()) is None
    text = (tmp_path / "budget.json").read_text()
    assert text.startswith('{\n  "charge"')
    assert text.endswith("}\n")
    assert read_document(tmp_path) == tracker.snapshot()
    assert [path.name for path in tmp_path.iterdir()] == ["budget.json"]


def test_a_document_that_cannot_be_written_is_a_finding_and_keeps_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_document(tmp_path, {"mode": "before"})

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    finding = write_document(tmp_path, {"mode": "after"})
    assert finding is not None
    assert "No space left on device" in finding.message
    assert read_document(tmp_path) == {"mode": "before"}
    assert [path.name for path in tmp_path.iterdir()] == ["budget.json"]


def test_there_is_no_document_where_none_can_be_read(tmp_path: Path) -> None:
    assert read_document(tmp_path) is None
    (tmp_path / "budget.json").write_text("{half")
    assert read_document(tmp_path) is None


@pytest.mark.parametrize("state", [lambda: iso_time(3), lambda: read_budget("iso_time=3")])
def test_a_time_without_a_unit_is_refused_with_both_readings(state: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue, match='"3min" for minutes or "3h" for hours'):
        state()


def test_minutes_stay_minutes_where_the_key_says_so() -> None:
    assert read_budget("mode=iso_time,max_minutes=3") == iso_time("3min")
    assert BudgetTracker("iso_time", {"max_minutes": 3}).budget == iso_time("3min")
