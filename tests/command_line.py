"""Running the real command line in a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def outlay(*arguments: str | Path, columns: int = 80, **environment: str) -> Outcome:
    """Run ``python -m outlay`` with the arguments and return how it went."""
    done = subprocess.run(
        [sys.executable, "-m", "outlay", *map(str, arguments)],
        env=os.environ | {"COLUMNS": str(columns)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
