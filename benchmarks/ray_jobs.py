"""A Ray of three nodes on this machine: what a sweep adds to jobs, and what the node's side costs.

python benchmarks/ray_jobs.py

The peer of a sweep of twenty runs is Ray's own client, which submits twenty jobs and never has more
than one of them pending, as outlay does. The other figure is the processor time of the process on
the node beyond that of an empty Python.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from timing import Figure, machine, row

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from outlay.sweep.engines.base import Task
from outlay.sweep.engines.remote.spec_writer import spec_of, write_spec
from ray_cluster import RayCluster, ray_cluster

REPEATS, RUNS, MOST = 3, 20, 1.5
NODE_REPEATS, MOST_NODE_S = 15, 0.15
PROGRAM = [sys.executable, "-c", "pass"]
CLIENT = """
import sys, time
from ray.job_submission import JobStatus, JobSubmissionClient
client, jobs = JobSubmissionClient(sys.argv[1]), []
for _ in range(int(sys.argv[3])):
    jobs.append(client.submit_job(entrypoint=sys.argv[2], entrypoint_num_cpus=1))
    while client.get_job_status(jobs[-1]) == JobStatus.PENDING:
        time.sleep(0.05)
while not all(client.get_job_status(job).is_terminal() for job in jobs):
    time.sleep(0.05)
"""


def timed(command: Sequence[str], **options: object) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, **options)  # type: ignore[call-overload]
    return time.perf_counter() - begun


def own_client(cluster: RayCluster) -> float:
    return timed([sys.executable, "-c", CLIENT, cluster.url, shlex.join(PROGRAM), str(RUNS)])


def sweep(cluster: RayCluster) -> float:
    with tempfile.TemporaryDirectory() as directory:
        grid = {
            "engine": "ray", "ray": {"address": cluster.url}, "arguments": "none",
            "entrypoint": PROGRAM, "output_dir": f"{directory}/sweep",
            "grid": [{"params": {"x": list(range(RUNS))}}],
        }  # fmt: skip
        path = Path(directory) / "grid.json"
        path.write_text(json.dumps(grid))
        command = [sys.executable, "-m", "outlay", "sweep", "run", "--yes", "--json", str(path)]
        return timed(command, env=os.environ | {"OUTLAY_HOME": f"{directory}/home"})


def show_jobs() -> None:
    with ray_cluster() as cluster:
        taken = [(own_client(cluster), sweep(cluster)) for _ in range(REPEATS)]
    bare, ours = (min(each) for each in zip(*taken, strict=True))
    print(f"{RUNS} jobs as a sweep {ours:.1f} s, by Ray's client {bare:.1f} s")
    peer = Figure("Ray's own client", bare)
    row(f"{RUNS} jobs on Ray", ours, peer, unit="s", least=1 / MOST)


def processor_s(command: Sequence[str], **variables: str) -> float:
    """Return the processor time of a command and all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=os.environ | variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def node_side(root: Path, number: int) -> float:
    directory = root / f"r{number}"
    directory.mkdir()
    task = Task(
        name="r", ticket=f"ray/r{number}/0", command=("true",), env={}, cwd=root,
        directory=directory, log=directory / "log",
    )  # fmt: skip
    path = write_spec(spec_of(task, notice_ns=10**9))
    command = [sys.executable, "-m", "outlay.sweep.engines.ray.node", str(path)]
    return processor_s(command, OUTLAY_HOME=str(root / "home"))


def show_node() -> None:
    with tempfile.TemporaryDirectory() as directory:
        taken = [node_side(Path(directory), number) for number in range(NODE_REPEATS)]
    program, empty = (
        min(processor_s(each) for _ in range(NODE_REPEATS)) for each in (["true"], PROGRAM)
    )
    beyond = min(taken) - program - empty
    print(f"the node's side of a job: {beyond:.3f} s of processor time beyond an empty Python")
    promise = Figure("the promise", MOST_NODE_S)
    row("processor time of a job's own process", beyond, promise, unit="s", least=1)


def main() -> None:
    print(f"{machine()}\n")
    show_node()
    show_jobs()


if __name__ == "__main__":
    main()
