"""Running the command line: as users do, in a process of its own, or quicker in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from outlay.cli.app import app
from outlay.errors import OutlayError


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


def in_process(*words: object, **environment: str) -> Outcome:
    """Call a command in this process; errors for the user end it as in ``main``."""
    result = CliRunner().invoke(app, list(map(str, words)), env=environment)
    if isinstance(result.exception, OutlayError):
        error = result.exception
        return Outcome(error.exit_code, result.stdout, f"{result.stderr}error: {error}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)
