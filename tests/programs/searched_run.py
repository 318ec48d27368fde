"""A training that a search compares: its loss is a known function of its parameters and tokens.

Arguments: the loss in the end, the speed at which it gets there, and what it does otherwise:
``plain``; ``unsaved`` commits no checkpoint; ``silent`` records no loss; ``fails``.
"""

from __future__ import annotations

import itertools
import sys

import outlay

final, speed, kind = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
with outlay.run("searched") as run:
    done = 0
    for step in run.steps(itertools.count(run.resume_step), tokens=10):
        done = step + 1
        if kind != "silent":
            run.metric("loss", final + 1 / (1 + speed * done), step)
        if kind == "fails" and done == 3:
            sys.exit(3)
    if kind != "unsaved" and done:
        run.checkpoint_committed(done - 1)
