"""A large log is followed in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scripts
from ledgers import Segment
from outlay.ledger import Note, Step, encode_line

MEGABYTE = 1 << 20
ALLOWED_GROWTH = 48 * MEGABYTE

FOLLOW = """
    import json, resource, sys
    from pathlib import Path
    from outlay.ledger import LedgerReader
    from outlay.runs.reading import read_figures
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    before = peak()
    reader = LedgerReader(Path(sys.argv[1]))
    records = sum(len(chunk.records) for chunk in reader.poll())
    again = sum(len(chunk.records) for chunk in reader.poll())
    figures = read_figures(Path(sys.argv[1]), 2**62)
    print(json.dumps([records, again, figures.steps, peak() - before]))
"""


def write_log(run_dir: Path, megabytes: int) -> int:
    """Write a log of steps with long notes between them; return how many records it has."""
    segment = Segment()
    path, text, size, seq = segment.write(run_dir), "x" * 3000, 0, 0
    with path.open("ab", buffering=MEGABYTE) as stream:
        while size < megabytes * MEGABYTE:
            seq += 1
            step = Step(t_ns=segment.now_ns + seq, step=seq, dur_ns=1)
            size += stream.write(encode_line(step, 2 * seq - 1))
            size += stream.write(encode_line(Note(t_ns=step.t_ns, text=text), 2 * seq))
    return 1 + 2 * seq


@pytest.mark.parametrize("megabytes", [100, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_large_log_is_followed_in_bounded_memory(tmp_path: Path, megabytes: int) -> None:
    written = write_log(tmp_path, megabytes)
    done = scripts.finish(FOLLOW, tmp_path)
    assert done.returncode == 0, done.stderr
    records, again, steps, growth = json.loads(done.stdout)
    assert (records, again, steps) == (written, 0, written // 2 + 1)
    assert growth < ALLOWED_GROWTH
