"""Runs ``examples/agent_loop`` in a directory with a stand-in vendor; kills it at chosen lines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import vendor_stand_in
from command_line import in_process
from outlay.guard.budget_guard import BudgetGuard
from papers import ROOT
from waiting import until

LOOP = ROOT / "examples" / "agent_loop" / "loop.py"
# Runs the loop; kills it with SIGKILL before a line is executed for the first time, or (0) lets it
# run to its end. Writes which lines were executed, in the order in which they first were.
_KILLED = """
import os, runpy, signal, sys
path, stop, executed = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1)
seen = {}
def line(frame, event, argument):
    if event == "line":
        seen[frame.f_lineno] = None
        if frame.f_lineno == stop:
            os.kill(os.getpid(), signal.SIGKILL)
    return line
def call(frame, event, argument):
    return line if frame.f_code.co_filename == path else None
sys.argv = [path, *sys.argv[1:]]
sys.settrace(call)
try:
    runpy.run_path(path, run_name="__main__")
finally:
    sys.settrace(None)
    with open(executed, "w") as file:
        file.write(" ".join(map(str, seen)))
"""
# By turns an experiment succeeds, fails with its pod, and prints nonsense.
_EXPERIMENT = """
import json, pathlib, sys
seen, lr = pathlib.Path(sys.argv[1]), float(sys.argv[2])
with seen.open("a") as file:
    file.write("x")
what = len(seen.read_text()) % 3
if what == 2:
    (seen.parent / "vendor" / "pods.json").write_text("[]")
    sys.exit(1)
print(json.dumps({"loss": abs(lr - 0.05)}) if what else "nonsense")
"""
_SETTINGS = """
project = "lab01"
log = "{home}/budget/spend.jsonl"
results = "{home}/results.jsonl"
failures = 3
pause_s = 0
command = ["{python}", "{home}/experiment.py", "{home}/seen", "{{lr}}"]
[limits]
runs = {runs}
runs_per_day = 1000
hours = {hours}
hours_per_day = {hours_per_day}
hours_per_run = 0.5
dollars_per_run = "1 USD"
most_rate = "1.90 USD/h"
[vendor]
rate = "1.80 USD/h"
poll = "{poll}"
margin = "1s"
create = "{vendor} create {{name}}"
list = "{vendor} list"
terminate = "{vendor} terminate {{id}}"
"""


@dataclass(kw_only=True)
class Lab:
    """One directory with a spend log, a vendor and a loop."""

    home: Path
    runs: int = 4
    hours_per_day: float = 1000
    day_usd: str = "10"
    poll: str = "200ms"
    starts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        (self.home / "vendor").mkdir(parents=True)
        (self.home / "vendor" / "pods.json").write_text("[]")
        (self.home / "experiment.py").write_text(_EXPERIMENT)
        done = in_process(
            "guard", "init", self.home / "budget", "--ceiling", "20", "--lab", "01=15",
            "--buffer", "5", "--day", self.day_usd,
        )  # fmt: skip
        assert done.code == 0, done.err

    def start(self, *, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the loop to its end, or until a line would be executed for the first time."""
        vendor = f"{sys.executable} -S -E {vendor_stand_in.__file__} {self.home / 'vendor'}"
        text = _SETTINGS.format(
            home=self.home, python=sys.executable, vendor=vendor, runs=self.runs, hours=1000,
            hours_per_day=self.hours_per_day, poll=self.poll,
        )  # fmt: skip
        (self.home / "loop.toml").write_text(text)
        self.starts += 1
        command = [sys.executable, "-c", _KILLED, LOOP, kill_at, self.home / "lines", "loop.toml"]
        return subprocess.run(
            list(map(str, command)), cwd=self.home, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def lines(self) -> list[int]:
        """Return the lines that the last start executed, in the order of their first time."""
        return list(map(int, (self.home / "lines").read_text().split()))

    @property
    def guard(self) -> BudgetGuard:
        return BudgetGuard.of_log(self.home / "budget" / "spend.jsonl", environ={})

    def booked(self) -> int:
        return len(self.guard.log.books().rentals())

    def results(self) -> list[dict[str, object]]:
        path = self.home / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def pods(self) -> list[str]:
        """Return the names of the pods that run."""
        pods = json.loads((self.home / "vendor" / "pods.json").read_text())
        return [pod["name"] for pod in pods if pod["dying"] is None]

    def all_ended(self) -> bool:
        return self.guard.held == 0.0 and not self.pods()

    def violations(self) -> list[str]:
        """Return what must not be, wherever the loop was killed."""
        guard, found = self.guard, list[str]()
        found += [str(finding) for finding in guard.verify().findings]
        found += [f"{row.scope} is over" for row in guard.standings() if row.remaining.micros < 0]
        named = {hold.rental.name for hold in guard.holds() if hold.rental is not None}
        found += [f"{pod} runs without a hold" for pod in self.pods() if pod not in named]
        labels = [result["label"] for result in self.results()]
        found += [f"{label} has two results" for label in labels if labels.count(label) > 1]
        return found


def kill_at_lines(lab: Lab, lines: Sequence[int], *, while_rented: int) -> list[int]:
    """Kill the loop before each of these lines, one start per line; return those never reached.

    Args:
        lab: Where; every start resumes where the one before was killed.
        lines: Of the loop's file.
        while_rented: A line that is reached with something rented: some others are reached only by
            the start after one that was killed there.
    """
    unreached = [line for line in lines if not _kill_at(lab, line, while_rented)]
    if unreached and lab.results():
        (lab.home / "results.jsonl").unlink()  # some are reached only before there is a result
    return [line for line in unreached if not _kill_at(lab, line, while_rented)]


def _kill_at(lab: Lab, line: int, while_rented: int) -> bool:
    """Return whether the loop was killed before a line, in its next start or in the one after."""
    for before in (None, while_rented):
        if before is not None:
            lab.runs = lab.booked() + 3
            lab.start(kill_at=before)
        lab.runs = lab.booked() + 3
        killed = lab.start(kill_at=line).returncode == -9
        assert not (found := lab.violations()), (line, found)
        if killed:
            return True
    return False


def run_to_end(lab: Lab) -> str:
    """Start the loop with no run left to book; return its output once nothing is rented."""
    lab.runs = lab.booked()
    printed = lab.start().stdout
    until(lab.all_ended, what="the last pod to be gone")
    assert not (found := lab.violations()), found
    return printed
