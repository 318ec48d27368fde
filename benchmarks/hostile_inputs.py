"""100,000 damaged inputs over all readers: documented errors only, in little time and memory.

python benchmarks/hostile_inputs.py [inputs]
"""

from __future__ import annotations

import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import timing

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

INPUTS = 100_000
LONGEST_S = 5
MOST_MIB = 500


def main() -> None:
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else INPUTS
    with tempfile.TemporaryDirectory() as home:
        os.environ["OUTLAY_HOME"] = home
        broken, longest_s, mean_s = read_all(inputs)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{inputs:,} inputs: {broken} undocumented errors; {mean_s * 1e3:.2f} ms each")
    timing.verdict("undocumented errors or altered records", broken, 0)
    timing.verdict("longest input, s", longest_s, LONGEST_S)
    timing.verdict("most memory, MiB", peak_mib, MOST_MIB)


def read_all(inputs: int) -> tuple[int, float, float]:
    """Return how many inputs broke a reader, and the longest and the mean time of one."""
    from fuzz_targets import TARGETS, mutated
    from outlay.errors import OutlayError

    broken, longest_s, total_s = 0, 0.0, 0.0
    source = random.Random(1)
    names = [*TARGETS]
    for number in range(inputs):
        name = names[number % len(names)]
        raw = mutated(source.choice(TARGETS[name].seeds), source)
        with tempfile.TemporaryDirectory() as where:
            begun = time.perf_counter()
            try:
                TARGETS[name].read(raw, Path(where))
            except OutlayError:
                pass
            except Exception as error:  # noqa: BLE001 - counted: none is expected
                broken += 1
                print(f"{name}: {type(error).__name__}: {raw[:200]!r}")
            took_s = time.perf_counter() - begun
        longest_s, total_s = max(longest_s, took_s), total_s + took_s
    return broken, longest_s, total_s / inputs


if __name__ == "__main__":
    main()
