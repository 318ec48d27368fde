"""Fixtures for shipping: an object store, and fsspec's own thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fsspec.asyn import get_loop

from object_store_stand_in import ObjectStoreStandIn, object_store


@pytest.fixture(scope="session")
def fsspec_thread() -> None:
    """The thread of fsspec, which serves all later requests of this process."""
    get_loop()


@pytest.fixture
def store(fsspec_thread: None) -> Iterator[ObjectStoreStandIn]:  # noqa: ARG001 - starts the thread
    """An object store on loopback."""
    with object_store() as opened:
        yield opened
