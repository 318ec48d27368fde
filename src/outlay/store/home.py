"""Where outlay keeps what belongs to the user and not to one run."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def outlay_home() -> Path:
    """Return ``$OUTLAY_HOME``, or the platform's directory for user data; it may not exist yet."""
    if chosen := os.environ.get("OUTLAY_HOME"):
        return Path(chosen).expanduser()
    return Path(platformdirs.user_data_dir("outlay", appauthor=False))
