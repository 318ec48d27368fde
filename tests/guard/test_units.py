"""Guards that count showback or GPU-hours: runs and commands hold and capture in their unit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

import outlay
from command_line import Outcome, in_process
from outlay import BudgetGuard
from outlay.clock import ManualClock
from outlay.errors import InvalidValue, UnitMismatch
from outlay.export.live_runs import LiveRuns
from outlay.export.prometheus import exposition
from outlay.guard.entries import Captured, micros_of
from outlay.guard.gate import HOLD_VARIABLE, Guarding
from outlay.machine import CUDA_VISIBLE
from outlay.runs.reading import read_figures
from outlay.store import open_store
from outlay.units import Unit
from outlay.units.money import recorded_rate

SECOND = 10**9
SHOWBACK = "USD showback"
NewGuard = Callable[..., BudgetGuard]


@pytest.fixture
def new_guard(tmp_path: Path, clock: ManualClock) -> NewGuard:
    """Return guards of a new log, of a unit."""

    def make(unit: str, ceiling: object = 1000) -> BudgetGuard:
        path = tmp_path / "books" / "spend.jsonl"
        return BudgetGuard(ceiling, path, currency=unit, clock=clock, environ={})

    return make


def captures(guard: BudgetGuard) -> list[Captured]:
    return [line for line in guard.log.lines() if isinstance(line, Captured)]


def spent(guard: BudgetGuard) -> str:
    (line,) = captures(guard)
    return str(Unit.parse(line.currency).money(micros_of(line.actual)))


# Runs in Python.


def test_a_showback_price_draws_on_a_showback_guard(
    new_guard: NewGuard, tmp_path: Path, clock: ManualClock
) -> None:
    guard, price = new_guard(SHOWBACK), "3600 USD/h showback"
    with outlay.run("bert", dir=tmp_path / "run", price=price, guard=guard, clock=clock):
        assert [str(hold.amount) for hold in guard.holds()] == ["360.00 USD showback"]
        clock.advance(7 * SECOND)
    assert spent(guard) == "7.00 USD showback"
    row = read_figures(tmp_path / "run", clock.wall_ns())
    assert str(row.cost) == "7.00 USD showback"
    assert guard.verify(runs={row.run_id: tmp_path / "run"}).findings == ()


@pytest.mark.parametrize(
    ("unit", "price"),
    [(SHOWBACK, "2 USD/h"), ("USD", "2 USD/h showback"), (SHOWBACK, "2 EUR/h showback")],
)
def test_a_price_of_another_unit_is_refused_before_anything_is_written(
    new_guard: NewGuard, tmp_path: Path, unit: str, price: str
) -> None:
    guard = new_guard(unit)
    with pytest.raises(InvalidValue) as refused:
        outlay.run("bert", dir=tmp_path / "run", price=price, guard=guard)
    seen = Unit.parse(price.replace("2 ", "").replace("/h", ""))
    assert f"a price in {unit}, which {guard.log_path} counts, not in {seen}" in str(refused.value)
    assert not guard.log_path.exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("gpus", [1, 8, "1/7", 0.5])
@pytest.mark.parametrize("elapsed_ns", [1, 7 * SECOND, 3600 * SECOND, 98_765_432_123_457])
def test_a_run_below_gpu_hours_captures_its_time_times_its_gpus(
    new_guard: NewGuard, tmp_path: Path, clock: ManualClock, gpus: object, elapsed_ns: int
) -> None:
    guard = new_guard("GPU-h", 10**6)
    with outlay.run("bert", dir=tmp_path / "run", gpus=gpus, guard=guard, clock=clock):
        clock.advance(elapsed_ns)
    (line,) = captures(guard)
    exact = Fraction(str(gpus)) * elapsed_ns / (3600 * SECOND) * 10**6
    assert line.currency == "GPU-h"
    assert 0 <= micros_of(line.actual) - exact < 1
    row = read_figures(tmp_path / "run", clock.wall_ns())
    assert row.gpu_ns == round(Fraction(str(gpus)) * elapsed_ns)
    assert guard.verify(runs={row.run_id: tmp_path / "run"}).findings == ()


def test_each_attempt_below_gpu_hours_captures_its_own_time(
    new_guard: NewGuard, tmp_path: Path, clock: ManualClock
) -> None:
    """The hour between the attempts is in neither: no GPU worked for the run."""
    guard = new_guard("GPU-h")
    for hours in (1, 2):
        with outlay.run("bert", dir=tmp_path / "run", gpus=2, guard=guard, clock=clock):
            clock.advance(hours * 3600 * SECOND)
        clock.advance(3600 * SECOND)
    assert [line.actual for line in captures(guard)] == [2, 4]


def test_below_gpu_hours_a_price_is_only_recorded_and_may_change(
    new_guard: NewGuard, tmp_path: Path, clock: ManualClock
) -> None:
    guard = new_guard("GPU-h")
    guarding = Guarding(guard=guard, gpus=4)
    run = outlay.run("bert", dir=tmp_path / "run", price="2 USD/h", guard=guarding, clock=clock)
    with run:
        assert str(guard.holds()[0].amount) == "0.40 GPU-h"
        clock.advance(1800 * SECOND)
        run.set_price("3 EUR/h", gpus=2)
        clock.advance(1800 * SECOND)
    assert spent(guard) == "3.00 GPU-h"


@pytest.mark.parametrize(
    ("visible", "more", "held"),
    [("0,1,2", {}, "0.30 GPU-h"), ("0,1,2", {"gpus": 8}, "0.80 GPU-h")],
)
def test_the_gpus_of_a_run_are_those_stated_else_those_found(
    new_guard: NewGuard,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    more: dict[str, int],
    held: str,
) -> None:
    monkeypatch.setenv(CUDA_VISIBLE, visible)
    guard = new_guard("GPU-h")
    with outlay.run("bert", dir=tmp_path / "run", guard=guard, clock=clock, **more):  # type: ignore[arg-type]
        assert str(guard.holds()[0].amount) == held


def test_gpus_that_nobody_states_and_none_finds_are_asked_for(
    new_guard: NewGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CUDA_VISIBLE, "")
    guard = new_guard("GPU-h")
    with pytest.raises(InvalidValue, match=r"Guarding\(gpus=8\)"):
        outlay.run("bert", dir=tmp_path / "run", guard=guard)
    with pytest.raises(InvalidValue, match=r"the same number as in Guarding\(gpus=2\)"):
        outlay.run("bert", dir=tmp_path / "run", gpus=4, guard=Guarding(guard=guard, gpus=2))
    assert not guard.log_path.exists()
    assert not (tmp_path / "run").exists()


def test_a_cash_guard_still_needs_a_price(new_guard: NewGuard, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a price, since a guard counts money"):
        outlay.run("bert", dir=tmp_path / "run", gpus=8, guard=new_guard("USD"))


def test_a_launchers_hold_of_another_unit_is_refused(
    new_guard: NewGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = new_guard(SHOWBACK)
    hold = guard.authorize("trial", 1)
    monkeypatch.setenv(HOLD_VARIABLE, f"{hold.id}@{guard.log_path}")
    lines = guard.log.lines()
    with pytest.raises(InvalidValue, match="a price in USD showback"):
        outlay.run("bert", dir=tmp_path / "run", price="2 USD/h")
    own = BudgetGuard(1000, tmp_path / "own.jsonl", environ={})
    with pytest.raises(UnitMismatch):
        outlay.run("bert", dir=tmp_path / "run", price="2 USD/h", guard=own)
    assert guard.log.lines() == lines
    assert not (tmp_path / "own.jsonl").exists()


@pytest.mark.parametrize("unit", [SHOWBACK, "GPU-h"])
def test_verify_finds_a_capture_below_the_log_in_its_unit(
    new_guard: NewGuard, tmp_path: Path, clock: ManualClock, unit: str
) -> None:
    guard, price = new_guard(unit), "36 USD/h showback"
    with outlay.run("bert", dir=tmp_path / "run", gpus=1, price=price, guard=guard, clock=clock):
        clock.advance(3600 * SECOND)
    (line,) = captures(guard)
    assert line.part is not None
    less = BudgetGuard(1000, tmp_path / "less.jsonl", currency=unit, clock=clock, environ={})
    less.record_actual("bert", "0.25", part=line.part)
    (found,) = less.verify(runs={line.part.run: tmp_path / "run"}).findings
    whole = Unit.parse(unit).money(micros_of(line.actual))
    assert f"it captures 0.25 {unit}; the log of run" in found.message
    assert found.message.endswith(f"says {whole}")


# Commands.


def guard_run(guard: BudgetGuard, *words: object) -> Outcome:
    BudgetGuard(1000, guard.log_path, currency=guard.currency, environ={}).note("opened")
    script = "import os; print(os.environ.get('OUTLAY_GPUS'))"
    log = ("--label", "a", "--log", guard.log_path)
    return in_process("guard", "run", *log, *words, "--json", "--", sys.executable, "-c", script)


@pytest.mark.parametrize(
    ("unit", "words", "rate"),
    [
        (SHOWBACK, ("--rate", "3600 USD/h showback"), "3600.00 USD/h showback"),
        ("GPU-h", ("--gpus", "8"), "8.00 GPU-h/h"),
        ("GPU-h", ("--rate", "8 GPU-h/h"), "8.00 GPU-h/h"),
        ("GPU-h", (), "3.00 GPU-h/h"),
    ],
)
def test_a_command_costs_its_time_at_its_rate(
    new_guard: NewGuard,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    words: tuple[str, ...],
    rate: str,
) -> None:
    monkeypatch.setenv(CUDA_VISIBLE, "0,1,2")
    guard = new_guard(unit)
    done = guard_run(guard, *words)
    assert done.code == 0, done.err
    assert f"at {rate};" in done.err
    (line,) = captures(guard)
    outcome = done.json
    micros = recorded_rate(rate).micros_per_hour * outcome["elapsed_ns"] / (3600 * SECOND)
    assert abs(micros_of(line.actual) - micros) <= 1
    assert (line.currency, micros_of(line.actual) > 0) == (unit, True)
    runs = {line.part.run: Path(outcome["run_dir"])} if line.part else {}
    assert len(runs) == 1
    assert BudgetGuard.of_log(guard.log_path, environ={}).verify(runs=runs).findings == ()


@pytest.mark.parametrize(
    ("unit", "words", "said"),
    [
        (SHOWBACK, ("--rate", "2 USD/h"), 'not in USD; append "showback" if it is showback'),
        ("USD", ("--rate", "2 USD/h showback"), 'not in USD showback; append "cash"'),
        ("GPU-h", ("--rate", "2 USD/h"), "an amount in GPU-h"),
        ("USD", ("--rate", "2 GPU-h/h"), "an amount in USD"),
        ("USD", ("--gpus", "8"), "counts USD, not GPU-hours"),
        ("USD", (), "--rate"),
        ("GPU-h", (), "--gpus 8"),
        ("GPU-h", ("--gpus", "8", "--rate", "8 GPU-h/h"), "either --gpus or --rate"),
        ("GPU-h", ("--gpus", "none"), "--gpus"),
        ("GPU-h", ("--gpus", "8", "--most-rate", "4 GPU-h/h"), "8.00 GPU-h/h"),
        ("GPU-h", ("--gpus", "8", "--limit", "5 USD"), "an amount in GPU-h"),
        (SHOWBACK, ("--rate", "2 USD/h showback", "--limit", "5 EUR"), "an amount in USD"),
    ],
)
def test_a_rate_of_another_unit_is_refused_before_anything_is_held(
    new_guard: NewGuard,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setenv(CUDA_VISIBLE, "-1")
    guard = new_guard(unit)
    done = guard_run(guard, *words)
    assert (done.code != 0, said in done.err) == (True, True), done.err
    assert len(guard.log.lines()) == 1


@pytest.mark.parametrize("unit", [SHOWBACK, "GPU-h"])
def test_everything_that_shows_a_guard_names_its_unit(
    new_guard: NewGuard, clock: ManualClock, unit: str
) -> None:
    guard = new_guard(unit, 10)
    guard.record_actual("a", 2, hold=guard.authorize("a", 3))
    guard.authorize("b", 1)
    log = ("--log", guard.log_path)
    status = in_process("guard", "status", *log, columns=200).out
    assert all(f"{amount}.00 {unit}" in status for amount in (10, 2, 1, 7))
    assert in_process("guard", "status", *log, "--json").json["unit"] == unit
    history = in_process("guard", "history", *log, columns=200).out
    assert f"2.00 {unit}" in history
    page = exposition(LiveRuns(open_store(), [guard.log_path], clock=clock).read())
    name = {"GPU-h": "gpu_hours"}.get(unit, "usd_showback")
    for figure, value in (("ceiling", 10), ("captured", 2), ("held", 1), ("remaining", 7)):
        assert (
            f'outlay_guard_{figure}_{name}{{log="{guard.log_path}",scope="whole"}} {value}.0'
            in page
        )
