"""The space of a search: ranges and lists of values, and points in them. Pure.

How points are chosen is the subject of ``samplers``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeGuard

from outlay.errors import InvalidValue, choices
from outlay.units.quantity import exact_decimal

_DIGITS: Final = 6
RANGE_KEYS: Final = ("low", "high", "log", "step")
_EXPECTED: Final = "{low: 1e-5, high: 1e-1, log: true} or {low: 64, high: 512, step: 64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        log: Whether equal ratios are equally likely, rather than equal differences.
        step: The distance of two values; None for every number between.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> int | None:
        """How many values it has; None for every number between."""
        if self.step is None:
            return int(self.high) - int(self.low) + 1 if self.whole else None
        return int((_exact(self.high) - _exact(self.low)) / _exact(self.step)) + 1

    def value(self, index: int) -> int | float:
        """Return a value by its place, from 0; exact in decimals."""
        exact = _exact(self.low) + index * _exact(self.step or 1)
        return int(exact) if self.whole else float(exact)

    def at(self, share: float) -> int | float:
        """Return the value at a share of the range, in ``[0, 1)``."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return self.near(math.exp(low + share * (high - low)))
        count = self.count
        if count is not None:
            return self.value(int(share * count))
        return self.near((1 - share) * self.low + share * self.high)

    def near(self, value: float) -> int | float:
        """Return the value next to a number: whole, or of a few digits, as people write them."""
        if self.count is not None and not self.log:
            return self.value(round((value - self.low) / (self.step or 1)))
        near = round(value) if self.whole else float(f"{value:.{_DIGITS}g}")
        return min(max(near, self.low), self.high)

    def contains(self, value: object) -> bool:
        """Say whether a value is one of the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high or (self.whole and not isinstance(value, int)):
            return False
        return self.step is None or (_exact(value) - _exact(self.low)) % _exact(self.step) == 0


def _exact(number: float) -> Decimal:
    return Decimal(repr(number))


Axis = Range | tuple[Any, ...]
Space = Mapping[str, Axis]
"""A range, or a list of values, for each parameter."""
Point = Mapping[str, int | float]
"""For each parameter the number of its range, or the place of its value in the list."""


def values_of(axis: Axis) -> tuple[Any, ...]:
    """Return all values of an axis; none of a range with every number between."""
    if not isinstance(axis, Range):
        return axis
    return tuple(map(axis.value, range(axis.count or 0)))


def is_range(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Say whether a value of a grid states a range; ``{value: {...}}`` is a mapping as a value."""
    return isinstance(value, Mapping) and {"low", "high"} & set(value) != set()


def read_range(value: Mapping[str, Any]) -> Range:
    """Return the range that a grid states.

    Raises:
        InvalidValue: It is none; names the key.
    """
    for key in value:
        if key not in RANGE_KEYS:
            raise InvalidValue("range", key, choices(RANGE_KEYS))
    low, high = (_number(value.get(key), key) for key in ("low", "high"))
    step = None if value.get("step") is None else _number(value["step"], "step")
    log = value.get("log", False)
    if not isinstance(log, bool):
        raise InvalidValue("log", log, "true or false")
    found = Range(low=low, high=high, log=log, step=step)
    if problem := _problem(found):
        raise InvalidValue("range", dict(value), problem)
    if isinstance(step, float) and found.whole:  # 1, 1.5, 2: its values are no whole numbers.
        return Range(low=float(low), high=float(high), log=log, step=step)
    return found


def _number(value: object, name: str) -> int | float:
    # YAML 1.1 reads 1e-5, without a dot, as text.
    number = exact_decimal(value, name=name, expected=f"a number, as in {_EXPECTED}")
    whole = isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
    return int(number) if whole else float(number)


def _problem(found: Range) -> str:
    """Return what is expected instead of a range; "" if it is valid."""
    if not found.low < found.high:
        return "low below high"
    if found.log and found.low <= 0:
        return "low above 0, as log is true"
    if found.log and found.step is not None:
        return "either log or step, not both"
    if found.step is not None and not 0 < found.step <= found.high - found.low:
        return "a step above 0, no larger than the range"
    return ""


def point_count(space: Space) -> int | None:
    """Return how many points a space has; None for infinitely many."""
    counts = [axis.count if isinstance(axis, Range) else len(axis) for axis in space.values()]
    known = [count for count in counts if count is not None]
    return math.prod(known) if len(known) == len(counts) else None


def all_points(space: Space) -> Iterator[Point]:
    """Yield every point, the last parameter fastest."""
    axes = [
        values_of(axis) if isinstance(axis, Range) else range(len(axis)) for axis in space.values()
    ]
    for values in itertools.product(*axes):
        yield dict(zip(space, values, strict=True))


def point_at(space: Space, shares: Mapping[str, float]) -> Point:
    """Return the point at a share of each parameter, in ``[0, 1)``."""
    return {
        name: axis.at(shares[name]) if isinstance(axis, Range) else int(shares[name] * len(axis))
        for name, axis in space.items()
    }


def is_in(space: Space, point: Point) -> bool:
    """Say whether a point is one of the space."""
    return space.keys() == point.keys() and all(
        axis.contains(point[name])
        if isinstance(axis, Range)
        else type(point[name]) is int and 0 <= point[name] < len(axis)
        for name, axis in space.items()
    )


def params_of(space: Space, point: Point) -> dict[str, Any]:
    """Return the parameters of a point."""
    return {
        name: point[name] if isinstance(axis, Range) else axis[int(point[name])]
        for name, axis in space.items()
    }
