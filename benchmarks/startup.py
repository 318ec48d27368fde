"""What `import outlay` adds to the start of Python.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import timing

ROUNDS = 25
LIMIT = 3.0


def start(program: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", program], check=True)


def main() -> None:
    works = {
        "python -c pass": start("pass"),
        'python -c "import outlay"': start("import outlay"),
        'python -c "from outlay import run"': start("from outlay import run"),
        'python -c "import numpy"': start("import numpy"),
    }
    timings = timing.compare(works, calls=1, rounds=ROUNDS)
    timing.show("Importing outlay", timings, unit="ms", scale=1000)
    bare, imported = timings[0].seconds, timings[1].seconds
    peer = timing.Figure("a bare start of Python", bare * 1e3)
    timing.row("import outlay", imported * 1e3, peer, unit="ms", least=1 / LIMIT)
    timing.verdict("import outlay in bare starts of Python", imported / bare, LIMIT)


if __name__ == "__main__":
    main()
