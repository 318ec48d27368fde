"""When a price has moved enough for an alert: one price judged against earlier ones. Pure.

Percentages are compared as integers, so that a change of exactly ten percent is never "more than
ten percent" because of a float.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from outlay.errors import InvalidValue
from outlay.units.quantity import exact_decimal

_EXPECTED = "a percentage above 0, such as 10"
# With one earlier price, every cheaper one would be a record.
ENOUGH_FOR_A_LOW = 2


class AlertKind(StrEnum):
    """What happened to a price."""

    DROP = "drop"
    SURGE = "surge"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRules:
    """How far a price must move.

    Attributes:
        drop_percent: A fall of more than this is a drop.
        surge_percent: A rise of more than this is a surge.
    """

    drop_percent: Decimal = Decimal(10)
    surge_percent: Decimal = Decimal(20)

    @classmethod
    def parse(cls, drop_percent: object = 10, surge_percent: object = 20) -> AlertRules:
        """Return rules from what a user wrote.

        Raises:
            InvalidValue: A percentage is not a number above zero.
        """
        return cls(
            drop_percent=_percentage(drop_percent, "drop_percent"),
            surge_percent=_percentage(surge_percent, "surge_percent"),
        )

    def judge(self, current: int, previous: int, lowest: int, *, earlier: int) -> AlertKind | None:
        """Return what the step from the ``previous`` to the ``current`` cheapest price is, if any.

        ``lowest`` is the lowest price of the ``earlier`` snapshots; prices are in micro-units.
        """
        change = (current - previous) * 100
        if change < -self.drop_percent * previous:
            return AlertKind.DROP
        if change > self.surge_percent * previous:
            return AlertKind.SURGE
        return AlertKind.LOW if earlier >= ENOUGH_FOR_A_LOW and current < lowest else None


def change_percent(current: int, previous: int) -> float:
    """Return the change in percent, for showing; 0 when there is nothing to compare with."""
    return (current - previous) * 100 / previous if previous else 0.0


def _percentage(value: object, name: str) -> Decimal:
    percent = exact_decimal(value, name=name, expected=_EXPECTED)
    if percent <= 0:
        raise InvalidValue(name, value, _EXPECTED)
    return percent
