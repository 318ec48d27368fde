"""Which of the installed libraries come with outlay alone."""

from __future__ import annotations

from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed_by(requirements: list[str]) -> dict[str, Distribution]:
    """Return what pip would install for these requirements, without extras, by name."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        if name in found or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        waiting += [Requirement(each) for each in found[name].requires or []]
    return found
