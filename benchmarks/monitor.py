"""What a monitor costs the training that it watches, and what one of its questions costs.

python benchmarks/monitor.py [steps]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import timing
from read import START_NS, write_log

from outlay.clock import SYSTEM, utc_datetime
from outlay.compat.ml_goodput_measurement.cloud import GCPOptions
from outlay.compat.ml_goodput_measurement.monitoring import GoodputMonitor
from outlay.compat.ml_goodput_measurement.recorder import Entry, EntryInfo, LocalRunLog
from outlay.compat.ml_goodput_measurement.uploads.readings import GoodputReader
from outlay.export.sinks import JsonLinesFile
from outlay.ledger import SegmentId, Step, encode_line, ledger_dir

STEPS = 1_000_000
NEW_STEPS = 600  # Those of half a minute, at 50 ms each.
ROUNDS = 5
WATCHED_S = 30.0
LONG_S = 3650 * 86_400  # The run lies in the past; the window reaches back to it.
USUAL_INTERVAL_S = 30
INTERVAL_S = 2.0  # Much shorter, so that half a minute has many questions.
CPU_LIMIT = 0.1
IN_A_THREAD = "the promise is that of an uploader as a process, which is the default"
PATIENCE_NS = 300 * 10**9
NO_CLOUD = GCPOptions(enable_gcp_goodput_metrics=False, enable_gcp_step_deviation_metrics=False)


def append(run_dir: Path, first: int, count: int) -> None:
    """Let the run go on for some steps."""
    path = ledger_dir(run_dir) / SegmentId(START_NS).file_name
    with path.open("ab") as stream:
        for number in range(first, first + count):
            t_ns = START_NS + (number + 1) * 50_000_000
            step = Step(t_ns=t_ns, step=number, dur_ns=49_000_000, wait_ns=1_000_000, tokens=4096)
            stream.write(encode_line(step, number + 1))


def question_s(run_dir: Path, steps: int, ask: Callable[[GoodputReader, int], object]) -> float:
    """Return the best time of a question, of a reader that has followed the run so far."""
    reader = GoodputReader("job", "log", LocalRunLog("job", run_dir))
    ask(reader, -1)
    best = float("inf")
    for _ in range(ROUNDS):
        append(run_dir, steps, NEW_STEPS)
        begun = time.perf_counter()
        ask(reader, steps - 1)
        best = min(best, time.perf_counter() - begun)
        steps += NEW_STEPS
    return best


class InThread:
    """The same log as an object that only this process has, so that a thread must watch it."""

    def __init__(self, run_dir: Path) -> None:
        self._log = LocalRunLog("job", run_dir)

    def write_cloud_logging_entry(self, entry: Entry | None) -> None:
        """Keep an entry."""
        self._log.write_cloud_logging_entry(entry)

    def flush(self) -> None:
        """Make sure that it is kept."""
        self._log.flush()

    def read_cloud_logging_entries(
        self, *_: object, last_entry_info: EntryInfo | None = None, **__: object
    ) -> tuple[list[Entry], EntryInfo]:
        """Return all steps the first time, and nothing after that."""
        if last_entry_info is None:
            steps = range(STEPS)
            start = START_NS / 1e9
            return [
                {"job_name": "job", "step_count": n, "step_start_time": start + n / 20}
                for n in steps
            ], (utc_datetime(START_NS), "0")
        return [], last_entry_info


@dataclass
class Watched:
    """The CPU that this process, and its uploader, used while it was watched, in percent."""

    own: float
    uploader: float


def watch(run_dir: Path, logger: InThread | None = None) -> Watched:
    """Do nothing but be watched; the first question, which is cold, is not counted."""
    with tempfile.TemporaryDirectory() as name:
        monitor = GoodputMonitor(
            "job",
            "log",
            None,
            INTERVAL_S,
            monitoring_enabled=True,
            gcp_options=NO_CLOUD,
            run_dir=run_dir,
            sinks=[JsonLinesFile(f"{name}/out.jsonl")],
            cloud_logger=logger,
        )
        monitor.start_goodput_uploader()
        until_ns = SYSTEM.monotonic_ns() + PATIENCE_NS
        while not Path(f"{name}/out.jsonl").exists():
            assert SYSTEM.monotonic_ns() < until_ns, monitor.tally
            SYSTEM.sleep(0.1)
        begun, cpu = time.perf_counter(), time.process_time()
        SYSTEM.sleep(WATCHED_S)
        own = (time.process_time() - cpu) / (time.perf_counter() - begun)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        monitor.stop_goodput_uploader()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert monitor.tally.lost == 0, monitor.tally
        lived = time.perf_counter() - begun
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Watched(own * 100, spent / lived * 100)


def main() -> None:
    longest = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    questions: dict[str, Callable[[GoodputReader, int], object]] = {
        "goodput": lambda reader, _: reader.read_goodput(),
        "a window": lambda reader, _: reader.read_window(LONG_S),
        "step deviation": lambda reader, last: reader.read_deviation(last),
    }
    sizes = [longest // 100, longest // 10, longest]
    for name, ask in questions.items():
        timings = []
        for steps in sizes:
            with tempfile.TemporaryDirectory() as directory:
                write_log(Path(directory), steps)
                seconds = question_s(Path(directory), steps, ask)
            timings.append(timing.Timing(f"after {steps:,} steps", seconds))
        timing.show(f"Asking for {name}, {NEW_STEPS} new steps", timings, unit="ms", scale=1e3)
        shortest, longer = timings[0].seconds, timings[-1].seconds
        timing.verdict("the longest run's question in those of the shortest", longer / shortest, 2)
        peer = timing.Figure(f"after {sizes[0]:,} steps", shortest * 1e3)
        what = f"asking for {name} after {longest:,} steps"
        timing.row(what, longer * 1e3, peer, unit="ms", least=1 / 2)
        share = longer / USUAL_INTERVAL_S * 100
        print(f"\nAsked every {USUAL_INTERVAL_S} s, that is {share:.3f} % of a core.")
    with tempfile.TemporaryDirectory() as directory:
        write_log(Path(directory), longest)
        process = watch(Path(directory))
        thread = watch(Path(directory), InThread(Path(directory)))
    print(f"\n### Watching a run of {longest:,} steps, asked every {INTERVAL_S:g} s\n")
    print(f"{timing.machine()}; {WATCHED_S:g} s each.\n")
    print("| uploader | % CPU of the training process | % CPU of the uploader |\n|---|---:|---:|")
    print(f"| a process of its own | {process.own:.4f} | {process.uploader:.1f} |")
    print(f"| a thread | {thread.own:.4f} | (the same) |")
    timing.verdict("the training process's CPU, in percent", process.own, CPU_LIMIT)
    promised = timing.Figure("the promised share", CPU_LIMIT)
    for what, watched in {"a process": process, "a thread": thread}.items():
        name = f"training's CPU while {what} uploads"
        why = IN_A_THREAD if watched is thread else ""
        timing.row(name, watched.own, promised, unit="%", least=1, why=why)


if __name__ == "__main__":
    main()
