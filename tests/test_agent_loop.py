"""The unattended loop of ``examples/agent_loop``, killed at its lines, with pods that die.

Every line is the subject of ``benchmarks/agent_kills.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_lab import LOOP, Lab, end_in_peace, kill_at_lines

EVERY = 19


def line_of(text: str) -> int:
    """Return the number of the one line of the loop that holds a text."""
    (number,) = (n for n, line in enumerate(LOOP.read_text().splitlines(), 1) if text in line)
    return number


def test_killed_at_any_line_it_keeps_its_ceilings_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    calm = Lab(home=tmp_path / "calm", runs=1)
    assert calm.start().stdout == "stopping: runs: 1 of 1 booked\n"
    lab, rented = Lab(home=tmp_path / "stormy"), line_of("loss = measure(")
    lines = [*calm.lines()[::EVERY], rented, line_of("append_result(results")]
    assert kill_at_lines(lab, lines, while_rented=rented) == []
    assert end_in_peace(lab).startswith("stopping: runs: ")
    assert any(result["loss"] is not None for result in [*calm.results(), *lab.results()])


@pytest.mark.parametrize(
    ("hours_per_day", "day_usd", "reason"),
    [
        (1.2, "10", "stopping: hours_per_day: 1 of 1.2 booked\n"),
        (10, "0.99", "stopping: the guard refused\n"),
    ],
    ids=["hours", "dollars"],
)
def test_a_ceiling_ends_the_loop_in_peace(
    tmp_path: Path, hours_per_day: float, day_usd: str, reason: str
) -> None:
    lab = Lab(home=tmp_path, runs=100, hours_per_day=hours_per_day, day_usd=day_usd)
    done = lab.start()
    assert (done.returncode, done.stdout) == (0, reason)
