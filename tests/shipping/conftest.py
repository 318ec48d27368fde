"""Fixtures for shipping."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from object_store_stand_in import ObjectStoreStandIn, object_store


@pytest.fixture
def store() -> Iterator[ObjectStoreStandIn]:
    """An object store on loopback."""
    with object_store() as opened:
        yield opened
