"""Runs are registered by a notice in the inbox, without opening a database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import outlay
from outlay.ledger import ledger_dir
from outlay.runs.collect import refresh_registered
from outlay.runs.inbox import leave_notice, notices
from outlay.store import open_store


@pytest.fixture(scope="module")
def home_of_a_fixture() -> Path:
    """Where a run that a fixture of a wide scope starts would leave its notice."""
    return Path(os.environ["OUTLAY_HOME"])


def test_runs_of_tests_leave_no_notice_in_the_callers_home(
    home_of_a_fixture: Path, private_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours = tmp_path_factory.getbasetemp()
    assert home_of_a_fixture.is_relative_to(ours)
    assert private_home.is_relative_to(ours)


def test_a_run_leaves_a_notice_of_its_directory(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run"):
        pass
    assert [notice.run_dir for notice in notices()[0]] == [tmp_path / "run"]


def test_the_same_run_leaves_one_notice(tmp_path: Path) -> None:
    for _ in range(3):
        with outlay.run("m", dir=tmp_path / "run"):
            pass
    assert len(notices()[0]) == 1


def test_only_the_first_rank_leaves_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with outlay.run("m", dir=tmp_path / "run"):
        pass
    assert notices() == ([], [])


def test_no_database_is_opened(tmp_path: Path, private_home: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run"):
        pass
    assert [path.name for path in private_home.iterdir()] == ["inbox"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"else": "where"}', '{"dir": 5}'])
def test_a_notice_that_cannot_be_read_is_dropped(private_home: Path, text: str) -> None:
    leave_notice("good", Path("/runs/good"))
    (private_home / "inbox" / "bad.json").write_text(text)
    assert [notice.run_dir for notice in notices()[0]] == [Path("/runs/good")]
    assert not (private_home / "inbox" / "bad.json").exists()


@pytest.mark.parametrize("raw", [b"\xff", b'{"dir": "a\\u0000b"}', b'{"dir": "\xff"}'])
def test_notice_of_bad_bytes_is_a_finding(private_home: Path, raw: bytes) -> None:
    leave_notice("good", Path("/runs/good"))
    (private_home / "inbox" / "bad.json").write_bytes(raw)
    found, findings = notices()
    assert [notice.run_dir for notice in found] == [Path("/runs/good")]
    assert [Path(finding.source).name for finding in findings] == ["bad.json"]


def test_directory_named_like_a_notice_is_a_finding_and_not_deleted(private_home: Path) -> None:
    leave_notice("good", Path("/runs/good"))
    (private_home / "inbox" / "x.json").mkdir()
    found, findings = notices()
    assert len(found) == 1
    assert [Path(finding.source).name for finding in findings] == ["x.json"]
    assert (private_home / "inbox" / "x.json").is_dir()


def test_a_home_that_cannot_be_written_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "file"))
    with outlay.run("m", dir=tmp_path / "run"):
        pass
    assert notices() == ([], [])


def test_a_directory_whose_name_is_no_text_does_not_stop_a_run(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / os.fsdecode(b"caf\xe9")) as run:
        pass
    assert run.recorder.writer.lost == 0


def test_a_run_whose_log_is_not_there_yet_keeps_its_notice(tmp_path: Path) -> None:
    ledger_dir(tmp_path / "run").mkdir(parents=True)
    leave_notice("early", tmp_path / "run")
    refresh_registered(open_store(), 0)
    assert [notice.run_dir for notice in notices()[0]] == [tmp_path / "run"]


def test_a_run_that_is_gone_leaves_no_notice(tmp_path: Path) -> None:
    leave_notice("gone", tmp_path / "run")
    refresh_registered(open_store(), 0)
    assert notices() == ([], [])
