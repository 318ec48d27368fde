"""Cost from ``outlay.run`` to ``outlay cost``: nodes, GPU shares, gaps, each with an amount."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import outlay
import scripts
from command_line import in_process
from outlay.clock import ManualClock, utc_text
from outlay.guard.entries import Captured, Held, Noted, Rental, Vendor
from outlay.ledger import read_run
from outlay.runs.collect import collect
from outlay.runs.money.spending_reader import in_no_run, read_spending, refresh_books, rented_by
from outlay.store import open_store
from outlay.units import Money
from trackers import tracker_of

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPUs, Slurm or vendors, whatever the tests run on."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("SLURM_JOB_ID", "RUNPOD_POD_ID", "CONTAINER_ID", "INSTANCE_ID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def train(
    run_dir: Path, clock: ManualClock, ns: int, *, fails: bool = False, **options: Any
) -> None:
    """Train for a while at 2 USD an hour for each GPU."""
    run = outlay.run("m", dir=run_dir, price="2 USD/h", clock=clock, **options)
    clock.advance(ns)
    run.heartbeat()
    run.close("failed" if fails else "completed")


def cost_of(run_dir: Path) -> Decimal:
    return Decimal(cost_json(run_dir)["cost"]["micros"]) / 10**6


def cost_json(run_dir: Path) -> Any:
    shown = in_process("cost", str(run_dir), "--json")
    assert shown.code == 0, shown.err
    return shown.json["cost"]


def test_one_process_with_eight_devices_is_charged_for_eight(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    train(tmp_path, clock, HOUR)
    assert cost_of(tmp_path) == 16


def test_two_runs_that_share_a_device_are_charged_for_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    for name in "ab":
        train(tmp_path / name, clock, HOUR, gpus=0.5)
    assert [cost_of(tmp_path / name) for name in "ab"] == [1, 1]


def test_three_runs_in_one_notebook_each_cost_their_own_time(tmp_path: Path) -> None:
    program = """
        import sys, time
        sys.ps1 = "> "  # At a prompt, as in a notebook.
        time.sleep(0.2)
        import outlay
        for run_dir in sys.argv[1:]:
            with outlay.run("m", dir=run_dir, price="3600 USD/h", gpus=1) as run:
                for _ in run.steps(range(2)):
                    time.sleep(0.02)
            time.sleep(0.1)  # In no run.
    """
    dirs = [tmp_path / name for name in "abc"]
    assert scripts.finish(program, *dirs).returncode == 0
    for run_dir in dirs:
        records = read_run(run_dir).records
        micros = round((records[-1].t_ns - records[0].t_ns) / 1000)
        assert (cost_json(run_dir)["begin"], cost_of(run_dir)) == (
            "record",
            Decimal(micros) / 10**6,
        )


def test_a_run_inside_a_rental_is_booked_once(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = outlay.BudgetGuard(50, tmp_path / "spend.jsonl", clock=clock, environ={})
    begun_ns = clock.wall_ns()
    pod = Rental(
        name="pod", rate="2 USD/h", started=utc_text(begun_ns),
        deadline=utc_text(begun_ns + 10 * HOUR),
        vendor=Vendor(name="lambda", list=("true",), terminate=("true",)),
    )  # fmt: skip
    hold = guard.authorize("lab02-pod", "20 USD", rental=pod)
    guard.note("created", hold=hold, detail={"resource": "pod-1"})
    monkeypatch.setenv("INSTANCE_ID", "pod-1")
    train(tmp_path / "run", clock, HOUR, gpus=1, guard=guard)
    assert (guard.held, guard.total_spent) == (20.0, 0.0)
    clock.advance(2 * HOUR)
    guard.settle_rental(guard.holds()[0], Money.parse("6 USD"), "its list is empty")
    kinds = [type(line) for line in guard.log.lines() if not isinstance(line, Noted)]
    assert (kinds, guard.held, guard.total_spent) == ([Held, Captured], 0.0, 6.0)
    assert cost_of(tmp_path / "run") == 2
    store, now_ns = open_store(), clock.wall_ns()
    collect(store, [tmp_path / "run"], now_ns)
    refresh_books(store, now_ns)
    reports = read_spending(store, now_ns).reports
    (rented,) = rented_by(guard.log.lines(), now_ns)
    outside = sum(spend.cost.micros for spend in in_no_run(rented, reports))
    assert outside == 4_000_000


def test_a_seventh_of_a_gpu_costs_a_seventh(tmp_path: Path, clock: ManualClock) -> None:
    train(tmp_path, clock, HOUR, gpus="1/7")
    assert cost_of(tmp_path) == Decimal("0.285714")


def test_an_elastic_run_pays_for_the_slices_that_it_has_left(
    tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, price="2 USD/h", gpus=4, clock=clock) as run:
        run.set_slices(4, 4)
        clock.advance(HOUR)
        run.set_slices(2, 4)
        clock.advance(HOUR)
    assert cost_of(tmp_path) == 8 + 4


def test_slices_that_are_kept_but_do_not_train_are_paid_for(
    tmp_path: Path, clock: ManualClock
) -> None:
    with outlay.run("m", dir=tmp_path, price="2 USD/h", gpus=4, clock=clock) as run:
        run.set_slices(2, 4, available=4)
        clock.advance(HOUR)
    assert cost_of(tmp_path) == 8


def test_a_budget_counts_the_slices_that_the_run_has_left(
    tmp_path: Path, clock: ManualClock
) -> None:
    budget = outlay.iso_cost("9 USD")
    with outlay.run("m", dir=tmp_path, price="2 USD/h", gpus=4, budget=budget, clock=clock) as run:
        for hour, _ in enumerate(run.steps(range(9))):
            if hour == 1:
                run.set_slices(1, 4)
            clock.advance(HOUR // 2)
        used = tracker_of(run).totals["cost_usd"]
    # Half an hour of four, then of one GPU until 9 USD: 4 + 5 x 1.
    assert (run.step_number, used) == (5, 9.0)
    assert cost_of(tmp_path) == 9


def test_two_nodes_of_which_one_is_late_are_each_charged_from_their_start(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    runs = []
    for rank, host in ((0, "node-1"), (2, "node-2")):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        monkeypatch.setenv("RANK", str(rank))
        runs.append(outlay.run("m", dir=tmp_path, price="6 USD/h", clock=clock))
        clock.advance(10 * MINUTE)
    for run in runs:
        run.close()
    # 2 GPUs for 20 minutes and 2 for 10, at 6 USD an hour each.
    assert cost_of(tmp_path) == 4 + 2


def stop_and_restart(
    run_dir: Path, clock: ManualClock, away_ns: int = HOUR, **options: Any
) -> None:
    """Train an hour and die; let some time pass; nothing is on the clock of the second attempt."""
    train(run_dir, clock, HOUR, fails=True, **options)
    clock.advance(away_ns)


def left_out(run_dir: Path) -> list[str]:
    messages = [finding["message"] for finding in cost_json(run_dir)["findings"]]
    return [message.rpartition(": ")[2] for message in messages if "not charged" in message]


def test_a_spot_machine_that_was_reclaimed_is_not_charged_until_another_is_there(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTANCE_ID", "i-1")
    stop_and_restart(tmp_path, clock, gpus=1)
    monkeypatch.setenv("INSTANCE_ID", "i-2")
    train(tmp_path, clock, HOUR, gpus=1)
    assert cost_of(tmp_path) == 4
    assert left_out(tmp_path) == ["up to 2.00 USD if the earlier machine was kept"]


def test_the_same_instance_is_charged_while_nothing_runs_on_it(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTANCE_ID", "i-1")
    stop_and_restart(tmp_path, clock, gpus=1)
    train(tmp_path, clock, HOUR, gpus=1)
    assert cost_of(tmp_path) == 6


@pytest.mark.parametrize(("init", "cost"), [("24", 6), ("99000", 4)])
def test_a_stopped_pod_is_distinguished_from_one_that_stayed_up_on_the_same_host(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, init: str, cost: int
) -> None:
    monkeypatch.setattr("outlay.machine.boot_id", lambda: "of-the-host")
    monkeypatch.setattr("outlay.machine.init_start", lambda: "24")
    stop_and_restart(tmp_path, clock, gpus=1)
    monkeypatch.setattr("outlay.machine.init_start", lambda: init)
    train(tmp_path, clock, HOUR, gpus=1)
    assert cost_of(tmp_path) == cost


@pytest.mark.parametrize(
    ("job", "restart", "cost"), [("17", "0", 2 * 74), ("17", "1", 4), ("18", "0", 4)]
)
def test_days_between_two_starts_of_slurm_are_charged_within_one_start_alone(
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    restart: str,
    cost: int,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    stop_and_restart(tmp_path, clock, 3 * DAY, gpus=1)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restart)
    train(tmp_path, clock, HOUR, gpus=1)
    assert cost_of(tmp_path) == cost
    kept = ["up to 144.00 USD if the earlier machine was kept"]
    assert left_out(tmp_path) == (kept if job == "18" else [])


def test_a_stated_stopped_price_is_of_the_machine_and_goes_before_everything(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_STOPPED_PRICE", "0.25 USD/h")
    monkeypatch.setenv("INSTANCE_ID", "i-1")
    stop_and_restart(tmp_path, clock, 2 * HOUR, gpus=8)
    monkeypatch.setenv("INSTANCE_ID", "i-2")
    train(tmp_path, clock, HOUR, gpus=8)
    assert cost_of(tmp_path) == 16 + Decimal("0.50") + 16
    assert left_out(tmp_path) == []


def test_money_that_is_only_assumed_exhausts_no_budget(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_RECORD_IDENTITY", "0")  # So that nothing tells the machine.
    budget = outlay.iso_cost("10 USD")
    stop_and_restart(tmp_path, clock, DAY, gpus=1, budget=budget)
    with outlay.run("m", dir=tmp_path, price="2 USD/h", gpus=1, budget=budget, clock=clock) as run:
        assert tracker_of(run).totals["cost_usd"] == 2.0
        assert run.stop_reason is None
    assert cost_of(tmp_path) == 2 + 48
    assert any("assumed" in text for text in cost_json(tmp_path)["assumptions"])


def test_a_cost_shows_that_start_and_end_were_not_recorded(tmp_path: Path) -> None:
    program = """
        import os, sys
        import outlay
        sys.ps1 = "> "  # At a prompt, so that the process is not the run's own.
        run = outlay.run("m", dir=sys.argv[1], price="2 USD/h")
        run.heartbeat()
        os._exit(1)
    """
    scripts.finish(program, tmp_path)
    shown = cost_json(tmp_path)
    assert (shown["begin"], shown["end"]) == ("record", "last_sign")
    said = in_process("cost", str(tmp_path)).out
    assert "starts at its first record" in said
    assert "ends at its last sign of life" in said


def test_an_old_log_has_the_same_cost() -> None:
    golden = Path(__file__).parents[1] / "data" / "ledger-v1"
    shown = cost_json(golden)
    # 16 s at 20 EUR an hour and 3 s at 24, then 81 s stopped at 0.10 for each of 8 GPUs.
    assert shown["cost"] == {"micros": 126_889, "currency": "EUR"}
    assert (shown["begin"], shown["end"]) == ("record", "recorded")
