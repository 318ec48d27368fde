"""A training under a budget of tokens, which goes on from what it saved.

Called with what to learn and how long a step takes on the first start. Later ones do not pause, so
that a test has its time to interrupt the first. The metric depends on what to learn alone.
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
        going = run.dir / "going"
        pause_s = 0 if going.exists() else pause_s
        for _ in run.steps(itertools.count(), tokens=100):
            if run.step_number:  # Before the pause: a kill then repeats no step.
                run.checkpoint_committed(run.step_number - 1)
            going.touch()
            threading.Event().wait(pause_s)
        run.metric("accuracy", 1 / x)
