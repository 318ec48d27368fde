"""The unattended loop of ``examples/agent_loop``, killed at its lines, with pods that fail.

Every line is the subject of ``benchmarks/agent_kills.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_lab import LOOP, Lab, kill_at_lines, run_to_end

EVERY = 19


def line_of(text: str) -> int:
    """Return the number of the one line of the loop that holds a text."""
    (number,) = (n for n, line in enumerate(LOOP.read_text().splitlines(), 1) if text in line)
    return number


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A loop that books one experiment and is then stopped by its hours of the day."""
    lab = Lab(home=tmp_path_factory.mktemp("undisturbed"), runs=100, hours_per_day=0.6)
    done = lab.start()
    assert (done.returncode, done.stdout) == (0, "stopping: hours_per_day: 0.5 of 0.6 booked\n")
    return lab


def test_loop_killed_at_any_line_keeps_its_ceilings_and_leaves_nothing_running(
    undisturbed: Lab, tmp_path: Path
) -> None:
    lab, rented = Lab(home=tmp_path), line_of("loss = measure(")
    lines = [*undisturbed.lines()[::EVERY], rented, line_of("append_result(results")]
    assert kill_at_lines(lab, lines, while_rented=rented) == []
    assert run_to_end(lab).startswith("stopping: runs: ")


def test_a_ceiling_of_hours_stops_the_loop_after_its_experiments(undisturbed: Lab) -> None:
    assert [result["loss"] is not None for result in undisturbed.results()] == [True]
    assert undisturbed.all_ended()


def test_a_ceiling_of_dollars_stops_the_loop_when_the_guard_refuses(tmp_path: Path) -> None:
    done = Lab(home=tmp_path, runs=100, day_usd="0.99").start()
    assert (done.returncode, done.stdout) == (0, "stopping: the guard refused\n")
