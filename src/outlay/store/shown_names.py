"""What may be shown of a database's URL. Loads no database library."""

from __future__ import annotations

import re

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def is_plain_name(name: str) -> bool:
    """Return whether a database's name can be shown: of ``u:p/w@host`` a password is part of it."""
    return _PLAIN_NAME.fullmatch(name) is not None


def server_name(backend: str, database: str) -> str:
    """Return the backend and the name of a server's database."""
    return f"{backend} database {database}" if is_plain_name(database) else f"{backend} database"
