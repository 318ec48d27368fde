"""The storm of ``benchmarks/team_storm.py``: two hosts, one book, and everything fails."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from network import require_hosts
from papers import ROOT
from postgres import program

FAULTS = (
    "kill of the lock's holder", "stop of the lock's holder", "crash of the server", "cut link",
    "lowered limit", "limit that ended",
)  # fmt: skip


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize(
    ("clients", "operations", "faults"),
    [
        (8, 40, 1),
        pytest.param(32, 300, 5, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_no_limit_is_exceeded_and_no_answer_is_lost_whatever_fails(
    tmp_path: Path, clients: int, operations: int, faults: int
) -> None:
    require_hosts()
    program("postgres")
    storm = ROOT / "benchmarks" / "team_storm.py"
    done = subprocess.run(
        [sys.executable, storm, str(clients), str(operations), str(faults)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing above a limit, nothing lost, nothing twice" in done.stdout
    happened, came, by = map(ast.literal_eval, re.findall(r"\{.*\}", done.stdout))
    assert {name: happened.get(name) for name in FAULTS} == dict.fromkeys(FAULTS, faults)
    acts = {"hold done", "hold refused", "extend done", "capture done", "void done"}
    assert acts <= came.keys() <= acts | {"extend refused"}
    assert any(re.match(r"day \d", scope) for scope in by), by
