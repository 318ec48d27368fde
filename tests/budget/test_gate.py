"""The budget inside a run: stopping, resuming, measuring, reporting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import numpy as np
import pytest

import outlay
from command_line import in_process, python
from outlay.budget.history import read_history
from outlay.budget.measurements import BudgetRefused
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.ledger import BudgetEvent, PriceChanged, read_run
from trackers import tracker_of

SECOND = 10**9


def events(run_dir: Path, kind: str) -> list[BudgetEvent]:
    records = read_run(run_dir).records
    return [each for each in records if isinstance(each, BudgetEvent) and each.event == kind]


def is_event(record: object) -> TypeGuard[BudgetEvent]:
    return isinstance(record, BudgetEvent)


def document(run_dir: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((run_dir / "budget.json").read_text())
    return content


def test_a_run_without_a_budget_writes_no_document(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget={"enabled": False, "mode": "iso_time"}) as run:
        assert len(list(run.steps(range(3), tokens=5))) == 3
        assert tracker_of(run).remaining == {}
        assert tracker_of(run).totals["steps"] == 3
        assert tracker_of(run).totals["tokens"] == 15
        assert not tracker_of(run).should_stop()
        assert run.allows("evaluation")
    assert not (tmp_path / "budget.json").exists()
    assert not events(tmp_path, "set")


def test_a_budget_of_tokens_stops_before_the_step_that_would_pass_it(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(100)) as run:
        steps = list(run.steps(range(1000), tokens=7))
        assert run.stop_reason is not None
    assert len(steps) == 14
    content = document(tmp_path)
    assert content["totals"]["tokens"] == 98  # type: ignore[index]
    assert content["stop_reason"]["limit_key"] == "max_tokens"  # type: ignore[index]
    assert content["stop_reason"]["over"] == 5  # type: ignore[index]


def test_may_step_enforces_the_budget(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(100)) as run:
        steps = 0
        while run.may_step(tokens=7):
            with run.step(tokens=7):
                steps += 1
    assert steps == 14


def test_a_launcher_budgets_a_run_through_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_BUDGET", "iso_tokens=20")
    with outlay.run("m", dir=tmp_path) as run:
        assert len(list(run.steps(range(1000), tokens=10))) == 2


def test_tokens_are_counted_by_shape_by_default(tmp_path: Path) -> None:
    views = [{"view1": np.zeros((2, 3)), "view2": np.zeros((2, 3))}] * 10
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(8)) as run:
        assert len(list(run.steps(views))) == 2


def test_epochs_take_their_length_from_the_loader(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_epochs(2)) as run:
        epochs = [len(list(run.steps([1, 2, 3]))) for _ in range(4)]
    assert epochs == [3, 3, 0, 0]


def test_an_unbounded_loader_needs_a_stated_epoch(tmp_path: Path) -> None:
    with (
        outlay.run("m", dir=tmp_path, budget=outlay.iso_epochs(2)) as run,
        pytest.raises(InvalidValue, match="steps_per_epoch"),
    ):
        run.steps(iter([1, 2, 3]))


def test_time_is_data_wait_and_step_without_evaluation(tmp_path: Path, clock: ManualClock) -> None:
    def loader() -> object:
        while True:
            clock.advance(1 * SECOND)
            yield 0

    with outlay.run("m", dir=tmp_path, budget="iso_time=10s", clock=clock) as run:
        for count, _ in enumerate(run.steps(loader())):  # type: ignore[arg-type]
            clock.advance(2 * SECOND)
            if count == 1:
                with run.span("evaluation"):
                    clock.advance(30 * SECOND)
        assert run.step_number == 3
        assert tracker_of(run).totals["time_ms"] == 12_000
        assert tracker_of(run).snapshot()["clocks_ms"]["evaluation"] == 30_000


def test_money_is_the_rate_over_all_time_evaluation_included(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_cost("1 USD")
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for _ in run.steps(range(10_000)):
            clock.advance(50 * SECOND)
            with run.span("evaluation"):
                clock.advance(50 * SECOND)
        assert run.step_number == 9
        assert tracker_of(run).totals["cost_usd"] == 1
        assert run.summary()["outlay/cost"] == 1


def test_a_price_change_changes_what_steps_cost(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_cost("100 USD")
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for count, _ in enumerate(run.steps(range(4))):
            clock.advance(1000 * SECOND)
            if count == 1:
                run.set_price("7.2 USD/h")
        assert tracker_of(run).totals["cost_usd"] == 2 * 1 + 2 * 2
        assert run.summary()["outlay/cost"] == 6


def test_two_price_changes_before_a_step_ends_are_both_charged(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_cost("100 USD")
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for _ in run.steps(range(1)):
            for price in ("7.2 USD/h", "36 USD/h"):
                clock.advance(1000 * SECOND)
                run.set_price(price)
            clock.advance(1000 * SECOND)
        assert tracker_of(run).totals["cost_usd"] == 1 + 2 + 10


def test_a_limit_on_money_refuses_a_price_that_it_could_not_count(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_cost("100 USD")
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for _ in run.steps(range(2)):
            clock.advance(1000 * SECOND)
            with pytest.raises(InvalidValue, match="a price in USD, in which the run's money is"):
                run.set_price("36 EUR/h")
        assert tracker_of(run).totals["cost_usd"] == 2
        assert run.summary()["outlay/cost"] == 2
    assert not [r for r in read_run(tmp_path).records if isinstance(r, PriceChanged)]


def test_a_limit_on_money_refuses_a_stopped_price_that_it_could_not_count(tmp_path: Path) -> None:
    with pytest.raises(BudgetRefused, match="pays a stopped machine in EUR"):
        outlay.run(
            "m", dir=tmp_path, budget="iso_cost=5", price="3.6 USD/h", stopped_price="0.1 EUR/h"
        )


def test_a_budget_counts_its_own_currency_and_names_what_is_in_another(
    tmp_path: Path, clock: ManualClock
) -> None:
    for _ in range(2):
        with outlay.run(
            "m", dir=tmp_path, budget=outlay.iso_tokens(100), price="3.6 USD/h", clock=clock
        ) as run:
            for _ in run.steps(range(2), tokens=1):
                clock.advance(1000 * SECOND)
                run.set_price("36 EUR/h")
            assert tracker_of(run).snapshot()["totals"]["cost_usd"] == run.summary()["outlay/cost"]
    content = document(tmp_path)
    assert content["totals"]["cost_usd"] == 2  # type: ignore[index]
    said = "the run has also paid 10.00 EUR: not in this budget, which is in USD"
    assert said in str(content["findings"])
    found = in_process("budget", tmp_path, "--json").json
    assert found["totals"]["cost_usd"] == 2
    assert "the run has also paid 20.00 EUR" in str(found["findings"])


def test_cost_in_another_currency_is_not_counted_in_dollars(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_tokens(100)
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 EUR/h", clock=clock) as run:
        for _ in run.steps(range(2), tokens=1):
            clock.advance(1000 * SECOND)
    assert document(tmp_path)["totals"]["cost_usd"] == 0  # type: ignore[index]
    assert "cost_usd" in document(tmp_path)["unmeasured"]  # type: ignore[operator]
    assert read_history(tmp_path).spend(clock.wall_ns()).executed.cost_units == 0


def test_money_is_counted_to_the_end_of_the_attempt(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_cost("100 USD")
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for _ in run.steps(range(2)):
            clock.advance(1000 * SECOND)
        clock.advance(1000 * SECOND)
    assert document(tmp_path)["totals"]["cost_usd"] == 3  # type: ignore[index]
    assert events(tmp_path, "ended")[0].data["totals"]["cost_usd"] == 3


def test_a_limit_on_money_needs_a_price_in_its_currency(tmp_path: Path) -> None:
    with pytest.raises(outlay.BudgetRefused, match=r"max_cost_usd.*OUTLAY_PRICE"):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_cost(5))
    with pytest.raises(outlay.BudgetRefused, match=r"max_cost_eur.*1.50 EUR/h.*OUTLAY_PRICE"):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_cost("5 EUR"))
    with pytest.raises(outlay.BudgetRefused, match=r'pays in EUR.*in USD.*iso_cost\("5 EUR"\)'):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_cost(5), price="1 EUR/h")
    with pytest.raises(outlay.BudgetRefused, match=r"pays in USD.*in EUR.*max_cost_usd=5"):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_cost("5 EUR"), price="1 USD/h")
    assert not (tmp_path / "ledger").exists()


def test_a_limit_in_another_currency_than_the_run_has_paid_in_is_refused(
    tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, price="3.6 EUR/h", clock=clock) as run:
        list(run.steps(range(3)))
    before = sorted((tmp_path / "ledger").iterdir())
    with pytest.raises(outlay.BudgetRefused, match=r"has paid in EUR, and the limit is in USD"):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_cost(5), price="1 USD/h", clock=clock)
    with pytest.raises(outlay.BudgetRefused, match=r"pays in USD.*state the price in EUR"):
        outlay.run("m", dir=tmp_path, budget="iso_cost=5 EUR", price="1 USD/h", clock=clock)
    assert sorted((tmp_path / "ledger").iterdir()) == before


EUROS = """
import os, signal, sys
import outlay
from outlay.clock import ManualClock
run_dir, second, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
clock = ManualClock(wall_ns=second * 10**9)
with outlay.run("m", dir=run_dir, budget="iso_cost=1 EUR", price="3.6 EUR/h", clock=clock) as run:
    for count, _ in enumerate(run.steps(range(1000))):
        if count == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        clock.advance(100 * 10**9)
        run.checkpoint_committed()
    print(run.step_number)
