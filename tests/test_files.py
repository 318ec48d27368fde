"""Files that change as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import in_process
from outlay.files import draft_of, make_private, write_whole


@pytest.mark.parametrize("synced", [False, True])
def test_file_content_is_replaced(tmp_path: Path, *, synced: bool) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"a longer, older content")
    write_whole(path, b"new", synced=synced)
    assert path.read_bytes() == b"new"


def test_old_content_remains_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    with draft_of(path) as draft:
        draft.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_a_block_that_fails_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with draft_of(path) as draft:
            draft.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "gone" / "state.json", b"new")
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_file_do_not_share_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with draft_of(path) as outer:
        outer.write_bytes(b"outer")
        write_whole(path, b"inner")
        assert path.read_bytes() == b"inner"
    assert path.read_bytes() == b"outer"


def test_synced_content_is_flushed_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    in_place: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: in_place.append(path.read_bytes()))
    write_whole(path, b"new", synced=True)
    assert in_place == [b"old"]


# -- modes of new files ------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_what_outlay_creates_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home, the store, price file, a spend log with its head, runs and their logs."""
    work, home = tmp_path / "work", tmp_path / "new" / "home"
    work.mkdir()
    work.chmod(0o755)
    monkeypatch.chdir(work)
    monkeypatch.setenv("OUTLAY_HOME", str(home))
    run = ("exec", "--dir", "runs/a", "--budget", "iso_time=1h", "--", "true")
    for words in (run, ("guard", "authorize", "x", "1", "--ceiling", "5"), ("runs",)):
        assert in_process(*words).code == 0
    made = [path for top in (home, work) for path in (top, *top.rglob("*")) if path != work]
    assert {"outlay.db", "spend.jsonl", "heads", "run.json"} <= {path.name for path in made}
    wrong = [path for path in made if mode_of(path) != (0o700 if path.is_dir() else 0o600)]
    assert wrong == []
    assert mode_of(home.parent) == 0o700
    assert mode_of(work) == 0o755


def test_in_a_directory_that_a_group_shares_new_files_are_the_groups_too(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        shared = tmp_path / "team"
        shared.mkdir()
        shared.chmod(0o2770)
        in_process("exec", "--dir", shared / "r", "--", "true")
        paths = [shared / "r", *(shared / "r").rglob("*")]
        assert {mode_of(p) & 0o777 for p in paths if p.is_dir()} == {0o770}
        assert {mode_of(p) for p in paths if not p.is_dir()} == {0o660}
    finally:
        os.umask(before)


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    for mode in (0o640, 0o600, 0o664):
        path.chmod(mode)
        write_whole(path, b"new", private=True)
        write_whole(path, b"new")
        assert mode_of(path) == mode


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    make_private(tmp_path / "there" / "new")
    assert (mode_of(tmp_path / "there"), mode_of(tmp_path / "there" / "new")) == (0o755, 0o700)


def test_a_file_in_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="exists"):
        make_private(tmp_path / "file" / "below")
