"""A report as a page in the browser, and as Markdown; both say the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import assert_never

from outlay.escaping import html_text, markdown_row, markdown_text
from outlay.report import html
from outlay.report.blocks import Block, Chart, Document, Figure, Note, Table


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
        case Note(text):
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
        case Note(text):
            yield f"{markdown_text(text)}\n"
        case Chart():
            pass
        case _:
            assert_never(block)