"""


def spend_euros(run_dir: Path, *kills: int) -> int:
    """Spend 0.10 EUR a step until 1 EUR is spent; killed after so many steps each, and resumed."""
    second = 1_700_000_000
    for steps in (*kills, 1000):
        done = python(EUROS, run_dir, str(second), str(steps))
        second += 100 * steps
        assert done.code == (0 if steps == 1000 else -signal.SIGKILL), done.err
    return int(done.out)


@pytest.mark.parametrize("kills", [(), (4,), (3, 0, 5), (9,)])
def test_a_limit_in_euros_stops_at_the_same_step_however_often_the_run_is_killed(
    tmp_path: Path, kills: tuple[int, ...]
) -> None:
    assert spend_euros(tmp_path, *kills) == 9
    content = document(tmp_path)
    assert content["limits"] == {"max_cost_eur": 1}
    assert content["totals"]["cost_eur"] == 1  # type: ignore[index]
    assert content["cost"]["charged_eur"] == 1  # type: ignore[index]
    assert content["stop_reason"]["text"] == "cost: 1.00 EUR of 1.00 EUR used"  # type: ignore[index]
    assert "cost_eur" not in content["unmeasured"]  # type: ignore[operator]
    assert events(tmp_path, "ended")[-1].data["totals"]["cost_eur"] == 1
    assert read_history(tmp_path).spend(2**62).executed.cost_units == 3600 * 10**15


def test_a_run_that_has_spent_its_euros_takes_no_step_more(
    tmp_path: Path, clock: ManualClock
) -> None:
    spend_euros(tmp_path)
    clock.advance(1000 * SECOND)
    with outlay.run("m", dir=tmp_path, price="3.6 EUR/h", clock=clock) as run:  # Keeps its budget.
        assert list(run.steps(range(1000))) == []
        assert "1.00 EUR of 1.00 EUR used" in str(run.stop_reason)


@pytest.mark.parametrize("budget", ["iso_cost=1 {}", "iso_tokens=50,max_cost_{}=3,charge=training"])
def test_documents_in_euros_are_those_in_dollars_with_another_code(
    tmp_path: Path, budget: str
) -> None:
    seen = []
    for currency in ("USD", "EUR"):
        clock, run_dir = ManualClock(), tmp_path / currency
        stated = budget.format(currency if "iso_cost" in budget else currency.lower())
        price = f"3.6 {currency}/h"
        with outlay.run("m", dir=run_dir, budget=stated, price=price, clock=clock) as run:
            for _ in run.steps(range(1000), tokens=5):
                clock.advance(70 * SECOND)
                with run.span("evaluation"):
                    clock.advance(3 * SECOND)
            state = tracker_of(run).state_dict()["budget"]
            shown = json.dumps(run.budget and tracker_of(run).remaining)
        recorded = json.dumps(
            [event.data for event in read_run(run_dir).records if is_event(event)]
        )
        seen.append([state, shown, (run_dir / "budget.json").read_text(), recorded])
    dollars, euros = seen
    assert [text.replace("eur", "usd").replace("EUR", "USD") for text in euros] == dollars
    assert not any("usd" in text.lower() for text in euros)


def test_a_limit_on_energy_is_refused_where_nothing_measures_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlay.record.meters.energy.NvmlSource.detect", lambda *_: [])
    monkeypatch.setattr("outlay.record.meters.energy.PowercapSource.detect", lambda: [])
    with pytest.raises(outlay.BudgetRefused, match=r"max_energy_Wh.*powercap"):
        outlay.run("m", dir=tmp_path, budget=outlay.energy_cap("1 Wh"))
    with pytest.raises(outlay.BudgetRefused, match="max_energy_Wh"):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(5, max_energy_Wh=1))
    assert not (tmp_path / "ledger").exists()


class FakeCounter:
    """An energy source that uses 400 J whenever it is asked; not a real sensor."""

    name = "fake"
    quality = "measured"

    def take_uj(self) -> int:
        return 400 * 10**6


def measure_with(counter: FakeCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlay.record.meters.energy.PowercapSource.detect", lambda: [counter])


def test_a_limit_on_energy_stops_after_the_step_that_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    measure_with(FakeCounter(), monkeypatch)
    with outlay.run("m", dir=tmp_path, budget=outlay.energy_cap("1000 J"), clock=clock) as run:
        for _ in run.steps(range(100)):
            clock.advance(SECOND)
        assert run.step_number == 2
        assert tracker_of(run).totals["energy_Wh"] == 1200 / 3600
    assert document(tmp_path)["energy_quality"] == "measured"


def test_energy_is_measured_under_any_budget_where_there_is_a_sensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    measure_with(FakeCounter(), monkeypatch)
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(3), clock=clock) as run:
        for _ in run.steps(range(100), tokens=1):
            clock.advance(SECOND)
        assert tracker_of(run).totals["energy_Wh"] == 1200 / 3600
    assert document(tmp_path)["energy_quality"] == "measured"
    assert document(tmp_path)["unmeasured"] == ["comm_bytes", "cost_usd", "flops"]


def test_energy_used_after_the_last_step_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    measure_with(FakeCounter(), monkeypatch)
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(3), clock=clock) as run:
        for _ in run.steps(range(3), tokens=1):
            clock.advance(SECOND)
    assert document(tmp_path)["totals"]["energy_Wh"] == 1600 / 3600  # type: ignore[index]
    assert read_history(tmp_path).spend(clock.wall_ns()).executed.energy_mj == 1_600_000


class SilentCounter(FakeCounter):
    """An energy source that does not answer any more; not a real sensor."""

    def take_uj(self) -> int:
        raise OSError("no sensor")


def test_energy_that_could_not_be_read_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    measure_with(SilentCounter(), monkeypatch)
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(3), clock=clock) as run:
        for _ in run.steps(range(3), tokens=1):
            clock.advance(SECOND)
    assert "4 readings of energy failed" in str(document(tmp_path)["findings"])


def test_unmeasured_totals_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlay.record.meters.energy.NvmlSource.detect", lambda *_: [])
    monkeypatch.setattr("outlay.record.meters.energy.PowercapSource.detect", lambda: [])
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(3)) as run:
        list(run.steps(range(100), tokens=1))
    content = document(tmp_path)
    assert content["unmeasured"] == ["comm_bytes", "energy_Wh", "cost_usd", "flops"]
    assert content["totals"]["comm_bytes"] == 0  # type: ignore[index]


@pytest.mark.xdist_group("torch")
def test_collectives_are_counted_under_any_budget_where_ranks_train_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr("sys.excepthook", sys.excepthook)  # torch replaces it.
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(3)) as run:
            for _ in run.steps(range(100), tokens=1):
                torch.distributed.all_reduce(torch.zeros(5))
            assert tracker_of(run).totals["comm_bytes"] == 3 * 20
    finally:
        torch.distributed.destroy_process_group()
    assert "comm_bytes" not in document(tmp_path)["unmeasured"]  # type: ignore[operator]


def test_steps_of_more_flops_than_64_bits_hold_are_counted(tmp_path: Path) -> None:
    for attempt_steps in (4, 6):
        with outlay.run("m", dir=tmp_path, budget=outlay.iso_flops("1e21")) as run:
            run.meters.flops = outlay.FlopsPerToken(10**15)
            for _ in run.steps(range(attempt_steps), tokens=100_000):
                run.checkpoint_committed()
    assert document(tmp_path)["totals"]["flops"] == 10**21  # type: ignore[index]
    assert run.should_stop()


def test_a_limit_on_flops_counts_by_formula(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_flops(6000)) as run:
        run.meters.flops = outlay.FlopsPerToken.six_per_parameter(100)
        assert len(list(run.steps(range(100), tokens=1))) == 10


@pytest.mark.parametrize(
    ("budget", "complaint"),
    [(outlay.iso_flops(60), "max_flops"), (outlay.iso_tokens(60), "max_tokens")],
)
def test_a_limit_on_what_steps_do_not_report_is_refused_at_the_first(
    tmp_path: Path, budget: outlay.Budget, complaint: str
) -> None:
    with (
        pytest.raises(outlay.BudgetRefused, match=complaint),
        outlay.run("m", dir=tmp_path, budget=budget) as run,
    ):
        for _ in run.steps(range(3), tokens=0):
            pass


def test_negative_tokens_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidValue, match="tokens"),
        outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(60)) as run,
    ):
        for _ in run.steps(range(3), tokens=-1):
            pass


def test_negative_amount_of_a_step_is_refused(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(60)) as run:
        step = run.step(tokens=5)
        with pytest.raises(InvalidValue, match="zero or more"), step:
            step.flops = -1
        assert tracker_of(run).totals["flops"] == 0


def test_thresholds_and_the_stop_are_in_the_log(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10)) as run:
        list(run.steps(range(100), tokens=1))
    assert [event.data["percent"] for event in events(tmp_path, "threshold")] == [50, 75, 90, 100]
    assert events(tmp_path, "stopped")[0].data["limit_key"] == "max_tokens"
    assert events(tmp_path, "ended")[0].data["totals"]["tokens"] == 10


def test_a_changed_budget_is_refused_on_resume_before_anything_is_written(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10)) as run:
        list(run.steps(range(3), tokens=1))
    before = sorted((tmp_path / "ledger").iterdir())
    with pytest.raises(outlay.BudgetChanged, match="max_tokens 10 -> 20"):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(20))
    assert sorted((tmp_path / "ledger").iterdir()) == before


def test_an_allowed_change_of_budget_is_recorded(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10)) as run:
        list(run.steps(range(10), tokens=1))
        run.checkpoint_committed()
    budget = outlay.iso_tokens(20, allow_change=True)
    with outlay.run("m", dir=tmp_path, budget=budget) as run:
        assert len(list(run.steps(range(100), tokens=1))) == 10
    (change,) = events(tmp_path, "changed")
    assert change.data["was"] == {"max_tokens": 10}


def test_an_exhausted_run_stops_before_its_first_step(tmp_path: Path) -> None:
    for expected in (10, 0):
        with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10)) as run:
            assert len(list(run.steps(range(100), tokens=1))) == expected
            run.checkpoint_committed(9)


def train_until_it_fails(run_dir: Path) -> None:
    with outlay.run("m", dir=run_dir, budget=outlay.iso_tokens(100)) as run:
        for count, _ in enumerate(run.steps(range(100), tokens=1)):
            if count == 5:
                raise RuntimeError("loss is NaN")


def test_the_document_is_written_when_training_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="loss is NaN"):
        train_until_it_fails(tmp_path)
    assert document(tmp_path)["totals"]["tokens"] == 5  # type: ignore[index]
    assert document(tmp_path)["stop_reason"] is None


def test_the_document_is_refreshed_during_the_run(tmp_path: Path, clock: ManualClock) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(100), clock=clock) as run:
        for _ in run.steps(range(5), tokens=1):
            clock.advance(6 * SECOND)
        assert document(tmp_path)["totals"]["tokens"] == 4  # type: ignore[index]


def test_full_disk_loses_the_document_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(3), clock=clock) as run:

        def full(_fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("outlay.files.os.fsync", full)
        for _ in run.steps(range(100), tokens=1):
            clock.advance(60 * SECOND)
        assert run.step_number == 2
        assert "No space left on device" in str(tracker_of(run).findings[0])


def test_budget_is_enforced_when_the_log_cannot_be_written(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10)) as run:
        for _ in run.steps(range(100), tokens=1):
            if run.step_number == 3:
                (tmp_path / "ledger").rename(tmp_path / "gone")
                (tmp_path / "ledger").write_text("a file in its place")
        assert run.step_number == 9
        assert tracker_of(run).totals["tokens"] == 10


def test_ranks_without_a_group_are_limited_alone_with_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, expected in ((0, 10), (1, 10), (1, 0)):
        monkeypatch.setenv("RANK", str(rank))
        with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10)) as run:
            assert (
                len(list(run.steps(range(100), tokens=1, start=0 if expected else 10))) == expected
            )
            assert "2 ranks cannot communicate" in str(tracker_of(run).findings[0])


def test_wall_clock_set_back_an_hour_refunds_no_time_and_no_money(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_time("10s", max_cost_usd=1)
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for _ in run.steps(range(100)):
            clock.advance(SECOND)
            clock.step_wall(-3600 * SECOND)
        assert run.step_number == 9
        assert tracker_of(run).totals["cost_usd"] == 0.01


def test_an_evaluation_that_would_overshoot_is_skipped(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_time("100s", charge="all")
    evaluated = 0
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        for _ in run.steps(range(100)):
            clock.advance(10 * SECOND)
            if run.allows("evaluation"):
                evaluated += 1
                with run.span("evaluation"):
                    clock.advance(20 * SECOND)
        assert tracker_of(run).totals["time_ms"] == 100_000
    assert evaluated == 3


def test_a_snapshot_and_the_log_count_each_unit_once(tmp_path: Path, clock: ManualClock) -> None:
    budget = outlay.iso_tokens(100)
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        for count, _ in enumerate(run.steps(range(8), tokens=5)):
            clock.advance(SECOND)
            if count == 3:
                run.checkpoint_committed()
        snapshot = tracker_of(run).snapshot()
    for lost_log in (False, True):
        elsewhere = tmp_path / "elsewhere" if lost_log else tmp_path
        with outlay.run("m", dir=elsewhere, budget=budget, clock=clock) as run:
            tracker_of(run).load(snapshot)
            list(run.steps(range(1), tokens=5, start=8))
            assert tracker_of(run).totals["tokens"] == 45
            assert tracker_of(run).totals["time_ms"] == 8000


def test_step_before_the_attempts_start_takes_back_earlier_progress(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_tokens(1000)
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        list(run.steps(range(10), tokens=5))
        run.checkpoint_committed()
    clock.advance(SECOND)
    with outlay.run("m", dir=tmp_path, budget=budget, clock=clock) as run:
        list(run.steps(range(2), tokens=5))
        assert tracker_of(run).totals["tokens"] == 60
        list(run.steps(range(1), tokens=5, start=3))
        assert tracker_of(run).totals["tokens"] == 20
        assert tracker_of(run).totals["steps"] == 4


TRAINING = """
import sys, outlay
with outlay.run("m", dir=sys.argv[1], budget=outlay.iso_tokens(10_000)) as run:
    for count, _ in enumerate(run.steps(iter(int, 1), tokens=10)):
        if count == 100:
            run.checkpoint_committed(49)
        if count == 300:
            print("ready", flush=True)
            sys.stdin.readline()
    print("stopped after", run.step_number + 1, flush=True)
