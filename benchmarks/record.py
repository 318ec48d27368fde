"""What recording a step costs, beside a bare write and what people use today.

    python benchmarks/record.py

TensorBoard is measured through tensorboardX, whose SummaryWriter needs no torch. The recorder of
ml-goodput-measurement gets a logger that appends to a list, so that no network is in its figure.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import timing

import outlay

CALLS = 20_000
ROUNDS = 15
LINE = b"x" * 63 + b"\n"
STEP_LIMIT = 4.0
A_CALL = "a call a step costs one call of Python more than run.steps(), which is what docs show"
FLAT_LIMIT = 1.25


class ListLogger:
    """Stands in for the cloud logger of ml-goodput-measurement."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []

    def write_cloud_logging_entry(self, entry: dict[str, object]) -> None:
        """Keep the entry in memory."""
        self.entries.append(entry)


def bare_write(folder: Path) -> Callable[[], None]:
    descriptor = os.open(folder / "bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def work() -> None:
        write = os.write
        for _ in range(CALLS):
            write(descriptor, LINE)

    return work


def timed_steps(run: outlay.Run) -> Callable[[], None]:
    def work() -> None:
        for _ in range(CALLS):
            with run.step(tokens=4096):
                pass

    return work


def driven_steps(run: outlay.Run) -> Callable[[], None]:
    def work() -> None:
        for _ in run.steps(range(CALLS), tokens=4096):
            pass

    return work


def stdlib_logging(folder: Path) -> Callable[[], None]:
    logger = logging.getLogger("benchmark")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(folder / "log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)

    def work() -> None:
        for number in range(CALLS):
            logger.info("step=%d tokens=%d", number, 4096)

    return work


def tensorboard_scalar(folder: Path) -> Callable[[], None]:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def work() -> None:
        for number in range(CALLS):
            writer.add_scalar("tokens", 4096, number)

    return work


def goodput_recorder() -> Callable[[], None]:
    from ml_goodput_measurement.src.goodput import GoodputRecorder

    recorder = GoodputRecorder("job", "log", logging_enabled=True, cloud_logger=ListLogger())

    def work() -> None:
        for number in range(CALLS):
            recorder.record_step_start_time(number)

    return work


@contextmanager
def works() -> Iterator[dict[str, Callable[[], None]]]:
    """Open everything that is measured, in one temporary directory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            outlay.run("m", dir=folder / "timed") as timed,
            outlay.run("m", dir=folder / "driven") as driven,
        ):
            yield {
                "bare os.write, 64 bytes": bare_write(folder),
                "outlay: with run.step()": timed_steps(timed),
                "outlay: for ... in run.steps()": driven_steps(driven),
                "stdlib logging to a file": stdlib_logging(folder),
                "tensorboardX add_scalar": tensorboard_scalar(folder),
                "ml-goodput-measurement, in memory": goodput_recorder(),
            }


def flatness() -> float:
    """Return what a step costs after many steps, as a multiple of what it cost at first."""
    with tempfile.TemporaryDirectory() as name, outlay.run("m", dir=name) as run:
        work = {"steps": timed_steps(run)}
        early = timing.compare(work, calls=CALLS, rounds=5)[0].seconds
        timing.compare(work, calls=CALLS, rounds=20)
        late = timing.compare(work, calls=CALLS, rounds=5)[0].seconds
    return late / early


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["OUTLAY_HOME"] = home
        report()


def report() -> None:
    with works() as measured:
        timings = timing.compare(measured, calls=CALLS, rounds=ROUNDS)
    timing.show("Recording a step", timings, unit="µs a step", scale=1e6)
    bare, step, driven = (entry.seconds for entry in timings[:3])
    for length_ms in (50, 500):
        share = step / (length_ms / 1000)
        print(f"\nOf a step of {length_ms} ms, recording it is {share:.4%}.")
    peer = timing.Figure("bare os.write", bare * 1e6)
    for name, seconds, why in (("run.step()", step, A_CALL), ("run.steps()", driven, "")):
        what, least = f"record a step, {name}", 1 / STEP_LIMIT
        timing.row(what, seconds * 1e6, peer, unit="us", least=least, why=why)
    timing.verdict("run.step() in bare writes", step / bare, STEP_LIMIT, why=A_CALL)
    timing.verdict("a step of run.steps() in bare writes", driven / bare, STEP_LIMIT)
    timing.verdict("a step after 500,000 others, in early steps", flatness(), FLAT_LIMIT)


if __name__ == "__main__":
    main()
