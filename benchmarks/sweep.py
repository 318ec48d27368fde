"""What a sweep costs beside doing the same by hand: planning, launching, books, summaries.

Each claim is measured against its alternative in one run, best of several repeats:

    python benchmarks/sweep.py
"""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import timing

from outlay.clock import SYSTEM
from outlay.export.csv_files import export_csv
from outlay.ledger import AttemptStarted, KnownRecord, Metric, Step, encode_line, ledger_dir
from outlay.sweep.aggregate.aggregator import CACHE, aggregate
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import FiguresKeeper, start
from outlay.sweep.state.manifest import Journal, ManifestRun, SweepManifest
from outlay.sweep.state.outcomes import Event

PLANNED = 10_000
LAUNCHED = 200
AT_ONCE = 2
SUMMARISED = 1_000
STEPS = 500
START_NS = 1_700_000_000_000_000_000


def planning(directory: Path) -> None:
    axis = ", ".join(map(str, range(100)))
    budget = "budget: {mode: iso_time, limit: 2}"
    product = f"grid:\n  - params: {{a: [{axis}], b: [{axis}]}}\n    {budget}\n"
    entry = "  - params: {{a: {n}, b: [1]}}\n    budget: {{mode: iso_time, limit: 2}}\n"
    listed = "grid:\n" + "".join(entry.format(n=n) for n in range(PLANNED))
    for what, text in (("of one entry", product), ("of as many entries", listed)):
        path = directory / "grid.yaml"
        path.write_text(text)
        assert len(plan_file(path).runs) == PLANNED
        begun = time.process_time()
        seconds = timing.best_s(partial(plan_file, path), rounds=6)
        busy = (time.process_time() - begun) / 6
        print(f"plan {PLANNED} runs {what}: {seconds:.2f} s, {busy:.2f} s of CPU (limit 2 s)")
        peer = timing.Figure("the promised 2 s", 2.0)
        timing.row(f"plan {PLANNED:,} runs {what}", seconds, peer, unit="s", least=1)


def launching(directory: Path) -> None:
    command = [sys.executable, "-c", "pass"]

    def one(_: int) -> int:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL).wait()

    def bare() -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert not any(pool.map(one, range(LAUNCHED)))

    grid = {
        "engine": "process", "arguments": "none", "entrypoint": command,
        "grid": [{"params": {"x": list(range(LAUNCHED))}}],
    }  # fmt: skip
    path = directory / "grid.json"
    path.write_text(json.dumps(grid))

    def ours(root: Path) -> None:
        result = start(plan_file(path), root, SweepOptions(jobs=AT_ONCE))
        assert result.counts == {"completed": LAUNCHED}

    # Each sweep in a new directory: emptying one takes time that no sweep takes.
    pairs = [
        (
            timing.best_s(bare, rounds=1),
            timing.best_s(partial(ours, directory / f"launched{n}"), rounds=1),
        )
        for n in range(6)
    ]
    by_hand, outlay_s = (min(times) for times in zip(*pairs, strict=True))
    print(
        f"launch {LAUNCHED} jobs, {AT_ONCE} at once: Popen {by_hand:.2f} s, "
        f"outlay {outlay_s:.2f} s, {outlay_s / by_hand:.2f}x (limit 1.3x); a new file takes "
        f"{_new_file_s(directory) * 1e6:.0f} us on this disk"
    )
    peer = timing.Figure("bare Popen", by_hand)
    why = "each run has a journal line, a log and a record of its end, which are synced"
    timing.row(f"launch {LAUNCHED} jobs", outlay_s, peer, unit="s", least=1 / 1.3, why=why)


def _new_file_s(directory: Path) -> float:
    """Return what a new file costs here: a run of a sweep makes seven."""
    numbers = itertools.count()

    def many() -> None:
        for _ in range(100):
            (directory / f"new{next(numbers)}").touch(exist_ok=False)

    return timing.best_s(many, rounds=3) / 100


