"""Cost by day and owner, and a period against the one before. Pure.

A charge counts on the days of its use, in proportion to time; what is booked whole, or used outside
of the month in which it is booked, on the day of its booking. So the days of a month sum to the
month, to the micro-unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from outlay.clock import utc_datetime
from outlay.cost.charges import month_window
from outlay.cost.spending import Spending, SpendItem
from outlay.units import Money, Unit
from outlay.units.shown import money_text

if TYPE_CHECKING:
    from outlay.goodput.timeline import Window

SECOND_NS: Final = 10**9
DAY_NS: Final = 86_400 * SECOND_NS


def part_between(spend: SpendItem, start_ns: int, end_ns: int) -> int:
    """Return what of a spend counts in ``[start_ns, end_ns)``, in micro-units.

    Parts of adjacent periods sum to the part of both.
    """
    if _is_booked_whole(spend):
        return spend.cost.micros if start_ns <= spend.booked_ns < end_ns else 0
    return _until(spend, end_ns) - _until(spend, start_ns)


def _is_booked_whole(spend: SpendItem) -> bool:
    if spend.between or spend.origin or spend.source == "stated":
        return True
    month = month_of(spend.booked_ns)
    inside = month.start_ns <= spend.start_ns < spend.end_ns <= month.end_ns
    return not inside


def _until(spend: SpendItem, t_ns: int) -> int:
    length_ns = spend.end_ns - spend.start_ns
    used_ns = min(max(t_ns - spend.start_ns, 0), length_ns)
    return spend.cost.micros * used_ns // length_ns


def month_of(t_ns: int) -> Window:
    """Return the UTC month of an instant."""
    return _month_of_day(t_ns // DAY_NS)


@lru_cache(maxsize=4096)
def _month_of_day(day: int) -> Window:
    return month_window(utc_datetime(day * DAY_NS).strftime("%Y-%m"))


def days_of(spend: SpendItem) -> Iterator[tuple[int, int]]:
    """Yield the UTC days on which a spend counts, with its part in micro-units."""
    if _is_booked_whole(spend):
        yield spend.booked_ns // DAY_NS * DAY_NS, spend.cost.micros
        return
    first_ns, before = spend.start_ns // DAY_NS * DAY_NS, 0
    for day_ns in range(first_ns, spend.end_ns, DAY_NS):
        until = _until(spend, day_ns + DAY_NS)
        yield day_ns, until - before
        before = until


def cost_by_day(
    spends: Iterable[SpendItem], owner_of: Callable[[SpendItem], str]
) -> dict[str, dict[int, int]]:
    """Return the cost of spends of one unit by owner and UTC day, the largest owner first.

    The days of all owners sum to the cost of the spends.
    """
    found: dict[str, dict[int, int]] = {}
    for spend in spends:
        days = found.setdefault(owner_of(spend), {})
        for day_ns, micros in days_of(spend):
            days[day_ns] = days.get(day_ns, 0) + micros
    order = sorted(found.items(), key=lambda each: (-sum(each[1].values()), each[0]))
    return dict(order)


# Against the period before


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChange:
    """What was spent in a period and in as much of the period before."""

    spent: Money
    before: Money

    @property
    def difference(self) -> Money:
        """How much more it is; negative if it is less."""
        return self.spent - self.before

    @property
    def text(self) -> str:
        """The difference in percent; as an amount where the period before has none."""
        if self.before.micros <= 0:
            return "new" if self.spent.micros > 0 else "no change"
        share = self.difference.micros / self.before.micros
        if share > 10:
            return f"{self.spent.micros / self.before.micros:,.0f}x"
        return f"{share:+.0%}"


def month_before(month: Window, now_ns: int) -> Window:
    """Return the month before another, of the present month as much of it as has passed."""
    from outlay.goodput.timeline import Window

    before = month_of(month.start_ns - 1)
    passed_ns = (min(now_ns, month.end_ns) - month.start_ns) // SECOND_NS * SECOND_NS
    if now_ns >= month.end_ns:
        return before
    return Window(before.start_ns, min(before.start_ns + max(passed_ns, 0), before.end_ns))


def changes(
    spending: Spending,
    period: Window,
    before: Window,
    owner_of: Callable[[SpendItem], str] = lambda spend: "",  # noqa: ARG005
) -> dict[tuple[str, Unit], CostChange]:
    """Return what each owner spent in a period against the one before, by owner and unit."""
    sums: dict[tuple[str, Unit], list[int]] = {}
    for spend in spending.spends:
        parts = [part_between(spend, each.start_ns, each.end_ns) for each in (period, before)]
        if any(parts):
            found = sums.setdefault((owner_of(spend), spend.unit), [0, 0])
            found[:] = [found[0] + parts[0], found[1] + parts[1]]
    return {
        key: CostChange(spent=key[1].money(spent), before=key[1].money(earlier))
        for key, (spent, earlier) in sums.items()
    }


def change_text(found: CostChange, before: Window) -> str:
    """Return a change in a sentence, for a tile or a digest."""
    start, end = (
        utc_datetime(t).strftime("%d %b").lstrip("0") for t in (before.start_ns, before.end_ns - 1)
    )
    return f"{found.text} against {money_text(found.before)} from {start} to {end}"


# Units


def units_by_use(spending: Spending) -> list[Unit]:
    """Return every unit that occurs: cash first, then by runs, then by GPU time.

    Amounts of two currencies are not compared: no exchange rate is known.
    """
    totals = spending.totals()

    def place(unit: Unit) -> tuple[bool, int, int, str]:
        return unit.kind != "cash", -totals[unit].runs, -totals[unit].gpu_us, unit.currency

    return sorted(totals, key=place)
