"""A training that commits one step in every start and then waits to be interrupted.

Called with the number of starts after which it is done.
"""

from __future__ import annotations

import itertools
import sys
import threading

import outlay

if __name__ == "__main__":
    starts = int(sys.argv[1])
    with outlay.run("tiny") as run:
        committed = run.dir / "committed"
        for step in run.steps(itertools.count()):
            if step == 0:
                continue
            run.checkpoint_committed(run.step_number - 1)
            done = (committed.read_text() if committed.exists() else "") + "x"
            committed.write_text(done)
            if len(done) == starts:
                break
            threading.Event().wait(600)
