"""A Slurm of four nodes on this machine: how long it takes to start, and what a sweep adds to jobs.

python benchmarks/cluster.py

The peer of a sweep of twenty runs is an array of twenty jobs that Slurm runs by itself: what outlay
and submitit add is one Python start per job. Both count until the queue is empty. Byte code is
kept, as an installed package has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import Figure, machine, row

from outlay.clock import SYSTEM

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from slurm_cluster import Cluster
from waiting import until

REPEATS = 5
RUNS = 20
MOST = 1.3
"""How many times as long as a bare array a sweep may take."""


def seconds_since(began_ns: int) -> float:
    return (SYSTEM.monotonic_ns() - began_ns) / 1e9


def started(directory: Path) -> tuple[Cluster, float]:
    cluster = Cluster(directory)
    began_ns = SYSTEM.monotonic_ns()
    cluster.start()
    return cluster, seconds_since(began_ns)


def is_empty(cluster: Cluster) -> bool:
    return not cluster.run("squeue", "--noheader").stdout.strip()


def bare_array(cluster: Cluster) -> float:
    began_ns = SYSTEM.monotonic_ns()
    wrapped = f"--wrap=srun {sys.executable} -c pass"
    cluster.run("sbatch", f"--array=0-{RUNS - 1}", "--output=/dev/null", wrapped)
    until(lambda: is_empty(cluster), cluster.explain)
    return seconds_since(began_ns)


def sweep(cluster: Cluster, root: Path, byte_code: Path) -> float:
    grid = {
        "engine": "slurm", "arguments": "none", "entrypoint": [sys.executable, "-c", "pass"],
        "output_dir": str(root / "sweep"), "grid": [{"params": {"x": list(range(RUNS))}}],
    }  # fmt: skip
    path = root / "grid.json"
    path.write_text(json.dumps(grid))
    command = [sys.executable, "-m", "outlay", "sweep", "run", "--yes", "--json", str(path)]
    began_ns = SYSTEM.monotonic_ns()
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(byte_code)}
    environ = os.environ | cluster.environ | kept
    subprocess.run(command, env=environ, check=True, capture_output=True)
    until(lambda: is_empty(cluster), cluster.explain)
    return seconds_since(began_ns)


def main() -> None:
    with tempfile.TemporaryDirectory() as byte_code:
        measure(Path(byte_code))


def measure(byte_code: Path) -> None:
    starts, stops, bare, ours = [], [], [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as directory:
            cluster, took = started(Path(directory) / "cluster")
            starts.append(took)
            bare.append(bare_array(cluster))
            ours.append(sweep(cluster, Path(directory), byte_code))
            began_ns = SYSTEM.monotonic_ns()
            cluster.stop()
            stops.append(seconds_since(began_ns))
    print(f"{machine()}; {REPEATS} clusters of four nodes\n")
    print(f"start  best {min(starts):.2f} s, worst {max(starts):.2f} s (wanted: below 10 s)")
    print(f"stop   best {min(stops):.2f} s, worst {max(stops):.2f} s")
    print(f"{RUNS} jobs as a sweep {min(ours):.1f} s, as a bare array {min(bare):.1f} s, "
          f"ratio {min(ours) / min(bare):.2f}")  # fmt: skip
    peer = Figure("a bare array", min(bare))
    why = "each job starts a second Python, which records and supervises the first"
    row(f"{RUNS} jobs on a cluster", min(ours), peer, unit="s", least=1 / MOST, why=why)
    row("start a cluster of four nodes", max(starts), Figure("the promise", 10), unit="s", least=1)


if __name__ == "__main__":
    main()
