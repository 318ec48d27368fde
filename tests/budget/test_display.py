"""How a run shows its budget: a bar on a terminal, else lines."""

from __future__ import annotations

import io

from rich.console import Console

from outlay.budget.display import BudgetBar, BudgetLines, budget_line, display_for
from outlay.budget.tracker import BudgetTracker
from outlay.clock import ManualClock

SECOND = 10**9


def half_used() -> BudgetTracker:
    tracker = BudgetTracker("iso_tokens", {"max_tokens": 100, "max_minutes": 60})
    for _ in range(5):
        tracker.update(10, 2000.0)
    return tracker


def test_budget_line_shows_what_is_left_and_the_forecast() -> None:
    assert budget_line(half_used()) == (
        "budget 50% used, 50 tok left of 100 tok, 59m50s left of 1h00m, about 10.0s (5 steps) to go"
    )


def test_one_step_to_go_is_not_several() -> None:
    tracker = half_used()
    for _ in range(4):
        tracker.update(10, 2000.0)
    assert budget_line(tracker).endswith(", about 2.0s (1 step) to go")


def test_budget_line_names_the_limit_that_stopped_the_run() -> None:
    tracker = half_used()
    for _ in range(5):
        tracker.update(10, 2000.0)
    assert budget_line(tracker).endswith("stopped by tokens")


def test_before_the_first_step_nothing_is_forecast() -> None:
    line = budget_line(BudgetTracker("iso_tokens", {"max_tokens": 100}))
    assert line == "budget 0% used, 100 tok left of 100 tok"


def test_lines_come_once_a_minute_and_at_every_quarter(clock: ManualClock) -> None:
    stream = io.StringIO()
    lines = BudgetLines(stream, clock)
    tracker = BudgetTracker("iso_tokens", {"max_tokens": 1000})
    for _ in range(100):
        tracker.update(10, 1.0)
        clock.advance(SECOND)
        lines.update(tracker)
    lines.close(tracker)
    shown = [int(line.split("%")[0].split()[-1]) for line in stream.getvalue().splitlines()]
    assert shown == [1, 25, 50, 75, 100]  # The last one is not repeated at the end.


def test_a_run_that_has_ended_has_no_time_to_go(clock: ManualClock) -> None:
    stream = io.StringIO()
    lines = BudgetLines(stream, clock)
    lines.update(half_used())
    lines.close(half_used())
    first, last = stream.getvalue().splitlines()
    assert "to go" in first
    assert last == "outlay: budget 50% used, 50 tok left of 100 tok, 59m50s left of 1h00m"


def test_a_stream_that_is_gone_does_not_end_the_training(clock: ManualClock) -> None:
    stream = io.StringIO()
    lines = BudgetLines(stream, clock)
    stream.close()
    lines.update(half_used())


def test_a_terminal_shows_a_bar_redrawn_twice_a_second(clock: ManualClock) -> None:
    stream = io.StringIO()
    bar = BudgetBar(clock, Console(file=stream, force_terminal=True, width=120))
    tracker = half_used()
    bar.update(tracker)
    drawn = stream.getvalue()
    assert "budget 50% used" in drawn
    tracker.update(10, 2000.0)
    bar.update(tracker)
    assert stream.getvalue() == drawn
    bar.close(tracker)
    assert "budget 60% used" in stream.getvalue()


class LostTerminal(io.StringIO):
    """A terminal whose connection broke."""

    def write(self, text: str) -> int:
        del text
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_does_not_end_the_training(clock: ManualClock) -> None:
    bar = BudgetBar(clock, Console(file=LostTerminal(), force_terminal=True, width=120))
    bar.update(half_used())
    bar.close(half_used())


def test_a_narrow_terminal_shows_the_closest_limit_and_the_time_to_go(clock: ManualClock) -> None:
    stream = io.StringIO()
    tracker = BudgetTracker("iso_tokens", {"max_tokens": 10**9, "max_minutes": 600})
    for _ in range(5):
        tracker.update(10**7, 60_000.0)
    bar = BudgetBar(clock, Console(file=stream, force_terminal=True, width=80))
    bar.update(tracker)
    bar.close(tracker)
    assert "budget 5% used, 950,000,000 tok left, about 1h35m (95 steps) to go" in stream.getvalue()
    assert "…" not in stream.getvalue()


def test_a_narrow_terminal_shows_what_stopped_the_run(clock: ManualClock) -> None:
    stream = io.StringIO()
    tracker = BudgetTracker("iso_time", {"max_minutes": 0.01})
    tracker.update(1, 601.2)
    bar = BudgetBar(clock, Console(file=stream, force_terminal=True, width=40))
    bar.update(tracker)
    bar.close(tracker)
    assert "budget 100% used, stopped by time" in stream.getvalue()
    assert "…" not in stream.getvalue()


def test_what_is_left_is_shown_where_it_has_room(clock: ManualClock) -> None:
    stream = io.StringIO()
    tracker = BudgetTracker("iso_time", {"max_minutes": 0.01, "max_tokens": 10**9})
    tracker.update(1, 601.2)
    BudgetBar(clock, Console(file=stream, force_terminal=True, width=80)).update(tracker)
    assert "budget 100% used, -1.2ms left, stopped by time" in stream.getvalue()


def test_display_without_a_terminal_is_lines(clock: ManualClock) -> None:
    assert isinstance(display_for(io.StringIO(), clock), BudgetLines)
