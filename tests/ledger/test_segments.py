"""The files of a run log, the run's identity, and its last committed checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from ledgers import Segment
from outlay.errors import NotARun
from outlay.ledger import (
    RunIdentity,
    SegmentId,
    claim_identity,
    last_committed_step,
    ledger_dir,
    read_identity,
    read_run,
    segment_paths,
)
from outlay.ledger.segments import id_from_name

MINE = RunIdentity(run_id="mine", model="m", name="n", created_ns=1)
YOURS = RunIdentity(run_id="yours", model="m", name="n", created_ns=2)


def test_segment_id_is_parsed_back_from_its_file_name() -> None:
    segment = SegmentId(start_ns=17, rank=3, host="node", pid=42)
    assert id_from_name(Path(segment.file_name)) == segment


def test_segment_id_of_a_supervisor_is_parsed_back_from_its_file_name() -> None:
    segment = SegmentId(start_ns=17, rank=-1, host="node", pid=42)
    assert id_from_name(Path(segment.file_name)) == segment


def test_a_host_name_cannot_lead_out_of_the_directory() -> None:
    assert "/" not in SegmentId(start_ns=1, host="../../etc/passwd").file_name


def test_names_sort_by_start() -> None:
    ids = [SegmentId(start_ns=start) for start in (9, 10, 99, 1_700_000_000_000_000_000)]
    assert sorted(ids) == ids == sorted(ids, key=lambda segment: segment.file_name)


def test_a_directory_without_a_log_is_not_a_run(tmp_path: Path) -> None:
    assert segment_paths(tmp_path) == []
    with pytest.raises(NotARun, match=r"ledger/\*\.jsonl"):
        read_run(tmp_path)


def test_the_first_process_decides_the_identity(tmp_path: Path) -> None:
    assert claim_identity(tmp_path, MINE) == MINE
    assert claim_identity(tmp_path, YOURS) == MINE
    assert read_identity(tmp_path) == MINE


def test_claiming_leaves_no_draft(tmp_path: Path) -> None:
    claim_identity(tmp_path, MINE)
    claim_identity(tmp_path, YOURS)
    assert [path.name for path in ledger_dir(tmp_path).iterdir()] == ["run.json"]


def test_identity_is_claimed_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    assert claim_identity(tmp_path, MINE) == MINE
    assert claim_identity(tmp_path, YOURS) == MINE


@pytest.mark.parametrize("text", [b"", b"{", b'{"run_id": 5}'])
def test_an_unreadable_identity_reads_as_none(tmp_path: Path, text: bytes) -> None:
    claim_identity(tmp_path, MINE)
    (ledger_dir(tmp_path) / "run.json").write_bytes(text)
    assert read_identity(tmp_path) is None


def test_a_run_without_a_checkpoint_has_no_committed_step(tmp_path: Path) -> None:
    Segment().step(1).write(tmp_path)
    assert last_committed_step(tmp_path) is None


def test_the_last_committed_checkpoint_is_found(tmp_path: Path) -> None:
    Segment().step(1).checkpoint().step(1).checkpoint().step(1).write(tmp_path)
    assert last_committed_step(tmp_path) == 1


def test_a_later_attempt_without_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    Segment(start=0).step(1, number=9).checkpoint().write(tmp_path)
    Segment(start=10).step(1, number=10).write(tmp_path)
    assert last_committed_step(tmp_path) == 9


def test_a_later_attempt_that_rolled_back_decides(tmp_path: Path) -> None:
    Segment(start=0).step(1, number=9).checkpoint().write(tmp_path)
    Segment(start=10).step(1, number=4).checkpoint().write(tmp_path)
    assert last_committed_step(tmp_path) == 4


def test_of_several_ranks_the_lowest_decides(tmp_path: Path) -> None:
    Segment(start=0, rank=0).checkpoint(50).checkpoint(100).write(tmp_path)
    Segment(start=1, rank=1).checkpoint(50).write(tmp_path)
    assert last_committed_step(tmp_path) == 100


def test_a_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    path = Segment().checkpoint(3).checkpoint(7).write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"step":7', b'"step":8'))
    assert last_committed_step(tmp_path) == 3


def test_a_torn_checkpoint_is_skipped(tmp_path: Path) -> None:
    path = Segment().checkpoint(3).checkpoint(7).write(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert last_committed_step(tmp_path) == 3


def test_an_empty_segment_is_skipped(tmp_path: Path) -> None:
    Segment(start=0).checkpoint(3).write(tmp_path)
    Segment(start=1).write(tmp_path).write_bytes(b"")
    assert last_committed_step(tmp_path) == 3
