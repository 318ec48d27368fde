"""Outlay homes of tests, and the hosts that they are on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def move_home(home: Path, patch: pytest.MonkeyPatch) -> Path:
    """Make an outlay home and use it, with none of the caller's settings."""
    for name in [name for name in os.environ if name.startswith("OUTLAY_")]:
        patch.delenv(name)
    home.mkdir()
    patch.setenv("OUTLAY_HOME", str(home))
    if (Path.home() / ".context" / "training").exists():
        patch.setenv("HOME", str(home))  # It would be kept up to date with what tests analyse.
    return home


def move_host(name: str, patch: pytest.MonkeyPatch) -> None:
    """Let this process be on a host of another name from now on."""
    system, _, *rest = tuple(os.uname())
    patch.setattr("os.uname", lambda: os.uname_result((system, name, *rest)))
