"""HTML of pages: the document, sections, notes, tables. Pure.

Text from logs is escaped here or in ``svg``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from outlay.escaping import html_text
from outlay.report import svg
from outlay.report.charts import Chart
from outlay.units import Money
from outlay.units.shown import decimals_of, figure_text, money_text, number_text


@cache
def asset(name: str) -> str:
    """Return the style sheet or the script of all pages."""
    return (files("outlay.report") / name).read_text(encoding="utf-8")


HEAD: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)


def whole_page(title: str, verdict: str, parts: Iterable[str]) -> str:
    """Return a page as HTML without references to other files."""
    return (
        f"{HEAD}<title>{html_text(title)}</title><style>{asset('style.css')}</style></head><body>"
        f"<main>{top(title, verdict)}{''.join(parts)}</main>"
        f"<script>{asset('page.js')}</script></body></html>\n"
    )


def top(title: str, verdict: str, crumbs: str = "") -> str:
    """Return the title of a page and its verdict."""
    said = f'<p class="verdict">{html_text(verdict)}</p>' if verdict else ""
    return f"{crumbs}<h1>{html_text(title)}</h1>{said}"


def section(title: str, *parts: str) -> str:
    """Return a section with its heading."""
    return f"<section><h2>{html_text(title)}</h2>{''.join(parts)}</section>"


_LONG_NAMES: Final = re.compile(r"\S*/\S*/\S*|\S+/\S+\.\w+|[0-9a-f]{32,}")
"""Paths and hashes; no units such as tokens/s."""


def breakable(text: str) -> str:
    """Return text as HTML that breaks a path at its slashes, and a hash every 16 digits."""
    return _LONG_NAMES.sub(_broken, html_text(text))


def _broken(found: re.Match[str]) -> str:
    if "/" in found[0]:
        return re.sub(r"(?<=[^/])/(?=[^/])", "/<wbr>", found[0])
    return "<wbr>".join(found[0][at : at + 16] for at in range(0, len(found[0]), 16))


def note(text: str) -> str:
    """Return a small-print paragraph."""
    return f'<p class="note">{breakable(text)}</p>'


def empty(text: str, command: str = "") -> str:
    """Return the text of an empty section: why, and which command fills it."""
    shown = f" <code>{html_text(command)}</code>" if command else ""
    return f'<p class="empty">{html_text(text)}{shown}</p>'


def chart(found: Chart) -> str:
    """Return a chart with its legend and its read-out: below it, or over it while hovering."""
    key, below = svg.legend(found), note(found.note) if found.note else ""
    if ends := svg.last_values(found):
        key = f'<div class="foot">{key}<p class="readout">{html_text(ends)}</p></div>'
        return f'<div class="chart">{svg.draw(found)}{key}{below}</div>'
    over = f'<p class="readout over">{_HINT}</p>'
    return (
        f'<div class="chart"><div class="drawing">{svg.draw(found)}{over}</div>{key}{below}</div>'
    )


_HINT: Final = "← → read it"


# Tables. Text is aligned left, numbers right; money has equal decimals within a column.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell with more than text.

    Attributes:
        value: The value in JSON.
        title: The tooltip.
        chip: A status, which sets the colour.
        share: The filled part of a bar, 0 to 1 or more; None for no bar.
        mark: How the figure is known, such as "estimated".
        is_number: Whether it is aligned right.
        check: The value of a checkbox that selects the row.
        swatch: A colour in front of it, in a terminal.
        held: The part of the bar's filled part that is only held, 0 to 1.
        is_long: Whether its text takes several lines where there is no room.
    """

    text: str
    value: object = None
    href: str = ""
    title: str = ""
    chip: str = ""
    share: float | None = None
    mark: str = ""
    is_number: bool = False
    check: str = ""
    swatch: str = ""
    held: float = 0.0
    is_long: bool = False


def amount(money: Money | None, none: str = "no price", mark: str = "") -> Cell | Money:
    """Return an amount for a table; ``none`` without an amount."""
    if money is None:
        return Cell(text=none, is_number=True)
    return money if not mark else Cell(
        text=money_text(money), value=money, title=str(money), mark=mark, is_number=True
    )  # fmt: skip


