"""The process on each node of a Slurm job: ``python -m outlay.sweep.engines.slurm.job LIST``.

Every job loads this, so that it imports little.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.slurm import SlurmJob, queued_jobs, requeue_job, start_rename
from outlay.sweep.engines.remote.job_run import JobAllocation, JobRun
from outlay.sweep.engines.remote.job_spec import read_spec_list

_TRIES = 5
_BETWEEN_TRIES_S = 2.0


class SlurmAllocation(JobAllocation):
    """One node's view of a Slurm job; its ``number`` is Slurm's ``JobIDRaw``."""

    __slots__ = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SlurmAllocation:
        """Return the allocation in the environment of a Slurm task."""
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

    def is_running(self) -> bool:
        """Say whether Slurm reports the job as running, not as cancelled or over.

        A controller that does not answer may be restarting, and is asked again.
        """
        for _ in range(_TRIES):
            queue = queued_jobs(self.job)
            if queue is not None:
                return (self.job, "RUNNING") in [(one.job, one.state) for one in queue]
            SYSTEM.sleep(_BETWEEN_TRIES_S)
        return False

    def requeue(self) -> bool:
        """Requeue the job; False if Slurm refuses."""
        for _ in range(_TRIES):
            if requeue_job(self.job):
                return True
            SYSTEM.sleep(_BETWEEN_TRIES_S)
        return False

    def rename(self, title: str) -> subprocess.Popen[bytes] | None:
        """Start to give an array task its own name in the queue.

        An array has one name; renaming its pending tasks would make Slurm split the array.
        """
        known = title == os.environ.get("SLURM_JOB_NAME")
        return None if known else start_rename(self.job, title)


def _address(environ: Mapping[str, str]) -> str:
    """Return the first node's name, or its IP address where the name cannot be resolved."""
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    import socket

    import submitit

    first = submitit.JobEnvironment().hostnames[0]
    try:
        socket.getaddrinfo(first, None)
    except OSError:
        # srun was called on the first node, by the job script.
        return environ.get("SLURM_LAUNCH_NODE_IPADDR", first)
    return first


def main() -> None:
    """Run this array task's spec, from the list that the first argument names."""
    index = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    spec = read_spec_list(Path(sys.argv[1]), index)
    sys.exit(JobRun(spec, SlurmAllocation.of(os.environ)).run())


if __name__ == "__main__":
    main()
