"""An unattended research loop: propose, rent, measure, end, repeat, until a limit is reached.

    python loop.py loop.toml

It may be killed at any line and restarted. It has no state of its own: rentals and spending are in
the spend log, results in ``results.jsonl``. An experiment with a rental and no result is lost; it
counts, and is not repeated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outlay import BudgetGuard

REFUSED = 3


@dataclass(frozen=True)
class Booked:
    """Rentals in the spend log: their number, and their maximum hours."""

    runs: int
    hours: float


def booked(guard: BudgetGuard, day: str = "") -> Booked:
    """Return the rentals of a day or of all days, each with its maximum time."""
    rentals = [hold.rental for hold in guard.log.books().rentals() if hold.rental]
    counted = [rental for rental in rentals if rental.started.startswith(day)]
    spans = [_when(rental.deadline) - _when(rental.started) for rental in counted]
    return Booked(len(counted), sum(span.total_seconds() for span in spans) / 3600)


def _when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def why_stop(guard: BudgetGuard, limits: dict[str, Any]) -> str:
    """Return the limit on runs or hours that the next experiment would exceed, or nothing."""
    now = datetime.now(UTC)  # noqa: TID251 - a user's program, which has no clock of outlay's
    whole, today = booked(guard), booked(guard, now.date().isoformat())
    hours = limits["hours_per_run"]
    for name, used, next_one in (
        ("runs", whole.runs, 1),
        ("runs_per_day", today.runs, 1),
        ("hours", whole.hours, hours),
        ("hours_per_day", today.hours, hours),
    ):
        if used + next_one > limits[name]:
            return f"{name}: {used:g} of {limits[name]:g} booked"
    return ""


def outlay(*words: str) -> subprocess.CompletedProcess[str]:
    """Run an outlay command."""
    command = [sys.executable, "-m", "outlay", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def tidy(log: Path) -> None:
    """End the rentals of an earlier process of this loop; their watchers would do it later."""
    for hold in BudgetGuard.of_log(log).holds():
        if hold.rental is not None:
            outlay("guard", "down", hold.op_label, "--pause", "1s", "--log", str(log))


def propose(results: list[dict[str, Any]]) -> dict[str, float]:
    """Return the next configuration. Put your agent here; this one halves or doubles a rate."""
    measured = [result for result in results if result["loss"] is not None]
    if not measured:
        return {"lr": 0.1}
    best = min(measured, key=lambda result: result["loss"])
    return {"lr": best["config"]["lr"] * (0.5 if len(results) % 2 else 2.0)}


def rent(label: str, settings: dict[str, Any]) -> dict[str, Any] | int:
    """Rent a machine for one experiment; return its hold, or the exit code of a refusal."""
    limits, vendor = settings["limits"], settings["vendor"]
    words = [
        "--label", label, "--limit", limits["dollars_per_run"], "--rate", vendor["rate"],
        "--max-hours", str(limits["hours_per_run"]), "--most-rate", limits["most_rate"],
    ]  # fmt: skip
    for name in ("vendor", "create", "list", "terminate", "poll", "margin"):
        words += [f"--{name}", vendor[name]] if name in vendor else []
    done = outlay("guard", "rent", *words, "--log", settings["log"], "--json")
    return json.loads(done.stdout) if done.returncode == 0 else done.returncode


def measure(
    hold: dict[str, Any], config: dict[str, float], settings: dict[str, Any]
) -> float | None:
    """Run the experiment on the machine; None if it failed or the machine died."""
    environ = {**os.environ, "OUTLAY_HOLD": f"{hold['id']}@{Path(settings['log']).absolute()}"}
    command = [word.format(id=hold["resource"], **config) for word in settings["command"]]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    try:
        return float(json.loads(done.stdout)["loss"]) if done.returncode == 0 else None
    except (ValueError, KeyError, TypeError):
        return None


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return all results, without a torn last line."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line]


def append_result(path: Path, result: dict[str, Any]) -> None:
    """Append one result and fsync; first remove a torn last line."""
    with path.open("ab+") as file:
        file.seek(0)
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)
        file.write(json.dumps(result).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def main() -> int:
    """Loop until a limit is reached; return 0 then, or 1 if renting keeps failing."""
    settings = tomllib.loads(Path(sys.argv[1]).read_text())
    log, results, failures = Path(settings["log"]), Path(settings["results"]), 0
    tidy(log)
    while failures < settings["failures"]:
        guard = BudgetGuard.of_log(log)
        if why := why_stop(guard, settings["limits"]):
            print(f"stopping: {why}")
            return 0
        label = f"{settings['project']}-{booked(guard).runs:04d}"
        config = propose(read_results(results))
        hold = rent(label, settings)
        if hold == REFUSED:
            print("stopping: the guard refused")
            return 0
        if isinstance(hold, int):
            failures += 1
            time.sleep(settings["pause_s"])  # noqa: TID251
            continue
        loss = measure(hold, config, settings)
        append_result(results, {"label": label, "config": config, "loss": loss})
        outlay("guard", "down", label, "--pause", "1s", "--log", str(log))
    print("stopping: renting keeps failing")
    return 1


if __name__ == "__main__":
    sys.exit(main())
