"""What `BudgetGuard.authorize` costs in a fresh process, by the length of the log.

Run: python benchmarks/guard_long_log.py [LINES]

The long log is read once, which writes its index; then processes without anything in memory
authorise in turn, each on a short log of its own and on the long one. The time is from the guard's
opening to the answer, without the imports: the processor's, and in brackets the clock's, which has
the disk's fsync and whatever else the machine does in it. The one reading, which every such process
did before there was an index, is an authorisation: it also covers other programs' simple lines with
a hash, so that nobody reads them again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import timing

from outlay.guard.chain import NOTHING, Head, encode_slot, link_entries
from outlay.guard.entries import SCHEMA, AnyEntry, Captured, Held
from outlay.guard.index.head_file import head_path
from outlay.guard.index.index_file import index_path

SHORT, LONG, PROCESSES = 10, 1_000_000, 40
MOST = 3
BATCH = 500  # lines per link: linking many at once takes quadratic time
FRESH = """
import sys, time
from outlay.guard.budget_guard import BudgetGuard
begun = time.process_time(), time.perf_counter()
BudgetGuard(10**9, sys.argv[1], environ={}).authorize("lab02-a", 0.01, key=sys.argv[2])
print(time.process_time() - begun[0], time.perf_counter() - begun[1])
"""


def entries(lines: int) -> Iterator[AnyEntry]:
    """Yield holds with a key, each followed by its capture, over a year."""
    for number in range(lines // 2):
        day = f"2025-{1 + number * 24 // lines:02d}-{1 + number % 28:02d}"
        hold, ts, label = f"{number:012x}", f"{day}T10:00:00.000000Z", f"lab02-op{number % 500}"
        half, some = Decimal("0.50"), Decimal("0.40")
        yield Held(
            v=SCHEMA, ts=ts, op_label=label, currency="USD", estimated=half, hold=hold, lab="02",
            day=day, key=f"key-{number}", by="host:1:2",
        )  # fmt: skip
        yield Captured(
            v=SCHEMA, ts=ts, op_label=label, currency="USD", estimated=half, actual=some,
            hold=hold, lab="02", day=day,
        )  # fmt: skip


def write_chained(path: Path, lines: int) -> None:
    after, pending = NOTHING, list[AnyEntry]()
    with path.open("wb") as file:
        for number, entry in enumerate(entries(lines), 1):
            pending.append(entry)
            if len(pending) == BATCH or number == lines:
                linked = link_entries(after, pending, ts=entry.ts)
                file.write(linked.blob)
                after, pending = linked.after, []
    head_path(path).write_bytes(encode_slot(Head(after.link.covered + 1, after.link.hash)))


def write_simple(path: Path, lines: int) -> None:
    with path.open("w") as file:
        for number in range(lines // 2):
            ts = f"2025-{1 + number * 24 // lines:02d}-{1 + number % 28:02d}T10:00:00Z"
            line = f'{{"ts":"{ts}","op_label":"lab02-op{number % 500}","estimated":0.5'
            file.write(line + "}\n" + line + ',"actual":0.4}\n')


class Taken(NamedTuple):
    """The processor's and the clock's time, in milliseconds."""

    processor: float
    clock: float


def authorize(path: Path, key: str) -> Taken:
    """Return the time of one authorisation in a fresh process."""
    done = subprocess.check_output([sys.executable, "-c", FRESH, path, key])
    processor, clock = map(float, done.split())
    return Taken(processor * 1e3, clock * 1e3)


def medians(taken: list[Taken]) -> Taken:
    return Taken(*map(statistics.median, zip(*taken, strict=True)))


def compare(kind: str, write: Callable[[Path, int], None], root: Path, long: int) -> None:
    """Print the ratio of both lengths, and of the reading without an index."""

    def written(name: str, lines: int) -> Path:
        path = root / f"{kind}-{name}" / "spend.jsonl"
        path.parent.mkdir()
        write(path, lines)
        return path

    path, on_short, on_long = written("long", long), list[Taken](), list[Taken]()
    first = authorize(path, "the reading")
    for number in range(PROCESSES):
        on_short.append(authorize(written(str(number), SHORT), "new"))
        on_long.append(authorize(path, f"new-{number}"))
    ours, peer = medians(on_long), medians(on_short)
    size = index_path(path).stat().st_size / path.stat().st_size
    print(f"\n{kind} lines, medians of {PROCESSES} fresh processes:")
    print(f"{SHORT:9,} lines  {peer.processor:9.2f} ms ({peer.clock:.2f} ms)")
    print(f"{long:9,} lines  {ours.processor:9.2f} ms ({ours.clock:.2f} ms)")
    print(f"          the longest {max(on_long).processor:5.2f} ms, which extends the index")
    print(f"          the reading {first.processor:5.0f} ms, which writes it")
    print(f"the index has {size:.2f} of the log's bytes")
    claim = f"{kind}: {long:,} lines / {SHORT} lines"
    timing.verdict(claim, ours.processor / peer.processor, MOST)
    timing.verdict(f"{claim}, by the clock", ours.clock / peer.clock, MOST)
    what = f"first authorise of a process, {long:,} {kind} lines"
    short = timing.Figure(f"{SHORT} lines", peer.processor)
    timing.row(what, ours.processor, short, unit="ms", least=1 / MOST)


def main() -> None:
    long = int(sys.argv[1]) if len(sys.argv) > 1 else LONG
    print(timing.machine())
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        os.environ["OUTLAY_HOME"] = str(Path(directory) / "home")
        compare("chained", write_chained, Path(directory), long)
        compare("simple", write_simple, Path(directory), long)


if __name__ == "__main__":
    main()
