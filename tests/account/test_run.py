"""The account of a run gives the same figures in Python, on the command line and in JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from command_line import in_process
from ledgers import START_NS, Segment, dollars, ns
from outlay.account.run import RunAccount
from outlay.account.step_blocks import decode_steps
from outlay.clock import ManualClock
from outlay.errors import NotARun
from outlay.goodput.follower import read_view
from outlay.ledger import BudgetEvent, Heartbeat, LedgerReader, Metric, Note, Step, read_run

LATER_NS = START_NS + ns(100)


def account_in(run_dir: Path) -> RunAccount:
    return RunAccount().add(LedgerReader(run_dir, decode=decode_steps).poll())


def write_run(run_dir: Path) -> Path:
    story = Segment(about={"price": dollars(3600), "gpus": 1})
    story.step(2, wait=1, tokens=10).step(2, tokens=10).checkpoint().step(3, tokens=5)
    for name, value in (("loss", 0.5), ("loss", 0.25), ("lr", 1e-3)):
        story.records.append(Metric(t_ns=story.now_ns, name=name, value=value, step=3))
    story.end()
    story.write(run_dir)
    return run_dir


def test_python_and_the_command_line_give_the_same_figures(tmp_path: Path) -> None:
    run = outlay.read_run(write_run(tmp_path))
    cost = in_process("cost", "show", tmp_path, "--json").json["cost"]
    goodput = in_process("goodput", "show", tmp_path, "--json").json
    assert run.cost.cost is not None
    assert cost["cost"]["micros"] == run.cost.cost.micros == 8_000_000
    assert goodput["goodput"] == run.goodput.goodput
    assert {row["phase"]: row["ns"] for row in goodput["phases"]} == run.phases
    assert sum(run.phases.values()) == run.goodput.wall_ns == ns(8)


def test_a_reading_has_the_metrics_by_name_and_in_time(tmp_path: Path) -> None:
    metrics = outlay.read_run(write_run(tmp_path)).metrics
    assert {name: [p.value for p in points] for name, points in metrics.items()} == {
        "loss": [0.5, 0.25],
        "lr": [1e-3],
    }
    assert [point.step for point in metrics["loss"]] == [3, 3]


def test_a_run_without_a_budget_has_none(tmp_path: Path) -> None:
    assert outlay.read_run(write_run(tmp_path)).budget is None


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        outlay.read_run(tmp_path)


def test_a_run_that_records_while_it_is_read_is_running(tmp_path: Path, clock: ManualClock) -> None:
    with outlay.run("m", dir=tmp_path, clock=clock) as run:
        asked_ns = clock.wall_ns()
        for _ in run.steps(range(3)):
            clock.advance(ns(0.01))
        view = read_view(tmp_path, asked_ns)  # The clock was read before the log.
        assert (view.status, view.timeline.end_ns) == ("running", clock.wall_ns())


def test_an_account_keeps_what_each_step_used(tmp_path: Path) -> None:
    story = Segment()
    for number, flops in enumerate((10, 2**70)):
        story.now_ns += ns(1)
        step = Step(
            t_ns=story.now_ns, step=number, dur_ns=ns(1), samples=3, energy_mj=7, comm_bytes=11,
            flops=flops,
        )  # fmt: skip
        story.records.append(step)
    story.write(tmp_path)
    (segment,) = account_in(tmp_path).segments.values()
    steps = segment.steps
    assert [steps.samples.tolist(), steps.energy_mj.tolist(), steps.comm_bytes.tolist()] == [
        [3, 3],
        [7, 7],
        [11, 11],
    ]
    assert steps.flops.tolist() == [10, 2**70]
    assert segment.work.flops == 10 + 2**70


def test_an_account_keeps_budget_events_notes_and_heartbeats(tmp_path: Path) -> None:
    story = Segment()
    story.records += [
        BudgetEvent(t_ns=story.now_ns, event="set", data={"mode": "iso_time"}),
        Note(t_ns=story.now_ns, text="warm"),
        Heartbeat(t_ns=story.now_ns, gpu_busy_ns=5, energy_mj=6),
    ]
    story.write(tmp_path)
    account = account_in(tmp_path)
    (segment,) = account.segments.values()
    assert [event.event for event in account.budget_events()] == ["set"]
    assert [note.text for note in segment.notes] == ["warm"]
    assert (account.gpu_busy_ns, segment.energy_mj) == (5, 6)


def test_the_sums_of_an_account_are_those_of_the_records(tmp_path: Path) -> None:
    write_run(tmp_path)
    steps = [record for record in read_run(tmp_path).records if isinstance(record, Step)]
    work = account_in(tmp_path).work
    assert (work.steps, work.tokens) == (len(steps), sum(step.tokens for step in steps))
    assert work.step_ns == sum(step.dur_ns for step in steps)
    assert work.wait_ns == sum(step.wait_ns for step in steps)
