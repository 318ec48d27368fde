"""Price sources, engines and sinks of other packages, found through entry points.

A package declares, say, ``[project.entry-points."outlay.prices"] mycloud = "mycloud:offers"``; once
it is installed, ``mycloud`` is a source like any other. The module that uses a group documents what
an entry point must be. A plugin is imported when it is asked for by name.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from outlay.errors import OutlayError

PRICES: Final = "outlay.prices"
ENGINES: Final = "outlay.engines"
SINKS: Final = "outlay.sinks"


class BrokenPlugin(OutlayError):
    """A plugin that cannot be loaded."""

    def __init__(self, group: str, name: str, reason: str) -> None:
        super().__init__(
            f"{name} of {group} cannot be loaded: {reason}; repair or uninstall its package"
        )


def names(group: str) -> tuple[str, ...]:
    """Return the sorted names of a group's installed plugins."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def load(group: str, name: str) -> Any:
    """Load a plugin by name; None if there is none of that name.

    Raises:
        BrokenPlugin: Two packages declare the name, or the import fails.
    """
    points = {point.value: point for point in entry_points(group=group, name=name)}
    if not points:
        return None
    if len(points) > 1:
        raise BrokenPlugin(group, name, f"declared twice, as {' and '.join(sorted(points))}")
    try:
        return next(iter(points.values())).load()
    except Exception as error:
        raise BrokenPlugin(group, name, f"{type(error).__name__}: {error}") from error
