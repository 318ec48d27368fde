"""A real small training under ``outlay guard run --offers``, paused by a price file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import outlay
from command_line import Background, start_outlay
from outlay.clock import SYSTEM, utc_datetime
from outlay.ledger import derive_attempts, read_lives
from outlay.proc.orphaned_tree import running_trees
from outlay.rates import round_units
from outlay.report.document import Table
from outlay.report.run_document import run_document
from outlay.store import outlay_home
from trainer_labs import PROGRAMS
from waiting import until

LABEL = "lab02-paused"
STEPS = 600
BELOW, ABOVE = "40 USD/h", "72 USD/h"
FIXED = ("--below", BELOW)
DOUBLE = ("--policy", "double-threshold", "--lowest", "30 USD/h", "--highest", ABOVE)
THRESHOLDS = {FIXED: "40.00 USD/h", DOUBLE: "46.4758 USD/h"}
"""The first one of each: of a double threshold for an hour or less, the geometric mean."""
_DELAYS = {"wait": "waits", "unavailable": "unavailable", "kept": "kept"}
_SAID = {**_DELAYS, "run": "starts", "pause": "pauses"}


@dataclass
class PausedTraining:
    """The files of one, and what they say.

    Attributes:
        policy: The options that say when it runs.
        offer: ``price_options`` say where its price is read; default: in a file.
    """

    root: Path
    slow_starts: int
    stopped: str | None = None
    ceiling: str = "100"
    policy: tuple[str, ...] = FIXED
    offer: str = "mycloud:H100"
    price_options: tuple[str, ...] | None = None
    process: Background | None = None

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "spend.jsonl"

    @property
    def price_file(self) -> Path:
        return self.root / "price"

    def command(self) -> list[str]:
        program = str(PROGRAMS / "paused_regression.py")
        work = str(self.root / "work")
        return [sys.executable, program, work, str(STEPS), str(self.slow_starts)]

    def price(self, text: str) -> None:
        draft = self.root / "price.new"
        draft.write_text(f"{text}\n")
        draft.replace(self.price_file)

    def arguments(self, *more: str) -> list[str]:
        paused = ["--pay-per-use"] if self.stopped is None else ["--stopped-price", self.stopped]
        return [
            "guard", "run", "--label", LABEL, "--log", str(self.log), "--ceiling", self.ceiling,
            "--dir", str(self.run_dir), *self.policy_options(), "--poll", "100ms",
            "--slice", "20s", "--notice", "20s", *paused, *more, "--", *self.command(),
        ]  # fmt: skip

    def policy_options(self) -> list[str]:
        deadline = utc_datetime(SYSTEM.wall_ns() + 10**9 * 86_400).isoformat()
        price_options = self.price_options
        if price_options is None:
            price_options = ("--price-file", str(self.price_file))
        return [
            "--offers", self.offer, *self.policy, *price_options, "--deadline", deadline,
            "--work", "1m", "--steps", str(STEPS),
        ]  # fmt: skip

    def start(self, *more: str) -> Background:
        """Start it, or start it again after it was killed."""
        self.process = start_outlay(*self.arguments("--act", *more))
        return self.process

    def lines(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["kind"] == kind]

    def decisions(self) -> list[str]:
        notes = [line for line in self.of_kind("note") if line["event"] == "price-decision"]
        return [note["detail"]["action"] for note in notes]

    def waits_after(self, action: str) -> bool:
        """Whether it has waited since a decision of a kind."""
        found = self.decisions()
        return action in found and "wait" in found[found.index(action) :]

    def decided(self) -> list[tuple[str, str]]:
        """Return the decisions of the spend log with their reasons, as a timeline says them."""
        notes = [line for line in self.of_kind("note") if line["event"] == "price-decision"]
        return [(_SAID[note["detail"]["action"]], note["detail"]["reason"]) for note in notes]

    def delays(self) -> list[tuple[str, str]]:
        """Return those not to start it yet."""
        return [row for row in self.decided() if row[0] in _DELAYS.values()]

    def recorded_delays(self) -> list[tuple[str, str]]:
        """Return those that the run's log has; its report shows the last decisions only."""
        accounts = self.figures().view.account.segments.values()
        notes = sorted((n for each in accounts for n in each.notes), key=lambda note: note.t_ns)
        rows = [tuple(note.text.split(": ", 1)) for note in notes]
        return [row for row in rows if row[0] in _DELAYS.values()]

    def timeline(self) -> list[tuple[str, str]]:
        """Return the decisions and reasons below the timeline of its report."""
        sections = run_document(outlay.read_run(self.run_dir)).sections
        (blocks,) = (section.blocks for section in sections if section.title == "Timeline")
        (table,) = (block for block in blocks if isinstance(block, Table))
        return [(str(decision), str(why)) for _, decision, why in table.rows]

    def has_stepped(self, start: int) -> bool:
        return (self.root / "work" / f"stepped-{start}").exists()

    def starts(self) -> int:
        return len(list((self.root / "work").glob("start-*")))

    def is_doubled(self) -> bool:
        """Whether two trainings ever ran at once."""
        return (self.root / "work" / "doubled").exists()

    def kill_training(self) -> None:
        os.kill(int((self.root / "work" / "pid").read_text()), signal.SIGKILL)

    def run_undisturbed(self) -> None:
        self.root.mkdir()
        environ = {**os.environ, "OUTLAY_RUN_DIR": str(self.run_dir)}
        subprocess.run(self.command(), check=True, env=environ)

    def kill(self) -> None:
        """Kill the process that pauses it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def weights(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.load(self.root / "work" / "final.npy")
        return found

    def pause_and_resume(self, start: int, low: str) -> None:
        """Have the attempt ``start`` paused by its price, and the next one started at ``low``."""
        until(lambda: self.has_stepped(start), f"attempt {start} to train")
        captured = len(self.of_kind("capture"))
        self.price(ABOVE)
        until(lambda: len(self.of_kind("capture")) > captured, "the pause")
        self.price(low)

    def open_holds(self) -> set[str]:
        held = {line["hold"] for line in self.of_kind("hold")}
        settled = self.of_kind("capture") + self.of_kind("void")
        return held - {line["hold"] for line in settled}

    def captured_micros(self) -> int:
        return round(sum(Fraction(str(line["actual"])) for line in self.of_kind("capture")) * 10**6)

    def cost_by_hand(self, stopped_micros_per_hour: int = 0) -> int:
        """Return the rate of each attempt times its time, and of pauses times theirs."""
        units, end_ns = 0, None
        for attempt in derive_attempts(read_lives(self.run_dir)):
            assert attempt.header.price is not None
            if end_ns is not None:
                units += stopped_micros_per_hour * (attempt.start_ns - end_ns)
            end_ns = attempt.last_sign_ns
            units += attempt.header.price.micros_per_hour * (end_ns - attempt.start_ns)
        return round_units(units)

    def runs_still(self) -> bool:
        """Whether a process of an attempt is left."""
        trees = running_trees(outlay_home() / "kept")
        return any(tree.about["run_dir"] == str(self.run_dir) for tree in trees)

    def figures(self) -> Any:
        return outlay.read_run(self.run_dir)


@contextmanager
def ended(training: PausedTraining) -> Iterator[None]:
    """Leave nothing running."""
    try:
        yield
    finally:
        if training.process is not None:
            training.kill()
            until(lambda: not training.runs_still(), "its processes to end")
