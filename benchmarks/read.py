"""Reading a million step records back, checksums verified, beside json.loads of every line.

python benchmarks/read.py [records]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import timing

from outlay.ledger import AttemptStarted, LedgerReader, SegmentId, Step, encode_line, ledger_dir

RECORDS = 1_000_000
ROUNDS = 3
LIMIT = 1 / 3
START_NS = 1_700_000_000_000_000_000


def write_log(run_dir: Path, records: int) -> Path:
    """Write a log as a loop of 50 ms steps would have."""
    path = ledger_dir(run_dir) / SegmentId(START_NS).file_name
    path.parent.mkdir()
    with path.open("wb", buffering=1 << 20) as stream:
        stream.write(encode_line(AttemptStarted(t_ns=START_NS), 0))
        for number in range(records):
            t_ns = START_NS + (number + 1) * 50_000_000
            step = Step(t_ns=t_ns, step=number, dur_ns=49_000_000, wait_ns=1_000_000, tokens=4096)
            stream.write(encode_line(step, number + 1))
    return path


def read_with_outlay(run_dir: Path, records: int) -> Callable[[], None]:
    def work() -> None:
        reader = LedgerReader(run_dir)
        assert sum(len(chunk.records) for chunk in reader.poll()) == records + 1
        assert reader.findings() == []

    return work


def read_with_json(path: Path, records: int) -> Callable[[], None]:
    def work() -> None:
        with path.open("rb") as stream:
            assert sum(1 for line in stream if json.loads(line)) == records + 1

    return work


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    with tempfile.TemporaryDirectory() as name:
        path = write_log(Path(name), records)
        works = {
            "json.loads of every line, no checksum": read_with_json(path, records),
            "outlay, checksums verified": read_with_outlay(Path(name), records),
        }
        timings = timing.compare(works, calls=1, rounds=ROUNDS)
        megabytes = path.stat().st_size / 1e6
    title = f"Reading {records:,} step records ({megabytes:.0f} MB)"
    timing.show(title, timings, unit="s", scale=1)
    by_json, by_outlay = (entry.seconds for entry in timings)
    peer = timing.Figure("json.loads, no checksum", by_json)
    timing.row("read 1,000,000 records", by_outlay, peer, unit="s", least=1 / LIMIT)
    timing.verdict("outlay's time in times of json", by_outlay / by_json, LIMIT)


if __name__ == "__main__":
    main()
