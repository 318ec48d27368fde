"""Limits on pages: what is exceeded, first and in red; what is used of each; how it is used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from outlay.cost.burn_down import BurnDown
from outlay.escaping import html_text
from outlay.guard.scopes import HOUR
from outlay.report import html
from outlay.report.html import Cell
from outlay.runs.money.limit_use import LimitUse, exceeded
from outlay.units import Money
from outlay.units.shown import counted, decimals_of, figure_text, money_text
from outlay.web.page import People
from outlay.web.spending.drawings import draw_burn_down

_MOST_DRAWN = 8
_ORDER = {"over": 0, "near": 1, "below": 2}


def limit_name(use: LimitUse, people: People) -> str:
    """Return what a limit is of, with its log."""
    name = use.name
    if use.scope.of == "user":
        name = str(use.scope._replace(name=people.name(use.scope.name)))
    warns = "" if use.refuses else " (warns)"
    return f"{use.source}: {name}{warns}" if use.source else f"{name}{warns}"


def limit_href(use: LimitUse) -> str:
    """Return where a limit leads: to the runs of a model, costliest first, or to its log."""
    if use.model:
        return f"/runs?{urlencode({'model': use.model, 'sort': '-cost_micros'})}"
    return f"/guard?{urlencode({'log': use.source})}"


def alarm(uses: Sequence[LimitUse], people: People) -> list[str]:
    """Return which limits are exceeded and by how much; empty if none is."""
    found = exceeded(uses)
    if not found:
        return []
    said = "; ".join(
        f'<a href="{html_text(limit_href(use))}">{html_text(limit_name(use, people))}</a> by '
        f"{html_text(money_text(-use.remaining))}{_hourly(use)}"
        for use in found
    )
    verb = "is" if len(found) == 1 else "are"
    title = f"{counted(len(found), 'limit')} {verb} exceeded"
    return [f'<p class="alarm"><strong>{title}</strong>: {said}.</p>']


def _hourly(use: LimitUse) -> str:
    return "/h" if use.scope.period == HOUR else ""


def limit_parts(
    uses: Sequence[LimitUse],
    people: People,
    downs: Mapping[LimitUse, BurnDown] | None = None,
    *,
    is_log: bool = False,
) -> list[str]:
    """Return limits as a section, what is exceeded first; empty without any.

    Amounts lead to what they are of, except on the page of the log itself.
    """
    if not uses:
        return []
    ordered = sorted(uses, key=lambda use: (_ORDER[use.state], -use.share))
    downs = downs or {}
    headings = ["ceiling", "share used", "spent", "limit", "held", "remaining"]
    rows = [_cells(use, people, "" if is_log else limit_href(use)) for use in ordered]
    if downs:
        headings.insert(3, "lasts until")
        for use, row in zip(ordered, rows, strict=True):
            row.insert(3, _when(use, downs.get(use)))
    table = html.table(headings, rows, caption="Ceilings", is_list=True)
    note = html.note("Of each bar the dark part is spent, the light one held for later.")
    drawn = "".join(
        _drawing(limit_name(use, people), downs[use])
        for use in [each for each in ordered if each in downs][:_MOST_DRAWN]
    )
    cards = f'<div class="two">{drawn}</div>' if drawn else ""
    return [f'<section class="fit" id="ceilings"><h2>Ceilings</h2>{table}{note}{cards}</section>']


def _when(use: LimitUse, found: BurnDown | None) -> Cell:
    return Cell(text=_until(use)) if found is None else Cell(text=found.short, title=found.text)


def _until(use: LimitUse) -> str:
    return {"day": "midnight (UTC)", "hour": "what is open now"}.get(use.scope.period_kind, "")


def _cells(use: LimitUse, people: People, href: str) -> list[object]:
    part = use.used.micros or 1
    share = Cell(
        text=use.share_text, value=use.share, share=min(use.share, 9.99), chip=_chip(use),
        held=use.held.micros / part,
    )  # fmt: skip
    decimals = decimals_of([use.limit])
    return [
        Cell(text=limit_name(use, people), href=limit_href(use), is_long=True), share,
        _amount(use.spent, decimals, use, href), _amount(use.limit, decimals, use),
        _amount(use.held, decimals, use, href), _amount(use.remaining, decimals, use),
    ]  # fmt: skip


def _chip(use: LimitUse) -> str:
    return {"over": "exceeded", "near": "near", "below": ""}[use.state]


def _amount(money: Money, decimals: int, use: LimitUse, href: str = "") -> Cell:
    """Return an amount; what was spent or is held leads to the runs or the log that it is of."""
    text = f"{figure_text(money, decimals)} {money.unit}{_hourly(use)}"
    return Cell(
        text=text, value=money, title=str(money), href=href if money else "", is_number=True
    )


def _drawing(name: str, found: BurnDown) -> str:
    held = f", {money_text(found.held)} held" if found.held else ""
    said = f"{money_text(found.spent)} spent{held} of {money_text(found.limit)}; {found.text}"
    if found.ahead and found.days:
        place = min(29, len(found.ahead) - 1)
        last = found.ahead[place]
        unit = found.limit.unit
        low, high = (figure_text(unit.money(end)) for end in (last.low, last.high))
        said += (
            f". In {counted(place + 1, 'day')}: {money_text(unit.money(last.micros))} "
            f"({low} to {high}, 80%)"
        )
    drawn = draw_burn_down(found, f"{name}: {said}")
    return f'<div class="chart"><h3>{html_text(name)}</h3>{drawn}{html.note(f"{said}.")}</div>'
