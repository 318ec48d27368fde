"""Where a sweep's dollars went, to the last micro-dollar that the guard captured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlay.goodput import phases as ph
from outlay.units import Money

OUTSIDE = "starting and ending"


def by_phase(logged: Iterable[Mapping[str, int]], captured: Money) -> dict[str, Money]:
    """Return the captured dollars by phase.

    A run's log begins when its program has loaded and ends before its process does; the guard pays
    for the whole process. What lies between the two is ``starting and ending``.

    Args:
        logged: Micro-dollars by phase, of each run's own log.
        captured: What the guard captured for all of them.
    """
    micros: dict[str, int] = {}
    for phases in logged:
        micros = ph.added(micros, phases)
    outside = captured.micros - sum(micros.values())
    parts = {name: micros[name] for name in ph.in_order(micros) if micros[name]}
    return {
        name: Money(part, captured.currency) for name, part in (parts | {OUTSIDE: outside}).items()
    }
