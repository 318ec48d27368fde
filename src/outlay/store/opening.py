"""Opening the store: where it is, and what to say when it cannot be opened."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from outlay.errors import InvalidValue
from outlay.store.engine import StoreUnavailable, connect
from outlay.store.home import outlay_home
from outlay.store.migrations import migrate

_EXPECTED_URL = "a database URL such as postgresql+psycopg://host/outlay or sqlite:////path/to.db"


def open_store(data_dir: Path | str | None = None) -> Engine:
    """Open the store, creating it or bringing its tables up to date first.

    Args:
        data_dir: A directory to keep it in; else ``$OUTLAY_STORE``, else ``$OUTLAY_HOME``.

    Raises:
        StoreUnavailable: It cannot be opened.
        StoreTooNew: A newer outlay wrote it.
    """
    url = store_url(data_dir)
    try:
        if url.get_backend_name() == "sqlite" and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = connect(url)
        migrate(engine)
    except (SQLAlchemyError, OSError, ImportError) as error:
        raise StoreUnavailable(url, error) from error
    return engine


def store_url(data_dir: Path | str | None = None) -> URL:
    """Return the address of the store: an explicit directory, the environment, the home."""
    named = os.environ.get("OUTLAY_STORE")
    if data_dir is None and named:
        try:
            return make_url(named)
        except ArgumentError:
            # The value may hold a password, so the message does not repeat it.
            raise InvalidValue("OUTLAY_STORE", "an unreadable URL", _EXPECTED_URL) from None
    directory = outlay_home() if data_dir is None else Path(data_dir).expanduser()
    return URL.create("sqlite", database=str(directory.absolute() / "outlay.db"))
