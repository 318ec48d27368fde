"""Each integration on a training that really sleeps: what outlay says beside what was slept.

    python benchmarks/integrations_oracle.py

The trainings are those of the tests (``tests/programs``), on 1 and 2 ranks with gloo, by the
system's clock. The truth is what rank 0's sleeps took, timed by the training itself; where ranks
wait for each other, such a sleep lasts until the slowest rank has slept. What a framework does of
its own in a phase comes on top of it, and is part of the difference. A step much longer than the
others is partly a ``stall``, and that is the step's here; what the first one took longer is
``program_startup``, and is not. trl is not among them: its models really compute. Whatever is
measured on a busy machine is off by what the machine did meanwhile: rows may not hold there.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "programs"))

import timing
import torch

import lightning_lab
import loops_lab
import outlay
import transformers_lab
from outlay.clock import SYSTEM
from trainer_lab import Lab, Truth

PHASES = ("step", "data_loading", "evaluation", "checkpoint_save")
LONGER = {"step": 3, "data_loading": 4, "evaluation": 6, "checkpoint_save": 5}
"""How many times as long as in the tests: what frameworks do themselves takes milliseconds."""
MOST_SHARE, MOST_NS = 0.05, 20 * 10**6
STEPS = 12
SANITY_CHECKS = 2  # Lightning's, before training: no evaluation.


class SleptTruth(Truth):
    """A training that sleeps, and knows when each of its sleeps began and ended."""

    def __init__(self, wall_ns: int) -> None:
        super().__init__(wall_ns)
        self.clock = SYSTEM
        self.slept_ns: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def _spend(self, phase: str, ns: int) -> None:
        begun_ns = SYSTEM.monotonic_ns()
        SYSTEM.sleep(ns * LONGER[phase] / 10**9)
        self.slept_ns[phase].append((begun_ns, SYSTEM.monotonic_ns()))

    def document(self) -> dict[str, Any]:
        """Return the counts and the sleeps."""
        return super().document() | {"slept_ns": self.slept_ns}


Training = Callable[[Truth, Path], dict[str, Any]]


def loop(kind: str) -> Training:
    """Return a loop of one's own, opened or told through ``kind``."""

    def train(truth: Truth, out: Path) -> dict[str, Any]:
        out.mkdir(exist_ok=True)
        return loops_lab.KINDS[kind](truth, out, STEPS)

    return train


INTEGRATIONS: dict[str, Training] = {
    "transformers, callback": lambda truth, out: transformers_lab.train(
        truth, out.parent, out.name, mixed=False
    ),
    "transformers, with the mixin": lambda truth, out: transformers_lab.train(
        truth, out.parent, out.name, mixed=True
    ),
    "Lightning": lambda truth, out: lightning_lab.train(truth, out.parent, out.name),
    "accelerate": loop("accelerate"),
    "nv-one-logger": loop("one_logger"),
}
SYNCHRONISED = {
    "transformers, callback": {"step": 2, "evaluation": 1},
    "transformers, with the mixin": {"step": 2, "evaluation": 1},
    "Lightning": {"step": 2, "evaluation": 1},
    "accelerate": {"step": 1},
    "nv-one-logger": {},
}
"""After how many sleeps of a phase the ranks wait for each other; a step has two micro-batches."""


def truth_ns(name: str, phase: str, ranks: list[dict[str, Any]]) -> int:
    """Return how long rank 0 was in a phase."""
    every = SYNCHRONISED[name].get(phase, 0)
    begin = SANITY_CHECKS if (name, phase) == ("Lightning", "evaluation") else 0
    total_ns = 0
    for number, (begun_ns, ended_ns) in enumerate(ranks[0]["slept_ns"][phase]):
        if every and number % every == every - 1:
            ended_ns = max(rank["slept_ns"][phase][number][1] for rank in ranks)
        total_ns += ended_ns - begun_ns if number >= begin else 0
    return total_ns


def into(out: Path, train: Training) -> Callable[[Truth], dict[str, Any]]:
    """Return a training that writes to a directory."""
    return lambda truth: train(truth, out)


def play(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Run every training on 1 and 2 ranks; what they print is of no interest."""
    lab = Lab(root, SleptTruth)
    with (root / "printed.txt").open("w") as sink:
        saved = [os.dup(1), os.dup(2)]
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        try:
            with redirect_stdout(sink), redirect_stderr(sink):
                for name, train in INTEGRATIONS.items():
                    for ranks in (1, 2):
                        out = root / f"{name}-{ranks}"
                        lab.play(out.name, ranks, into(out, train))
        finally:
            for target, copy in enumerate(saved, 1):
                os.dup2(copy, target)
    return lab.results


def judge(name: str, ranks: int, run_dir: Path, results: list[dict[str, Any]]) -> float:
    """Print a run's rows; return the largest difference as a share of what is allowed."""
    assert all(rank["exit"] == 0 for rank in results), f"{name} on {ranks} ranks failed: {results}"
    run = outlay.read_run(run_dir)
    worst = 0.0
    for phase in PHASES:
        slept_ns = truth_ns(name, phase, results)
        measured_ns = run.phases.get(phase, 0)
        if phase == "step":
            measured_ns += run.phases.get("stall", 0)
        off_ns = measured_ns - slept_ns
        share = abs(off_ns) / max(MOST_NS, MOST_SHARE * slept_ns)
        worst = max(worst, share)
        print(
            f"| {name} | {ranks} | {phase} | {slept_ns / 1e6:,.1f} | {measured_ns / 1e6:,.1f} "
            f"| {off_ns / 1e6:+,.1f} | {100 * off_ns / slept_ns:+.2f} | {verdict(share <= 1)} |"
        )
    tokens = sum(rank["tokens"] for rank in results)
    counted = (run.figures.steps, run.figures.tokens)
    print(
        f"| {name} | {ranks} | steps, tokens | {STEPS}, {tokens} | {counted[0]}, {counted[1]} "
        f"| | | {verdict(counted == (STEPS, tokens))} |"
    )
    return worst if counted == (STEPS, tokens) else float("inf")


def verdict(holds: bool) -> str:  # noqa: FBT001 - the only thing it says
    return "holds" if holds else "NOT REACHED"


def report(root: Path) -> None:
    results = play(root)
    print(f"\n### Integrations against real sleeps\n\n{timing.machine()}.\n")
    print("| integration | ranks | phase | truth, ms | outlay, ms | off by, ms | % | |")
    print("|---|---:|---|---:|---:|---:|---:|---|")
    worst = max(
        judge(name, ranks, root / f"{name}-{ranks}", results[f"{name}-{ranks}"])
        for name in INTEGRATIONS
        for ranks in (1, 2)
    )
    claim = "The phase that is off most, as a share of 5 % or 20 ms, whichever is more"
    timing.verdict(claim, worst, 1)


def main() -> None:
    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp())  # A TemporaryDirectory would be removed by the first fork.
    os.environ |= {"OUTLAY_HOME": str(home), "OUTLAY_PROGRESS": "0", "HF_HUB_OFFLINE": "1"}
    try:
        report(home)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
