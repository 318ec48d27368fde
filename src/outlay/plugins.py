"""Price sources, engines, sinks and spend logs of other packages, found through entry points.

A package declares, say, ``[project.entry-points."outlay.prices"] mycloud = "mycloud:offers"``; once
it is installed, ``mycloud`` is a source like any other. The module that uses a group documents what
an entry point must be. A plugin is imported when it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from outlay.errors import OutlayError

PRICES: Final = "outlay.prices"
ENGINES: Final = "outlay.engines"
SINKS: Final = "outlay.sinks"
SPEND_LOGS: Final = "outlay.spend_logs"
NOTEBOOK: Final = "outlay.notebook"

_OWN: Final[Mapping[str, Mapping[str, str]]] = {
    SPEND_LOGS: dict.fromkeys(("postgresql", "postgres"), "outlay.team:open_postgres"),
    NOTEBOOK: {"run": "outlay.report.run_document:run_html"},
}
"""outlay's own, of packages that those which ask for them may not import."""


class BrokenPlugin(OutlayError):
    """A plugin that cannot be loaded."""

    def __init__(self, group: str, name: str, reason: str) -> None:
        super().__init__(
            f"{name} of {group} cannot be loaded: {reason}; repair or uninstall its package"
        )


def names(group: str) -> tuple[str, ...]:
    """Return the sorted names of a group's plugins."""
    found = {point.name for point in entry_points(group=group)}
    return tuple(sorted(found | _OWN.get(group, {}).keys()))


def load(group: str, name: str) -> Any:
    """Load a plugin by name; None if there is none of that name.

    Raises:
        BrokenPlugin: Two packages declare the name, or the import fails.
    """
    points = {point.value: point for point in entry_points(group=group, name=name)}
    if (own := _OWN.get(group, {}).get(name)) is not None:
        points[own] = EntryPoint(name, own, group)
    if not points:
        return None
    if len(points) > 1:
        raise BrokenPlugin(group, name, f"declared twice, as {' and '.join(sorted(points))}")
    try:
        return next(iter(points.values())).load()
    except Exception as error:
        raise BrokenPlugin(group, name, f"{type(error).__name__}: {error}") from error
