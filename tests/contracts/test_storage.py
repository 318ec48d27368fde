"""The contract of every storage that runs are shipped to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from object_store_stand_in import object_store
from outlay.shipping.storage import Storage, check_destination, open_storage

KEY, OTHER = "run/ledger~1-h-7-r0.jsonl/0-3-ab.part", "run/budget.json/1-2-cd.whole"


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Storage]]:
    """Opens the same storage as often as it is called."""
    with object_store() as store:
        urls = {
            "directory": str(tmp_path / "kept"),
            "file": (tmp_path / "kept in").as_uri(),
            "memory": "memory://books/runs",
            "http": store.url,
        }
        yield lambda: open_storage(check_destination(urls[request.param], name="to"))
    MemoryFileSystem.store.clear()


storages = pytest.mark.parametrize("opened", ["directory", "file", "memory", "http"], indirect=True)
Opened = Callable[[], Storage]


@storages
def test_what_was_put_is_listed_and_read_by_others(opened: Opened) -> None:
    opened().put(KEY, b"abc")
    opened().put(OTHER, b"{}")
    assert sorted(opened().names()) == sorted([KEY, OTHER])
    assert opened().get([OTHER, KEY]) == [b"{}", b"abc"]


@storages
def test_putting_an_object_again_changes_nothing(opened: Opened) -> None:
    for _ in range(2):
        opened().put(KEY, b"abc")
    assert opened().names() == [KEY]
    assert opened().get([KEY]) == [b"abc"]


@storages
def test_a_new_object_is_listed_by_a_storage_that_was_listed_before(opened: Opened) -> None:
    storage = opened()
    storage.put(KEY, b"abc")
    assert storage.names() == [KEY]
    opened().put(OTHER, b"{}")
    assert sorted(storage.names()) == sorted([KEY, OTHER])


@storages
def test_an_object_that_is_not_there_cannot_be_read(opened: Opened) -> None:
    opened().put(KEY, b"abc")
    with pytest.raises(FileNotFoundError):
        opened().get([OTHER])


@storages
def test_an_object_may_be_empty_and_may_have_any_bytes(opened: Opened) -> None:
    content = bytes(range(256)) * 1000
    opened().put(KEY, content)
    opened().put(OTHER, b"")
    assert opened().get([KEY, OTHER]) == [content, b""]


@storages
def test_the_objects_of_one_run_are_listed_alone(opened: Opened) -> None:
    opened().put(KEY, b"abc")
    opened().put("running/else/1-2-cd.whole", b"{}")
    assert opened().names("run") == [KEY]
    assert opened().names("none") == []
