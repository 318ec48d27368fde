"""What a stop throws away: ``run.on_stop`` saves it, and the run says which steps are not saved."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import outlay
from outlay.cli.app import app
from outlay.clock import ManualClock
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.gate import Guarding
from outlay.ledger import Note, read_run, unsaved_steps, unsaved_text
from outlay.runs.live import Run
from outlay.units import Duration

SECOND = 10**9


class Stopped(Exception):
    """What a function of ``on_stop`` raises."""


# Each loop ends at a limit of 50 tokens, 10 a step: after the step numbered 4.


def over_a_loader(run: Run) -> None:
    for _ in run.steps(range(100), tokens=10):
        pass


def over_epochs(run: Run) -> None:
    for _ in run.epochs(100):
        for _ in run.steps(range(3), tokens=10):
            pass


def by_asking(run: Run) -> None:
    while run.may_step(tokens=10):
        with run.step(tokens=10):
            pass


def by_looking_at_the_reason(run: Run) -> None:
    while run.stop_reason is None:
        with run.step(tokens=10):
            pass


def driven(run: Run) -> None:
    while not run.should_stop(tokens=10):
        run.begin_step()
        run.end_step(tokens=10)


LOOPS = [over_a_loader, over_epochs, by_asking, by_looking_at_the_reason, driven]
FIFTY = outlay.iso_tokens(50)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("limit", [50, 55], ids=["reached", "would be passed"])
def test_a_budgets_stop_saves_once_between_two_steps(
    limit: int, loop: Callable[[Run], None], tmp_path: Path
) -> None:
    if loop is by_looking_at_the_reason:
        limit = 50  # It asks nothing before a step.
    saved: list[tuple[int, int]] = []
    with outlay.run("m", dir=tmp_path, budget=outlay.iso_tokens(limit)) as run:
        run.on_stop(lambda: saved.append((run.step_number, threading.get_ident())))
        loop(run)
        assert saved == [(4, threading.get_ident())]
        assert not run.may_step(tokens=10)
    assert len(saved) == 1


def test_a_guards_stop_saves(tmp_path: Path, clock: ManualClock) -> None:
    """A dollar a second."""
    guard = BudgetGuard(130, tmp_path / "spend.jsonl", clock=clock, environ={})
    guarding = Guarding(guard=guard, slice=Duration.parse("100s"), grace=Duration.parse("20s"))
    saved: list[int] = []
    with outlay.run(
        "m", dir=tmp_path / "run", price="3600 USD/h", gpus=1, guard=guarding, clock=clock
    ) as run:
        run.on_stop(lambda: saved.append(run.step_number))
        for _ in run.steps(range(200)):
            clock.advance(SECOND)
        assert run.stop_reason is not None
        assert saved == [run.step_number]


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_notice_of_preemption_saves(number: signal.Signals, tmp_path: Path) -> None:
    saved: list[str] = []
    with outlay.run("m", dir=tmp_path) as run:
        run.on_preemption(lambda: saved.append("on preemption"))
        run.on_stop(lambda: saved.append("on stop"))
        for step in run.steps(itertools.count()):
            if step == 3:
                os.kill(os.getpid(), number)
    assert (saved, run.step_number) == (["on preemption", "on stop"], 3)
    assert outlay.read_run(tmp_path).status == "preempted"


def test_functions_are_called_in_the_order_in_which_they_were_given(tmp_path: Path) -> None:
    called: list[int] = []
    with outlay.run("m", dir=tmp_path, budget=FIFTY) as run:
        for number in range(3):
            run.on_stop(lambda number=number: called.append(number))  # type: ignore[misc]
        over_a_loader(run)
    assert called == [0, 1, 2]


def leave_by_break(run: Run) -> None:
    for step in run.steps(range(100), tokens=1):
        if step == 3:
            break


def leave_by_break_at_the_limit(run: Run) -> None:
    for step in run.steps(range(100), tokens=10):
        if step == 4:
            break


def raise_in_the_loop(run: Run) -> None:
    for _ in run.steps(range(100), tokens=1):
        raise KeyboardInterrupt


def reach_the_end(run: Run) -> None:
    list(run.steps(range(3), tokens=10))


@pytest.mark.parametrize(
    "loop", [leave_by_break, leave_by_break_at_the_limit, raise_in_the_loop, reach_the_end]
)
def test_a_loop_that_ends_in_another_way_does_not_save(
    loop: Callable[[Run], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved: list[int] = []
    try:
        with outlay.run("m", dir=tmp_path, budget=FIFTY) as run:
            run.on_stop(lambda: saved.append(1))
            loop(run)
    except KeyboardInterrupt:
        pass
    assert saved == []
    assert ("in no checkpoint" in caplog.text) == (loop is leave_by_break_at_the_limit)


def test_a_run_that_trains_no_step_saves_nothing(tmp_path: Path) -> None:
    """What was restored, or not yet, would replace a checkpoint."""
    saved: list[int] = []
    for _ in range(2):
        with outlay.run("m", dir=tmp_path, budget=FIFTY) as run:
            run.on_stop(lambda: saved.append(run.step_number))
            run.on_stop(run.checkpoint_committed)
            over_a_loader(run)
    assert saved == [4]


def test_saving_is_recorded_as_a_checkpoint_once(tmp_path: Path, clock: ManualClock) -> None:
    def save() -> None:
        clock.advance(7 * SECOND)

    def save_in_a_span() -> None:
        with run.span("checkpoint_save"):
            save()

    with outlay.run("m", dir=tmp_path, budget=FIFTY, clock=clock) as run:
        run.on_stop(save)
        run.on_stop(save_in_a_span)
        over_a_loader(run)
    assert outlay.read_run(tmp_path, now_ns=clock.wall_ns()).phases == {
        "checkpoint_save": 14 * SECOND
    }
    document = json.loads((tmp_path / "budget.json").read_text())
    assert document["clocks_ms"]["checkpoint"] == 14_000


def test_a_function_that_fails_is_raised_in_the_loop_after_the_others_were_called(
    tmp_path: Path,
) -> None:
    def fail() -> None:
        raise Stopped("secret")

    with outlay.run("m", dir=tmp_path, budget=FIFTY) as run:
        run.on_stop(fail)
        run.on_stop(run.checkpoint_committed)
        with pytest.raises(Stopped):
            over_a_loader(run)
    notes = [record for record in read_run(tmp_path).records if isinstance(record, Note)]
    assert [note.data for note in notes] == [{"error": "Stopped"}]
    with outlay.run("m", dir=tmp_path) as again:
        assert again.resume_step == 5


def test_a_preempted_run_whose_save_fails_is_still_preempted(tmp_path: Path) -> None:
    def fail() -> None:
        raise Stopped

    def preempt(run: Run) -> None:
        for _ in run.steps(range(10)):
            os.kill(os.getpid(), signal.SIGUSR2)

    with outlay.run("m", dir=tmp_path) as run:
        run.on_stop(fail)
        with pytest.raises(Stopped):
            preempt(run)
    assert outlay.read_run(tmp_path).status == "preempted"


# Steps in no checkpoint


@pytest.mark.parametrize(
    ("committed", "last", "text"),
    [
        (59, 72, "steps 60\N{EN DASH}72 are in no checkpoint"),
        (None, 72, "steps 0\N{EN DASH}72 are in no checkpoint"),
        (71, 72, "step 72 is in no checkpoint"),
        (999, 1_500, "steps 1,000\N{EN DASH}1,500 are in no checkpoint"),
        (72, 72, ""),
        (80, 72, ""),
        (None, None, ""),
        (5, None, ""),
    ],
)
def test_steps_after_the_last_checkpoint_are_in_none(
    committed: int | None, last: int | None, text: str
) -> None:
    assert unsaved_text(unsaved_steps(committed, last)) == text


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def shown(run_dir: Path) -> tuple[str, object]:
    """Return the end of ``outlay budget``, and its JSON."""
    budget = CliRunner().invoke(app, ["budget", str(run_dir)], catch_exceptions=False).stdout
    plain = CliRunner().invoke(app, ["budget", str(run_dir), "--json"], catch_exceptions=False)
    return " ".join(budget.split("stopped by")[-1].split()), json.loads(plain.stdout)[
        "unsaved_steps"
    ]


@pytest.mark.parametrize(
    ("every", "text", "steps"),
    [
        (3, "steps 3\N{EN DASH}4 are in no checkpoint", {"first": 3, "last": 4}),
        (4, "step 4 is in no checkpoint", {"first": 4, "last": 4}),
        (100, "steps 0\N{EN DASH}4 are in no checkpoint", {"first": 0, "last": 4}),
    ],
)
def test_a_stopped_run_says_last_which_steps_are_in_no_checkpoint(
    every: int,
    text: str,
    steps: dict[str, int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with outlay.run("m", dir=tmp_path, budget=FIFTY) as run:
        for _ in run.steps(range(100), tokens=10):
            if run.step_number % every == every - 1:
                run.checkpoint_committed()
    assert warnings(caplog)[-1].startswith(
        f"outlay: {text}, and would be trained and charged again"
    )
    line, plain = shown(tmp_path)
    assert line.endswith(f" not saved {text}")
    assert plain == steps
    report = CliRunner().invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
    assert report.exit_code == 0
    assert text in (tmp_path / "report.html").read_text()


def commit_on_stop(run: Run) -> None:
    run.on_stop(run.checkpoint_committed)
    over_a_loader(run)


def commit_after_the_loop(run: Run) -> None:
    over_a_loader(run)
    run.checkpoint_committed()


@pytest.mark.parametrize("loop", [commit_on_stop, commit_after_the_loop])
def test_a_stopped_run_whose_steps_are_saved_says_nothing(
    loop: Callable[[Run], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with outlay.run("m", dir=tmp_path, budget=FIFTY) as run:
        loop(run)
    assert "in no checkpoint" not in caplog.text
    line, plain = shown(tmp_path)
    assert "in no checkpoint" not in line
    assert plain is None
    with outlay.run("m", dir=tmp_path, budget=FIFTY) as again:
        assert (again.resume_step, list(again.steps(range(10), tokens=10))) == (5, [])


def test_an_earlier_attempts_stop_says_nothing_of_a_run_that_reached_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with outlay.run("m", dir=tmp_path, budget=FIFTY) as run:
        over_a_loader(run)
    caplog.clear()
    more = outlay.iso_tokens(500, allow_change=True)
    with outlay.run("m", dir=tmp_path, budget=more) as run:
        assert len(list(run.steps(range(9), tokens=10))) == 9
    assert (warnings(caplog), shown(tmp_path)[1]) == ([], None)


def test_a_preempted_run_without_a_budget_says_it_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.on_preemption(lambda: None)
        for step in run.steps(range(10)):
            if step == 2:
                os.kill(os.getpid(), signal.SIGUSR2)
    assert warnings(caplog)[-1].startswith("outlay: steps 0\N{EN DASH}2 are in no checkpoint")


def test_a_resumed_run_counts_from_its_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for tokens in (30, 80):
        budget = outlay.iso_tokens(tokens, allow_change=True)
        with outlay.run("m", dir=tmp_path, budget=budget) as run:
            for _ in run.steps(range(100), tokens=10):
                if run.step_number == 1:
                    run.checkpoint_committed()
    assert [text.split(",")[0] for text in warnings(caplog)] == [
        "outlay: step 2 is in no checkpoint",
        "outlay: steps 2\N{EN DASH}7 are in no checkpoint",
    ]
