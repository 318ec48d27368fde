"""Goodput queries of outlay and of ml-goodput-measurement 0.2.3, on the same synthetic jobs.

Run: python benchmarks/goodput.py        (needs the bench extra)

Three ways to ask: the reference library over a log in memory; outlay's GoodputCalculator over the
same log; outlay over a native run log on disk. Each measurement has a process of its own, so that
peak memory is its own, and the best of several counts.
"""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import timing

from outlay.clock import SYSTEM, utc_datetime

SIZES = (10_000, 100_000, 1_000_000)
DISRUPTIONS = (0, 10, 100)
NEW_STEPS = 10
FIGURES = {
    "cold_s": "first question",
    "after_s": f"{NEW_STEPS} steps later",
    "peak_mb": "peak memory",
}
ASKED = {"cold_s": 15, "after_s": 500, "peak_mb": 8}  # At a million steps.
ASKED_NATIVE = {0: 25, 10: 25, 100: 20}  # Of a cold native log, by disruptions.
OWN_LIST = "both peaks include the caller's list of a million dicts; the bar is for other logs too"
WAYS = ("reference", "classes", "cached", "native")
IMPORTS = {
    "reference": "import ml_goodput_measurement.src.goodput",
    "calculator": "from outlay import GoodputCalculator",
    "recorder": "from outlay import GoodputRecorder",
    "nothing": "pass",
}
ROLLED_BACK, DOWN_S, STARTUP_S = 10, 60.0, 5.0


def attempts(steps: int, disruptions: int) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """Yield each attempt of a job: when it starts, and (number, instant) of its step starts."""
    second, number, each = 0.0, 0, steps // (disruptions + 1)
    for attempt in range(disruptions + 1):
        start, starts = second, []
        second += STARTUP_S
        for index in range(each):
            starts.append((number, second))
            second += 1.0 + (index * 7919 % 100) / 1000
            number += 1
        yield start, starts
        number -= ROLLED_BACK if attempt < disruptions else 0
        second += DOWN_S


def job_start_s(steps: int, disruptions: int) -> float:
    """Return when the job must have started to have its last step now."""
    last = list(attempts(steps, disruptions))[-1][1][-1][1]
    return float(int(SYSTEM.wall_ns() / 1e9 - last) - 60)


def payloads(steps: int, disruptions: int) -> list[dict[str, Any]]:
    base = job_start_s(steps, disruptions)
    entries: list[dict[str, Any]] = []
    for start, starts in attempts(steps, disruptions):
        entries.append({"job_name": "job", "job_start_time": base + start})
        entries += [
            {"job_name": "job", "step_count": number, "step_start_time": base + second}
            for number, second in starts
        ]
    return entries


