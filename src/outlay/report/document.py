"""Reports as values: sections of figures, tables, charts, notes; as HTML and Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, assert_never

from outlay.escaping import html_text, markdown_table, markdown_text
from outlay.report import html
from outlay.report.drawing.charts import Chart
from outlay.units import Money
from outlay.units.shown import Grade, graded, number_text


@dataclass(frozen=True, slots=True)
class Figure:
    """One labelled number: its value, its text, and how it is known.

    Attributes:
        leads: Whether it is among the few headline figures.
        copies: Whether a page has a button that copies it.
        at_ns: The instant that it is, which a reader also sees in local time.
        href: Where it leads on a page.
    """

    label: str
    value: Any
    text: str
    grade: Grade = "measured"
    leads: bool = False
    copies: bool = False
    at_ns: int | None = None
    href: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; cells are text, numbers, amounts, or ``html.Cell``.

    Attributes:
        total: The index of the row with the total.
        folded: What a page says of it until it is opened; "" if it is open.
        is_list: Whether each row is a thing of its own: a card on a narrow screen.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    total: int | None = None
    folded: str = ""
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class ChartBlock:
    """A chart; consecutive ones are shown side by side where there is room."""

    chart: Chart


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """A paragraph, with an optional title.

    Attributes:
        folded: What a page says of it and of those after it, until they are opened; "" if open.
    """

    text: str
    title: str = ""
    folded: str = ""


Block = Figure | Table | ChartBlock | NoteBlock
_LONG = 40
_HASH = re.compile("[0-9a-f]{12,}")
_MARKED = ("estimated", "assumed")


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; consecutive figures are shown together.

    Attributes:
        is_half: Whether it may be placed beside another section.
        is_folded: Whether a page shows only its title until it is opened.
    """

    title: str
    blocks: tuple[Block, ...]
    is_half: bool = False
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A report: title, one-sentence verdict, sections."""

    title: str
    verdict: str
    sections: tuple[Section, ...]

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield every figure with the title of its section."""
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Figure):
                    yield section.title, block

    def rows(self) -> list[dict[str, object]]:
        """Return every figure as a row of CSV or JSON."""
        return [
            {"section": section, "label": f.label, "value": f.value, "text": f.text,
             "grade": f.grade}
            for section, f in self.figures()
        ]  # fmt: skip

    def charts(self) -> list[Chart]:
        """Return every chart."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block.chart for block in blocks if isinstance(block, ChartBlock)]


def sections(
    found: Iterable[tuple[str, Iterable[Block]]],
    whole: Container[str] = (),
    folded: Container[str] = (),
) -> tuple[Section, ...]:
    """Return the non-empty sections; those in ``whole`` take the full width."""
    filled = ((title, tuple(blocks)) for title, blocks in found)
    return tuple(
        Section(title, blocks, title not in whole, title in folded)
        for title, blocks in filled
        if blocks
    )


# HTML and Markdown, with the same content except charts.


def to_html(document: Document, *, is_sheet: bool = False) -> str:
    """Return one page without references to other files; a sheet is printed small."""
    drawn = sections_html(document.sections)
    return html.whole_page(document.title, document.verdict, drawn, is_sheet=is_sheet)


def sections_html(found: Iterable[Section]) -> Iterator[str]:
    """Yield sections as HTML."""
    for is_half, group in groupby(found, key=lambda each: each.is_half):
        drawn = map(_section_html, group)
        if is_half:
            yield f'<div class="columns">{"".join(drawn)}</div>'
        else:
            yield from drawn


def _section_html(found: Section) -> str:
    """Return a section with an anchor, ``#what-was-run``; a folded one opens on a click."""
    drawn = blocks_html(found.blocks, found.title)
    title = html_text(found.title)
    whole = html.section(found.title, drawn)
    if found.is_folded:
        inside = f"<summary><h2>{title}</h2></summary>{drawn}"
        whole = f'<section><details class="fold">{inside}</details></section>'
    return f'<div class="at" id="{anchor(found.title)}">{whole}</div>'


def anchor(title: str) -> str:
    """Return the name of a section in addresses: lower-case letters, digits and hyphens."""
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")


def contents_html(found: Iterable[Section]) -> str:
    """Return links to the sections."""
    links = "".join(f'<a href="#{anchor(e.title)}">{html_text(e.title)}</a>' for e in found)
    return f'<nav class="contents" aria-label="On this page">{links}</nav>'