"""


def start(run_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OUTLAY_PROGRESS": "0"},
    )


def test_use_before_a_sigkill_is_counted_on_resume(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    (spend,) = read_history(tmp_path).spends
    spent_ns = spend.executed.time_ns
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(10_000)) as run:
        assert run.resume_step == 50
        assert tracker_of(run).totals["tokens"] == 500
        assert tracker_of(run).totals["time_ms"] == spent_ns / 1e6
        remaining = len(list(run.steps(iter(int, 1), tokens=10)))
    assert remaining == 950


# A run keeps the budget that it was started with


def start_again(run_dir: Path, budget: object = None) -> int:
    """Return how many steps of one token run in another attempt."""
    with outlay.run("m", dir=run_dir, budget=budget) as run:
        count = len(list(run.steps(range(20), tokens=1)))
        run.checkpoint_committed()
    return count


def test_a_run_that_never_had_a_budget_has_none(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        assert run.budget is None


def test_budget_left_out_on_a_restart_still_applies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with outlay.run("m", dir=tmp_path, budget="iso_tokens=10") as run:
        assert len(list(run.steps(range(6), tokens=1))) == 6
        run.checkpoint_committed()
    assert start_again(tmp_path) == 4
    assert any("keeps the one it was started with: iso_tokens" in one for one in caplog.messages)


@pytest.mark.parametrize(
    "budget",
    [{"enabled": False}, {"mode": "iso_time", "enabled": False}, "enabled=false",
     {"allow_change": True}, "allow_change=true"],
    ids=str,
)  # fmt: skip
def test_a_budget_is_dropped_only_where_that_is_stated(tmp_path: Path, budget: object) -> None:
    assert start_again(tmp_path, "iso_tokens=10") == 10
    assert start_again(tmp_path) == 0
    assert start_again(tmp_path, budget) == 20
    assert [event.data["was"]["mode"] for event in events(tmp_path, "dropped")] == ["iso_tokens"]
    assert not (tmp_path / "budget.json").exists()
    assert start_again(tmp_path) == 20  # It stays dropped.
    assert outlay.read_run(tmp_path).budget is None


def test_a_whole_configuration_that_enables_nothing_drops_nothing(tmp_path: Path) -> None:
    assert start_again(tmp_path, "iso_tokens=10") == 10
    assert start_again(tmp_path, {"runtime": {"budget": {"mode": None}}}) == 0


def test_changed_limits_name_what_allows_them_in_the_variables_form(tmp_path: Path) -> None:
    start_again(tmp_path, "iso_tokens=10")
    with pytest.raises(outlay.BudgetChanged, match="iso_time=3h,allow_change=true"):
        start_again(tmp_path, "iso_tokens=11")
    assert start_again(tmp_path, "iso_tokens=11,allow_change=true") == 1


def test_a_budget_is_kept_on_every_rank(tmp_path: Path) -> None:
    start_again(tmp_path, "iso_tokens=10")
    with outlay.run("m", dir=tmp_path, rank=1, world_size=2) as run:
        assert tracker_of(run).budget == outlay.iso_tokens(10)
