"""The process on the node of a Ray job: ``python -m outlay.sweep.engines.ray.node SPEC``.

Ray does not dependably end what it started. A second process therefore waits for this one and ends
what it leaves. Every job loads this, so that it imports little.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outlay.proc.identity import end_marked
from outlay.sweep.engines.remote.job_run import JobRun
from outlay.sweep.engines.remote.job_spec import read_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAllocation:
    """The node of a job, which has one and is never started again under its name."""

    job: str
    node: str
    restart: int = 0
    rank: int = 0

    def variables(self) -> dict[str, str]:
        """Return the variable that names the signal before the end."""
        return {"OUTLAY_NOTICE": "SIGUSR2"}

    def is_running(self) -> bool:
        """Return False: Ray signals only what is to end."""
        return False

    def requeue(self) -> bool:
        """Return False: Ray starts nothing again."""
        return False

    def rename(self, title: str) -> subprocess.Popen[bytes] | None:
        """Do nothing: a job's name is its own from the start."""
        del title
        return None


@contextmanager
def ending_leftovers(mark: str) -> Iterator[None]:
    """Have all processes with a mark ended when this process dies, however it does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:  # Not a descendant, so that it is not ended like one.
            os.close(writing)
            if not os.read(reading, 1):  # The other end was closed by the end of its process.
                end_marked(mark)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(reading)
    yield
    os.write(writing, b".")


def main() -> None:
    """Run the spec that the first argument names."""
    spec = read_spec(Path(sys.argv[1]))
    job = os.environ.get("RAY_JOB_SUBMISSION_ID", spec.title)
    with ending_leftovers(f"{spec.ticket}/"):
        code = JobRun(spec, RayAllocation(job=job, node=socket.gethostname())).run()
    sys.exit(code)


if __name__ == "__main__":
    main()
