"""One process's segment: what is on disk after each call, and how losses are reported."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from ledgers import START_NS, Segment
from outlay.clock import ManualClock
from outlay.ledger import Gap, Note, Record, SegmentWriter, Step, read_run


@pytest.fixture
def writer(tmp_path: Path, clock: ManualClock) -> SegmentWriter:
    story = Segment()
    return SegmentWriter(tmp_path / "ledger" / story.id.file_name, story.header, clock)


def step(number: int = 0, tokens: int = 0) -> Step:
    return Step(t_ns=START_NS + number, step=number, dur_ns=1, tokens=tokens)


def recorded(tmp_path: Path) -> list[Record]:
    return read_run(tmp_path).records[1:]


def test_a_record_is_on_disk_when_append_returns(writer: SegmentWriter) -> None:
    before = writer.path.stat().st_size
    writer.append(step())
    assert writer.path.stat().st_size > before


def test_a_record_costs_one_write(writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Mock(side_effect=os.write)
    monkeypatch.setattr(os, "write", spy)
    writer.append(step())
    assert spy.call_count == 1


def test_append_returns_the_records_place(writer: SegmentWriter, tmp_path: Path) -> None:
    places = [writer.append(step(number)) for number in range(3)]
    assert places == [record.seq for record in recorded(tmp_path)] == [1, 2, 3]


def test_after_close_nothing_is_written_and_nothing_is_lost(
    writer: SegmentWriter, tmp_path: Path
) -> None:
    writer.close()
    writer.append(step())
    assert (recorded(tmp_path), writer.lost) == ([], 0)


def test_an_existing_file_is_never_written_to(tmp_path: Path, clock: ManualClock) -> None:
    path = Segment().step(1).write(tmp_path)
    before = path.read_bytes()
    SegmentWriter(path, Segment().header, clock).append(step())
    assert path.read_bytes() == before


def test_a_failing_file_is_retried_once_a_second(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Mock(side_effect=PermissionError)
    monkeypatch.setattr(os, "open", refused)
    blocked = SegmentWriter(tmp_path / "ledger" / "s.jsonl", Segment().header, clock)
    for _ in range(30):
        clock.sleep(0.1)
        blocked.append(step())
    assert refused.call_count == 1 + 3
    assert blocked.lost == 30


def test_a_write_error_is_logged_once(
    writer: SegmentWriter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING, "outlay"), monkeypatch.context() as patch:
        patch.setattr(os, "write", Mock(side_effect=OSError(28, os.strerror(28))))
        for _ in range(5):
            writer.append(step())
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot record to {writer.path}: No space left on device. "
        "Training continues; lost records are counted."
    ]


def test_numbers_of_array_libraries_are_written_as_numbers(
    writer: SegmentWriter, tmp_path: Path
) -> None:
    writer.append(step(tokens=np.int64(7)))  # type: ignore[arg-type]
    writer.append(Note(t_ns=1, data={"loss": np.float32(0.5)}))
    first, second = recorded(tmp_path)
    assert isinstance(first, Step)
    assert isinstance(second, Note)
    assert (first.tokens, second.data) == (7, {"loss": 0.5})


def test_a_step_counted_in_floats_is_read_as_whole(writer: SegmentWriter, tmp_path: Path) -> None:
    writer.append(step(tokens=4096.0))  # type: ignore[arg-type]
    (record,) = recorded(tmp_path)
    assert isinstance(record, Step)
    assert (record.tokens, type(record.tokens)) == (4096, int)


def test_an_array_is_lost_and_counted(writer: SegmentWriter, tmp_path: Path) -> None:
    writer.append(Note(t_ns=1, data={"weights": np.ones(3)}))
    writer.append(step())
    assert [type(record) for record in recorded(tmp_path)] == [Step, Gap]
    assert writer.lost == 1


def test_the_reason_of_a_loss_quotes_nothing_of_the_record(
    writer: SegmentWriter, tmp_path: Path
) -> None:
    writer.append(Note(t_ns=1, data={"token": "hunter2\ud800"}))
    writer.append(step())
    assert "hunter2" not in str(read_run(tmp_path))


def test_a_very_large_number_is_kept(writer: SegmentWriter, tmp_path: Path) -> None:
    writer.append(Step(t_ns=1, step=1, dur_ns=1, flops=10**30))
    (record,) = recorded(tmp_path)
    assert isinstance(record, Step)
    assert record.flops == 10**30
