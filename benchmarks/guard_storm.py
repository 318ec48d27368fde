"""Processes that authorise, extend, record and void while they are killed and the disk is full.

Run: python benchmarks/guard_storm.py [OPERATIONS]

32 processes share one log. Every now and then one of them is killed with SIGKILL and another takes
its place, and every now and then the file may not grow (RLIMIT_FSIZE), so that a write is cut off
in the middle. What was answered is told to this process, which then reads the log by itself:
nothing may be over the ceiling at any line, nothing that was answered may be missing or settled
twice, and with its index the log must say the same as without; else it exits with 1. A quarter as
many operations follow on a file system of their own, which is filled to its last byte again and
again while they run; where none may be mounted, that is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from outlay.clock import SYSTEM
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Captured, Extended, Held, Voided, micros_of
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved, SpendLogUnusable
from outlay.guard.index.index_file import IndexReader, index_path
from outlay.guard.spend_log import FileSpendLog
from outlay.units import Money

PROCESSES, OPERATIONS = 32, 10_000
CEILING_OF_ONE = Money(150_000)  # reached about half-way: some are granted, some refused
KILLED_EVERY, FULL_EVERY, FILLED_EVERY = 40, 25, 2
INDEXED_LINES = 32  # A shorter log has no index yet.
DISK_BYTES, FULL_FOR_S = 8 << 20, 0.02


def work(path: Path, ceiling: str, operations: int, seed: int) -> None:
    """Do random operations; say what was answered, one line each, as soon as it was."""
    chance, guard, mine = random.Random(seed), BudgetGuard(ceiling, path, environ={}), list[str]()
    for _ in range(operations):
        act = chance.choice(["hold", "hold", "extend", "capture", "void"]) if mine else "hold"
        full = chance.randrange(FULL_EVERY) == 0
        limit = path.stat().st_size + chance.randrange(400) if full and path.exists() else -1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            answer = do(guard, act, mine, chance)
        except BudgetGuardExceeded:
            answer = {"act": "refused"}
        except SpendLogUnusable:
            answer = {"act": "unusable"}
        except HoldResolved:  # its earlier answer was cut off by the full disk, and was written
            answer = {"act": "resolved"}
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.RLIM_INFINITY))
        os.write(1, (json.dumps(answer) + "\n").encode())


def do(guard: BudgetGuard, act: str, mine: list[str], chance: random.Random) -> dict[str, object]:
    amount = chance.randrange(1, 2_000_000)
    if act == "hold":
        hold = guard.authorize(f"lab{chance.randrange(4):02d}-storm", Money(amount))
        mine.append(hold.id)
        return {"act": act, "hold": hold.id, "micros": hold.amount.micros}
    hold_id = chance.choice(mine)
    if act == "extend":
        guard.extend(hold_id, Money(amount // 10))
        return {"act": act, "hold": hold_id, "micros": amount // 10}
    mine.remove(hold_id)
    if act == "void":
        guard.void(hold_id, "not needed")
        return {"act": act, "hold": hold_id}
    guard.record_actual("storm", Money(amount // 2), hold=hold_id)
    return {"act": act, "hold": hold_id, "micros": amount // 2}


@dataclass
class Storm:
    """What was answered, by whom, and how often processes were killed."""

    path: Path
    ceiling: Money
    fills: bool = False
    answers: list[dict[str, object]] = field(default_factory=list)
    killed: int = 0
    filled: int = 0

    def run(self, operations: int, seed: int) -> None:
        """Run until every operation was answered."""
        chance, waiting = random.Random(seed), [operations // PROCESSES] * PROCESSES
        waiting[0] += operations % PROCESSES
        with selectors.DefaultSelector() as selector:
            for share in waiting:
                self._start(selector, share, chance)
            while selector.get_map():
                for key, _ in selector.select():
                    self._take(selector, key, chance)

    def _start(self, selector: selectors.BaseSelector, share: int, chance: random.Random) -> None:
        """Fork a worker, which has outlay imported and a guard of its own."""
        seed, (reading, writing) = chance.randrange(10**9), os.pipe()
        worker = os.fork()
        if not worker:
            try:
                os.dup2(writing, 1)
                work(self.path, str(self.ceiling), share, seed)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writing)
        selector.register(reading, selectors.EVENT_READ, (worker, share, bytearray()))

    def _take(
        self, selector: selectors.BaseSelector, key: selectors.SelectorKey, chance: random.Random
    ) -> None:
        worker, share, said = key.data
        if data := os.read(key.fd, 65_536):
            said += data
            if chance.randrange(KILLED_EVERY) == 0:
                self.killed += 1
                os.kill(worker, signal.SIGKILL)
            if self.fills and chance.randrange(FILLED_EVERY) == 0:
                self._fill()
            return
        selector.unregister(key.fd)
        os.close(key.fd)
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        *whole, _cut_off = said.split(b"\n")
        self.answers += map(json.loads, whole)
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(f"a worker ended with {code}")
        if len(whole) < share:
            self._start(selector, share - len(whole), chance)

    def _fill(self) -> None:
        """Fill the disk to its last byte for a moment."""
        self.filled += 1
        filler = self.path.with_name("filler")
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 16, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass
        SYSTEM.sleep(FULL_FOR_S)
        filler.unlink()


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """Mount a small file system; yields whether that is allowed here."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "outlay-storm", str(directory)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", directory], check=True)


