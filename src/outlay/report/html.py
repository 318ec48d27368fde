"""HTML of pages: the document, sections, notes, tables. Pure.

Text from logs is escaped here or in ``svg``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from outlay.clock import utc_text
from outlay.escaping import html_text
from outlay.report.drawing import svg
from outlay.report.drawing.charts import Chart
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


def whole_page(title: str, verdict: str, parts: Iterable[str], *, is_sheet: bool = False) -> str:
    """Return a page as HTML without references to other files; a sheet is printed small."""
    kind = ' class="sheet"' if is_sheet else ""
    return (
        f"{HEAD}<title>{html_text(title)}</title><style>{asset('style.css')}</style></head><body>"
        f"<main{kind}>{top(title, verdict)}{''.join(parts)}</main>"
        f"<script>{asset('page.js')}{asset('reading.js')}</script></body></html>\n"
    )


def top(title: str, verdict: str, crumbs: str = "") -> str:
    """Return the title of a page and its verdict."""
    said = f'<p class="verdict">{html_text(verdict)}</p>' if verdict else ""
    return f"{crumbs}<h1>{html_text(title)}</h1>{said}"


def section(title: str, *parts: str) -> str:
    """Return a section with its heading."""
    return f"<section><h2>{html_text(title)}</h2>{''.join(parts)}</section>"


def breakable(text: str) -> str:
    """Return text as HTML: a long path or host breaks between its parts, a hash after 16 digits."""
    words = (
        "<wbr>".join(map(html_text, _PARTS.findall(word))) if len(word) > _LONG_WORD else
        html_text(word)
        for word in text.split(" ")
    )  # fmt: skip
    return " ".join(words)


_LONG_WORD: Final = 20
_PARTS: Final = re.compile(r"[0-9a-f]{16}(?=[0-9a-f]{16})|[^/._]*[/._]+|[^/._]+", re.DOTALL)


def copy_button(text: str, what: str) -> str:
    """Return a button that copies a text; a page without script does not show it."""
    return (
        f'<button type="button" data-copy="{html_text(text)}" '
        f'aria-label="Copy the {html_text(what)}">copy</button>'
    )


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
    over = f'<p class="readout over">{_HINT}</p>'
    if ends := svg.last_values(found):
        key = f'<div class="foot">{key}<p class="readout">{html_text(ends)}</p></div>'
        over = ""
    plot = _PLOT if getattr(found, "zoom", None) is not None else ""
    drawing = f'<div class="drawing">{svg.draw(found)}{plot}{over}</div>'
    return f'<div class="chart">{drawing}{key}{below}</div>'


_PLOT: Final = '<div class="zooming" aria-hidden="true" hx-morph-skip-children></div>'
"""Where a script draws a chart that can be zoomed, over the SVG; live updates leave it alone."""


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
        check: The value of a checkbox in front of it that selects the row.
        is_name: Whether it may be shortened in the middle where there is no room.
        trend: Values that are drawn as a small line.
        at_ns: The instant that the text is or says, which a reader also sees in local time.
        swatch: A colour in front of it, in a terminal.
        brushed: The run of the row, if it is hidden where a brush of a chart leaves that out.
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
    is_name: bool = False
    trend: Sequence[float] = ()
    at_ns: int | None = None
    swatch: str = ""
    brushed: str = ""
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
    groups: Collection[int] = (),
    is_list: bool = False,
) -> str:
    """Return a table; a wide one scrolls horizontally.

    Args:
        headings: One that sorts is a cell with a link; its chip is the direction.
        cells: Rows of text, numbers, amounts and cells.
        total: The index of the row with the total.
        caption: For screen readers.
        groups: The indices of rows that head the ones below.
        is_list: Whether each row is a thing of its own: a card on a narrow screen, and its first
            column stays in sight while the others scroll.
    """
    rows = list(cells)
    columns = list(zip(*rows, strict=True)) if rows else []
    right = [any(map(is_number, column)) for column in columns] or [False] * len(headings)
    decimals = [decimals_of(c for c in column if isinstance(c, Money)) for column in columns]
    head = "".join(map(_heading, headings, right))
    labels = [_label(each) if is_list else "" for each in headings]
    lines = []
    for number, row in enumerate(rows):
        drawn = "".join(_cell(*each) for each in zip(row, right, decimals, labels, strict=True))
        kind = "total" if number == total else "group" if number in groups else ""
        shown = f' class="{kind}"' if kind else ""
        lines.append(f"<tr{shown}{_brushed(row)}>{drawn}</tr>")
    said = f'<caption class="hidden">{html_text(caption)}</caption>' if caption else ""
    shape = ' class="list"' if is_list else ""
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{html_text(caption or "Table")}">'
        f"<table{shape}>{said}<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _brushed(row: Sequence[object]) -> str:
    first = row[0] if row else None
    if not isinstance(first, Cell) or not first.brushed:
        return ""
    return f' data-brushed="{html_text(first.brushed)}"'


def _label(heading: str | Cell) -> str:
    """Return the heading of a column as an attribute of its cells, which a card shows."""
    text = heading.text if isinstance(heading, Cell) else heading
    return f' data-label="{html_text(text)}"'


def is_number(value: object) -> bool:
    """Return whether a cell is aligned right."""
    return isinstance(value, int | float | Money) or (isinstance(value, Cell) and value.is_number)


def _heading(found: str | Cell, is_right: bool) -> str:  # noqa: FBT001 - called by map
    align = ' class="n"' if is_right else ""
    if isinstance(found, str):
        text = html_text(found)
        if len(found) > _LONG_HEADING:
            text = f'<span class="name" title="{text}">{_shortened(found)}</span>'
        return f'<th scope="col"{align}>{text}</th>'
    order = f' aria-sort="{found.chip}"' if found.chip else ""
    arrow = {"ascending": " ↑", "descending": " ↓"}.get(found.chip, "")
    text = f'<a href="{html_text(found.href)}">{html_text(found.text)}{arrow}</a>'
    return f'<th scope="col"{align}{order}>{text}</th>'


def _cell(value: object, is_right: bool, decimals: int, label: str = "") -> str:  # noqa: FBT001 - see above
    align = (' class="n"' if is_right else "") + label
    match value:
        case Money():
            number = html_text(figure_text(value, decimals))
            shown = f'{number} <span class="unit">{html_text(str(value.unit))}</span>'
            return f'<td{align} title="{value}">{shown}</td>'
        case Cell():
            title = f' title="{html_text(value.title)}"' if value.title else ""
            align = f' class="text"{label}' if value.is_long else align
            return f"<td{align}{title}>{_inside(value)}</td>"
        case bool() | None | str():
            text = "" if value is None else str(value)
            long = f' class="text"{label}' if len(text) > 40 and not is_right else align
            return f"<td{long}>{breakable(text)}</td>"
        case int() | float():
            return f"<td{align}>{number_text(value)}</td>"
        case _:
            return f"<td{align}>{html_text(str(value))}</td>"


def _inside(cell: Cell) -> str:
    text = breakable(cell.text) if cell.is_long else html_text(cell.text)
    if cell.is_name:
        text = _shortened(cell.text)
    if cell.trend:
        text = f'{trend_line(cell.trend)}<span class="hidden">{text}</span>'
    if cell.at_ns is not None:
        text = moment(cell.at_ns, cell.text)
    if cell.chip:
        text = f'<span class="chip {html_text(cell.chip)}">{text}</span>'
    if cell.href:
        kind = ' class="name"' if cell.is_name else ""
        text = f'<a href="{html_text(cell.href)}"{kind}>{text}</a>'
    elif cell.is_name and len(cell.text) > 2 * _TAIL:
        text = f'<span class="name" title="{html_text(cell.text)}">{text}</span>'
    if cell.check:
        name = html_text(cell.check)
        text = (
            f'<span class="chosen"><input type="checkbox" name="run" value="{name}" form="chosen" '
            f'aria-label="Choose {html_text(cell.text)}">{text}</span>'
        )
    if cell.mark:
        text += f' <span class="grade">{html_text(cell.mark)}</span>'
    if cell.share is None:
        return text
    return f"{share_bar(cell.share, cell.held, cell.chip)}{text}"


_TAIL: Final = 9
_LONG_HEADING: Final = 28


def _shortened(text: str) -> str:
    """Return a name in two parts, of which the first gives way: names differ at their ends."""
    if len(text) <= 2 * _TAIL:
        return html_text(text)
    return (
        f'<span class="head">{html_text(text[:-_TAIL])}</span>'
        f'<span class="tail">{html_text(text[-_TAIL:])}</span>'
    )


def moment(t_ns: int, text: str = "") -> str:
    """Return an instant as UTC text, or as ``text``; the script adds the reader's local time."""
    said = utc_text(t_ns)
    return f'<time datetime="{said.replace(" ", "T")}">{html_text(text or said)}</time>'


def trend_line(values: Sequence[float]) -> str:
    """Return values as a small line without axes, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    scale = 16 / (high - low) if 0 < high - low < math.inf else 0.0
    across = 76 / max(len(values) - 1, 1)
    points = " ".join(
        f"{2 + number * across:.1f},{18 - (value * scale - low * scale):.1f}"
        for number, value in enumerate(values)
    )
    return (
        '<svg class="trend" viewBox="0 0 80 20" width="80" height="20" aria-hidden="true">'
        f'<polyline points="{points}"/></svg>'
    )


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
