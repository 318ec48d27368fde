"""A segment that is deleted or replaced under its writer, locks that last, and records that fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import outlay
from command_line import python
from outlay.errors import RunInUse
from outlay.ledger import Metric, Note, SpanBegun, Step, read_run, segment_paths
from outlay.record.lock import RankLock, is_held


def test_a_segment_replaced_by_an_older_copy_loses_no_record_unnoticed(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.metric("first", 1)
        (path,) = segment_paths(tmp_path)
        copy = path.with_suffix(".copy")
        shutil.copy(path, copy)
        run.metric("gone", 2)
        copy.replace(path)
        run.sync()
        run.metric("last", 3)
    log = read_run(tmp_path)
    assert [r.name for r in log.records if isinstance(r, Metric)] == ["first", "last"]
    assert [finding.message for finding in log.findings] == ["1 records are missing in the middle"]


def test_a_replaced_segment_is_noticed_with_the_next_heartbeat(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        (path,) = segment_paths(tmp_path)
        copy = path.with_suffix(".copy")
        shutil.copy(path, copy)
        copy.replace(path)
        run.heartbeat()
        run.metric("kept", 1)
        assert [r.name for r in read_run(tmp_path).records if isinstance(r, Metric)] == ["kept"]


def test_a_run_whose_directory_is_moved_keeps_writing_to_its_file(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "a") as run:
        (tmp_path / "a").rename(tmp_path / "b")
        run.sync()
        run.metric("kept", 1)
    log = read_run(tmp_path / "b")
    assert [r.name for r in log.records if isinstance(r, Metric)] == ["kept"]
    assert log.findings == []


def test_copying_the_run_does_not_let_a_second_writer_in(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        other = (
            "import sys, outlay, outlay.errors\n"
            "try:\n    outlay.run('m', dir=sys.argv[1])\n"
            "except outlay.errors.RunInUse:\n    sys.exit(7)\n"
        )
        assert python(other, tmp_path / "run").code == 7


def test_a_lock_is_held_until_it_is_released_and_by_one_alone(tmp_path: Path) -> None:
    lock = RankLock(tmp_path, 0, holder="me")
    with pytest.raises(RunInUse):
        RankLock(tmp_path, 0, holder="also me")
    assert is_held(tmp_path, 0)
    lock.release()
    assert is_held(tmp_path, 0) is False


def test_a_forked_child_neither_keeps_nor_drops_its_parents_lock(tmp_path: Path) -> None:
    lock = RankLock(tmp_path, 0, holder="me")
    go, wait = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wait)
        os.read(go, 1)
        os._exit(0)
    os.close(go)
    assert is_held(tmp_path, 0)
    lock.release()
    assert is_held(tmp_path, 0) is False
    os.close(wait)
    os.waitpid(child, 0)


def test_non_text_note_and_span_name_are_recorded_as_text(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.note(None)  # type: ignore[arg-type]
        with run.span(7):  # type: ignore[arg-type]
            pass
    log = read_run(tmp_path)
    assert log.findings == []
    assert [r.text for r in log.records if isinstance(r, Note)] == [""]
    assert [r.name for r in log.records if isinstance(r, SpanBegun)] == ["7"]


@pytest.mark.parametrize("field", ["tokens", "samples", "comm_bytes", "energy_mj", "flops"])
def test_a_number_that_readers_reject_is_counted_as_lost(tmp_path: Path, field: str) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        with run.step() as timer:
            setattr(timer, field, 10**50)
        assert run.recorder.writer.lost == 1
        with run.step():
            pass
    log = read_run(tmp_path)
    assert len([r for r in log.records if isinstance(r, Step)]) == 1
    assert [f.message for f in log.findings] == [
        "1 records were not written: a step has a value that readers reject"
    ]


def test_a_step_number_beyond_64_bits_is_counted_as_lost(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        for _ in run.steps([1], start=2**64):
            pass
        assert run.recorder.writer.lost == 1


def test_a_fifo_among_the_segments_is_named_and_does_not_block(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.metric("kept", 1)
    os.mkfifo(tmp_path / "ledger" / "x.jsonl")
    log = read_run(tmp_path)
    assert [r.name for r in log.records if isinstance(r, Metric)] == ["kept"]
    assert [f.message for f in log.findings] == ["cannot be read: not a regular file"]


def test_a_record_in_flight_at_a_kill_is_not_reported_as_lost(tmp_path: Path) -> None:
    run = outlay.run("m", dir=tmp_path)
    for _ in range(3):
        run.metric("x", 1)
    (path,) = segment_paths(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))  # As if its thread had not come to write it.
    (finding,) = read_run(tmp_path).findings
    run.close()
    assert finding.severity == "warning"
    assert "threads were writing" in finding.message
