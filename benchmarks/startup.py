"""What `import outlay` adds to the start of Python, and `outlay --help` to that of a Typer app.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import timing

ROUNDS = 25
LIMIT = 3.0
HELP_LIMIT = 1.5

TWO_COMMANDS = """
import typer

app = typer.Typer()

@app.command()
def greet(name: str) -> None:
    "Say hello."

@app.command()
def part(name: str) -> None:
    "Say goodbye."

app(["--help"])
"""
OUTLAY_HELP = "import sys; sys.argv = ['outlay', '--help']; from outlay.cli import main; main()"


def start(program: str) -> Callable[[], object]:
    command = [sys.executable, "-c", program]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compare_help() -> None:
    works = {
        "two commands in Typer, --help": start(TWO_COMMANDS),
        "outlay --help": start(OUTLAY_HELP),
    }
    timings = timing.compare(works, calls=1, rounds=ROUNDS)
    timing.show("Help", timings, unit="ms", scale=1000)
    small, ours = (each.seconds for each in timings)
    peer = timing.Figure("--help of two commands in Typer", small * 1e3)
    timing.row("outlay --help", ours * 1e3, peer, unit="ms", least=1 / HELP_LIMIT)
    timing.verdict("outlay --help in those of a small Typer app", ours / small, HELP_LIMIT)


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
    compare_help()


if __name__ == "__main__":
    main()
