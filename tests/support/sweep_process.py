"""A sweep in a process of its own, which is killed; and the end of an engine's task."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from outlay.clock import SYSTEM
from outlay.sweep.engines.base import Ended, Engine, Task
from waiting import PATIENCE_S


@contextlib.contextmanager
def killed_sweep(
    *words: str | Path, environ: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``outlay sweep`` with these words, and kill it when the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "outlay", "sweep", *map(str, words)],
        env=os.environ | environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as harness:  # fmt: skip
        try:
            yield harness
        finally:
            harness.kill()


def end_of(engine: Engine, one: Task) -> Ended:
    """Return how a task ended; fails if it does not."""
    until_ns = SYSTEM.monotonic_ns() + PATIENCE_S * 10**9
    while SYSTEM.monotonic_ns() < until_ns:
        if (outcome := engine.poll(one.ticket)) is not None:
            return outcome
        engine.wait(0.5)
    raise AssertionError(f"it did not end: {engine.standing(one.ticket)}")
