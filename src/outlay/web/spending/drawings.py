"""Drawings of spending as inline SVG: days with links, the use of a limit, hours of machines. Pure.

They need no script; each is followed by the same figures as text or as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, TypeVar

from outlay.clock import utc_datetime
from outlay.cost.burn_down import BurnDown
from outlay.cost.daily_cost import DAY_NS
from outlay.escaping import html_text
from outlay.report.drawing.charts import Tick, ticks
from outlay.units import Money, Unit
from outlay.units.money import MICROS
from outlay.units.shown import figure_text, money_text

_FAR: Final = 4
"""How many times the next largest day is a day that flattens the others."""
_CUT_OF: Final = 4
"""Of so many days with costs at most one is cut."""
MOST_OWNERS: Final = 6
"""Owners with a colour of their own; the others share one."""
_XMLNS: Final = 'xmlns="http://www.w3.org/2000/svg"'


@dataclass(frozen=True, slots=True, kw_only=True)
class DayStack:
    """An owner's cost by day; ``look`` is its colour, None that of the rest."""

    label: str
    by_day: Mapping[int, int]
    look: int | None
    href: str


def draw_days(
    stacks: Sequence[DayStack],
    days: Sequence[int],
    unit: Unit,
    href: Callable[[DayStack, int], str],
    title: str,
) -> str:
    """Return columns by day, a part for each owner, each part a link.

    Where a few days would flatten all others, the axis ends below them: their columns are cut, and
    labelled with what they cost.
    """
    above = _above(stacks, days)
    below = [sum(min(each.by_day.get(day, 0), 0) for each in stacks) for day in days]
    cut = cut_days(stacks, days)
    highest = max(each for day, each in zip(days, above, strict=True) if day not in cut)
    scale = ticks([0.0, highest / MICROS, min(below) / MICROS], about=5)
    width = 1 / len(days)
    parts = []
    for place, day in enumerate(days):
        tops = {True: 0, False: 0}
        for stack in stacks:
            micros = stack.by_day.get(day, 0)
            if not micros:
                continue
            is_up = micros > 0
            start, end = sorted((tops[is_up], tops[is_up] + micros))
            tops[is_up] += micros
            y, bottom = (max(_down(value / MICROS, scale), 0.0) for value in (end, start))
            said = html_text(f"{_day(day)}, {stack.label}: {money_text(unit.money(micros))}")
            parts.append(
                f'<a href="{html_text(href(stack, day))}" tabindex="-1" aria-label="{said}">'
                f'<rect class="{_look(stack.look)}" x="{_pc((place + 0.12) * width)}" '
                f'width="{_pc(width * 0.76)}" y="{_pc(y)}" height="{_pc(max(bottom - y, 0.004))}">'
                f"<title>{said}</title></rect></a>"
            )
        if day in cut:
            in_a_row = sum(1 for _ in takewhile(cut.__contains__, reversed(days[:place])))
            parts.append(_cut_mark(place, width, unit.money(above[place]), in_a_row))
    every = max(1, -(-len(days) // 8))
    labels = "".join(
        f'<text class="tick{" more" if place // every % 2 else ""}" y="100%" dy="18" '
        f'x="{_pc((place + 0.5) * width)}" text-anchor="middle">{_day(day)}</text>'
        for place, day in enumerate(days)
        if place % every == 0
    )
    return _group("days cut" if cut else "days", title, _rules(scale) + "".join(parts) + labels)


def _above(stacks: Sequence[DayStack], days: Sequence[int]) -> list[int]:
    """Return the height of each day's column."""
    return [sum(max(each.by_day.get(day, 0), 0) for each in stacks) for day in days]


def cut_days(stacks: Sequence[DayStack], days: Sequence[int]) -> list[int]:
    """Return the few days that would flatten all others; empty if none does.

    They are the days above the last gap of a factor of ``_FAR``, at most a quarter of the days.
    """
    by_day = dict(zip(days, _above(stacks, days), strict=True))
    order = sorted((day for day in days if by_day[day]), key=lambda day: -by_day[day])
    gaps = [
        count
        for count in range(1, len(order) // _CUT_OF + 1)
        if by_day[order[count - 1]] > _FAR * by_day[order[count]]
    ]
    return sorted(order[: gaps[-1]]) if gaps else []


def _cut_mark(place: int, width: float, cost: Money, in_a_row: int) -> str:
    """Return the gap in a column that is cut, and its label; those of days in a row alternate."""
    left, right = _pc((place + 0.06) * width), _pc((place + 0.94) * width)
    kind = "tick more" if in_a_row > 1 else "tick"
    return (
        f'<line class="break" x1="{left}" x2="{right}" y1="11%" y2="6%"/>'
        f'<text class="{kind}" x="{_pc((place + 0.5) * width)}" dy="{-18 if in_a_row % 2 else -5}" '
        f'text-anchor="middle">{figure_text(cost, 0)}</text>'
    )


def legend(stacks: Sequence[DayStack], unit: Unit) -> str:
    """Return the owners of the columns with their totals, each a link."""
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect class="{_look(each.look)}" '
        f'width="12" height="12"/></svg> <a href="{html_text(each.href)}">'
        f"{html_text(each.label)} "
        f"{html_text(money_text(unit.money(sum(each.by_day.values()))))}</a></li>"
        for each in stacks
    )
    return f'<ul class="legend squares owners">{items}</ul>'


def _day(day_ns: int) -> str:
    return utc_datetime(day_ns).strftime("%d %b").lstrip("0")


def _look(look: int | None) -> str:
    return "part rest" if look is None else f"part c{look}"


def _pc(share: float) -> str:
    return f"{100 * share:.2f}%"


def _down(value: float, scale: Sequence[Tick]) -> float:
    first, last = scale[0].value, scale[-1].value
    return 1 - (value - first) / (last - first)


def _rules(scale: Sequence[Tick]) -> str:
    return "".join(
        f'<line class="rule" x2="100%" y1="{_pc(_down(tick.value, scale))}" '
        f'y2="{_pc(_down(tick.value, scale))}"/><text class="tick" dx="-7" dy="4" '
        f'y="{_pc(_down(tick.value, scale))}" text-anchor="end">{tick.label}</text>'
        for tick in scale
    )


def _group(kind: str, title: str, body: str) -> str:
    return f'<svg class="{kind}" role="group" aria-label="{html_text(title)}" {_XMLNS}>{body}</svg>'


def _image(kind: str, title: str, body: str) -> str:
    return f'<svg class="{kind}" role="img" aria-label="{html_text(title)}" {_XMLNS}>{body}</svg>'


# The use of a limit


def draw_burn_down(found: BurnDown, title: str) -> str:
    """Return what is spent by day, the limit, what is held, and the forecast with its interval."""
    ahead = [each for each in found.ahead if each.t_ns - found.past[-1].t_ns <= 31 * DAY_NS]
    tops = [found.limit.micros, found.spent.micros + found.held.micros]
    most = 2 * max(tops)
    tops += [min(each.high, most) for each in ahead]
    scale = ticks([0.0, *(top / MICROS for top in tops)], about=4)
    begin = found.past[0].t_ns
    end = max([found.past[-1].t_ns, *(each.t_ns for each in ahead)])
    length = max(end - begin, 1)

    def at(t_ns: int, micros: int) -> str:
        y = max(_down(micros / MICROS, scale), 0.0)
        return f"{1000 * (t_ns - begin) / length:.1f},{1000 * y:.1f}"

    now = found.past[-1]
    spent = [at(each.t_ns, each.micros) for each in found.past]
    middle = [at(now.t_ns, now.micros), *(at(e.t_ns, e.micros) for e in ahead)]
    band = [at(now.t_ns, now.micros), *(at(e.t_ns, e.high) for e in ahead)]
    band += reversed([at(e.t_ns, e.low) for e in ahead])
    limit = _down(found.limit.micros / MICROS, scale) * 1000
    held = _down((now.micros + found.held.micros) / MICROS, scale) * 1000
    x = 1000 * (now.t_ns - begin) / length
    lines = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
        f'<polygon class="band" points="{" ".join(band)}"/>'
        f'<polyline class="curve c0" points="{" ".join(spent)}"/>'
        f'<polyline class="curve c0" stroke-dasharray="5 4" points="{" ".join(middle)}"/>'
        f'<line class="curve most" x2="1000" y1="{limit:.1f}" y2="{limit:.1f}"/>'
        f'<line class="curve hold" x1="{x:.1f}" x2="{x:.1f}" y1="{held:.1f}" '
        f'y2="{1000 * _down(now.micros / MICROS, scale):.1f}"/></svg>'
    )
    labels = "".join(
        f'<text class="tick" x="{_pc((t_ns - begin) / length)}" y="100%" dy="18" '
        f'text-anchor="{anchor}">{text}</text>'
        for t_ns, text, anchor in (
            (begin, _day(begin), "start"), (now.t_ns, "now", "middle"), (end, _day(end), "end"),
        )
        if text == "now" or abs(t_ns - now.t_ns) > length / 8
    )  # fmt: skip
    return _image("days low", title, _rules(scale) + lines + labels)


# Hours

State = TypeVar("State", bound=str)


def draw_hours(rates: Sequence[float], title: str) -> str:
    """Return the mean rate of each of the last hours as columns, the last one at the right."""
    highest = max(rates, default=0.0) or 1.0
    width = 1 / max(len(rates), 1)
    columns = "".join(
        f'<rect class="part c0" x="{_pc((place + 0.1) * width)}" width="{_pc(width * 0.8)}" '
        f'y="{_pc(1 - rate / highest)}" height="{_pc(rate / highest)}"/>'
        for place, rate in enumerate(rates)
    )
    return _image("spark", title, f'{columns}<line class="rule" x2="100%" y1="100%" y2="100%"/>')


def draw_states(hours: Sequence[Mapping[State, float]], order: Sequence[State], title: str) -> str:
    """Return a row of hours, each filled by the share of each state, in a fixed order."""
    width = 1 / max(len(hours), 1)
    parts = []
    for place, shares in enumerate(hours):
        top = 1.0
        for number, state in enumerate(order):
            if share := shares.get(state, 0.0):
                top -= share
                parts.append(
                    f'<rect class="state{number}" x="{_pc((place + 0.04) * width)}" '
                    f'width="{_pc(width * 0.92)}" y="{_pc(max(top, 0))}" height="{_pc(share)}"/>'
                )
    return _image("hours", title, "".join(parts))


def states_legend(order: Sequence[str]) -> str:
    """Return the colours of the states."""
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect class="state{number}" width="12" '
        f'height="12"/></svg> {html_text(state)}</li>'
        for number, state in enumerate(order)
    )
    return f'<ul class="legend squares">{items}</ul>'
