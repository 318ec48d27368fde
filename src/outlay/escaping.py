"""Escaping of untrusted text for terminals, HTML, Markdown, LaTeX, JSON and CSV. Pure.

A name, note or error from a log, a grid or a vendor must not move a cursor, run a script, open a
link, break a table or become a formula. Each output format has one function here and nowhere else.
"""

from __future__ import annotations

import csv
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TextIO

# C0 except tab and newline, DEL, C1, bidirectional marks, line and paragraph separators, and lone
# surrogates, which no output can encode.
_CONTROLS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff"
)
# Formats, private use and unassigned: text that a model reads and a person does not see.
_INVISIBLE: Final = frozenset({"Cf", "Co", "Cn"})
_CONTROL = re.compile(f"[{_CONTROLS}]")
_CONTROL_TAB_NEWLINE = re.compile(f"[\t\n{_CONTROLS}]")
_NAMED: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_IN_ASCII: Final = str.maketrans(
    {"▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "*", "▇": "%",
     "█": "#", "▒": "+", "·": ".", "▪": "*", "│": "|", "─": "-", "└": "+", "…": "...", "≤": "<=",
     "≥": ">=", "\u00d7": "x", "µ": "u", "\u2013": "-", "\u2014": "-", "→": "->", "±": "+-"}
)  # fmt: skip
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~]|&(?=#?\w+;)|(?<!\w)_|_(?!\w)|^[#+-](?=\s)|^=+$")
_ENTITIES: Final = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_LATEX: Final = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan")


def terminal_text(text: str) -> str:
    """Return text with control characters escaped, except tabs and newlines."""
    return _CONTROL.sub(_escape_control, text)


def ascii_text(text: str) -> str:
    """Return text in ASCII; bars and signs become similar characters."""
    return text.translate(_IN_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def one_line(text: str) -> str:
    """Return text with all control characters escaped, tabs and newlines included."""
    return _CONTROL_TAB_NEWLINE.sub(_escape_control, text)


def quoted_text(text: str) -> str:
    """Return text as data for a language model: one line, without any invisible character."""
    return "".join(
        f"\\u{ord(each):04x}" if unicodedata.category(each) in _INVISIBLE else each
        for each in one_line(text)
    )


def json_text(encoded: str) -> str:
    """Return equivalent JSON with control characters escaped, safe for a terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


def ascii_json(encoded: str) -> str:
    """Return the same JSON in ASCII."""
    return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in encoded)


def markdown_text(text: str) -> str:
    """Return text that Markdown renders literally: no markup, HTML, link or table cell."""
    line = " ".join(one_line(text).split())
    return _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), line)


def markdown_table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; a heading that starts with ">" aligns right."""
    marks = ("---:|" if heading.startswith(">") else "---|" for heading in headings)
    yield _markdown_row(heading.removeprefix(">") for heading in headings)
    yield f"|{''.join(marks)}"
    yield from map(_markdown_row, rows)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def html_text(text: str) -> str:
    """Return text escaped for HTML and SVG, in elements and quoted attributes."""
    return html.escape(terminal_text(text), quote=True)


def html_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a plain HTML table, for a notebook, which styles it."""
    head = "".join(f"<th>{html_text(heading)}</th>" for heading in headings)
    lines = ("".join(f"<td>{html_text(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def latex_text(text: str) -> str:
    """Return text escaped for LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def csv_cell(value: object) -> object:
    """Return a cell that no spreadsheet evaluates as a formula; numbers are unchanged."""
    if not isinstance(value, str):
        return value
    text = terminal_text(value)
    is_formula = text.lstrip(" ").startswith(_FORMULA) and _NUMBER.fullmatch(text) is None
    return f"'{text}" if is_formula else text


def write_csv(
    stream: TextIO,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, object]],
    *,
    header: bool = True,
) -> None:
    """Write rows as CSV; missing keys are empty, and keys without a column are dropped."""
    writer = csv.writer(stream, lineterminator="\n")
    if header:
        writer.writerow([csv_cell(column) for column in columns])
    for row in rows:
        writer.writerow([csv_cell(row.get(column, "")) for column in columns])


def _escape_control(found: re.Match[str]) -> str:
    letter = found[0]
    code = ord(letter)
    return _NAMED.get(letter) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
