"""The output edge: text from logs, grids and vendors as a terminal, a page or a table may have it.

A name, a note or an error of somebody else must not move a cursor, run a script, open a link, break
a table or become a formula. Each of these is seen to in one function here, and nowhere else. Pure.
"""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TextIO

# C0 but tab and newline, DEL, C1, marks that turn the direction of writing, line and paragraph
# separators, and halves of surrogate pairs, which no output can encode.
_UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff"
)
_CONTROL = re.compile(f"[{_UNSEEN}]")
_IN_A_LINE = re.compile(f"[\t\n{_UNSEEN}]")
_NAMED: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_IN_ASCII: Final = str.maketrans(
    {"█": "#", "▒": "+", "·": ".", "▪": "*", "│": "|", "─": "-", "└": "+", "…": "...", "≤": "<=",
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
    """Return a text that a terminal shows and does not obey; tabs and newlines stay."""
    return _CONTROL.sub(_shown, text)


def ascii_text(text: str) -> str:
    """Return a text for a terminal that shows ASCII alone: bars and signs as their likeness."""
    return text.translate(_IN_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def one_line(text: str) -> str:
    """Return a text that stays on the line it is put on, on whatever it is shown."""
    return _IN_A_LINE.sub(_shown, text)


def json_text(encoded: str) -> str:
    """Return JSON whose strings hold nothing that a terminal obeys; its meaning stays."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


def ascii_json(encoded: str) -> str:
    """Return the same JSON in ASCII."""
    return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in encoded)


def markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is: no markup, no HTML, no link, no table cell."""
    quiet = " ".join(one_line(text).split())
    return _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), quiet)


def markdown_table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; a heading that starts with ">" aligns right."""
    marks = ("---:|" if heading.startswith(">") else "---|" for heading in headings)
    yield _markdown_row(heading.removeprefix(">") for heading in headings)
    yield f"|{''.join(marks)}"
    yield from map(_markdown_row, rows)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def html_text(text: str) -> str:
    """Return a text for HTML and SVG, inside elements and quoted attributes."""
    return html.escape(terminal_text(text), quote=True)


def latex_text(text: str) -> str:
    """Return a text as LaTeX sets it."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def csv_cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula; numbers stay what they are."""
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
    """Write rows as CSV; what a row lacks is empty, and what no column is named for is left out."""
    writer = csv.writer(stream, lineterminator="\n")
    if header:
        writer.writerow([csv_cell(column) for column in columns])
    for row in rows:
        writer.writerow([csv_cell(row.get(column, "")) for column in columns])


def _shown(found: re.Match[str]) -> str:
    letter = found[0]
    code = ord(letter)
    return _NAMED.get(letter) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
