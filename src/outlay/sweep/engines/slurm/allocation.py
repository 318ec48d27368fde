"""Where a job finds itself: its number, its node, and where its processes meet."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.record.slurm import SlurmJob
from outlay.sweep.engines.ports import RANGE

_TRIES = 5
_BETWEEN_TRIES_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One node's view of a job.

    Attributes:
        job: Its identity, by which Slurm is asked about this task of an array alone.
        number: Slurm's raw number of it.
        restart: How often Slurm had started it before.
        rank: Which of its nodes this is, from 0.
        address: Where the first node is reached.
    """

    job: str
    number: int
    restart: int
    rank: int
    nodes: int
    node: str
    address: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Allocation:
        """Return what Slurm says in the environment of a task."""
        job = SlurmJob.of(environ)
        if job is None:
            raise InvalidValue("SLURM_JOB_ID", "", "a job of Slurm, which starts this by itself")
        return cls(
            job=job.id,
            number=int(job.raw),
            restart=job.restart,
            rank=int(environ.get("SLURM_PROCID", "0")),
            nodes=int(environ.get("SLURM_JOB_NUM_NODES", "1")),
            node=environ.get("SLURMD_NODENAME", ""),
            address=_address(environ),
        )

    @property
    def first(self) -> bool:
        """Whether this is the node that keeps the books."""
        return self.rank == 0

    @property
    def port(self) -> int:
        """Where the job's processes meet: of its own for every job and every start."""
        return rendezvous_port(self.number, self.restart)

    def variables(self) -> dict[str, str]:
        """Return what tells torchrun, and programs without it, where they are and where to meet."""
        port = str(self.port)
        return {
            "MASTER_ADDR": self.address, "MASTER_PORT": port, "NODE_RANK": str(self.rank),
            "PET_NNODES": str(self.nodes), "PET_NODE_RANK": str(self.rank),
            "PET_MASTER_ADDR": self.address, "PET_MASTER_PORT": port, "OUTLAY_NOTICE": "SIGUSR2",
        }  # fmt: skip

    def is_running(self) -> bool:
        """Say whether Slurm counts the job as running, not as cancelled or over."""
        command = ["squeue", "--noheader", f"--jobs={self.job}", "--format=%i %T"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        return [self.job, "RUNNING"] in [line.split() for line in asked.stdout.splitlines()]

    def rename(self, title: str) -> subprocess.Popen[bytes]:
        """Begin to give the job another name in the queue; nobody need wait for that."""
        command = ["scontrol", "update", f"jobid={self.job}", f"jobname={title}"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)

    def requeue(self) -> bool:
        """Put the job back into the queue; False when Slurm will not."""
        for _ in range(_TRIES):
            command = ["scontrol", "requeue", self.job]
            asked = subprocess.run(command, check=False)
            if asked.returncode == 0:
                return True
            SYSTEM.sleep(_BETWEEN_TRIES_S)
        return False


def rendezvous_port(job: int, restart: int) -> int:
    """Return the port of a job's start: jobs that follow each other get ports that do."""
    return RANGE.start + (job + 97 * restart) % len(RANGE)


def node_log(log: Path, rank: int) -> Path:
    """Return where a node's output goes: nodes never write into one file."""
    return log if rank == 0 else log.with_name(f"{log.stem}.node{rank}{log.suffix}")


def _address(environ: Mapping[str, str]) -> str:
    """Return the first node's name, where names can be looked up, or its address."""
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    import socket

    import submitit

    first = submitit.JobEnvironment().hostnames[0]
    try:
        socket.getaddrinfo(first, None)
    except OSError:
        # The task was started from the first node, by the script that Slurm runs there.
        return environ.get("SLURM_LAUNCH_NODE_IPADDR", first)
    return first
