"""The unattended loop of ``examples/agent_loop``, killed at its lines, with pods that die."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vendor_stand_in
from command_line import in_process
from outlay.guard.budget_guard import BudgetGuard
from papers import ROOT
from waiting import until

LOOP = ROOT / "examples" / "agent_loop" / "loop.py"
# Runs the loop, and kills it with SIGKILL before its n-th line; 0 lets it live.
KILLED = """
import os, runpy, signal, sys
path, stop = sys.argv.pop(1), int(sys.argv.pop(1))
count = 0
def line(frame, event, argument):
    global count
    count += event == "line"
    if count == stop:
        os.kill(os.getpid(), signal.SIGKILL)
    return line
def call(frame, event, argument):
    return line if frame.f_code.co_filename == path else None
sys.settrace(call if stop else None)
sys.argv = [path, *sys.argv[1:]]
runpy.run_path(path, run_name="__main__")
"""
# Every second experiment dies with its pod.
EXPERIMENT = """
import json, pathlib, sys
seen, lr = pathlib.Path(sys.argv[1]), float(sys.argv[2])
with seen.open("a") as file:
    file.write("x")
if len(seen.read_text()) % 2 == 0:
    (seen.parent / "vendor" / "pods.json").write_text("[]")
    sys.exit(1)
print(json.dumps({"loss": abs(lr - 0.05)}))
"""
SETTINGS = """
project = "lab01"
log = "{home}/budget/spend.jsonl"
results = "{home}/results.jsonl"
failures = 3
pause_s = 0
command = ["{python}", "{home}/experiment.py", "{home}/seen", "{{lr}}"]
[limits]
runs = {runs}
runs_per_day = 100
hours = 10
hours_per_day = {hours_per_day}
hours_per_run = 0.5
dollars_per_run = "1 USD"
most_rate = "1.90 USD/h"
[vendor]
rate = "1.80 USD/h"
poll = "200ms"
margin = "1s"
create = "{vendor} create {{name}}"
list = "{vendor} list"
terminate = "{vendor} terminate {{id}}"
"""


class Lab:
    def __init__(self, home: Path, *, runs: int, hours_per_day: float, day_usd: str) -> None:
        self.home = home
        (home / "vendor").mkdir()
        (home / "experiment.py").write_text(EXPERIMENT)
        vendor = f"{sys.executable} -S -E {vendor_stand_in.__file__} {home / 'vendor'}"
        text = SETTINGS.format(
            home=home, python=sys.executable, vendor=vendor, runs=runs, hours_per_day=hours_per_day
        )
        (home / "loop.toml").write_text(text)
        done = in_process(
            "guard", "init", home / "budget", "--ceiling", "20", "--lab", "01=15", "--buffer", "5",
            "--day", day_usd,
        )  # fmt: skip
        assert done.code == 0, done.err

    def start(self, *, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(LOOP), str(kill_at), "loop.toml"]
        return subprocess.run(
            command, cwd=self.home, capture_output=True, text=True, check=False, timeout=300
        )

    @property
    def guard(self) -> BudgetGuard:
        return BudgetGuard.of_log(self.home / "budget" / "spend.jsonl", environ={})

    def results(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.home / "results.jsonl").read_text().splitlines()]

    def all_ended(self) -> bool:
        pods = (self.home / "vendor" / "pods.json").read_text()
        return self.guard.held == 0.0 and '"dying": null' not in pods


def test_killed_at_any_line_it_keeps_its_ceilings_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, runs=4, hours_per_day=10, day_usd="10")
    for line in (1, 30, 75, 110, 140):
        assert lab.start(kill_at=line).returncode == -9
    assert lab.start().stdout == "stopping: runs: 4 of 4 booked\n"
    until(lab.all_ended, what="the last pod to be gone")
    labels = [result["label"] for result in lab.results()]
    assert len(labels) == len(set(labels)) <= 4
    assert any(result["loss"] is not None for result in lab.results())
    assert 0 < lab.guard.total_spent < 4
    assert lab.guard.verify().sound


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
    lab = Lab(tmp_path, runs=100, hours_per_day=hours_per_day, day_usd=day_usd)
    done = lab.start()
    assert (done.returncode, done.stdout) == (0, reason)
