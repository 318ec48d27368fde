"""Price alerts: a price compared with earlier ones. Pure.

Percentages are compared exactly, so that a change of exactly 10 % is never "more than 10 %" because
of float rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from outlay.errors import InvalidValue
from outlay.units.quantity import exact_decimal

_EXPECTED = "a percentage above 0, such as 10"
# With a single earlier price, every cheaper one would be a new low.
MIN_PRICES_FOR_LOW = 2


class AlertKind(StrEnum):
    """How a price moved."""

    DROP = "drop"
    SURGE = "surge"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRules:
    """How far a price must fall (``drop``) or rise (``surge``) for an alert."""

    drop_percent: Decimal = Decimal(10)
    surge_percent: Decimal = Decimal(20)

    @classmethod
    def parse(cls, drop_percent: object = 10, surge_percent: object = 20) -> AlertRules:
        """Parse percentages; raises InvalidValue if one is not a number above zero."""
        return cls(
            drop_percent=_percentage(drop_percent, "drop_percent"),
            surge_percent=_percentage(surge_percent, "surge_percent"),
        )

    def judge(self, current: int, previous: int, lowest: int, *, earlier: int) -> AlertKind | None:
        """Return the alert for a change from ``previous`` to ``current``, if any.

        ``lowest`` is the lowest price of the ``earlier`` snapshots; prices are in micro-units.
        """
        change = (current - previous) * 100
        if change < -self.drop_percent * previous:
            return AlertKind.DROP
        if change > self.surge_percent * previous:
            return AlertKind.SURGE
        return AlertKind.LOW if earlier >= MIN_PRICES_FOR_LOW and current < lowest else None


def change_percent(current: int, previous: int) -> float:
    """Return the change in percent, for display; 0 if ``previous`` is 0."""
    return (current - previous) * 100 / previous if previous else 0.0


def _percentage(value: object, name: str) -> Decimal:
    percent = exact_decimal(value, name=name, expected=_EXPECTED)
    if percent <= 0:
        raise InvalidValue(name, value, _EXPECTED)
    return percent
