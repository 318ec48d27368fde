"""``benchmarks/run_all.py``: what ``make bench`` says at its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run_all(directory: Path, *scripts: str) -> subprocess.CompletedProcess[str]:
    """Run all of some scripts, which find what benchmarks share."""
    for name in ("run_all.py", "timing.py"):
        shutil.copy(BENCHMARKS / name, directory)
    for number, script in enumerate(scripts):
        (directory / f"script_{number}.py").write_text(script)
    command = [sys.executable, str(directory / "run_all.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_claims_without_data_are_named_at_the_end(tmp_path: Path) -> None:
    script = "import timing\ntiming.leave_out('real prices', timing.PRICE_HISTORY)"
    ran = run_all(tmp_path, script, "print('done')")
    assert ran.returncode == 0, ran.stderr
    last = "LEFT OUT: real prices, since OUTLAY_PRICE_HISTORY names no file"
    assert ran.stderr.splitlines()[-1] == last


@pytest.mark.parametrize("script", ["raise SystemExit(1)", "raise ValueError('why')"])
def test_a_bar_that_is_not_reached_and_an_error_are_failures(script: str, tmp_path: Path) -> None:
    ran = run_all(tmp_path, script, "print('done')")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].endswith("exit code 1: python benchmarks/script_0.py")
    assert ("ValueError: why" in ran.stderr) == ("ValueError" in script)
