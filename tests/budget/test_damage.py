"""A damaged log refunds no budget: missing steps are assumed, with a finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlay
from outlay.budget.history import read_history, repair
from outlay.cli.app import app
from outlay.clock import ManualClock
from outlay.ledger import AttemptStarted, Record, Step, segment_paths
from trackers import tracker_of

SECOND = 10**9


def exhausted(run_dir: Path, clock: ManualClock, limit: str = "", price: str = "3.6 USD/h") -> None:
    """A run of 5 steps of 10 tokens and 2 seconds, each in a checkpoint, stopped by its tokens."""
    budget = f"iso_tokens=50{limit}"
    with outlay.run("m", dir=run_dir, budget=budget, price=price, clock=clock) as run:
        for _ in run.steps(range(100), tokens=10):
            clock.advance(2 * SECOND)
            run.checkpoint_committed()


STATEMENT = b'"kind":"budget_statement"'


def killed(run_dir: Path, clock: ManualClock) -> None:
    """The same run without checkpoints, and without an end: it has no statement."""
    budget = outlay.iso_tokens(50)
    with outlay.run("m", dir=run_dir, budget=budget, price="3.6 USD/h", clock=clock) as run:
        for _ in run.steps(range(100), tokens=10):
            clock.advance(2 * SECOND)
        written = [*segment_paths(run_dir), run_dir / "budget.json"]
        before_the_end = {path: path.read_bytes() for path in written}
    for path, content in before_the_end.items():
        path.write_bytes(content)


def damage(run_dir: Path, marker: bytes) -> None:
    """Change a byte in every line that holds ``marker``."""
    (path,) = segment_paths(run_dir)
    content = path.read_bytes()
    assert marker in content
    path.write_bytes(content.replace(marker, marker[:-1] + b"#"))


def step_line(number: int) -> bytes:
    return b'"step":%d,"dur_ns"' % number


@pytest.mark.parametrize("number", range(5))
def test_an_exhausted_run_stays_exhausted_whichever_step_is_damaged(
    tmp_path: Path, clock: ManualClock, number: int
) -> None:
    exhausted(tmp_path, clock)
    damage(tmp_path, step_line(number))
    damage(tmp_path, STATEMENT)
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(50), price="3.6 USD/h") as run:
        assert run.resume_step == 5
        assert list(run.steps(range(100), tokens=10)) == []
        assert tracker_of(run).totals["tokens"] == 50
        assert any("checksum" in str(finding) for finding in tracker_of(run).findings)
    content = json.loads((tmp_path / "budget.json").read_text())
    assert any("checksum" in finding for finding in content["findings"])


@pytest.mark.parametrize("number", range(5))
def test_a_start_uses_a_statement_whichever_step_before_it_is_damaged(
    tmp_path: Path, clock: ManualClock, number: int
) -> None:
    exhausted(tmp_path, clock)
    damage(tmp_path, step_line(number))
    (tmp_path / "budget.json").unlink()
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(50), price="3.6 USD/h") as run:
        assert list(run.steps(range(100), tokens=10)) == []
        assert tracker_of(run).totals["tokens"] == 50
    shown = CliRunner().invoke(app, ["budget", "show", str(tmp_path)], catch_exceptions=False)
    assert "checksum does not match" in shown.stdout


def test_a_killed_run_whose_last_step_is_damaged_counts_it_like_the_one_before(
    tmp_path: Path, clock: ManualClock
) -> None:
    exhausted(tmp_path, clock)
    (tmp_path / "budget.json").unlink()
    (path,) = segment_paths(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    (last,) = (at for at, line in enumerate(lines) if step_line(4) in line)
    path.write_bytes(b"".join([*lines[:last], lines[last].replace(b"dur_ns", b"dur#ns")]))
    spend = read_history(tmp_path).spend(clock.wall_ns())
    assert spend.total(charge="training").tokens == 50
    assert spend.total(charge="training").time_ns == 10 * SECOND


def test_a_torn_last_line_counts_as_a_step(tmp_path: Path, clock: ManualClock) -> None:
    exhausted(tmp_path, clock)
    (tmp_path / "budget.json").unlink()
    (path,) = segment_paths(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(step_line(4))])
    assert read_history(tmp_path).spend(clock.wall_ns()).progress_below().tokens == 50


def test_money_spent_at_a_lost_price_is_not_refunded(tmp_path: Path, clock: ManualClock) -> None:
    exhausted(tmp_path, clock)
    damage(tmp_path, b'"kind":"attempt_started"')
    spend = read_history(tmp_path).spend(clock.wall_ns())
    assert spend.total(charge="training").cost_micros == 10_000


@pytest.mark.parametrize("lost", [b'"kind":"attempt_started"', b'"event":"set"', step_line(2)])
def test_euros_lost_in_a_damaged_log_are_not_refunded(
    tmp_path: Path, clock: ManualClock, lost: bytes
) -> None:
    limit = ",max_cost_eur=0.01"
    exhausted(tmp_path, clock, limit, "3.6 EUR/h")
    damage(tmp_path, lost)
    damage(tmp_path, STATEMENT)
    spend = read_history(tmp_path).spend(clock.wall_ns())
    assert spend.total(charge="training").cost_micros == 10_000
    budget = f"iso_tokens=500{limit},allow_change=true"
    with outlay.run("m", dir=tmp_path, budget=budget, price="3.6 EUR/h", clock=clock) as run:
        assert tracker_of(run).totals["cost_eur"] == 0.01
        assert list(run.steps(range(100), tokens=10)) == []


def test_limits_that_the_log_has_lost_still_bind(tmp_path: Path, clock: ManualClock) -> None:
    exhausted(tmp_path, clock)
    damage(tmp_path, b'"event":"set"')
    with pytest.raises(outlay.OutlayError, match="max_tokens 50 -> 90"):
        outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(90))


def test_show_and_plan_report_damage_and_what_was_assumed(
    tmp_path: Path, clock: ManualClock
) -> None:
    killed(tmp_path, clock)
    damage(tmp_path, step_line(2))

    def shown(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["budget", *arguments], catch_exceptions=False)
        return result.stdout

    report = json.loads(shown("show", str(tmp_path), "--json"))
    assert report["totals"]["tokens"] == 50
    assert report["remaining"]["max_tokens"] == 0
    assert "checksum does not match" in report["findings"][0]
    assert "1 unreadable steps are counted like their neighbours" in report["findings"][1]
    assert "checksum does not match" in shown("show", str(tmp_path))
    plan = ("plan", "--mode", "iso_tokens", "--limit", "100", "--from", str(tmp_path))
    assert "checksum does not match" in shown(*plan)
    assert json.loads(shown(*plan, "--json"))["findings"] == report["findings"]


def step(seq: int, number: int, **amounts: int) -> Step:
    return Step(seq=seq, t_ns=seq, step=number, dur_ns=1, **amounts)


def test_a_hole_is_filled_by_the_larger_neighbour() -> None:
    header = AttemptStarted(seq=0, t_ns=0)
    records: list[Record] = [header, step(1, 0, tokens=3), step(4, 3, tokens=5, flops=2)]
    repaired, assumed_steps = repair(records)
    assert assumed_steps == 2
    assert repaired[2] == Step(seq=2, t_ns=1, step=1, count=2, dur_ns=2, tokens=10, flops=4)


@pytest.mark.parametrize(
    "records",
    [
        [step(1, 0), step(3, 1)],  # What is missing was no step.
        [step(1, 0), step(2, 7)],  # The loop left numbers out by itself.
        [step(1, 5), step(3, 2)],  # A rollback.
        [step(1, 0)],  # Only the header is missing.
    ],
)
def test_where_no_step_is_missing_none_is_assumed(records: list[Record]) -> None:
    assert repair(records) == (records, 0)


def test_numbers_that_the_loop_left_out_are_not_taken_for_damage() -> None:
    _, assumed_steps = repair([step(1, 0), step(3, 1000)])
    assert assumed_steps == 1
