"""What listing 10,000 runs adds to a command, and what the command takes where there is none.

The runs have ended, each with a log of its own: a listing answers from the store and opens none of
them. What a command takes on an empty home is compared with importing the libraries that it uses.
Run: python benchmarks/listing.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timing import Figure, compare, machine, row, verdict

from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    Price,
    RunIdentity,
    SegmentId,
    claim_identity,
    encode_line,
    ledger_dir,
)

RUNS, MODELS, ROUNDS = 10_000, 20, 5
MORE_S, TIMES_IMPORTS = 0.3, 2.0
EVERY_ROW = "--all decodes and prints every row, about 60 us each; the list shows 50, and holds"
START_NS, HOUR_NS = 1_700_000_000_000_000_000, 3600 * 10**9
COMMANDS = ("runs", "runs --all", "runs --all --json", "cost summary")
OUTLAY = "import sys; sys.argv[0] = 'outlay'; from outlay.cli import main; main()"
IMPORTS = "import typer, rich, sqlalchemy"


def write_run(run_dir: Path, number: int) -> None:
    begun_ns = START_NS + number * HOUR_NS
    name = f"run-{number:05d}"
    claim_identity(run_dir, RunIdentity(run_id=name, model="m", name=name, created_ns=begun_ns))
    header = AttemptStarted(
        t_ns=begun_ns, run_id=name, model=f"model-{number % MODELS}", name=name,
        user=f"user-{number % 7}", tags={"team": "nlp"}, gpus=8,
        price=Price(micros_per_hour=1_500_000, currency="USD"),
    )  # fmt: skip
    end = AttemptEnded(t_ns=begun_ns + HOUR_NS, status="completed")
    path = ledger_dir(run_dir) / SegmentId(begun_ns, host="node", pid=1).file_name
    path.write_bytes(encode_line(header, 0) + encode_line(end, 1))


def command(words: str, home: Path) -> Callable[[], object]:
    environment = os.environ | {"OUTLAY_HOME": str(home)}
    called = [sys.executable, "-c", OUTLAY, *words.split()]
    return lambda: subprocess.run(
        called, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def fill(home: Path, runs: Path) -> float:
    """Register runs and derive their reports; return how long that took, in seconds."""
    for number in range(RUNS):
        write_run(runs / f"{number:05d}", number)
    begun = time.perf_counter()
    command(f"collect {runs}", home)()
    command("cost summary", home)()
    return time.perf_counter() - begun


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        empty, full = Path(name) / "empty", Path(name) / "full"
        filled_s = fill(full, Path(name) / "runs")
        imported = [sys.executable, "-c", IMPORTS]
        works: dict[str, Callable[[], object]] = {
            "imports": lambda: subprocess.run(imported, check=True)
        }
        works |= {f"{words}, none": command(words, empty) for words in COMMANDS}
        works |= {f"{words}, all": command(words, full) for words in COMMANDS}
        seconds = {each.name: each.seconds for each in compare(works, calls=1, rounds=ROUNDS)}
    print(f"{machine()}\n{RUNS:,} runs, read once in {filled_s:.1f} s; best of {ROUNDS}")
    imports = seconds["imports"]
    print(f'python -c "{IMPORTS}": {imports * 1e3:.0f} ms')
    for words in COMMANDS:
        none, every = seconds[f"{words}, none"], seconds[f"{words}, all"]
        what = f"outlay {words}"
        peer = Figure("importing typer, rich, sqlalchemy", imports * 1e3)
        row(f"{what}, no runs", none * 1e3, peer, unit="ms", least=1 / TIMES_IMPORTS)
        row(f"{what}, {RUNS:,} runs", every * 1e3, Figure("no runs", none * 1e3), unit="ms")
        verdict(f"{what}, no runs, in imports of its libraries", none / imports, TIMES_IMPORTS)
        why = EVERY_ROW if "--all" in words else ""
        verdict(f"{what}, {RUNS:,} runs, seconds more than none", every - none, MORE_S, why=why)


if __name__ == "__main__":
    main()
