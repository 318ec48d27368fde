"""The storm of ``benchmarks/guard_storm.py``, a small one: kills and full disks, nothing lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from papers import ROOT


def test_no_overspend_and_no_acknowledged_line_is_lost(tmp_path: Path) -> None:
    storm = ROOT / "benchmarks" / "guard_storm.py"
    done = subprocess.run(
        [sys.executable, storm, "500"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "500 operations, 32 processes" in done.stdout
    assert "nothing over the ceiling, nothing answered and lost" in done.stdout
