"""What other questions about a run cost beside its goodput: whole commands, each cold.

Run: python benchmarks/account.py

A budgeted run of a million steps with metrics, and one of 64 ranks; its report, cost, budget and
advice are asked for in processes of their own. All of them read the log once, so that the report
may take little more than the goodput that is a part of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import timing

from outlay.clock import SYSTEM
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    CheckpointCommitted,
    KnownRecord,
    Metric,
    Price,
    SegmentId,
    Step,
    encode_line,
    ledger_dir,
)

STEP_NS = 1_100_000_000
ROUNDS = 3
METRIC_EVERY, CHECKPOINT_EVERY = 100, 10_000
COMMANDS = {
    "report": ("report", "--html"),
    "cost": ("cost", "show"),
    "budget": ("budget", "show"),
    "advise": ("advise",),
}


def records(start_ns: int, steps: int, *, leading: bool) -> Iterator[KnownRecord]:
    """Yield what one rank of a budgeted run records after its header."""
    if leading:
        terms = {"mode": "iso_tokens", "limits": {"max_tokens": 10**13}, "charge": "training"}
        yield BudgetEvent(t_ns=start_ns, event="set", data=terms)
    for number in range(steps):
        t_ns = start_ns + (number + 1) * STEP_NS
        took_ns = STEP_NS - number * 7919 % 100_000_000
        yield Step(t_ns=t_ns, step=number, dur_ns=took_ns, wait_ns=1_000_000, tokens=4096)
        if leading and number % METRIC_EVERY == 0:
            loss = 2 + 8 / (1 + number) ** 0.3
            yield Metric(t_ns=t_ns, name="loss", value=loss, step=number)
        if leading and number % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            yield CheckpointCommitted(t_ns=t_ns, step=number)
    yield AttemptEnded(t_ns=start_ns + (steps + 1) * STEP_NS, status="completed")


def write_run(run_dir: Path, ranks: int, steps: int) -> None:
    """Write the log of a run that has ended."""
    start_ns = SYSTEM.wall_ns() - (steps + 10) * STEP_NS
    ledger_dir(run_dir).mkdir(parents=True)
    for rank in range(ranks):
        segment = SegmentId(start_ns, rank, "bench", 1000 + rank)
        header = AttemptStarted(
            t_ns=start_ns, rank=rank, world_size=ranks, pid=1000 + rank, host="bench",
            gpus=ranks, price=Price(2_500_000), launch="bench",
        )  # fmt: skip
        with (ledger_dir(run_dir) / segment.file_name).open("wb") as stream:
            stream.write(encode_line(header, 0))
            for seq, record in enumerate(records(start_ns, steps, leading=rank == 0), start=1):
                stream.write(encode_line(record, seq))


def command_s(home: Path, *arguments: str) -> float:
    """Return the shortest time that a command took, in seconds."""
    environment = os.environ | {"OUTLAY_HOME": str(home)}

    def call() -> None:
        command = [sys.executable, "-m", "outlay", *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    return timing.best_s(call, rounds=ROUNDS)


def measure(folder: Path, title: str, ranks: int, steps: int, least: float) -> None:
    """Print what each command takes beside goodput."""
    run_dir = folder / f"{ranks}x{steps}"
    write_run(run_dir, ranks, steps)
    goodput_s = command_s(folder, "goodput", "show", str(run_dir))
    print(f"\n### {title}\n\n{timing.machine()}\n\ngoodput: {goodput_s:.2f} s")
    for name, (command, *options) in COMMANDS.items():
        seconds = command_s(folder, command, *options[:1], str(run_dir), *options[1:])
        print(f"{name}: {seconds:.2f} s, {seconds / goodput_s:.2f} times goodput")
        peer = timing.Figure("outlay goodput", goodput_s * 1e3)
        asked = 1 / least if name == "report" else None
        timing.row(f"{name}, {title}", seconds * 1e3, peer, unit="ms", least=asked)


def main() -> None:
    """Measure both shapes."""
    with tempfile.TemporaryDirectory(prefix="outlay-bench-") as name:
        folder = Path(name)
        measure(folder, "1,000,000 steps, budgeted, with metrics", 1, 1_000_000, 2.5)
        measure(folder, "64 ranks of 20,000 steps", 64, 20_000, 2.5)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write_run(Path(sys.argv[2]), *json.loads(sys.argv[3]))
    else:
        main()
