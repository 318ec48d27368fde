"""What `BudgetGuard.authorize` costs, against one write and fsync, and in the log's length.

Run: python benchmarks/guard_authorize.py
Each figure is the best of several medians, taken in turn in one run on one file system.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import timing

from outlay.guard.budget_guard import BudgetGuard

REPEATS, CALLS = 5, 200
LINE_BYTES = 400
LENGTHS = (0, 1_000, 10_000)


def medians_us(calls: list[Callable[[], object]]) -> list[float]:
    """Time the calls in turn, so that what else the disk does falls on all of them alike."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(CALLS):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) * 1e6 for taken in times]


def appender(path: Path) -> Callable[[], None]:
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    line = b"x" * (LINE_BYTES - 1) + b"\n"

    def append() -> None:
        os.write(file, line)
        os.fsync(file)

    return append


def guard_after(path: Path, lines: int) -> BudgetGuard:
    """Return a guard that already keeps the fold of a log of that length."""
    guard = BudgetGuard(10**9, path, environ={})
    with mock.patch("os.fsync"):  # only for filling the log
        for _ in range(lines):
            guard.authorize("lab02-fill", 0.01)
    return guard


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        guards = [guard_after(Path(directory) / f"{n}" / "spend.jsonl", n) for n in LENGTHS]
        calls: list[Callable[[], object]] = [appender(Path(directory) / "bare")]
        calls += [partial(guard.authorize, "lab02-a", 0.01) for guard in guards]
        rounds = [medians_us(calls) for _ in range(REPEATS)]
    bare, *ours = (min(column) for column in zip(*rounds, strict=True))
    print(timing.machine())
    print(f"one write + fsync                {bare:8.0f} us")
    for n, best in zip(LENGTHS, ours, strict=True):
        print(f"authorize, {n:6d} lines before  {best:8.0f} us   {best / bare:.2f} x one fsync")
        peer = timing.Figure("one write + fsync", bare)
        timing.row(f"authorise after {n:,} lines", best, peer, unit="us", least=1 / 3)
    print(f"longest log / empty log          {ours[-1] / ours[0]:8.2f} x")


if __name__ == "__main__":
    main()
