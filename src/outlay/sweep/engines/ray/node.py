"""The process on the node of a Ray job: ``python -m outlay.sweep.engines.ray.node SPEC``.

Ray does not dependably end what it started. A second process therefore waits for this one and ends
what it leaves. Every job loads this, so that it imports little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from zlib import crc32

from outlay.proc.identity import end_marked
from outlay.sweep.engines.remote.job_run import JobAllocation, JobRun
from outlay.sweep.engines.remote.job_spec import read_spec


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
    here = JobAllocation(job=spec.title, number=crc32(spec.title.encode()), node=gethostname())
    with ending_leftovers(f"{spec.ticket}/"):
        code = JobRun(spec, here).run()
    sys.exit(code)


if __name__ == "__main__":
    main()
