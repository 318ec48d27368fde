"""Outlay homes of tests."""

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