class MemoryLog:
    """A log in memory that knows what it gave away, as the reference library's logger does."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries

    def add_steps(self) -> None:
        """Add a few steps after the last one."""
        last = self.entries[-1]
        for index in range(1, NEW_STEPS + 1):
            number, second = last["step_count"] + index, last["step_start_time"] + index
            self.entries.append(last | {"step_count": number, "step_start_time": second})

    def read_cloud_logging_entries(
        self, start_time: Any = None, end_time: Any = None, last_entry_info: Any = None
    ) -> tuple[list[dict[str, Any]], tuple[datetime, str]]:
        """Return what comes after the entry that was given last."""
        del start_time, end_time
        seen = int(last_entry_info[1]) if last_entry_info else 0
        return self.entries[seen:], (utc_datetime(len(self.entries)), str(len(self.entries)))


def write_run_log(run_dir: Path, steps: int, disruptions: int) -> None:
    """Write the job as native records: the same steps, each from its start to the next."""
    from outlay.ledger import AttemptStarted, SegmentId, Step, encode_line, ledger_dir

    base = job_start_s(steps, disruptions)
    ledger_dir(run_dir).mkdir(parents=True)
    for start, starts in attempts(steps, disruptions):
        start_ns = int((base + start) * 1e6) * 1000
        instants = [int((base + second) * 1e6) * 1000 for _, second in starts]
        path = ledger_dir(run_dir) / SegmentId(start_ns, host="bench").file_name
        with path.open("wb") as stream:
            stream.write(encode_line(AttemptStarted(t_ns=start_ns, host="bench"), 0))
            for index, (begin, end) in enumerate(pairwise(instants)):
                step = Step(t_ns=end, step=starts[index][0], dur_ns=end - begin)
                stream.write(encode_line(step, index + 1))


def append_to_run_log(run_dir: Path) -> None:
    from outlay.ledger import Step, encode_line, ledger_dir, read_run

    log = read_run(run_dir)
    segment = max(log.segments)
    last = log.segments[segment][-1]
    assert isinstance(last, Step)
    with (ledger_dir(run_dir) / segment.file_name).open("ab") as stream:
        for index in range(1, NEW_STEPS + 1):
            t_ns = last.t_ns + index * 10**9
            step = Step(t_ns=t_ns, step=last.step + index, dur_ns=10**9)
            stream.write(encode_line(step, last.seq + index))


def timed(query: Callable[[], float]) -> tuple[float, float]:
    start = time.perf_counter()
    answer = query()
    return time.perf_counter() - start, answer


def prepare(way: str, place: Path, steps: int, disruptions: int) -> tuple[Any, Any]:
    """Return what asks for the goodput in percent, and what adds a few steps."""
    logging.disable(logging.CRITICAL)
    if way == "native":
        from outlay.goodput.follower import GoodputFollower

        follower = GoodputFollower(place)

        def ask() -> float:
            breakdown = follower.view(SYSTEM.wall_ns()).break_down()
            return 100 * (breakdown.goodput or 0.0)

        command = [sys.executable, __file__, "append", str(place)]
        return ask, lambda: subprocess.run(command, check=True)
    log = MemoryLog(payloads(steps, disruptions))
    if way in ("classes", "cached"):
        from outlay import GoodputCalculator

        kept = str(place) if way == "cached" else None
        calculator: Any = GoodputCalculator("job", "log", log, cache_dir=kept)  # type: ignore[arg-type]
    else:
        from ml_goodput_measurement.src import goodput

        calculator = goodput.GoodputCalculator("job", "log", log, cache_dir=str(place))
    return lambda: calculator.get_job_goodput(include_badput_breakdown=True)[0], log.add_steps


def measure(way: str, place: Path, steps: int, disruptions: int) -> dict[str, float]:
    ask, add_steps = prepare(way, place, steps, disruptions)
    cold_s, goodput = timed(ask)
    after_s = []
    for _ in range({"reference": 2, "native": 1}.get(way, 10)):
        add_steps()  # To a file it costs a process; once is enough.
        after_s.append(timed(ask)[0])
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cold_s": cold_s, "after_s": min(after_s), "peak_mb": peak_mb, "goodput": goodput}


def child(*arguments: object) -> str:
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def best(way: str, steps: int, disruptions: int, repeats: int) -> dict[str, float]:
    """Return the least of each figure over some processes."""
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory) / "run"
            if way == "native":
                child("write", place, steps, disruptions)
            else:
                place.mkdir()
            found.append(json.loads(child("measure", way, place, steps, disruptions)))
    return {name: min(result[name] for result in found) for name in found[0]}


def import_times() -> dict[str, float]:
    """Return the seconds that each import adds to an empty interpreter; best of several."""
    times: dict[str, float] = {}
    for _ in range(7):
        for name, statement in IMPORTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            times[name] = min(times.get(name, 1e9), time.perf_counter() - start)
    return {name: seconds - times["nothing"] for name, seconds in times.items()}


def show_imports() -> None:
    times = import_times()
    for name in ("calculator", "recorder"):
        ratio = times["reference"] / times[name]
        seconds = f"reference {times['reference']:.3f} s, {name} {times[name]:.3f} s"
        print(f"import: {seconds}: {ratio:.0f}x")
        peer = timing.Figure("ml-goodput-measurement", times["reference"] * 1e3)
        least = {"calculator": 10, "recorder": 20}[name]
        timing.row(f"import the {name}", times[name] * 1e3, peer, unit="ms", least=least)


def show(steps: int, disruptions: int) -> None:
    is_long = steps >= SIZES[-1]
    repeats = 2 if is_long else 3
    reference = best("reference", steps, disruptions, 1 if is_long else repeats)
    print(f"\n{steps} steps, {disruptions} disruptions (reference: {reference['goodput']:.3f} %)")
    print(
        f"{'':10}{'cold s':>10}{'x':>7}{'after 10 s':>12}{'x':>8}{'peak MB':>9}{'1/':>6}  goodput"
    )
    print(
        f"{'reference':10}{reference['cold_s']:10.3f}{'':7}{reference['after_s']:12.4f}{'':8}"
        f"{reference['peak_mb']:9.0f}"
    )
    for way in WAYS[1:]:
        mine = best(way, steps, disruptions, repeats)
        ratios = {name: reference[name] / mine[name] for name in mine}
        print(
            f"{way:10}{mine['cold_s']:10.3f}{ratios['cold_s']:7.1f}{mine['after_s']:12.4f}"
            f"{ratios['after_s']:8.0f}{mine['peak_mb']:9.0f}{ratios['peak_mb']:6.1f}"
            f"  {mine['goodput']:.3f} %",
            flush=True,
        )
        for name, words in FIGURES.items():
            unit, scale = ("MB", 1) if name == "peak_mb" else ("ms", 1e3)
            peer = timing.Figure("ml-goodput-measurement", reference[name] * scale)
            what = f"goodput, {way}, {steps:,} steps, {disruptions} disruptions: {words}"
            asked = (
                ASKED_NATIVE[disruptions] if (way, name) == ("native", "cold_s") else ASKED[name]
            )
            least = asked if is_long else None
            why = OWN_LIST if name == "peak_mb" and way != "native" else ""
            timing.row(what, mine[name] * scale, peer, unit=unit, least=least, why=why)


def main() -> None:
    match sys.argv[1:]:
        case ["measure", way, place, steps, disruptions]:
            print(json.dumps(measure(way, Path(place), int(steps), int(disruptions))))
        case ["write", place, steps, disruptions]:
            write_run_log(Path(place), int(steps), int(disruptions))
        case ["append", place]:
            append_to_run_log(Path(place))
        case chosen:
            sizes = [int(size) for size in chosen] or SIZES
            print(timing.machine())
            show_imports()
            for size, each in product(sizes, DISRUPTIONS):
                show(size, each)


if __name__ == "__main__":
    main()
