"""A training that is killed, or loses its machine, on its first start and ends well on its second.

Called with what happens to it: ``plain``, ``kill`` or ``preempt``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import outlay

if __name__ == "__main__":
    with outlay.run("tiny") as run:
        started = run.dir / "started"
        first = not started.exists()
        started.touch()
        for batch in run.steps(range(6), tokens=100):
            threading.Event().wait(0.02)
            if first and batch == 3 and sys.argv[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if first and batch == 3 and sys.argv[1] == "preempt":
                run.preempted("spot reclaim")
                break
