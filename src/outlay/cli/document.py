"""Documents in a terminal: lists of figures, tables, notes; of charts, short lines as sparks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from outlay.cli.output import (
    CellContent,
    FittingTable,
    SafeConsole,
    console,
    new_table,
    print_sentence,
)
from outlay.report.document import (
    Block,
    ChartBlock,
    Document,
    Figure,
    NoteBlock,
    Table,
    cell_text,
)
from outlay.report.drawing.charts import Chart, LineChart
from outlay.report.html import Cell, is_number
from outlay.units import Money
from outlay.units.shown import graded, number_text

_MOST = 60
_SPARKS = "·▁▂▃▄▅▆▇█"
_LONG, _WORDS = 40, 4
"""A text is a sentence, and not a name, if it is longer and has that many words."""


def print_document(document: Document, to: SafeConsole) -> None:
    """Print a document with its titles."""
    print_sentence(document.title, to, style="bold")
    print_sentence(document.verdict, to)
    for section in document.sections:
        print_sentence(f"\n{section.title}", to, style="bold")
        print_blocks(section.blocks, to)


def print_blocks(blocks: Iterable[Block], to: SafeConsole = console) -> None:
    """Print blocks; of charts, lines of few points."""
    to.print(Group(*rendered(blocks)))


def rendered(blocks: Iterable[Block]) -> Iterator[RenderableType]:
    """Yield blocks as rich prints them: consecutive figures as a list, an empty line between."""
    shown = (block for block in blocks if not isinstance(block, ChartBlock) or _is_short(block))
    for place, (kind, group) in enumerate(groupby(shown, key=type)):
        yield from [""] if place else []
        if kind is Figure:
            yield from _figures([block for block in group if isinstance(block, Figure)])
        for number, block in enumerate(group):
            if isinstance(block, Table):
                yield from [""] if number else []
                yield _table(block)
            elif isinstance(block, ChartBlock):
                yield from _sparks(block.chart)
            elif isinstance(block, NoteBlock):
                if block.title:
                    yield Text(f"\n{block.title}" if number else block.title, style="bold")
                yield block.text


def _is_short(block: ChartBlock) -> bool:
    chart = block.chart
    return isinstance(chart, LineChart) and all(len(e.points) <= _MOST for e in chart.curves)


def _sparks(chart: Chart) -> Iterator[RenderableType]:
    """Yield a chart's title and a line of bars per curve, all with the same scale."""
    assert isinstance(chart, LineChart)
    yield Text(chart.title, style="bold")
    most = max((y for curve in chart.curves for _, y in curve.points), default=0.0)
    table = new_table("", "", "")
    for curve in chart.curves:
        bars = "".join(_spark(y / most if most > 0 else 0.0) for _, y in curve.points)
        highest = max((y for _, y in curve.points), default=0.0)
        table.add_row(bars, curve.label, f"most {number_text(highest)} {chart.y_title}")
    yield table


def _spark(share: float) -> str:
    """Return a bar of a height from 0 to 1; what is not zero is visible."""
    return _SPARKS[min(max(math.ceil(share * (len(_SPARKS) - 1)), 0), len(_SPARKS) - 1)]


def _figures(found: Sequence[Figure]) -> Iterator[RenderableType]:
    """Yield the headline figures on one line, others below each other."""
    leads = [Text.assemble(f"{e.label} ", (_text(e), "bold")) for e in found if e.leads]
    if leads:
        yield Text("   ").join(leads)
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for each in found:
        if not each.leads:
            grid.add_row(each.label, _text(each))
    if grid.rows:
        yield grid


def _text(figure: Figure) -> str:
    return graded(figure.text, figure.grade)


def _table(block: Table) -> FittingTable:
    columns = dict(zip(block.headings, zip(*block.rows, strict=True), strict=False))
    table = new_table(
        *(f">{name}" if any(map(_is_right, cells)) else name for name, cells in columns.items()),
        first=[*block.headings[:1], *[name for name in columns if _has_money(columns[name])][:1]],
        prose=[name for name in columns if any(map(_is_sentence, columns[name]))],
    )
    indent = any(isinstance(row[0], Cell) and row[0].swatch for row in block.rows)
    for place, (first, *rest) in enumerate(block.rows):
        swatch = first.swatch if isinstance(first, Cell) else ""
        mark = ("█ ", swatch) if swatch else "  " if indent else ""
        style = "bold" if place == block.total else None
        table.add_row(Text.assemble(mark, cell_text(first)), *map(_cell, rest), style=style)
    return table


def _cell(cell: object) -> CellContent:
    return cell if isinstance(cell, Money) else cell_text(cell)


def _has_money(cells: Iterable[object]) -> bool:
    values = (cell.value if isinstance(cell, Cell) else cell for cell in cells)
    return any(isinstance(value, Money) for value in values)


def _is_sentence(cell: object) -> bool:
    text = cell_text(cell)
    return len(text) > _LONG and text.count(" ") >= _WORDS


def _is_right(cell: object) -> bool:
    return is_number(cell) or (isinstance(cell, Cell) and cell.share is not None)
