"""What a budgeted run with a million steps behind it takes to start, beside a fresh one.

    python benchmarks/budget_start.py [steps]

Trains empty steps in a directory, kills nothing and closes nothing: the log ends as after
``kill -9``, at the worst place, just before the next statement is due. Then programs are started
that open a budgeted run and leave: in an empty directory, in that one, and in that one without its
statements, which is what every start took before there were any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import timing

from outlay.budget.gate import EVERY
from outlay.ledger import Note, encode_line, segment_paths
from outlay.ledger.codec import decode_block

STEPS = 1_000_000
ROUNDS = 5
LIMIT_S = 0.3

TRAIN = """
import os, sys, outlay
run = outlay.run("bench", dir=sys.argv[1], budget=outlay.iso_tokens(10**15, max_cost_usd=10**6),
                 price="1.5 USD/h")
run.__enter__()
for number in run.steps(range(int(sys.argv[2])), tokens=4096):
    pass
os._exit(0)
"""
START = """
import sys, time
begun = time.perf_counter()
import outlay
with outlay.run("bench", dir=sys.argv[1], budget=outlay.iso_tokens(10**15, max_cost_usd=10**6),
                price="1.5 USD/h") as run:
    took = time.perf_counter() - begun
    assert "numpy" not in sys.modules
    assert run.budget.totals["steps"] == int(sys.argv[2]) or run.resume_step == 0
print(took)
"""


def starts(run_dir: Path, steps: int, rounds: int) -> float:
    """Return the seconds from the import of outlay to an open run, best of the rounds."""
    best = float("inf")
    before = set(segment_paths(run_dir))
    for _ in range(rounds):
        command = [sys.executable, "-c", START, str(run_dir), str(steps)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        best = min(best, float(done.stdout))
        for path in set(segment_paths(run_dir)) - before:
            path.unlink()
    return best


def without_statements(run_dir: Path, copy: Path) -> None:
    """Copy a run, with a note in the place of each statement."""
    shutil.copytree(run_dir, copy)
    for path in segment_paths(copy):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(map(_without_statement, lines)))


def _without_statement(line: bytes) -> bytes:
    if b'"kind":"budget_statement"' not in line:
        return line
    (record,) = decode_block(line).records
    return encode_line(Note(t_ns=record.t_ns), record.seq)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    steps -= steps % EVERY + 300  # So that the last statement lies as far back as it can.
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"OUTLAY_PROGRESS": "0", "OUTLAY_HOME": directory}
        root = Path(directory)
        (root / "fresh" / "ledger").mkdir(parents=True)
        subprocess.run([sys.executable, "-c", TRAIN, root / "long", str(steps)], check=True)
        without_statements(root / "long", root / "unstated")
        fresh, long = (starts(root / name, steps, ROUNDS) for name in ("fresh", "long"))
        unstated = starts(root / "unstated", steps, 1)
    print(timing.machine())
    print(f"starting a budgeted run: {fresh:.3f} s fresh, {long:.3f} s with {steps:,} steps behind")
    print(f"it ({long / fresh:.2f} x), {unstated:.3f} s where all of the log must be read")
    more = long - fresh
    peer = timing.Figure("reading all of its log", unstated - fresh)
    timing.row(f"start after {steps:,} steps, beyond a fresh one", more, peer, unit="s")
    timing.verdict("seconds that a million steps add to a start", more, LIMIT_S)


if __name__ == "__main__":
    main()
