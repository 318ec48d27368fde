"""What the bookkeeping itself costs a step, measured on this machine."""

from __future__ import annotations

from pathlib import Path

import outlay
from outlay.clock import SYSTEM, Clock

STEPS = 5_000
ROUNDS = 5


def recording_ns_per_step(directory: Path, clock: Clock = SYSTEM) -> int:
    """Return how much longer an empty loop takes when its steps are recorded; the best of five."""
    with outlay.run("overhead", dir=directory) as run:
        recorded = min(_loop_ns(run, clock) for _ in range(ROUNDS))
    bare = min(_bare_loop_ns(clock) for _ in range(ROUNDS))
    return (recorded - bare) // STEPS


def _loop_ns(run: outlay.Run, clock: Clock) -> int:
    begun_ns = clock.monotonic_ns()
    for _ in run.steps(range(STEPS)):
        pass
    return clock.monotonic_ns() - begun_ns


def _bare_loop_ns(clock: Clock) -> int:
    begun_ns = clock.monotonic_ns()
    for _ in range(STEPS):
        pass
    return clock.monotonic_ns() - begun_ns
