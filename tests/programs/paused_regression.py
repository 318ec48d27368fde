"""Linear regression by SGD that saves when it is told to end, and goes on from there.

Arguments: its directory, the number of steps, and how many starts go slowly: these wait to be
paused, and every later one runs to the end. If two of them run at once, the second says so.
"""

import fcntl
import os
import sys
from pathlib import Path

import numpy as np

import outlay
from outlay.clock import SYSTEM

directory, steps, slow_starts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
directory.mkdir(exist_ok=True)
lock = (directory / "lock").open("w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (directory / "doubled").touch()
    sys.exit(7)
(directory / "pid").write_text(str(os.getpid()))
state = directory / "state.npz"
weights, start = np.zeros(8), 0
if state.exists():
    with np.load(state) as saved:
        weights, start = saved["weights"], int(saved["step"])
starts = len(list(directory.glob("start-*")))
(directory / f"start-{starts}").touch()

with outlay.run("regression") as run:

    def save() -> None:
        if starts < min(1, slow_starts):  # A start beside it would be seen.
            SYSTEM.sleep(1.5)
        part = directory / "part.npz"
        np.savez(part, weights=weights, step=done)
        part.replace(state)
        run.checkpoint_committed(done - 1)

    done = start
    run.on_stop(save)
    for step in run.steps(range(start, steps), tokens=64, start=start):
        random = np.random.default_rng(step)
        x = random.normal(size=(64, 8))
        y = x @ np.arange(8.0) + random.normal(size=64)
        weights = weights - 0.01 * x.T @ (x @ weights - y) / 64
        done = step + 1
        if starts < slow_starts:
            (directory / f"stepped-{starts}").touch()
            # It is paused long before the last step, however late the pause is.
            SYSTEM.sleep(0.05 if done < steps // 2 else 1)
        elif done % 50 == 0:
            save()
if done == steps:
    np.save(directory / "final.npy", weights)
