"""What a large run costs to record and to read: 1,024 ranks of 100,000 steps, simulated.

Run: python benchmarks/scale.py

A log of that shape is 14 GB, so one of 1/16 of its ranks is written, with halves and quarters of it
beside, and how figures grow from one to the next is printed. What is extrapolated is marked so.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import account
import timing

RANKS, STEPS, PART = 1024, 100_000, 16
SHAPES = (RANKS // PART // 4, RANKS // PART // 2, RANKS // PART)


def measure(run_dir: Path) -> dict[str, float]:
    """Return what one cold reading takes: seconds of processor, and peak memory in MB."""
    from outlay.clock import SYSTEM
    from outlay.goodput.follower import read_view, summarise

    before = time.process_time()
    summarise(read_view(run_dir, SYSTEM.wall_ns()))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": time.process_time() - before, "peak_mb": peak_mb}


def recording() -> tuple[float, float]:
    """Return microseconds of processor and bytes that recording one step takes."""
    import outlay

    steps = 50_000
    with tempfile.TemporaryDirectory() as folder:
        with outlay.run("bench", dir=folder) as run:
            before = time.process_time()
            for _ in run.steps(range(steps), tokens=4096):
                pass
            spent_s = time.process_time() - before
        size = sum(path.stat().st_size for path in Path(folder, "ledger").glob("*.jsonl"))
    return spent_s / steps * 1e6, size / steps


def main() -> None:
    """Write the logs, read each in a process of its own, and say how the figures grow."""
    step_us, step_bytes = recording()
    whole = RANKS * STEPS
    print(f"{timing.machine()}\n\nrecording: {step_us:.1f} us and {step_bytes:.0f} bytes a step")
    print(f"{RANKS} ranks of {STEPS:,} steps: {whole * step_bytes / 1e9:.1f} GB (extrapolated)\n")
    print("| ranks | GB | seconds of processor | peak MB |\n|---:|---:|---:|---:|")
    found = {}
    for ranks in SHAPES:
        with tempfile.TemporaryDirectory(prefix="outlay-scale-") as folder:
            run_dir = Path(folder) / "run"
            account.write_run(run_dir, ranks, STEPS)
            size = sum(path.stat().st_size for path in (run_dir / "ledger").iterdir())
            command = [sys.executable, __file__, "measure", str(run_dir)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[ranks] = json.loads(done.stdout)
        cpu_s, peak_mb = found[ranks]["cpu_s"], found[ranks]["peak_mb"]
        print(f"| {ranks} | {size / 1e9:.2f} | {cpu_s:.1f} | {peak_mb:.0f} |", flush=True)
    last, half = found[SHAPES[-1]], found[SHAPES[-2]]
    grown = {name: last[name] - half[name] for name in last}
    rest = (RANKS - SHAPES[-1]) / (SHAPES[-1] - SHAPES[-2])
    for name, unit in (("cpu_s", "s of processor"), ("peak_mb", "MB at its peak")):
        print(f"\n{RANKS} ranks (extrapolated): {last[name] + rest * grown[name]:,.0f} {unit}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
    else:
        main()
