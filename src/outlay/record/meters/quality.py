"""How far a reading can be trusted."""

from __future__ import annotations

from enum import StrEnum


class Quality(StrEnum):
    """How a reading came about."""

    MEASURED = "measured"
    """A hardware counter of energy."""
    ESTIMATED = "estimated"
    """Sampled power times the time between samples."""
    UNAVAILABLE = "unavailable"
    """Nothing here can be read."""
