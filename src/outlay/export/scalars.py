"""A reading as a list of named numbers, as TensorBoard and files take them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from outlay.goodput.readings import DeviationReading, GoodputReading, Reading, WindowReading
from outlay.goodput.types import BadputParts, BadputType

STEP_DEVIATION = "step_deviation"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number with its name, the step it belongs to and, if it is of one, its window's seconds."""

    name: str
    value: float
    step: int
    window_s: int | None = None


def scalars(reading: Reading) -> list[Scalar]:
    """Return a reading's numbers: percentages of wall time, or seconds off the ideal step."""
    match reading:
        case GoodputReading() | WindowReading():
            return list(_shares(reading))
        case DeviationReading():
            return [
                Scalar(STEP_DEVIATION, seconds, step)
                for step, seconds in sorted(reading.deviations_s.items())
            ]
        case _:
            assert_never(reading)


def _shares(reading: GoodputReading | WindowReading) -> Iterator[Scalar]:
    window_s = reading.window_s if isinstance(reading, WindowReading) else None
    yield Scalar("goodput/goodput", reading.goodput_percent, reading.last_step, window_s)
    for source, percent in flat(reading.badput_percent):
        name = "/".join(part.lower() for part in source)
        yield Scalar(f"badput/{name}", percent, reading.last_step, window_s)


def flat(parts: BadputParts) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each badput under its type's name, or under the type's and the custom event's."""
    for kind, value in parts.items():
        if isinstance(value, dict):
            for name, part in value.items():
                yield (kind.name, name), part
        else:
            yield (kind.name,), value


def overlapped(source: tuple[str, ...]) -> bool:
    """Say whether a source is loading beside the steps: reported, and no badput."""
    return source == (BadputType.DATA_LOADING_ASYNC.name,)
