"""Many processes race for the last dollars: exactly what fits wins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from outlay.guard.entries import Held, Noted, micros_of
from outlay.guard.spend_log import FileSpendLog

PROCESSES = 64
AUTHORISATIONS = 10_000
CEILING_CENTS = 4_321
PRICE_CENTS = 7

RACER = """
import sys
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded
path, tries = sys.argv[1], int(sys.argv[2])
guard, won = BudgetGuard("43.21", path), 0
sys.stdin.readline()
for _ in range(tries):
    try:
        guard.authorize("lab02-race", "0.07")
        won += 1
    except BudgetGuardExceeded:
        pass
print(won)
"""


def test_exactly_the_authorisations_that_fit_win(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    tries = [
        AUTHORISATIONS // PROCESSES + (n < AUTHORISATIONS % PROCESSES) for n in range(PROCESSES)
    ]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path), str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for count in tries
    ]  # fmt: skip
    won = [int(racer.communicate("go\n")[0]) for racer in racers]
    assert sum(tries) == AUTHORISATIONS
    assert [racer.returncode for racer in racers] == [0] * PROCESSES
    assert sum(won) == CEILING_CENTS // PRICE_CENTS
    assert replayed_micros(path) == sum(won) * PRICE_CENTS * 10_000


def replayed_micros(path: Path) -> int:
    """Add the log up by hand, checking at every line that it stayed below its own ceiling."""
    log = FileSpendLog(path)
    assert log.verify().findings == ()
    total = 0
    for line in log.lines():
        assert isinstance(line, Held | Noted)
        total += micros_of(line.estimated) if isinstance(line, Held) else 0
        assert isinstance(line, Noted) or total <= micros_of(line.ceiling)
    return total
