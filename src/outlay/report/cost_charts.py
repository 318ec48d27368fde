"""The charts of what runs cost and of what is asked for a GPU. Pure.

Money of two currencies, or paid and shown back, is never added: it has a chart for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlay.cost.compare import Candidate
from outlay.cost.spending import Unit
from outlay.prices.recording import Series
from outlay.prices.series import PricePoint
from outlay.report.charts import Bar, Curve, LineChart, Plane, Point, Waterfall
from outlay.units import Money
from outlay.units.shown import decimals_of, money_text

_DAY_NS = 86_400 * 10**9


def money_bars(
    parts: Mapping[str, Money],
    *,
    title: str,
    name: str = "",
    note: str = "",
    intervals: Mapping[str, tuple[Money, Money]] | None = None,
) -> Waterfall:
    """Return amounts of one currency, at least one, as parts of their sum."""
    decimals = decimals_of(parts.values())
    ends = {label: (low.micros, high.micros) for label, (low, high) in (intervals or {}).items()}
    bars = (
        Bar(label=label, value=m.micros, text=money_text(m, decimals), ends=ends.get(label))
        for label, m in parts.items()
    )
    currency = next(iter(parts.values())).currency
    return Waterfall(name=name, title=title, x_title=currency, bars=tuple(bars), note=note)


def accuracy_against_cost(
    candidates: Sequence[Candidate], front: Sequence[Candidate], *, title: str
) -> list[Plane]:
    """Return runs by what they cost and reached, what nothing beats joined by a line."""
    units = dict.fromkeys(Unit(each.currency, each.kind) for each in candidates)
    return [
        Plane(
            title=title, x_title=str(unit), y_title="accuracy",
            points=tuple(
                Point(x=each.cost, y=each.metric, label=each.name, on_front=each in front)
                for each in candidates
                if (each.currency, each.kind) == unit
            ),
        )
        for unit in units
    ]  # fmt: skip


def price_history(points: Sequence[PricePoint], *, title: str) -> list[LineChart]:
    """Return prices over time, a line for each series; each holds until its next point."""
    found: dict[str, dict[Series, list[tuple[float, float]]]] = {}
    for point in sorted(points, key=lambda point: point.at_ns):
        line = found.setdefault(point.price.currency, {}).setdefault(point.series, [])
        day = point.at_ns / _DAY_NS
        line += [(day, line[-1][1])] if line else []
        line.append((day, float(point.price.amount)))
    return [
        LineChart(
            title=title, x_title="day (UTC)", y_title=f"{currency} per GPU-hour", in_days=True,
            curves=tuple(
                Curve(label=_series_name(series), points=tuple(line), look=look)
                for look, (series, line) in enumerate(lines.items())
            ),
            labels=tuple(map(_series_name, lines)),
        )
        for currency, lines in found.items()
    ]  # fmt: skip


def _series_name(series: Series) -> str:
    return f"{series.provider} {series.machine} {series.label}"
