"""Files that change as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlay.files import draft_of, write_whole


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
