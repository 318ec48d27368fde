"""How long a command outlives whoever watches over it: supervisor or keeper killed with SIGKILL.

Run: python benchmarks/keeper_kills.py

Each case is a real `outlay guard run` or `outlay sweep run` of a command that sleeps. One of the
processes above it is killed, and the clock runs until the command is gone. Beside it, what a plain
`subprocess.run` in a script does: its command outlives it. Exits with 1 where 3 s are not kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timing

from outlay.clock import SYSTEM
from outlay.proc.identity import all_processes, below, command_line, is_alive, read_process

LIMIT_S, GIVE_UP_S, ROUNDS = 3.0, 20.0, 3
COMMAND = (
    "import os, signal, sys, time\n"
    "if sys.argv[2] == 'deaf': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if sys.argv[2] == 'daemon' and os.fork(): time.sleep(60)\n"
    "if sys.argv[2] == 'daemon': os.setsid()\n"
    "if sys.argv[2] == 'daemon' and os.fork(): os._exit(0)\n"
    "open(sys.argv[1] + '.draft', 'w').write(str(os.getpid()))\n"
    "os.replace(sys.argv[1] + '.draft', sys.argv[1])\n"
    "time.sleep(60)\n"
)


def until(met: Callable[[], bool]) -> float:
    """Return how many seconds it takes until something is so; infinite where it never is."""
    begun = time.perf_counter()
    while not met():
        if time.perf_counter() - begun > GIVE_UP_S:
            return float("inf")
        SYSTEM.sleep(0.005)
    return time.perf_counter() - begun


def keeper_below(pid: int) -> int:
    found = below(all_processes(), [pid])
    return next(p for p in found if any("keeper_process" in word for word in command_line(p)))


def words_of(door: str, directory: Path, command: list[str]) -> list[str]:
    """Return how a command is started through a door."""
    if door == "script":
        return ["-c", f"import subprocess; subprocess.run({command!r})"]
    if door == "guard run":
        return [
            "-m", "outlay", "guard", "run", "--label", "x", "--rate", "1 USD/h", "--ceiling", "9",
            "--log", str(directory / "spend.jsonl"), "--dir", str(directory / "run"), "--",
            *command,
        ]  # fmt: skip
    grid = {"engine": "process", "arguments": "none", "entrypoint": command, "timeout": "1m",
            "grid": [{"params": {"x": [1]}}]}  # fmt: skip
    (directory / "grid.json").write_text(json.dumps(grid))
    grid_file, root = str(directory / "grid.json"), str(directory / "sweep")
    return ["-m", "outlay", "sweep", "run", grid_file, "--yes", "--output-dir", root, "--json"]


def measure(door: str, killed: str, how: str) -> float:
    """Return how long the command lives after one of those above it was killed."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ready, environ = directory / "ready", os.environ | {"OUTLAY_HOME": f"{name}/home"}
        words = words_of(door, directory, [sys.executable, "-c", COMMAND, str(ready), how])
        above = subprocess.Popen(
            [sys.executable, *words], env=environ, cwd=name, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            until(ready.exists)
            command = read_process(int(ready.read_text()))
            assert command is not None
            victim = above.pid if killed == "supervisor" else keeper_below(above.pid)
            os.kill(victim, signal.SIGKILL)
            taken = until(lambda: not is_alive(command.pid, command.start))
            if taken > GIVE_UP_S:
                os.kill(command.pid, signal.SIGKILL)
        finally:
            above.kill()
            above.wait()
        return taken


def main() -> int:
    print(timing.machine())
    worst = 0.0
    for door, killed, how in (
        ("guard run", "supervisor", "plain"),
        ("guard run", "supervisor", "deaf"),
        ("guard run", "supervisor", "daemon"),
        ("sweep run", "supervisor", "plain"),
        ("sweep run", "supervisor", "deaf"),
        ("sweep run", "keeper", "plain"),
        ("sweep run", "keeper", "deaf"),
    ):
        taken = max(measure(door, killed, how) for _ in range(ROUNDS))
        worst = max(worst, taken)
        print(f"{door}, {killed} killed, {how} command: gone after {taken:.2f} s at the latest")
    alone = measure("script", "supervisor", "plain")
    shown = f"after {alone:.2f} s" if alone < GIVE_UP_S else f"not gone after {GIVE_UP_S:g} s"
    print(f"a script with subprocess.run, killed: its command is {shown}")
    timing.verdict("a killed supervisor's or keeper's command is gone, in s", worst, LIMIT_S)
    return int(worst > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
