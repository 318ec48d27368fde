"""The shell of every page: one file, offline, light and dark; a colour for each phase. Pure.

Whatever came from a log is escaped here or in ``svg``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from outlay.escaping import html_text
from outlay.goodput import phases as ph
from outlay.report import svg
from outlay.units.shown import number_text

# One colour for each phase, the same in every report, on light and on dark.
#
# After the palettes of Okabe and Ito (2008) and of Paul Tol, which colour-blind readers can tell
# apart; the words beside a chart say the same again.

_PHASES: Final = {
    ph.STEP: "#009e73",
    ph.ACCELERATOR_INIT: "#88ccee",
    ph.TRAINING_PREP: "#56b4e9",
    ph.PROGRAM_STARTUP: "#0072b2",
    ph.DATA_LOADING: "#e69f00",
    ph.CHECKPOINT_SAVE: "#cc79a7",
    ph.CHECKPOINT_RESTORE: "#aa4499",
    ph.EVALUATION: "#e5c700",
    ph.ELASTIC_SLICE_DOWN: "#999933",
    ph.ELASTIC_SCALE_UP: "#ddcc77",
    ph.ELASTIC_REINITIALIZATION: "#b8860b",
    ph.STALL: "#d55e00",
    ph.WASTED_PROGRESS: "#cc6677",
    ph.RECOVERY: "#882255",
    ph.OTHER: "#999999",
}
_CUSTOM: Final = "#44aa99"


def of_phase(phase: str) -> str:
    """Return the colour of a phase; those that a user named share one."""
    return _PHASES.get(phase, _CUSTOM)


_STYLE: Final = """
:root{--ink:#1b1b1b;--paper:#fff;--soft:#6b6b6b;--line:#d9d9d9;--c0:#0072b2;--c1:#d55e00;
--c2:#009e73;--c3:#cc79a7;--c4:#b8860b;--c5:#56b4e9;--c6:#000}
@media screen and (prefers-color-scheme:dark){:root{--ink:#eee;--paper:#16181c;--soft:#a8adb5;
--line:#3a3f47;--c0:#56b4e9;--c1:#e69f00;--c2:#2bc79a;--c3:#e39fc4;--c4:#f0e442;--c5:#7cc4ff;--c6:#fff}}
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:68rem;color:var(--ink);
background:var(--paper);font:16px/1.5 system-ui,sans-serif}h1{font-size:1.5rem}
h2{font-size:1.15rem;margin-top:2rem}.verdict{font-size:1.1rem;border-left:4px solid var(--c0);
padding-left:.8rem}svg{width:100%;height:auto;display:block;
overflow:visible}.wide{overflow-x:auto}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:0 2rem}
table{border-collapse:collapse;font-size:.9rem}th,td{padding:.3rem .6rem;text-align:left;
vertical-align:top;border-bottom:1px solid var(--line);white-space:nowrap}.n{text-align:right;
font-variant-numeric:tabular-nums}td:last-child{white-space:normal;min-width:6rem}p.note{color:var(--soft);font-size:.9rem}
text{fill:var(--ink);font:14px system-ui,sans-serif}.tick{fill:var(--soft)}.rule{stroke:var(--line)}
.front{fill:none;stroke:var(--c1);stroke-width:2}.dot{fill:var(--c0)}.best{fill:var(--c1);
stroke:var(--ink)}.bar{fill:var(--c0)}.bad{fill:none;stroke:var(--c1);stroke-width:2}
.cross{fill:var(--c1);font-weight:bold}.curve{fill:none;stroke-width:2}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none;font-size:.85rem}
.legend svg{display:inline-block;width:1.6rem;height:.6rem;vertical-align:middle}
.half{max-width:40rem}.legend.squares svg{width:.8rem;height:.8rem}
.figures{display:grid;gap:.4rem 1.5rem;
grid-template-columns:repeat(auto-fill,minmax(17rem,1fr));margin:0}.figures dt{color:var(--soft);
font-size:.85rem}.figures dd{margin:0;overflow-wrap:anywhere}.grade{font-size:.7rem;
color:var(--soft);border:1px solid var(--line);border-radius:.6rem;padding:0 .4rem;
white-space:nowrap}.grade.estimated{border-style:dashed}.grade.assumed{border-style:dotted;
color:var(--c1)}
@media screen and (min-width:40rem){.whole text{font-size:9px}}
@media (max-width:40rem){svg text{font-size:19px}.legend{font-size:.8rem}}
@media print{:root{--ink:#000;--soft:#444;--line:#bbb}.charts{grid-template-columns:1fr 1fr}
section,tr{break-inside:avoid}h2{break-after:avoid}svg text{font-size:18px}.wide{overflow:visible}
table{font-size:.7rem}}
"""
_CURVES: Final = "".join(f".c{n}{{stroke:var(--c{n})}}" for n in range(svg.COLOURS))


def whole_page(title: str, verdict: str, parts: Iterable[str]) -> str:
    """Return a page as HTML without any reference to the outside."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html_text(title)}</title><style>{_STYLE}{_CURVES}</style></head>"
        f'<body><h1>{html_text(title)}</h1><p class="verdict">{html_text(verdict)}</p>'
        f"{''.join(parts)}</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a part of a page under its heading."""
    return f"<section><h2>{html_text(title)}</h2>{''.join(parts)}</section>"


def note(text: str) -> str:
    """Return a line that says what a chart or table rests on."""
    return f'<p class="note">{html_text(text)}</p>'


def legend(labels: Iterable[str]) -> str:
    """Return which line is whose, in the order of their looks."""
    items = (f"<li>{svg.stroke(n)} {html_text(label)}</li>" for n, label in enumerate(labels))
    return f'<ul class="legend">{"".join(items)}</ul>'


def charts(parts: Iterable[str]) -> str:
    """Return sections side by side where there is room, one below the other where there is not."""
    return f'<div class="charts">{"".join(parts)}</div>'


def table(headings: Sequence[str], cells: Iterable[Sequence[object]]) -> str:
    """Return a table; numbers align right, and a wide one scrolls by itself."""
    rows = list(cells)
    numeric = {n for row in rows for n, value in enumerate(row) if isinstance(value, int | float)}
    head = "".join(
        f'<th class="{"n" if n in numeric else ""}">{html_text(text)}</th>'
        for n, text in enumerate(headings)
    )
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>{lines}</table></div>'


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="n">{number_text(value)}</td>'
    return f"<td>{html_text('' if value is None else str(value))}</td>"
