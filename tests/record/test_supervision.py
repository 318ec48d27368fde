"""The supervisor's segment: exclusive writers, and an end that survives a deleted file."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlay.errors import RunInUse
from outlay.ledger import AttemptEnded, AttemptStarted, read_run, segment_paths
from outlay.record.supervision import SupervisedRun, Supervision

ENVIRON = {"OUTLAY_RECORD_IDENTITY": "0"}


def supervise(run_dir: Path, *, exclusive: bool = False) -> Supervision:
    return Supervision(SupervisedRun(run_dir=run_dir, name="m"), ENVIRON, exclusive=exclusive)


def test_of_two_exclusive_supervisors_the_second_is_refused_until_the_first_ended(
    tmp_path: Path,
) -> None:
    first = supervise(tmp_path, exclusive=True)
    with pytest.raises(RunInUse):
        supervise(tmp_path, exclusive=True)
    first.end("completed")
    supervise(tmp_path, exclusive=True).end("completed")
    assert len(segment_paths(tmp_path)) == 2


def test_a_supervisor_that_is_not_exclusive_records_beside_one_that_is(tmp_path: Path) -> None:
    first, second = supervise(tmp_path, exclusive=True), supervise(tmp_path)
    assert first.run_id == second.run_id
    for log in (first, second):
        log.end("completed")
    assert read_run(tmp_path).findings == []


def test_the_end_is_written_to_a_recreated_segment(tmp_path: Path) -> None:
    log = supervise(tmp_path)
    log.note("a record that is lost with the file")
    (path,) = segment_paths(tmp_path)
    path.unlink()
    log.end("terminated", "the money ended", exit_code=143)
    assert not log.is_recorded
    (records,) = read_run(tmp_path).segments.values()
    assert isinstance(records[0], AttemptStarted)
    assert isinstance(records[-1], AttemptEnded)
    assert (records[-1].status, records[-1].exit_code) == ("terminated", 143)


def test_nothing_is_recorded_where_recording_is_switched_off(tmp_path: Path) -> None:
    what = SupervisedRun(run_dir=tmp_path / "run", name="m")
    log = Supervision(what, {"OUTLAY_DISABLED": "1"}, exclusive=True)
    log.end("completed")
    assert not log.is_recorded
    assert not (tmp_path / "run").exists()