def notebook_html(document: Document, titles: Sequence[str]) -> str:
    """Return sections of a document for a notebook, the first one open.

    Without charts, style or script.
    """
    parts = [f"<p><b>{html_text(document.title)}</b>: {html_text(document.verdict)}</p>"]
    for section in document.sections:
        blocks = [block for block in section.blocks if not isinstance(block, ChartBlock)]
        if section.title in titles and blocks:
            opened = " open" if section.title == titles[0] else ""
            summary = f"<summary>{html_text(section.title)}</summary>"
            parts.append(f"<details{opened}>{summary}{blocks_html(blocks)}</details>")
    return "".join(parts)


def to_markdown(document: Document) -> str:
    """Return Markdown without charts, and without sections that have only charts."""
    lines = [f"# {markdown_text(document.title)}", ""]
    if document.verdict:
        lines += [markdown_text(document.verdict), ""]
    for section in document.sections:
        if written := list(_markdown(section.blocks)):
            lines += [f"## {markdown_text(section.title)}", "", *written]
    return "\n".join(lines).rstrip() + "\n"


def blocks_html(blocks: Iterable[Block], title: str = "") -> str:
    """Return a section's blocks as HTML; consecutive figures and charts are grouped."""
    parts = []
    for (kind, folded), group in groupby(blocks, key=lambda e: (type(e), _folded(e))):
        drawn = "".join(_block_html(title, block) for block in group)
        if folded:
            drawn = f"<details><summary>{html_text(folded)}</summary>{drawn}</details>"
        elif kind is Figure:
            drawn = f'<dl class="figures">{drawn}</dl>'
        elif kind is ChartBlock:
            drawn = f'<div class="two">{drawn}</div>'
        parts.append(drawn)
    return "".join(parts)


def _folded(block: Block) -> str:
    return block.folded if isinstance(block, Table | NoteBlock) else ""


def _block_html(section_title: str, block: Block) -> str:
    match block:
        case ChartBlock(chart):
            is_named = chart.title and chart.title != section_title
            said = f"<h3>{html_text(chart.title)}</h3>" if is_named else ""
            return f"<div>{said}{html.chart(chart)}</div>"
        case Table(headings, rows, total, _, is_list):
            named = section_title if len(headings) > 2 else f"{section_title}: {headings[0]}"
            return html.table(headings, rows, total=total, caption=named, is_list=is_list)
        case NoteBlock(text, title):
            return (f"<h3>{html_text(title)}</h3>" if title else "") + html.note(text)
        case Figure():
            return _figure_html(block)
        case _:
            assert_never(block)


def _figure_html(figure: Figure) -> str:
    length, is_hash = len(figure.text), _HASH.fullmatch(figure.text)
    sizes = {"lead": figure.leads, "hash": is_hash, "whole": length > 2 * _LONG}
    kind = next((name for name, fits in sizes.items() if fits), "long" if length > _LONG else "")
    # The page explains stated prices once.
    mark = f' <span class="grade">{figure.grade}</span>' if figure.grade in _MARKED else ""
    exact = f' title="{figure.value}"' if isinstance(figure.value, Money) else ""
    text = html.breakable(figure.text)
    if is_hash:
        text = f'<span title="{figure.text}">{figure.text}</span>'
    if figure.at_ns is not None:
        text = html.moment(figure.at_ns, figure.text)
    if figure.href:
        text = f'<a href="{html_text(figure.href)}">{text}</a>'
    copy = html.copy_button(figure.text, figure.label) if figure.copies else ""
    label = f"<dt>{html_text(figure.label)}{copy}</dt>"
    return f'<div class="{kind}">{label}<dd{exact}>{text}{mark}</dd></div>'


def _markdown(blocks: Iterable[Block]) -> Iterator[str]:
    for kind, group in groupby(blocks, key=type):
        if kind is not ChartBlock:
            for block in group:
                yield from _block_markdown(block)
            yield ""


def _block_markdown(block: Block) -> Iterator[str]:
    match block:
        case Figure(label, _, text, grade):
            yield f"- {markdown_text(label)}: {graded(markdown_text(text), grade)}"
        case Table(headings, rows):
            yield from markdown_table(headings, (map(cell_text, row) for row in rows))
        case NoteBlock(text, title):
            if title:
                yield f"### {markdown_text(title)}\n"
            yield f"{markdown_text(text)}\n"
        case ChartBlock():
            pass
        case _:
            assert_never(block)


def cell_text(cell: object) -> str:
    """Return a cell of a table as plain text."""
    match cell:
        case html.Cell(text=text, mark=mark):
            return f"{text} ({mark})" if mark else text
        case None:
            return ""
        case bool() | str():
            return str(cell)
        case int() | float():
            return number_text(cell)
        case _:
            return str(cell)
