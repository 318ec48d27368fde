"""Many processes race for the last dollars: exactly what fits wins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from outlay.guard.entries import Held, Noted, micros_of
from outlay.guard.spend_log import FileSpendLog

PROCESSES = 64
AUTHORISATIONS = 3_000
CEILING_CENTS = 1_433
PRICE_CENTS = 7

# Forked from one process, so that outlay is imported once; each has a guard of its own.
RACERS = """
import json, os, sys
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import BudgetGuardExceeded

def race(path, tries, start):
    guard, won = BudgetGuard("14.33", path), 0
    os.read(start, 1)
    for _ in range(tries):
        try:
            guard.authorize("lab02-race", "0.07")
            won += 1
        except BudgetGuardExceeded:
            pass
    return won

start, starter = os.pipe()
answers, racers = [], []
for tries in sys.argv[2:]:
    answer, writer = os.pipe()
    racers.append(os.fork())
    if not racers[-1]:
        os.close(starter)
        os.write(writer, str(race(sys.argv[1], int(tries), start)).encode())
        os._exit(0)
    os.close(writer)
    answers.append(answer)
os.close(starter)  # Whoever reads from it goes on.
won = [int(os.read(answer, 99)) for answer in answers]
print(json.dumps({"won": won, "ends": [os.waitpid(racer, 0)[1] for racer in racers]}))
"""


def test_exactly_the_authorisations_that_fit_are_granted(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    tries = [
        AUTHORISATIONS // PROCESSES + (n < AUTHORISATIONS % PROCESSES) for n in range(PROCESSES)
    ]
    assert sum(tries) == AUTHORISATIONS
    raced = json.loads(
        subprocess.check_output([sys.executable, "-c", RACERS, str(path), *map(str, tries)])
    )
    assert raced["ends"] == [0] * PROCESSES
    assert sum(raced["won"]) == CEILING_CENTS // PRICE_CENTS
    assert replayed_micros(path) == sum(raced["won"]) * PRICE_CENTS * 10_000


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
