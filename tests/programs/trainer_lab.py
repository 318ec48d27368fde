"""Trainings of known length, by a clock that only they move; forked, so that imports are paid once.

What a scenario did is counted by the training itself (``Truth``), independently of any callback.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outlay.clock import Clock, ManualClock
from outlay.errors import Refused
from outlay.runs.live import Run

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MS = 10**6
DATA_NS, STEP_NS, EVAL_NS, SAVE_NS = 30 * MS, 100 * MS, 50 * MS, 200 * MS
GENERATE_NS = 10 * MS
DAY_NS = 86_400 * 10**9
KILLED = -signal.SIGKILL


class Truth:
    """What one rank of a training does, counted where it is done."""

    def __init__(self, wall_ns: int) -> None:
        self.clock: Clock = ManualClock(wall_ns=wall_ns)
        self.drawn = self.forwards = self.evaluations = self.saves = 0
        self.tokens = self.generated = 0
        self.dies_after = 0

    def draw(self) -> None:
        """A sample is loaded."""
        self._spend("data_loading", DATA_NS)
        self.drawn += 1

    def forward(self, tokens: int) -> None:
        """A micro-batch is trained on."""
        self._spend("step", STEP_NS)
        self.forwards += 1
        self.tokens += tokens
        if self.forwards == self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluate(self) -> None:
        """A batch is evaluated."""
        self._spend("evaluation", EVAL_NS)
        self.evaluations += 1

    def save(self) -> None:
        """A checkpoint is written."""
        self._spend("checkpoint_save", SAVE_NS)
        self.saves += 1

    def generate(self) -> None:
        """A token is generated."""
        self._spend("step", GENERATE_NS)
        self.generated += 1

    def document(self) -> dict[str, Any]:
        """Return the counts."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}

    def _spend(self, phase: str, ns: int) -> None:
        """Advance the clock by the time of a phase; a benchmark's clock sleeps."""
        del phase
        self.clock.sleep(ns / 10**9)


class SlowSaves:
    """What makes the saves of a transformers' Trainer take a known time."""

    model: Any

    def _save(self, *args: Any, **kwargs: Any) -> None:
        self.model.truth.save()
        super()._save(*args, **kwargs)  # type: ignore[misc]


class Synchronisations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the reads of a tensor's value, each of which would wait for an accelerator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def break_outlay() -> None:
    """Let everything that a callback calls raise, once the run is open."""

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("the disk is gone")

    for name in (
        "begin_step", "end_step", "phase", "resume_from", "should_stop", "metric", "span",
        "checkpoint_committed", "note", "summary", "close",
    ):  # fmt: skip
        assert hasattr(Run, name)
        setattr(Run, name, fails)


def refusal_of(train: Callable[[], object]) -> str:
    """Train, and return why outlay refused it; "" if it did not."""
    try:
        train()
    except Refused as error:
        return str(error)
    return ""


def _free_port() -> int:
    """Return a port that is free: several labs run at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _import_all(names: Iterable[str]) -> None:
    """Import what a child has imported while it trained, so that the next ones inherit it."""
    for name in names:
        with contextlib.suppress(Exception):  # Some modules exist only once something has run.
            importlib.import_module(name)


class Lab:
    """Runs scenarios, one after the other, each on a ``Truth`` of its own."""

    def __init__(self, root: Path, truth: Callable[[int], Truth] = Truth) -> None:
        self.root = root
        self._truth = truth
        self.results: dict[str, list[dict[str, Any]]] = {}
        self._attempts = 0

    def play(self, name: str, ranks: int, train: Callable[[Truth], dict[str, Any]]) -> None:
        """Train on so many ranks, each a fork of this process."""
        self._attempts += 1
        port = _free_port()
        gc.freeze()  # Trainers collect garbage when they end: what was imported is none.
        children = [self._fork(name, rank, ranks, port, train) for rank in range(ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        found = []
        for rank, code in enumerate(codes):
            path = self._path(name, rank)
            said = json.loads(path.read_text()) if path.exists() else {}
            _import_all(said.pop("imported", ()))
            found.append({"exit": code, **said})
        self.results[name] = found

    def play_example(self, name: str, *arguments: str) -> None:
        """Run a program of ``examples/`` as its user would, in the lab's directory."""

        def run(truth: Truth) -> dict[str, Any]:
            del truth
            os.chdir(self.root)
            sys.argv = [str(EXAMPLES / name / "train.py"), *arguments]
            runpy.run_path(sys.argv[0], run_name="__main__")
            return {}

        self.play(f"example-{name}", 1, run)

    def _path(self, name: str, rank: int) -> Path:
        return self.root / f"{name}-{rank}.json"

    def _fork(
        self, name: str, rank: int, ranks: int, port: int, train: Callable[[Truth], Any]
    ) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            if ranks > 1:
                os.environ |= {
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port), "NODE_RANK": "0",
                }  # fmt: skip
            truth = self._truth(1_700_000_000 * 10**9 + self._attempts * DAY_NS)
            inherited = set(sys.modules)
            try:
                said = train(truth)
            except RuntimeError as error:  # What a scenario raises itself, or a peer that is gone.
                said = {"raised": str(error)[:200]}
            path = self._path(name, rank)
            said["imported"] = sorted(set(sys.modules) - inherited)
            path.write_text(json.dumps(truth.document() | said))
            code = 0
        except BaseException:  # noqa: BLE001 - a child's end is its parent's to judge
            traceback.print_exc()
        finally:
            import atexit

            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
