"""Processes that authorise, extend, record and void while they are killed and the disk is full.

Run: python benchmarks/guard_storm.py [OPERATIONS]

32 processes share one log. Every now and then one of them is killed with SIGKILL and another takes
its place, and every now and then the file may not grow (RLIMIT_FSIZE), so that a write is cut off
in the middle. What was answered is told to this process, which then reads the log by itself:
nothing may be over the ceiling at any line, nothing that was answered may be missing; else it
exits with 1.
"""

from __future__ import annotations

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
from dataclasses import dataclass, field
from pathlib import Path

from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Captured, Extended, Held, Voided, micros_of
from outlay.guard.errors import BudgetGuardExceeded, HoldResolved, SpendLogUnusable
from outlay.guard.filelog import FileSpendLog
from outlay.units import Money

PROCESSES, OPERATIONS = 32, 10_000
CEILING_OF_ONE = Money(150_000)  # reached about half-way: some are granted, some refused
KILLED_EVERY, FULL_EVERY = 40, 25


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
        return {"act": act, "hold": hold_id}
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
    answers: list[dict[str, object]] = field(default_factory=list)
    killed: int = 0

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
        words = [
            sys.executable,
            __file__,
            "--work",
            self.path,
            self.ceiling,
            share,
            chance.randrange(10**9),
        ]
        worker = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE)
        assert worker.stdout is not None
        selector.register(worker.stdout, selectors.EVENT_READ, (worker, share, bytearray()))

    def _take(
        self, selector: selectors.BaseSelector, key: selectors.SelectorKey, chance: random.Random
    ) -> None:
        worker, share, said = key.data
        if data := os.read(key.fd, 65_536):
            said += data
            if chance.randrange(KILLED_EVERY) == 0:
                self.killed += 1
                worker.send_signal(signal.SIGKILL)
            return
        selector.unregister(key.fileobj)
        worker.wait()
        worker.stdout.close()
        *whole, _cut_off = said.split(b"\n")
        self.answers += map(json.loads, whole)
        if worker.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"a worker ended with {worker.returncode}")
        if len(whole) < share:
            self._start(selector, share - len(whole), chance)


def troubles(path: Path, answers: list[dict[str, object]]) -> list[str]:
    """Return what is wrong with the log: read by hand, and by its own verification."""
    log, found = FileSpendLog(path), list[str]()
    found += [str(one) for one in log.verify().findings if one.severity == "error"]
    held, captured, resolved, ever = dict[str, int](), 0, dict[str, int](), set[str]()
    for line in log.lines():
        if isinstance(line, Held | Extended):
            held[line.hold] = held.get(line.hold, 0) + micros_of(line.estimated)
            ever.add(line.hold)
            if captured + sum(held.values()) > micros_of(line.ceiling):
                found.append(f"over the ceiling at {line}")
        elif isinstance(line, Captured | Voided):
            del held[line.hold]
            captured += micros_of(line.actual)
            resolved[line.hold] = micros_of(line.actual)
    for answer in answers:
        hold, act = str(answer.get("hold", "")), answer["act"]
        lost = hold and (
            hold not in ever
            or (act == "capture" and resolved.get(hold) != answer["micros"])
            or (act == "void" and resolved.get(hold) != 0)
        )
        if lost:
            found.append(f"answered and lost: {answer}")
    return found


def main(operations: int) -> int:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        os.environ["OUTLAY_HOME"] = str(Path(directory) / "home")
        storm = Storm(Path(directory) / "spend.jsonl", CEILING_OF_ONE * operations)
        begun = time.perf_counter()
        storm.run(operations, seed=operations)
        taken, found = time.perf_counter() - begun, troubles(storm.path, storm.answers)
        lines = len(FileSpendLog(storm.path).lines())
    counts = Counter(str(answer["act"]) for answer in storm.answers)
    print(f"{operations} operations, {PROCESSES} processes, {taken:.1f} s, {storm.killed} killed")
    print(f"answers under {storm.ceiling}: {dict(counts)}; {lines} lines")
    print("\n".join(found) or "nothing over the ceiling, nothing answered and lost")
    return int(bool(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else OPERATIONS))
