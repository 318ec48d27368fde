"""Exact amounts: micro-units per hour times nanoseconds, rounded once and in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from outlay.units.quantity import NS_PER_HOUR

Key = TypeVar("Key")


def round_units(units: int) -> int:
    """Return exact units (micro-units per hour times ns) as micro-units, half to even."""
    micros, rest = divmod(units, NS_PER_HOUR)
    half = NS_PER_HOUR // 2
    return micros + (rest > half or (rest == half and micros % 2 == 1))


def round_units_up(units: int) -> int:
    """Return exact units as micro-units, any rest counted whole: for money set aside."""
    return -(-units // NS_PER_HOUR)


def apportion(parts: Mapping[Key, int]) -> dict[Key, int]:
    """Return each part in micro-units, so that they sum to the rounded whole exactly.

    Largest remainder: every part is rounded down, and the micro-units still missing go to the
    parts that lost most; ties go to the part that comes first.
    """
    total = round_units(sum(parts.values()))
    floors = {key: units // NS_PER_HOUR for key, units in parts.items()}
    lost = {key: units % NS_PER_HOUR for key, units in parts.items()}
    return _topped_up(floors, lost, total)


def share_out(micros: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """Return an amount split in proportion to weights, summing to it exactly.

    Largest remainder, as in ``apportion``. The weights are zero or more and not all zero.
    """
    total = sum(weights.values())
    floors = {key: micros * weight // total for key, weight in weights.items()}
    lost = {key: micros * weight % total for key, weight in weights.items()}
    return _topped_up(floors, lost, micros)


def _topped_up(floors: dict[Key, int], lost: Mapping[Key, int], total: int) -> dict[Key, int]:
    """Return the parts with what is missing of the total given to those that lost most."""
    missing = total - sum(floors.values())
    for key in sorted(floors, key=lambda key: -lost[key])[:missing]:
        floors[key] += 1
    return floors
