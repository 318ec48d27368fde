"""What a report is made of, and how it is rendered: a page in the browser, and Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, assert_never

from outlay.escaping import html_text, markdown_row, markdown_text
from outlay.report import html

# What a report is made of, before anybody decides how it is shown.
#
# Every figure says how it is known: ``measured`` by the run itself; ``stated``, where measured time
# is paid for at a price that somebody typed; ``estimated`` from measurements; or ``assumed``, since
# nobody measured it.

Known = Literal["measured", "stated", "estimated", "assumed"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what it is of, its value, how people read it, and how it is known."""

    label: str
    value: Any
    text: str
    grade: Known = "measured"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; cells are text or numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    grade: Known = "measured"


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture as inline SVG.

    Attributes:
        legend: Which curve is whose, where that needs to be said; HTML.
        wide: Whether it needs the whole width of a page.
    """

    svg: str
    grade: Known = "measured"
    legend: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """A sentence."""

    text: str


Block = Figure | Table | Chart | NoteBlock


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; consecutive figures are shown together."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report: a title, a verdict in a sentence, and sections."""

    title: str
    verdict: str
    sections: tuple[Section, ...]

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield every figure with the title of its section."""
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Figure):
                    yield section.title, block


def sections(found: Iterable[tuple[str, Iterable[Block]]]) -> tuple[Section, ...]:
    """Return the sections that have anything to say."""
    filled = ((title, tuple(blocks)) for title, blocks in found)
    return tuple(Section(title, blocks) for title, blocks in filled if blocks)


# A report as a page in the browser, and as Markdown; both say the same.


def to_html(document: Document) -> str:
    """Return one page that opens offline."""
    parts = (html.section(each.title, *_html(each.blocks)) for each in document.sections)
    return html.whole_page(document.title, document.verdict, parts)


def to_markdown(document: Document) -> str:
    """Return the same without its charts."""
    lines = [f"# {markdown_text(document.title)}", "", markdown_text(document.verdict), ""]
    for section in document.sections:
        lines += [f"## {markdown_text(section.title)}", "", *_markdown(section.blocks)]
    return "\n".join(lines).rstrip() + "\n"


def _html(blocks: Iterable[Block]) -> Iterator[str]:
    for kind, group in groupby(blocks, key=type):
        if kind is Figure:
            yield _figures_html(block for block in group if isinstance(block, Figure))
            continue
        for block in group:
            yield _block_html(block)


def _block_html(block: Block) -> str:
    match block:
        case Chart(svg, grade, legend, wide):
            width = "whole" if wide else "half"
            note = html.note(f"{grade.capitalize()}.")
            return f'<div class="{width}">{svg}{legend}</div>{note}'
        case Table(headings, rows, grade):
            return html.table(headings, rows) + html.note(f"{grade.capitalize()}.")
        case NoteBlock(text):
            return html.note(text)
        case Figure():
            return _figures_html([block])
        case _:
            assert_never(block)


def _figures_html(figures: Iterable[Figure]) -> str:
    items = "".join(
        f"<div><dt>{html_text(figure.label)}</dt><dd>{html_text(figure.text)} "
        f'<span class="grade {figure.grade}">{figure.grade}</span></dd></div>'
        for figure in figures
    )
    return f'<dl class="figures">{items}</dl>'


def _markdown(blocks: Iterable[Block]) -> Iterator[str]:
    for kind, group in groupby(blocks, key=type):
        if kind is not Chart:
            for block in group:
                yield from _block_markdown(block)
            yield ""


def _block_markdown(block: Block) -> Iterator[str]:
    match block:
        case Figure(label, _, text, grade):
            yield f"- {markdown_text(label)}: {markdown_text(text)} ({grade})"
        case Table(headings, rows, grade):
            yield markdown_row(headings)
            yield f"|{'---|' * len(headings)}"
            for row in rows:
                yield markdown_row("" if cell is None else str(cell) for cell in row)
            yield f"\n{grade.capitalize()}."
        case NoteBlock(text):
            yield f"{markdown_text(text)}\n"
        case Chart():
            pass
        case _:
            assert_never(block)
