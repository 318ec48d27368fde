"""Runs the scenarios of a trainer, all in one process that forks: the trainer is imported once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outlay

PROGRAMS = Path(__file__).parents[1] / "programs"
DATA_NS, FORWARD_NS, EVAL_NS, SAVE_NS, GENERATE_NS = (ms * 10**6 for ms in (30, 100, 50, 200, 10))
"""How long things take there: a draw, a forward pass, a batch evaluated, a save, a token."""


@dataclass(frozen=True, slots=True)
class PlayedLab:
    """Trainings that have been run.

    Attributes:
        root: Each has a directory of its name here.
        results: What each rank of a training counted of itself, and how it ended.
    """

    root: Path
    results: dict[str, list[dict[str, Any]]]

    def read(self, name: str) -> outlay.RunReading:
        """Return what outlay says of a training."""
        return outlay.read_run(self.root / name)

    def totals(self, name: str) -> dict[str, Any]:
        """Return what its budget says was used."""
        document = json.loads((self.root / name / "budget.json").read_text())
        totals: dict[str, Any] = document["totals"]
        return totals

    def used_ns(self, name: str) -> int:
        """Return the time that its budget says was used."""
        used_ms: float = self.totals(name)["time_ms"]
        return round(used_ms * 10**6)

    def all_of(self, key: str, *names: str) -> set[Any]:
        """Return what all ranks of some trainings say under a key."""
        return {rank.get(key) for name in names for rank in self.results[name]}

    def phases(self, name: str) -> dict[str, int]:
        """Return the phases as rank 0's training made them."""
        truth = self.results[name][0]
        phases = {
            "step": truth["forwards"] * FORWARD_NS + truth["generated"] * GENERATE_NS,
            "data_loading": truth["drawn"] * DATA_NS,
            "checkpoint_save": truth["saves"] * SAVE_NS,
            "evaluation": truth["evaluations"] * EVAL_NS,
        }
        return {phase: ns for phase, ns in phases.items() if ns}


def play(program: str, root: Path, *words: str) -> PlayedLab:
    """Play a program's scenarios below ``root``."""
    environ = os.environ | {
        "OMP_NUM_THREADS": "1", "OUTLAY_PROGRESS": "0", "PYTHONWARNINGS": "ignore",
        "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), str(root), *words],
        capture_output=True, text=True, env=environ, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return PlayedLab(root, json.loads((root / "results.json").read_text()))
