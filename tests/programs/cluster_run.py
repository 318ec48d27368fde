"""A training of short steps under a budget of tokens, which goes on from what it saved.

Called with what to learn and how long a step takes. The metric depends on the first alone.
"""

from __future__ import annotations

import itertools
import sys
import threading

import outlay

if __name__ == "__main__":
    x, pause_s = float(sys.argv[1]), float(sys.argv[2])
    with outlay.run("tiny") as run:
        run.on_preemption(run.checkpoint_committed)
        for _ in run.steps(itertools.count(), tokens=100):
            threading.Event().wait(pause_s)
            if run.step_number % 10 == 0:
                run.checkpoint_committed(run.step_number - 1)
            (run.dir / "going").touch()
        run.metric("accuracy", 1 / x)
