"""What other packages bring: price sources, engines and sinks, each announced by an entry point.

A package declares, say, ``[project.entry-points."outlay.prices"] mycloud = "mycloud:offers"``; once
it is installed beside outlay, ``mycloud`` is a source like any other. What the entry point must
lead to is said where the group is used. Only what is called by name is loaded.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from outlay.errors import OutlayError

PRICES: Final = "outlay.prices"
ENGINES: Final = "outlay.engines"
SINKS: Final = "outlay.sinks"


class BrokenPlugin(OutlayError):
    """A package announces something that cannot be loaded."""

    def __init__(self, group: str, name: str, reason: str) -> None:
        super().__init__(
            f"{name} of {group} cannot be loaded: {reason}; repair or uninstall its package"
        )


def names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages announce in a group, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def load(group: str, name: str) -> Any:
    """Return what an entry point leads to; None when there is none of that name.

    Raises:
        BrokenPlugin: Two packages announce the name, or the one that does cannot be imported.
    """
    points = {point.value: point for point in entry_points(group=group, name=name)}
    if not points:
        return None
    if len(points) > 1:
        raise BrokenPlugin(group, name, f"it is announced twice, as {' and '.join(sorted(points))}")
    try:
        return next(iter(points.values())).load()
    except Exception as error:
        raise BrokenPlugin(group, name, f"{type(error).__name__}: {error}") from error
