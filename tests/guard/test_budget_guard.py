"""BudgetGuard as its users meet it: what is allowed, what is refused, what is remembered."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import outlay
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, Refused
from outlay.guard.budget_guard import BudgetGuard, why_stale
from outlay.guard.errors import (
    BudgetGuardExceeded,
    CeilingUnusable,
    HoldResolved,
    KeyReused,
    UnknownHold,
)

DAY_NS = 86_400 * 10**9


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "spend.jsonl"


@pytest.fixture
def guard(log_path: Path, clock: ManualClock) -> BudgetGuard:
    return BudgetGuard(5.00, log_path, clock=clock, environ={})


def write_manifest(log_path: Path, **changes: object) -> None:
    manifest: dict[str, object] = {
        "seed": 35000, "lab": "00-cloud-budget-and-tooling", "hardware_target": "2x RTX 4090",
        "vendor": "runpod", "currency": "USD", "ceiling_usd": 5.00,
        "ceiling_per_lab": {"02": 3.00, "buffer": 2.00}, "spend_log_path": "spend.jsonl",
        "vendor_snapshot_date": "2026-11-15", "vendor_snapshot_prices": {"runpod": "0.35"},
    }  # fmt: skip
    (log_path.parent / "manifest.json").write_text(json.dumps(manifest | changes))


def raw_lines(log_path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log_path.read_text().splitlines()]


def test_the_documents_example_is_allowed_and_its_counterexample_refused(log_path: Path) -> None:
    guard = outlay.BudgetGuard(5.00, log_path)
    guard.authorize("lab02-tp-spinup", 3.00)
    with pytest.raises(outlay.BudgetGuardExceeded):
        guard.authorize("hypothetical-lab", 10.00)


def test_landing_exactly_on_the_ceiling_is_allowed(guard: BudgetGuard) -> None:
    for _ in range(50):
        guard.authorize("op", 0.1)
    assert guard.remaining == 0.0
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("op", 0.000001)


def test_outstanding_holds_count_against_the_ceiling(guard: BudgetGuard) -> None:
    guard.authorize("a", 3)
    with pytest.raises(BudgetGuardExceeded, match=r"whole: 0\.00 USD spent"):
        guard.authorize("b", 3)
    assert guard.held == 3.0


def test_a_capture_releases_what_was_not_spent(guard: BudgetGuard) -> None:
    guard.authorize("a", 3)
    guard.record_actual("a", 2.10)
    assert (guard.total_spent, guard.held, guard.remaining) == (2.1, 0.0, 2.9)


def test_true_spend_is_recorded_past_the_ceiling_and_then_nothing_is_authorised(
    guard: BudgetGuard,
) -> None:
    guard.authorize("a", 3)
    guard.record_actual("a", 7)
    assert guard.remaining == -2.0
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("b", 0.01)


def test_a_repeated_label_settles_its_oldest_open_hold(guard: BudgetGuard) -> None:
    first, second = guard.authorize("a", 1), guard.authorize("a", 2)
    assert guard.record_actual("a", 0.5).hold == first.id
    assert [hold.id for hold in guard.holds()] == [second.id]


def test_spend_without_authorisation_counts_without_a_hold(guard: BudgetGuard) -> None:
    assert guard.record_actual("surprise", 1.25).hold == ""
    assert guard.total_spent == 1.25


def test_a_hold_resolves_once(guard: BudgetGuard) -> None:
    hold = guard.authorize("a", 1)
    guard.record_actual("a", 0.5, hold=hold)
    with pytest.raises(HoldResolved, match="captured at"):
        guard.record_actual("a", 0.5, hold=hold)
    with pytest.raises(HoldResolved):
        guard.void(hold, "again")
    with pytest.raises(UnknownHold):
        guard.void("nonsense", "never was")


def test_voiding_a_hold_releases_its_amount(guard: BudgetGuard) -> None:
    guard.void(guard.authorize("a", 5), "never started")
    assert guard.remaining == 5.0


def test_an_extension_grows_the_same_hold_within_the_ceiling(guard: BudgetGuard) -> None:
    hold = guard.extend(guard.authorize("a", 2), 2)
    assert hold.amount == outlay.Money(4_000_000)
    with pytest.raises(BudgetGuardExceeded):
        guard.extend(hold, 1.5)
    assert guard.held == 4.0
    guard.record_actual("a", 3.5, hold=hold)
    assert guard.committed == 3.5


def test_corrections_are_new_entries_that_change_the_total(
    guard: BudgetGuard, log_path: Path
) -> None:
    guard.record_actual("a", 2)
    before = log_path.read_bytes()
    guard.correct("a", -0.5, "the invoice says 1.50")
    assert guard.total_spent == 1.5
    assert log_path.read_bytes().startswith(before)


def test_a_correction_never_takes_back_more_than_was_spent(guard: BudgetGuard) -> None:
    with pytest.raises(InvalidValue, match="no more than was spent"):
        guard.correct("a", -1, "typing error")


def test_a_correction_belongs_to_the_lab_and_the_day_of_what_it_corrects(
    log_path: Path, clock: ManualClock
) -> None:
    guard = BudgetGuard(
        9, log_path, caps={"02": 3, "buffer": 3}, day_usd=2, clock=clock, environ={}
    )
    guard.authorize("a", 2, lab="02")
    guard.record_actual("a", 2)
    clock.advance(DAY_NS)
    guard.correct("a", -1, "the invoice says 1.00")
    assert [str(row.remaining) for row in guard.standings()] == [
        "8.00 USD", "2.00 USD", "3.00 USD", "2.00 USD",
    ]  # fmt: skip


def test_a_correction_takes_nothing_back_that_another_lab_spent(log_path: Path) -> None:
    guard = BudgetGuard(9, log_path, environ={})
    guard.record_actual("lab02-a", 1)
    guard.record_actual("lab03-b", 5)
    with pytest.raises(InvalidValue, match=r"no more than was spent, 1\.00 USD"):
        guard.correct("lab02-a", -2, "typing error")


def test_spend_is_recorded_while_the_ceiling_is_unusable(log_path: Path) -> None:
    environ = {"OUTLAY_CEILING_USD": "5"}
    guard = BudgetGuard(5, log_path, environ=environ)
    guard.authorize("a", 3)
    environ["OUTLAY_CEILING_USD"] = "five"
    guard.record_actual("a", 2)
    assert guard.total_spent == 2.0


def test_a_repeated_key_returns_the_same_hold_and_holds_once(guard: BudgetGuard) -> None:
    first = guard.authorize("a", 3, key="launch-7")
    assert guard.authorize("a", 3, key="launch-7") == first
    assert guard.held == 3.0


@pytest.mark.parametrize(
    ("label", "amount", "lab"), [("a", 2, None), ("b", 3, None), ("a", 3, "02")]
)
def test_a_key_with_other_parameters_is_an_error(
    guard: BudgetGuard, label: str, amount: int, lab: str | None
) -> None:
    guard.authorize("a", 3, key="launch-7")
    with pytest.raises(KeyReused, match="was used for a"):
        guard.authorize(label, amount, lab=lab, key="launch-7")
    with pytest.raises(KeyReused):
        guard.record_actual("a", 3, key="launch-7")
    assert guard.held == 3.0


def test_a_capture_under_a_key_counts_once(guard: BudgetGuard) -> None:
    guard.record_actual("a", 1, key="invoice-1")
    guard.record_actual("a", 1, key="invoice-1")
    assert guard.total_spent == 1.0


@pytest.mark.parametrize(("label", "actual"), [("a", 2), ("b", 1)])
def test_a_captures_key_cannot_be_used_for_another_spend(
    guard: BudgetGuard, label: str, actual: int
) -> None:
    guard.record_actual("a", 1, key="invoice-1")
    with pytest.raises(KeyReused, match="was used for a"):
        guard.record_actual(label, actual, key="invoice-1")
    with pytest.raises(KeyReused):
        guard.authorize("a", 1, key="invoice-1")
    assert (guard.total_spent, guard.held) == (1.0, 0.0)


def test_a_refused_key_is_decided_again(guard: BudgetGuard) -> None:
    blocker = guard.authorize("a", 4)
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("b", 3, key="k")
    guard.void(blocker, "not needed")
    assert guard.authorize("b", 3, key="k").amount == outlay.Money(3_000_000)


def test_a_retried_key_returns_the_hold_as_granted_even_once_it_is_resolved(
    guard: BudgetGuard,
) -> None:
    hold = guard.authorize("a", 3, key="k")
    guard.record_actual("a", 1)
    assert guard.authorize("a", 3, key="k") == hold
    assert guard.held == 0.0


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, True, "three", None, "3 EUR", 1e13])
def test_invalid_amounts_are_refused_before_writing(
    guard: BudgetGuard, log_path: Path, amount: object
) -> None:
    with pytest.raises(InvalidValue, match="estimated_usd"):
        guard.authorize("a", amount)
    assert not log_path.exists()


def test_a_negative_hold_is_refused(guard: BudgetGuard, log_path: Path) -> None:
    with pytest.raises(InvalidValue, match="zero or more"):
        guard.authorize("a", outlay.Money(-3_000_000))
    assert not log_path.exists()


def test_negative_spend_is_refused(guard: BudgetGuard) -> None:
    guard.authorize("a", 3)
    with pytest.raises(InvalidValue, match="zero or more"):
        guard.record_actual("a", outlay.Money(-1))
    assert (guard.total_spent, guard.held) == (0.0, 3.0)


def test_digits_beyond_a_micro_unit_of_a_correction_count_as_spent(guard: BudgetGuard) -> None:
    guard.record_actual("a", 2)
    guard.correct("a", Decimal("-0.5000001"), "the invoice says so")
    assert guard.total_spent == 1.5


@pytest.mark.parametrize("difference", [math.nan, "much", 1e13, "-1e99", True])
def test_invalid_differences_are_refused(guard: BudgetGuard, difference: object) -> None:
    guard.record_actual("a", 2)
    with pytest.raises(InvalidValue, match="difference_usd"):
        guard.correct("a", difference, "typing error")


def test_an_extension_returns_the_hold_as_extended(
    guard: BudgetGuard, log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, another = guard.authorize("a", 2), BudgetGuard(5, log_path, environ={})
    transact = guard.log.transact

    def settle_after_the_transaction(decide: Any) -> Any:
        answer = transact(decide)
        another.record_actual("a", 1)
        return answer

    monkeypatch.setattr(guard.log, "transact", settle_after_the_transaction)
    assert guard.extend(hold, 1).amount == outlay.Money(3_000_000)


def test_if_the_amount_does_not_fit_what_fits_is_held(guard: BudgetGuard) -> None:
    guard.authorize("a", 4)
    assert guard.authorize("b", 3, least_usd=1).amount == outlay.Money(1_000_000)
    assert guard.remaining == 0.0


def test_if_the_least_does_not_fit_nothing_is_held(guard: BudgetGuard) -> None:
    guard.authorize("a", 4)
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("b", 3, least_usd=2)
    assert guard.held == 4.0


def test_an_extension_holds_what_fits(guard: BudgetGuard) -> None:
    hold = guard.authorize("a", Decimal("4.999999"))
    assert guard.extend(hold, 3, least_usd=Decimal("0.000001")).amount == outlay.Money(5_000_000)


def test_a_repeated_key_returns_a_partly_granted_hold(guard: BudgetGuard) -> None:
    guard.authorize("a", 4)
    first = guard.authorize("b", 3, least_usd=1, key="launch-7")
    assert guard.authorize("b", 3, least_usd=1, key="launch-7") == first


def test_digits_beyond_a_micro_unit_round_up(guard: BudgetGuard) -> None:
    assert guard.authorize("a", Decimal("0.0000001")).amount == outlay.Money(1)


class TestScopes:
    """Every scope binds at once."""

    @pytest.mark.parametrize(
        ("label", "lab", "payer"),
        [
            ("lab02-tp-spinup", None, "02"),
            ("LAB02", None, "02"),
            ("hypothetical-lab", None, "buffer"),
            ("train-lab02", None, "buffer"),
            ("lab02-x", "03", "03"),
            ("anything", "lab02", "02"),
        ],
    )
    def test_the_lab_that_pays(
        self, guard: BudgetGuard, label: str, lab: str | None, payer: str
    ) -> None:
        assert guard.authorize(label, 1, lab=lab).lab == payer

    def test_a_labs_cap_binds_below_the_ceiling(self, log_path: Path) -> None:
        write_manifest(log_path)
        guard = BudgetGuard(5, log_path, environ={})
        guard.authorize("lab02-a", 2)
        with pytest.raises(BudgetGuardExceeded, match="project 02"):
            guard.authorize("lab02-b", 1.5)
        assert guard.held == 2.0

    def test_a_lab_without_a_cap_may_spend_nothing_beside_capped_ones(self, log_path: Path) -> None:
        write_manifest(log_path)
        with pytest.raises(BudgetGuardExceeded, match="project 07"):
            BudgetGuard(5, log_path, environ={}).authorize("lab07-a", 0.01)

    def test_a_cap_of_zero_allows_only_nothing(self, log_path: Path) -> None:
        guard = BudgetGuard(5, log_path, caps={"03": 0}, environ={})
        guard.authorize("lab03-reading", 0)
        with pytest.raises(BudgetGuardExceeded, match="project 03"):
            guard.authorize("lab03-reading", 0.01)

    def test_the_refusal_names_every_exceeded_scope(self, log_path: Path) -> None:
        guard = BudgetGuard(5, log_path, caps={"02": 1}, day_usd=2, month_usd=3, environ={})
        with pytest.raises(BudgetGuardExceeded, match=r"whole.*project 02.*day .*month "):
            guard.authorize("lab02-a", 6)

    def test_a_day_cap_counts_anew_the_next_day(self, log_path: Path, clock: ManualClock) -> None:
        guard = BudgetGuard(5, log_path, day_usd=2, clock=clock, environ={})
        guard.authorize("a", 2)
        with pytest.raises(BudgetGuardExceeded, match="day"):
            guard.authorize("b", 1)
        clock.advance(DAY_NS)
        guard.authorize("b", 1)

    def test_a_capture_belongs_to_the_day_of_its_authorisation(
        self, log_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(5, log_path, day_usd=2, clock=clock, environ={})
        guard.authorize("a", 2)
        clock.advance(DAY_NS)
        guard.record_actual("a", 2)
        guard.authorize("b", 2)

    def test_an_extension_counts_on_the_day_of_its_hold(
        self, log_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(9, log_path, day_usd=2, clock=clock, environ={})
        hold = guard.authorize("a", 1)
        clock.advance(DAY_NS)
        guard.authorize("b", 2)
        guard.extend(hold, 1)
        with pytest.raises(BudgetGuardExceeded, match="day"):
            guard.extend(hold, 0.01)

    def test_a_clock_set_back_does_not_reopen_an_earlier_day(
        self, log_path: Path, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(5, log_path, day_usd=2, clock=clock, environ={})
        guard.authorize("a", 2)
        clock.step_wall(-DAY_NS)
        with pytest.raises(BudgetGuardExceeded, match="day"):
            guard.authorize("b", 1)


class TestTheCeiling:
    """Where it comes from, and that doubt refuses."""

    def test_a_negative_ceiling_is_refused(self, log_path: Path) -> None:
        with pytest.raises(CeilingUnusable, match="zero or more"):
            BudgetGuard(outlay.Money(-1), log_path, environ={})

    def test_two_caps_for_one_lab_fail_closed(self, log_path: Path) -> None:
        with pytest.raises(CeilingUnusable, match="one cap for project 02"):
            BudgetGuard(5, log_path, caps={"02": 1, "lab02": 3}, environ={})

    def test_two_caps_for_one_lab_in_a_manifest_fail_closed(self, log_path: Path) -> None:
        write_manifest(log_path, ceiling_per_lab={"lab02": 1, "02": 3})
        with pytest.raises(CeilingUnusable, match="one cap for project 02"):
            BudgetGuard(5, log_path, environ={})

    def test_an_unknown_ceiling_key_of_a_manifest_fails_closed(self, log_path: Path) -> None:
        write_manifest(log_path, ceiling_per_day=1)
        with pytest.raises(CeilingUnusable, match=r"'ceiling_per_day'.*ceiling_per_day_usd"):
            BudgetGuard(5, log_path, environ={})

    def test_unknown_keys_of_a_manifest_are_ignored(self, log_path: Path) -> None:
        write_manifest(log_path, team="nlp")
        assert BudgetGuard(5, log_path, environ={}).remaining == 5.0

    @pytest.mark.parametrize("ask", ["remaining", "authorize", "record_actual"])
    def test_another_currency_than_that_of_the_log_fails_closed(
        self, guard: BudgetGuard, log_path: Path, ask: str
    ) -> None:
        guard.record_actual("a", 1)
        euros = BudgetGuard(5, log_path, currency="EUR", environ={})
        with pytest.raises(CeilingUnusable, match=r"'USD'.*amounts in EUR"):
            _ = euros.remaining if ask == "remaining" else getattr(euros, ask)("b", 1)
        assert guard.verify().sound

    @pytest.mark.parametrize("variable", ["LYNX_CLOUD_BUDGET_USD", "OUTLAY_CEILING_USD"])
    def test_the_environment_tightens_it(self, log_path: Path, variable: str) -> None:
        guard = BudgetGuard(5, log_path, environ={variable: "1.00"})
        with pytest.raises(BudgetGuardExceeded):
            guard.authorize("a", 2)
        assert guard.remaining == 1.0

    @pytest.mark.parametrize("value", ["", "five", "nan", "-1", "inf", "5 EUR"])
    def test_an_unreadable_override_fails_closed(self, log_path: Path, value: str) -> None:
        environ = {"LYNX_CLOUD_BUDGET_USD": "5"}
        guard = BudgetGuard(5, log_path, environ=environ)
        environ["LYNX_CLOUD_BUDGET_USD"] = value
        with pytest.raises(CeilingUnusable, match="LYNX_CLOUD_BUDGET_USD"):
            guard.authorize("a", 1)
        assert not log_path.exists()

    def test_two_overrides_that_differ_fail_closed(self, log_path: Path) -> None:
        environ = {"LYNX_CLOUD_BUDGET_USD": "4", "OUTLAY_CEILING_USD": "5"}
        with pytest.raises(CeilingUnusable, match="one value"):
            BudgetGuard(5, log_path, environ=environ)

    def test_two_equal_overrides_are_accepted(self, log_path: Path) -> None:
        environ = {"LYNX_CLOUD_BUDGET_USD": "4", "OUTLAY_CEILING_USD": "4.00"}
        assert BudgetGuard(5, log_path, environ=environ).remaining == 4.0

    def test_loosening_is_recorded_and_shown(self, log_path: Path) -> None:
        guard = BudgetGuard(5, log_path, environ={"LYNX_CLOUD_BUDGET_USD": "20"})
        guard.authorize("a", 10)
        assert raw_lines(log_path)[0]["event"] == "ceiling-raised"
        assert "raised from 5.00 to 20.00 by LYNX_CLOUD_BUDGET_USD" in str(guard.findings()[0])

    def test_a_ceiling_raised_in_code_is_recorded_too(self, log_path: Path) -> None:
        BudgetGuard(5, log_path, environ={}).authorize("a", 1)
        later = BudgetGuard(8, log_path, environ={})
        later.authorize("b", 1)
        assert "raised from 5.00 to 8.00 by ceiling_usd" in str(later.findings()[0])

    @pytest.mark.parametrize("first", ["record_actual", "note"])
    def test_a_raise_is_recorded_before_the_first_line_under_it(
        self, log_path: Path, first: str
    ) -> None:
        BudgetGuard(5, log_path, environ={}).authorize("a", 1)
        later = BudgetGuard(8, log_path, environ={})
        later.record_actual("a", 1) if first == "record_actual" else later.note("preflight", "a")
        later.authorize("b", 6)
        assert [str(finding.message)[:35] for finding in later.findings()] == [
            "the ceiling was raised from 5.00 to"
        ]

    def test_tightening_is_no_finding(self, log_path: Path) -> None:
        BudgetGuard(5, log_path, environ={}).authorize("a", 1)
        later = BudgetGuard(4, log_path, environ={})
        later.authorize("b", 1)
        assert later.findings() == ()

    def test_every_line_records_the_ceiling_in_force(
        self, guard: BudgetGuard, log_path: Path
    ) -> None:
        hold = guard.authorize("a", 1)
        guard.extend(hold, 1)
        guard.record_actual("a", 1)
        assert [line["ceiling"] for line in raw_lines(log_path)] == [5.0, 5.0, 5.0]

    def test_the_manifests_ceiling_binds_when_it_is_tighter(self, log_path: Path) -> None:
        write_manifest(log_path)
        assert BudgetGuard(50, log_path, environ={}).remaining == 5.0

    @pytest.mark.parametrize(
        "changes", [{"ceiling_usd": -1}, {"ceiling_per_lab": {"02": "x"}}, {"currency": "EUR"}]
    )
    def test_an_invalid_manifest_fails_closed(
        self, log_path: Path, changes: dict[str, object]
    ) -> None:
        write_manifest(log_path, **changes)
        with pytest.raises(CeilingUnusable, match=r"manifest\.json"):
            BudgetGuard(5, log_path, environ={})


class TestTestMode:
    """BUDGET_GUARD_TEST_MODE=1 writes no file and still enforces."""

    def test_no_file_is_written_and_the_ceiling_holds(self, log_path: Path) -> None:
        guard = BudgetGuard(5, log_path, environ={"BUDGET_GUARD_TEST_MODE": "1"})
        guard.authorize("a", 3)
        with pytest.raises(BudgetGuardExceeded):
            guard.authorize("b", 3)
        guard.record_actual("a", 2)
        assert (guard.total_spent, list(log_path.parent.iterdir())) == (2.0, [])


class TestTheDocumentsForm:
    """Lines as the document writes them, by hand or by another program."""

    def test_simple_lines_count_and_later_hashes_cover_them(self, log_path: Path) -> None:
        log_path.write_text(
            '{"ts": "2026-11-01T10:00:00", "op_label": "lab02-a", "estimated": 2.0, '
            '"currency": "USD"}\n'
            '{"ts": 1793527200, "op_label": "lab02-a", "estimated": 2.0, "actual": 1.5, '
            '"currency": "USD"}\n'
            '{"ts": "2026-11-01T12:00:00Z", "op_label": "lab02-b", "estimated": 1, '
            '"currency": "USD"}'
        )
        guard = BudgetGuard(5, log_path, environ={})
        assert (guard.total_spent, guard.held) == (1.5, 1.0)
        guard.authorize("c", 1)
        assert guard.verify().findings == ()
        log_path.write_text(log_path.read_text().replace('"actual": 1.5', '"actual": 0.5'))
        assert "hash does not match" in str(guard.verify().findings[0])

    def test_a_simple_estimate_after_a_settled_one_is_a_new_hold(self, log_path: Path) -> None:
        line = '{"ts": "2026-11-01", "op_label": "a", "%s": 2.0, "currency": "USD"}\n'
        log_path.write_text("".join(line % key for key in ("estimated", "actual", "estimated")))
        guard = BudgetGuard(5, log_path, environ={})
        (hold,) = guard.holds()
        guard.void(hold, "not needed")
        assert (guard.total_spent, guard.held) == (2.0, 0.0)

    def test_a_simple_reader_finds_the_total_spent_by_adding_up_actual(
        self, guard: BudgetGuard, log_path: Path
    ) -> None:
        hold = guard.authorize("a", 2)
        guard.extend(hold, 1)
        guard.record_actual("a", 2.5)
        guard.void(guard.authorize("b", 1), "not needed")
        guard.record_actual("c", 0.25)
        guard.correct("a", -0.5, "invoice")
        lines = raw_lines(log_path)
        documented = {"ts", "op_label", "currency"}
        assert all(documented <= line.keys() for line in lines)
        actual = [line.get("actual", 0.0) for line in lines]
        assert sum(Decimal(repr(x)) for x in actual) == Decimal(repr(guard.total_spent))

    @pytest.mark.parametrize(
        "line",
        [
            '{"ts": "soon", "op_label": "a", "actual": 1}',
            '{"ts": "0001-01-01T00:00:00+01:00", "op_label": "a", "actual": 1}',
            '{"ts": 1e300, "op_label": "a", "actual": 1}',
            '{"ts": "2026-11-01", "op_label": "a", "actual": 1e13}',
            '{"ts": "2026-11-01", "op_label": "a", "actual": -1}',
            '{"ts": "2026-11-01", "op_label": "a", "actual": "NaN"}',
            '{"ts": "2026-11-01", "op_label": "a"}',
            '{"ts": "2026-11-01", "op_label": "a", "actual": 1,}',
            '{"ts": "2026-11-01", "op_label": "a", "actual": 1, "currency": "EUR", "x": 1}',
        ],
    )
    def test_an_invalid_simple_line_is_refused_with_its_number(
        self, guard: BudgetGuard, log_path: Path, line: str
    ) -> None:
        guard.authorize("a", 1)
        with log_path.open("a") as file:
            file.write(line + "\n")
        with pytest.raises(Refused, match="line 2"):
            guard.authorize("b", 1)

    def test_a_simple_line_may_state_its_time_in_seconds(self, log_path: Path) -> None:
        log_path.write_text('{"ts": 1793527200, "op_label": "lab02-a", "estimated": 2.0}\n')
        (hold,) = BudgetGuard(5, log_path, environ={}).holds()
        assert hold.ts == "2026-11-01T10:00:00.000000Z"
        assert why_stale(hold, 1_793_700_000 * 10**9, ()) == "it is older than a day"

    def test_another_currency_is_refused(self, guard: BudgetGuard, log_path: Path) -> None:
        guard.authorize("a", 1)
        with log_path.open("a") as file:
            file.write('{"ts":"2026-11-01","op_label":"a","actual":1,"currency":"EUR"}\n')
        with pytest.raises(Refused, match="currency EUR"):
            guard.authorize("b", 1)


def test_standings_list_every_scope_with_a_limit(log_path: Path, clock: ManualClock) -> None:
    guard = BudgetGuard(5, log_path, caps={"02": 3}, day_usd=4, clock=clock, environ={})
    guard.authorize("lab02-a", 1)
    rows = {str(row.scope): str(row.remaining) for row in guard.standings()}
    assert rows == {"whole": "4.00 USD", "project 02": "2.00 USD", "day 2023-11-14": "3.00 USD"}


def test_a_refusal_has_exit_code_3(guard: BudgetGuard) -> None:
    with pytest.raises(BudgetGuardExceeded) as caught:
        guard.authorize("a", 6)
    assert caught.value.exit_code == 3
