"""Runs the scenarios of a trainer, all in one process that forks: the trainer is imported once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 280


def play(program: str, root: Path) -> Path:
    """Play a program's scenarios below ``root``; their results are in its ``results.json``."""
    environ = os.environ | {
        "OMP_NUM_THREADS": "1", "OUTLAY_PROGRESS": "0", "PYTHONWARNINGS": "ignore",
        "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), str(root)],
        capture_output=True, text=True, timeout=TIMEOUT_S, env=environ, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return root