def table(
    headings: Sequence[str | Cell],
    cells: Iterable[Sequence[object]],
    *,
    total: int | None = None,
    caption: str = "",
) -> str:
    """Return a table; a wide one scrolls horizontally.

    Args:
        headings: One that sorts is a cell with a link; its chip is the direction.
        cells: Rows of text, numbers, amounts and cells.
        total: The index of the row with the total.
        caption: For screen readers.
    """
    rows = list(cells)
    columns = list(zip(*rows, strict=True)) if rows else []
    right = [any(map(is_number, column)) for column in columns] or [False] * len(headings)
    decimals = [decimals_of(c for c in column if isinstance(c, Money)) for column in columns]
    head = "".join(map(_heading, headings, right))
    lines = []
    for number, row in enumerate(rows):
        drawn = "".join(_cell(*each) for each in zip(row, right, decimals, strict=True))
        kind = ' class="total"' if number == total else ""
        lines.append(f"<tr{kind}>{drawn}</tr>")
    said = f'<caption class="hidden">{html_text(caption)}</caption>' if caption else ""
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{html_text(caption or "Table")}">'
        f"<table>{said}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def is_number(value: object) -> bool:
    """Return whether a cell is aligned right."""
    return isinstance(value, int | float | Money) or (isinstance(value, Cell) and value.is_number)


def _heading(found: str | Cell, is_right: bool) -> str:  # noqa: FBT001 - called by map
    align = ' class="n"' if is_right else ""
    if isinstance(found, str):
        return f'<th scope="col"{align}>{html_text(found)}</th>'
    order = f' aria-sort="{found.chip}"' if found.chip else ""
    arrow = {"ascending": " ↑", "descending": " ↓"}.get(found.chip, "")
    text = f'<a href="{html_text(found.href)}">{html_text(found.text)}{arrow}</a>'
    return f'<th scope="col"{align}{order}>{text}</th>'


def _cell(value: object, is_right: bool, decimals: int) -> str:  # noqa: FBT001 - see above
    align = ' class="n"' if is_right else ""
    match value:
        case Money():
            number = html_text(figure_text(value, decimals))
            shown = f'{number} <span class="unit">{html_text(str(value.unit))}</span>'
            return f'<td{align} title="{value}">{shown}</td>'
        case Cell():
            title = f' title="{html_text(value.title)}"' if value.title else ""
            align = ' class="text"' if value.is_long else align
            return f"<td{align}{title}>{_inside(value)}</td>"
        case bool() | None | str():
            text = "" if value is None else str(value)
            long = ' class="text"' if len(text) > 40 and not is_right else align
            return f"<td{long}>{breakable(text)}</td>"
        case int() | float():
            return f"<td{align}>{number_text(value)}</td>"
        case _:
            return f"<td{align}>{html_text(str(value))}</td>"


def _inside(cell: Cell) -> str:
    text = breakable(cell.text) if cell.is_long else html_text(cell.text)
    if cell.check:
        name = html_text(cell.check)
        return (
            f'<input type="checkbox" name="run" value="{name}" form="chosen" '
            f'aria-label="Choose {text}">'
        )
    if cell.chip:
        text = f'<span class="chip {html_text(cell.chip)}">{text}</span>'
    if cell.href:
        text = f'<a href="{html_text(cell.href)}">{text}</a>'
    if cell.mark:
        text += f' <span class="grade">{html_text(cell.mark)}</span>'
    if cell.share is None:
        return text
    return f"{share_bar(cell.share, cell.held, cell.chip)}{text}"


def share_bar(share: float, held: float = 0.0, state: str = "") -> str:
    """Return a bar filled to a share, of which a part is only held; above 1 it is red.

    Args:
        share: Of the whole, 0 to 1 or more.
        held: Of the filled part, in a lighter tone.
        state: The class of its colour: ``near`` or ``exceeded``.
    """
    width = max(0.0, min(share, 1.0)) * 100
    kind = "exceeded" if share > 1 else state
    light = ""
    if held:
        left = width * (1 - held)
        light = f'<rect class="held" x="{left:.1f}" width="{width - left:.1f}" height="8"/>'
    return (
        f'<svg class="{f"share {kind}".rstrip()}" viewBox="0 0 100 8" width="50" height="8" '
        'preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width:.1f}" height="8"/>{light}</svg>'
    )
