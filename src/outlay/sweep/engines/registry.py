"""From an engine's name to the engine: one of ours, or one that an installed package announces.

A package announces an engine in the entry-point group ``outlay.engines``. The entry point leads to
a callable that takes the sweep's directory and returns an ``Engine`` (see ``base``).
"""

from __future__ import annotations

import pkgutil
from pathlib import Path

from outlay import plugins
from outlay.errors import InvalidValue, choices
from outlay.sweep.engines.base import Engine
from outlay.sweep.engines.names import ENGINES, engine_names


def engine_named(name: str, root: Path) -> Engine:
    """Return the engine of a name for a sweep; only the one that is named is loaded.

    Raises:
        InvalidValue: Nobody brings one of that name.
        BrokenPlugin: A package announces it, and it cannot be loaded.
        MissingExtra: What it needs is not installed.
    """
    ours = ENGINES.get(name)
    make = plugins.load(plugins.ENGINES, name) if ours is None else pkgutil.resolve_name(ours.make)
    if make is None:
        raise InvalidValue("engine", name, choices(engine_names()))
    engine: Engine = make(root)
    return engine
