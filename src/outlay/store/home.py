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
    """Return the path of ``outlay.toml``: ``$OUTLAY_CONFIG``, else the first that exists.

    They are tried in the outlay home, in the user's directory for configuration and in
    ``/etc/outlay``. One is read, they are not merged; none is looked for in the current directory,
    since a checkout of somebody else could then redirect the books.
    """
    if chosen := os.environ.get("OUTLAY_CONFIG"):
        return Path(chosen).expanduser()
    own = outlay_home() / "outlay.toml"
    user = Path(platformdirs.user_config_dir("outlay", appauthor=False)) / "outlay.toml"
    shared = Path("/etc/outlay/outlay.toml")
    return next((path for path in (own, user, shared) if path.exists()), own)
