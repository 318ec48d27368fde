"""The unattended loop of ``examples/agent_loop``, killed before every one of its lines.

Run: python benchmarks/agent_kills.py

Three undisturbed runs of it (machines to rent; none, since the order is refused as wrong; no money)
show which lines there are to be killed at. Then the loop is killed before each of them, start after
start in the same directory. After each start the ceilings, the spend log and the pods are checked;
in the end nothing may be left running. Exits with 1 where something is wrong.
"""

from __future__ import annotations

import dis
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from agent_lab import LOOP, Lab, kill_at_lines, run_to_end

WHILE_RENTED = "loss = measure("


def lines_of(code: CodeType) -> Iterator[int]:
    """Yield every line of a program that has an instruction."""
    yield from (line for _, line in dis.findlinestarts(code) if line)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from lines_of(const)


def main() -> int:
    text = LOOP.read_text()
    rented = next(n for n, line in enumerate(text.splitlines(), 1) if WHILE_RENTED in line)
    begun, done, unreached, wrong = time.perf_counter(), set[int](), list[int](), 0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        os.environ["OUTLAY_HOME"] = f"{directory}/home"
        for name, about in (
            ("rents", {"runs": 3}),
            ("fails", {"poll": "nonsense"}),
            ("refused", {"day_usd": "0.5"}),
        ):
            calm = Lab(home=Path(directory) / name / "calm", **about)
            calm.start(kill_at=rented)  # so that the next start has something to tidy up
            calm.runs = calm.booked() + 3
            calm.start()
            lab = Lab(home=Path(directory) / name / "stormy", **about)
            lines = [line for line in calm.lines() if line not in done]
            try:
                unreached += kill_at_lines(lab, lines, while_rented=rented)
                said = run_to_end(lab).strip()
            except AssertionError as error:
                wrong, said = 1, f"WRONG: {error}"
            done |= set(lines)
            print(f"{name}: killed before {len(lines)} lines in {lab.starts} starts; then {said}")
    never = sorted(set(lines_of(compile(text, LOOP, "exec"))) - done)
    print(f"{time.perf_counter() - begun:.0f} s; lines that were not reached again: {unreached}")
    print("lines that no start executed: " + (", ".join(map(str, never)) or "none"))
    return wrong or int(bool(unreached))


if __name__ == "__main__":
    sys.exit(main())