def updating(directory: Path) -> None:
    for runs in (100, 10_000):
        root = directory / f"updated{runs}"
        root.mkdir()
        names = [f"{n:05d}" for n in range(runs)]
        listed = {name: ManifestRun.of({"id": name, "params": {"x": name}}) for name in names}
        manifest = SweepManifest(root, {"name": "x"}, listed)
        journal = Journal(root)

        def update(
            manifest: SweepManifest = manifest, journal: Journal = journal, names: list[str] = names
        ) -> None:
            for n in range(2_000):
                event = Event(t_ns=n, run=names[n % len(names)], status="completed")
                journal.append(event)
                manifest.apply(event.run, event)
                manifest.catch_up()

        seconds = timing.best_s(update, rounds=3)
        journal.close()
        print(f"one update of a manifest of {runs} runs: {seconds / 2_000 * 1e6:.0f} us")


def summarising(directory: Path) -> None:
    root = directory / "summarised"
    runs = [f"{n:04d}" for n in range(SUMMARISED)]
    for run in runs:
        _write_run(root / run)
    about = {"target_metric": "acc", "target_value": 0.5}
    statics = [{"id": run, "run_dir": run, "params": {}, "metadata": about} for run in runs]
    (root / "sweep_manifest.json").write_text(json.dumps({"name": "x", "runs": statics}))
    journal = Journal(root)
    for run in runs:
        journal.append(Event(t_ns=1, run=run, status="completed"))
    journal.close()

    def ours() -> None:
        assert len(aggregate(root, SYSTEM.wall_ns()).rows) == SUMMARISED

    def by_hand() -> None:
        for run in runs:
            for name in ("timings.csv", "comms.csv", "eval.csv"):
                with (root / run / name).open(newline="") as stream:
                    for row in csv.DictReader(stream):
                        sum(float(value) for value in row.values() if value)

    def forget() -> None:
        for run in runs:
            (root / run / CACHE).unlink()

    def first() -> float:
        """Time a first summary after the harness kept what runs had to say when they ended."""
        keeper = FiguresKeeper(SYSTEM)
        for run in runs:
            keeper.keep(root / run)
        keeper.close()
        return timing.best_s(ours, rounds=1)

    def without() -> float:
        """Time a summary that has to read every log."""
        forget()
        return timing.best_s(ours, rounds=1)

    csv_s = timing.best_s(by_hand, rounds=3)
    kept_s = first()
    logs_s = min(without() for _ in range(3))
    print(
        f"summarise {SUMMARISED} finished runs of {STEPS} steps: csv module {csv_s:.2f} s, "
        f"outlay's first summary {kept_s:.2f} s, {csv_s / kept_s:.1f}x faster (asked: 5x); "
        f"of runs that no harness saw end, from their logs, {logs_s:.2f} s, {csv_s / logs_s:.1f}x"
    )
    peer = timing.Figure("the csv module", csv_s)
    timing.row(f"summarise {SUMMARISED:,} runs", kept_s, peer, unit="s", least=5)
    what = f"summarise {SUMMARISED:,} runs from their logs"
    timing.row(what, logs_s, peer, unit="s", least=2)


def _write_run(run_dir: Path) -> None:
    records: list[KnownRecord] = [AttemptStarted(t_ns=START_NS)]
    for step in range(STEPS):
        t_ns = START_NS + (step + 1) * 10**8
        records.append(
            Step(t_ns=t_ns, step=step, dur_ns=9 * 10**7, wait_ns=10**7, samples=32, comm_bytes=99)
        )
        if step % 50 == 49:
            records.append(Metric(t_ns=t_ns, name="acc", value=step / STEPS, step=step))
    ledger_dir(run_dir).mkdir(parents=True)
    lines = [encode_line(record, seq) for seq, record in enumerate(records)]
    (ledger_dir(run_dir) / "0-h-1-r0.jsonl").write_bytes(b"".join(lines))
    export_csv(run_dir)
    (run_dir / "budget.json").write_text("{}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        planning(Path(scratch))
        launching(Path(scratch))
        updating(Path(scratch))
        summarising(Path(scratch))
