"""Runs every benchmark beside it; keeps one dated table of them all, and what each printed.

python benchmarks/run_all.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from timing import LEFT_OUT, ROW, UNEXPLAINED, machine

from outlay.clock import SYSTEM, utc_datetime

HERE = Path(__file__).parent
SHARED = {"run_all.py", "timing.py"}
FAILED = "FAILED, or a bar was not reached, with exit code"


def scripts() -> list[Path]:
    """Return the benchmarks, by name."""
    return sorted(path for path in HERE.glob("*.py") if path.name not in SHARED)


def run(script: Path) -> str:
    """Return what one benchmark prints, headed by its command; a failure is told in its place."""
    command = f"python benchmarks/{script.name}"
    print(f"$ {command}", file=sys.stderr)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    failed = f"\n{FAILED} {done.returncode}: {command}\n" if done.returncode else ""
    if failed:
        print(done.stderr, file=sys.stderr)
    return f"## `{command}`\n{done.stdout}{failed}"


def table(reports: list[str]) -> str:
    """Return the rows that all benchmarks printed, as one table."""
    rows = [
        line.removeprefix(ROW)
        for report in reports
        for line in report.splitlines()
        if line.startswith(ROW)
    ]
    head = "| what | outlay | peer | peer's figure | peer / outlay | at least | |"
    return "\n".join([head, "|---|---:|---|---:|---:|---:|---|", *rows])


def without_rows(report: str) -> str:
    """Return a report without the rows that stand in the table."""
    return "".join(line for line in report.splitlines(keepends=True) if not line.startswith(ROW))


def main() -> int:
    """Run them all; returns 1 if one of them failed, or misses a bar for no stated reason.

    That, and which claims were left out for lack of data, is said at the end.
    """
    day = utc_datetime(SYSTEM.wall_ns()).strftime("%Y-%m-%d")
    reports = [run(script) for script in scripts()]
    result = HERE / "results" / f"{day}.md"
    result.parent.mkdir(exist_ok=True)
    head = f"# Benchmarks of {day}\n\n{machine()}; each line is of one run of one script.\n\n"
    details = "\n".join(map(without_rows, reports))
    result.write_text(f"{head}{table(reports)}\n\n{details}")
    print(result.read_text())
    lines = [line for report in reports for line in report.splitlines()]
    missed = [line for line in lines if UNEXPLAINED in line or line.startswith(FAILED)]
    left_out = [line for line in lines if line.startswith(LEFT_OUT)]
    print("\n".join(["", *missed, *left_out]), file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
