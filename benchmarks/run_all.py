"""Runs every benchmark beside it and keeps what they print in one dated file.

python benchmarks/run_all.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from outlay.clock import SYSTEM, utc_datetime

HERE = Path(__file__).parent
SHARED = {"run_all.py", "timing.py"}


def scripts() -> list[Path]:
    """Return the benchmarks, by name."""
    return sorted(path for path in HERE.glob("*.py") if path.name not in SHARED)


def run(script: Path) -> str:
    """Return what one benchmark prints, headed by its command; a failure is told in its place."""
    command = f"python benchmarks/{script.name}"
    print(f"$ {command}", file=sys.stderr)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    failed = f"\nFAILED with exit code {done.returncode}.\n" if done.returncode else ""
    return f"## `{command}`\n{done.stdout}{failed}"


def main() -> int:
    """Run them all; returns 1 if one of them failed."""
    day = utc_datetime(SYSTEM.wall_ns()).strftime("%Y-%m-%d")
    reports = [run(script) for script in scripts()]
    result = HERE / "results" / f"{day}.md"
    result.parent.mkdir(exist_ok=True)
    result.write_text(f"# Benchmarks of {day}\n\n" + "\n".join(reports))
    print(result.read_text())
    return int(any("\nFAILED with" in report for report in reports))


if __name__ == "__main__":
    sys.exit(main())
