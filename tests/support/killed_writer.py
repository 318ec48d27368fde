"""A program that forks writers, kills each at a random moment, and prints what they acknowledged.

It imports once and forks, and spreads the writers over several runs, since the start of an attempt
reads the earlier ones: so hundreds of kills take seconds.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
from pathlib import Path

from outlay.clock import SYSTEM
from outlay.runs.live import run

NUMBER_BYTES = 8
ATTEMPTS_PER_RUN = 20
LONGEST_LIFE_S = 0.006


def record_until_killed(run_dir: Path, life: int, acknowledge: int) -> None:
    """Record steps, metrics and notes; after each call that returned, write its number."""
    recorded = run("m", dir=run_dir, tags={"life": str(life)})
    for number in itertools.count():
        match number % 5:
            case 3:
                recorded.metric("number", number)
            case 4:
                recorded.note("number", number=number)
            case _:
                with recorded.step(tokens=number):
                    pass
        os.write(acknowledge, number.to_bytes(NUMBER_BYTES))


def fork_and_kill(run_dir: Path, life: int, delay_s: float) -> int:
    """Fork a writer, kill it, and return the last number it acknowledged."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        record_until_killed(run_dir, life, theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        first = pipe.read(NUMBER_BYTES)
        SYSTEM.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        numbers = first + pipe.read()
    return int.from_bytes(numbers[-NUMBER_BYTES:])


if __name__ == "__main__":
    root, moment = Path(sys.argv[1]), random.Random(sys.argv[2])
    delays = [moment.uniform(0, LONGEST_LIFE_S) for _ in range(int(sys.argv[3]))]
    acknowledged = [
        fork_and_kill(root / str(life // ATTEMPTS_PER_RUN), life, delay)
        for life, delay in enumerate(delays)
    ]
    sys.stdout.write(json.dumps(acknowledged))
