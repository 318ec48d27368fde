"""Paths of the outlay home and of outlay.toml. Loads no database library."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal

import platformdirs


def outlay_home() -> Path:
    """Return ``$OUTLAY_HOME``, or the platform's directory for user data; it may not exist yet."""
    if chosen := os.environ.get("OUTLAY_HOME"):
        return Path(chosen).expanduser()
    return _data_dir(os.environ.get("XDG_DATA_HOME"), os.environ.get("HOME"))


@cache
def _data_dir(*_variables: str | None) -> Path:
    """Return the platform's directory, which depends on these variables."""
    return Path(platformdirs.user_data_dir("outlay", appauthor=False))


def outliving_dir(kind: Literal["watchers", "uploaders"]) -> Path:
    """Return where the processes are registered that outlive the command that started them."""
    return outlay_home() / "outliving" / kind


def books_dir() -> Path:
    """Return where this machine keeps documents about books of spend."""
    return outlay_home() / "books"


def settings_path() -> Path:
    """Return the path of ``outlay.toml``: ``$OUTLAY_CONFIG``, else in the outlay home.

    ``/etc/outlay/outlay.toml`` is the fallback for users without their own.
    """
    if chosen := os.environ.get("OUTLAY_CONFIG"):
        return Path(chosen).expanduser()
    own, shared = outlay_home() / "outlay.toml", Path("/etc/outlay/outlay.toml")
    return shared if shared.exists() and not own.exists() else own
