"""Fixtures that every test may use; anything narrower lives beside its tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from outlay.clock import ManualClock

# How long an example takes says more about the machine than about the code.
settings.register_profile("outlay", deadline=None)
settings.load_profile("outlay")


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an outlay home of its own and none of the caller's settings."""

    for name in [name for name in os.environ if name.startswith("OUTLAY_")]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("OUTLAY_HOME", str(home))
    return home


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when the test says so."""
    return ManualClock()
