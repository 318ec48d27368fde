"""Small programs that tests run as processes of their own, since they are killed or forked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from outlay.clock import SYSTEM


def start(program: str, *arguments: object, **environ: str) -> subprocess.Popen[str]:
    """Start a Python program given as text; its stdin, stdout and stderr are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )


def finish(program: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever that is."""
    process = start(program, *arguments, **environ)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    """Wait until the program prints a line."""
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"


def seconds_of_one_step(run_dir: Path) -> float:
    """Return how long a training of one step takes now: the least that a budget has to allow."""
    start_ns = SYSTEM.monotonic_ns()
    command = ("outlay.demo.mlp", "--dir", str(run_dir), "--steps", "1")
    subprocess.run([sys.executable, "-m", *command], check=True)
    return (SYSTEM.monotonic_ns() - start_ns) / 1e9
