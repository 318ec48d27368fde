"""The storm of ``benchmarks/guard_storm.py``: kills and full disks, nothing lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from papers import ROOT


@pytest.mark.parametrize(
    ("operations", "least_killed"),
    [(500, 1), pytest.param(10_000, 60, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_no_overspend_and_no_acknowledged_line_is_lost(
    tmp_path: Path, operations: int, least_killed: int
) -> None:
    storm = ROOT / "benchmarks" / "guard_storm.py"
    done = subprocess.run(
        [sys.executable, storm, str(operations)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing over the ceiling, nothing answered and lost" in done.stdout
    begun = rf"{operations} operations, 32 processes, .*, (\d+) killed"
    (killed, *_) = re.findall(begun, done.stdout)
    assert int(killed) >= least_killed