def troubles(storm: Storm) -> list[str]:
    """Return what is wrong with the log: read by hand, and by its own verification."""
    path, answers = storm.path, storm.answers
    log, found = FileSpendLog(path), list[str]()
    found += [str(one) for one in log.verify().findings if one.severity == "error"]
    whole, indexed = FileSpendLog(path, indexed=False).books(), FileSpendLog(path).books()
    lines = sum(1 for _ in log.lines())
    if lines >= INDEXED_LINES and IndexReader.open(index_path(path)) is None:
        found.append(f"there is no index of {lines} lines")
    if indexed.state() != whole.state():
        found.append("the index differs")
    for table in whole.tables():
        if dict(indexed.rows(table)) != dict(whole.rows(table)):
            found.append(f"the index differs in {table}")
    held, captured, resolved = dict[str, int](), 0, dict[str, int]()
    granted = Counter[tuple[str, str, int]]()
    for line in log.lines():
        if isinstance(line, Held | Extended):
            act, micros = "hold" if isinstance(line, Held) else "extend", micros_of(line.estimated)
            held[line.hold] = held.get(line.hold, 0) + micros
            granted[act, line.hold, micros] += 1
            if captured + sum(held.values()) > storm.ceiling.micros:
                found.append(f"over the ceiling at {line}")
        elif isinstance(line, Captured | Voided):
            if held.pop(line.hold, None) is None:
                found.append(f"settled twice: {line}")
            captured += micros_of(line.actual)
            resolved[line.hold] = micros_of(line.actual)
    for answer in answers:
        hold, act = str(answer.get("hold", "")), str(answer["act"])
        micros = int(str(answer.get("micros", 0)))
        if act in ("hold", "extend"):
            granted[act, hold, micros] -= 1
            lost = granted[act, hold, micros] < 0
        else:
            lost = act in ("capture", "void") and resolved.get(hold) != micros
        if lost:
            found.append(f"answered and lost: {answer}")
    return found


def report(storm: Storm, operations: int) -> int:
    """Run a storm and print what came of it; returns 1 if something is wrong."""
    begun = time.perf_counter()
    storm.run(operations, seed=operations)
    taken, found = time.perf_counter() - begun, troubles(storm)
    lines = len(FileSpendLog(storm.path).lines())
    counts = Counter(str(answer["act"]) for answer in storm.answers)
    disasters = f"{storm.killed} killed" + (f", disk filled {storm.filled} times" * storm.fills)
    print(f"{operations} operations, {PROCESSES} processes, {taken:.1f} s, {disasters}")
    print(f"answers under {storm.ceiling}: {dict(counts)}; {lines} lines")
    print("\n".join(found) or "nothing over the ceiling, nothing answered and lost")
    return int(bool(found))


def main(operations: int) -> int:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        directory = Path(name)
        os.environ["OUTLAY_HOME"] = str(directory / "home")
        storm = Storm(directory / "spend.jsonl", CEILING_OF_ONE * operations)
        wrong = report(storm, operations)
        with small_disk(directory / "disk") as mounted:
            if not mounted:
                print("no file system may be mounted here: none was filled")
                return wrong
            fewer = operations // 4
            full = Storm(directory / "disk" / "spend.jsonl", CEILING_OF_ONE * fewer, fills=True)
            return report(full, fewer) | wrong


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else OPERATIONS))
