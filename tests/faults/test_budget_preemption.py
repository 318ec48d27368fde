"""Preemption of real processes, and what they leave in ``budget.json``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlay.ledger import AttemptEnded, read_run

# It has done three hundred steps of ten tokens when it prints "ready".
TRAINING = """
import os, signal, sys, outlay

def continue_training(*_):
    os.write(1, b"noticed\\n")  # A print may interrupt another.

def announce(*_):
    run.preempted("SIGUSR1")
    continue_training()

def save_and_exit(*_):
    run.preempted("SIGUSR1")
    sys.exit(3)

name, handler = sys.argv[2:]
if handler != "none":
    signal.signal(getattr(signal, name), globals()[handler])
with outlay.run("m", dir=sys.argv[1], budget=outlay.iso_tokens(10_000)) as run:
    for count, _ in enumerate(run.steps(iter(int, 1), tokens=10)):
        if count == 300:
            print("ready", flush=True)
            sys.stdin.readline()
"""


def start(run_dir: Path, name: str, handler: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(run_dir), name, handler],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OUTLAY_PROGRESS": "0"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def tokens_in(run_dir: Path) -> int:
    return int(json.loads((run_dir / "budget.json").read_text())["totals"]["tokens"])


def test_an_unhandled_sigterm_writes_the_document_first(tmp_path: Path) -> None:
    with start(tmp_path, "SIGTERM", "none") as process:
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    assert tokens_in(tmp_path) == 3000


@pytest.mark.parametrize(
    ("name", "handler"), [("SIGTERM", "continue_training"), ("SIGUSR1", "announce")]
)
def test_the_document_is_written_with_the_notice_and_survives_the_kill_after_it(
    tmp_path: Path, name: str, handler: str
) -> None:
    with start(tmp_path, name, handler) as process:
        process.send_signal(getattr(signal, name))
        assert process.stdout is not None
        assert process.stdout.readline() == "noticed\n"
        process.kill()
    assert tokens_in(tmp_path) == 3000


def test_preempted_run_that_exits_by_itself_writes_the_document_and_its_end(
    tmp_path: Path,
) -> None:
    with start(tmp_path, "SIGUSR1", "save_and_exit") as process:
        process.send_signal(signal.SIGUSR1)
    assert process.returncode == 3
    assert tokens_in(tmp_path) == 3000
    ends = [each for each in read_run(tmp_path).records if isinstance(each, AttemptEnded)]
    assert [(end.status, end.reason) for end in ends] == [("preempted", "SIGUSR1")]


FORKING = """
import os, signal, sys, outlay
signal.signal(signal.SIGTERM, lambda *_: None)
with outlay.run("m", dir=sys.argv[1], budget=outlay.iso_tokens(100)) as run:
    for _ in run.steps(range(1), tokens=10):
        document = os.path.join(sys.argv[1], "budget.json")
        before = os.stat(document).st_ino
        if os.fork() == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        os.wait()
        print(os.stat(document).st_ino == before)
"""


def test_a_forked_worker_that_is_terminated_leaves_the_document_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"OUTLAY_PROGRESS": "0"},
        check=True,
    )
    assert done.stdout == "True\n"
