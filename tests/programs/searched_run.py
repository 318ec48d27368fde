"""A training that a search compares: its loss is a known function of its arguments and tokens.

Arguments: the loss in the end, and what it does otherwise: ``plain``; ``slow`` takes a second for
each step; ``unsaved`` commits no checkpoint; ``silent`` records no loss; ``fails``.
"""

from __future__ import annotations

import itertools
import sys

import outlay
from outlay.clock import SYSTEM

final, kind = float(sys.argv[1]), sys.argv[2]
with outlay.run("searched") as run:
    done = 0
    for step in run.steps(itertools.count(run.resume_step), tokens=10):
        done = step + 1
        if kind == "slow":
            SYSTEM.sleep(1)
        if kind != "silent":
            run.metric("loss", final + 1 / (1 + done), step)
        if kind == "fails":
            sys.exit(3)
    if kind != "unsaved" and done:
        run.checkpoint_committed(done - 1)
