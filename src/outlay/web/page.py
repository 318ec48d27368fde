"""A page's query, its content and its frame; shared parts; hiding names of people. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from outlay.errors import Finding
from outlay.escaping import html_text
from outlay.report import html
from outlay.report.html import Cell
from outlay.units.shown import counted

VIEWS: Final = {
    "/": "Now", "/money": "Money", "/runs": "Runs", "/sweeps": "Sweeps", "/guard": "Guard",
    "/prices": "Prices",
}  # fmt: skip
_CONFIG: Final = (
    '{"includeIndicatorCSS":false,"history":false,"extensions":"sse",'
    '"noSwap":[204,304,"4xx","5xx"],'  # A refused stream leaves the page as it is.
    '"morphIgnore":["data-htmx-powered","open","data-local"]}'  # As the reader left them.
)


_CHARTS: Final = (
    '<link rel="stylesheet" href="/assets/charts.css">'
    '<script src="/assets/charts.js" defer></script>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """A request for a page.

    Attributes:
        path: The path without the form, such as ``/runs``.
        name: The id of the run or sweep in the path.
        query: Parameters in order; a name may occur several times.
    """

    path: str
    name: str = ""
    query: Sequence[tuple[str, str]] = ()

    def get(self, name: str, default: str = "") -> str:
        """Return the last value of a parameter."""
        return next((value for key, value in reversed(self.query) if key == name), default)

    def every(self, name: str) -> list[str]:
        """Return all values of a parameter, each once."""
        return list(dict.fromkeys(value for key, value in self.query if key == name))

    def one_of(self, name: str, allowed: Iterable[str], default: str) -> str:
        """Return a parameter if it is allowed, else the default."""
        return found if (found := self.get(name)) in set(allowed) else default

    def number(self, name: str, default: int, *, most: int) -> int:
        """Return a parameter as a number between 1 and ``most``."""
        text = self.get(name)
        return max(1, min(int(text), most)) if text.isdecimal() and len(text) < 10 else default

    def address(self, form: str = "", **changes: str) -> str:
        """Return the address with changed parameters; empty ones are left out."""
        kept = [(key, value) for key, value in self.query if key not in changes]
        query = urlencode([(k, v) for k, v in [*kept, *changes.items()] if v])
        path = self.path if self.path != "/" or not form else "/now"
        return f"{path}{form}?{query}" if query else f"{path}{form}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of a page.

    Attributes:
        parts: HTML below the verdict.
        document: The JSON form.
        columns: The columns of the CSV form, and ``rows`` their cells; empty for none.
        lives: Whether the page is updated while open.
        crumbs: Breadcrumbs, HTML.
        points: Where its charts get further points when they are zoomed, without form; "" if they
            have all of theirs, and None if no chart can be zoomed.
        alarms: How many limits are exceeded, which the title of the window counts.
    """

    title: str
    verdict: str = ""
    parts: Sequence[str] = ()
    document: Any = None
    columns: Sequence[str] = ()
    rows: Sequence[Mapping[str, object]] = ()
    lives: bool = True
    crumbs: str = ""
    tab: str = ""
    points: str | None = None
    alarms: int = 0


def inside(page: Page) -> str:
    """Return the page without its frame: what a live update replaces.

    It has the title of the window, too, which a script takes from there.
    """
    title = f'<data id="window-title" value="{_window_title(page)}" hidden></data>'
    return html.top(page.title, page.verdict, page.crumbs) + "".join(page.parts) + title


def _window_title(page: Page) -> str:
    """Return what the tab of a browser shows, as HTML."""
    alarms = f"({page.alarms}) " if page.alarms else ""
    return f"{alarms}{html_text(page.title)} · outlay"


def frame(page: Page, ask: PageQuery, user: str = "") -> str:
    """Return a whole page, with the name of the user who looks at it if that is known."""
    links = "".join(_link(path, name, page.tab) for path, name in VIEWS.items())
    live = f' hx-sse:connect="/events{html_text(ask.address())}" hx-swap="innerMorph"'
    points = f' data-points="{html_text(page.points)}"' if page.points else ""
    charts = "" if page.points is None else _CHARTS
    return (
        f"{html.HEAD}<title>{_window_title(page)}</title>"
        f"<meta name=\"htmx-config\" content='{_CONFIG}'>"
        f'<link rel="stylesheet" href="/assets/style.css"><link rel="icon" href="data:,">'
        f'<script src="/assets/live.js" defer></script>{charts}</head>'
        '<body><a class="skip" href="#view">To the content</a>'
        f'<header class="bar"><div><strong>outlay</strong><nav aria-label="Views">{links}</nav>'
        f'<span class="state"></span>{_who(user)}</div></header>'
        f'<main id="view"{live if page.lives else ""}{points}>{inside(page)}</main>'
        f"<footer>{_forms(page, ask)}</footer>{_KEYS_HELP}</body></html>\n"
    )


KEYS: Final = {
    "/": "search or filter", "j": "next run of the list, k the one before",
    "x": "select the run, or take it back", "Enter": "open the run",
    "c": "compare the selected runs", "g n": "go to Now; g m to Money, g r to Runs",
    "?": "show these keys",
}  # fmt: skip
_KEYS_HELP: Final = (
    '<dialog id="keys" aria-labelledby="keys-title"><form method="dialog">'
    '<h2 id="keys-title">Keys</h2><dl>'
    + "".join(f"<div><dt><kbd>{key}</kbd></dt><dd>{text}</dd></div>" for key, text in KEYS.items())
    + "</dl><button>Close</button></form></dialog>"
)


def _who(user: str) -> str:
    return f'<span class="user">{html_text(user)}</span>' if user else ""


def _link(path: str, name: str, tab: str) -> str:
    current = ' aria-current="page"' if name == tab else ""
    return f'<a href="{path}"{current}>{name}</a>'


def _forms(page: Page, ask: PageQuery) -> str:
    links = [f'<a href="{html_text(ask.address(".json"))}">JSON</a>']
    if page.columns:
        links.append(f'<a href="{html_text(ask.address(".csv"))}">CSV</a>')
    return (
        f"<p>This page as {' or '.join(links)}. Times are UTC. Amounts are estimates, time "
        "multiplied by a price, until a bill confirms them."
        '<button type="button" class="scripted quiet" data-keys>Keys: <kbd>?</kbd></button></p>'
    )


# Parts of several pages


def run_href(run_id: str) -> str:
    """Return the address of a run's page."""
    return f"/run/{quote(run_id, safe='')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A headline figure that leads somewhere.

    Attributes:
        note: A line below it; ``note_href`` is where it leads.
    """

    label: str
    text: str
    href: str = ""
    title: str = ""
    note: str = ""
    note_href: str = ""
    is_bad: bool = False


def tiles(found: Iterable[Tile]) -> str:
    """Return headline figures."""
    return f'<dl class="figures">{"".join(map(_tile, found))}</dl>'


def _tile(tile: Tile) -> str:
    kind = "lead bad-news" if tile.is_bad else "lead"
    title = f' title="{html_text(tile.title)}"' if tile.title else ""
    below = f'<dd class="below">{_linked(tile.note, tile.note_href)}</dd>' if tile.note else ""
    return (
        f'<div class="{kind}"><dt>{html_text(tile.label)}</dt>'
        f"<dd{title}>{_linked(tile.text, tile.href)}</dd>{below}</div>"
    )


def _linked(text: str, href: str) -> str:
    return f'<a href="{html_text(href)}">{html_text(text)}</a>' if href else html_text(text)


def chip(status: str) -> Cell:
    """Return a status as a coloured cell."""
    return Cell(text=status, value=status, chip=status)


def findings_list(
    findings: Sequence[Finding], people: People, hrefs: Mapping[str, str] | None = None
) -> list[str]:
    """Return findings as a section; empty without any.

    Args:
        findings: The most important one first.
        people: Hides names.
        hrefs: Where each source leads, as ``book_reader.places_of`` finds it.
    """
    if not findings:
        return []
    title, shown = "What is wrong", people.text
    wrong = sum(each.severity == "error" for each in findings)
    counts = [counted(wrong, "error")] if wrong else []
    if warnings := len(findings) - wrong:
        counts.append(counted(warnings, "warning"))
    rows = [
        [
            chip(each.severity), _source(each.source, people, hrefs or {}),
            Cell(text=shown(each.message), is_long=True),
        ]
        for each in findings[:_MOST_FINDINGS]
    ]  # fmt: skip
    parts = [html.table(("", "where", "what"), rows, caption=title, is_list=True)]
    if len(findings) > _MOST_FINDINGS:
        parts.append(html.note(f"The first {_MOST_FINDINGS} of {len(findings):,} are shown."))
    return [
        f'<section class="wrong" id="wrong"><h2>{title}: {", ".join(counts)}</h2>'
        f"{''.join(parts)}</section>"
    ]


def _source(source: str, people: People, hrefs: Mapping[str, str]) -> Cell:
    """Return where something is wrong: the end of a path, in full as the tooltip."""
    path, colon, rest = source.partition(": ")
    short = "/".join(path.rstrip("/").rsplit("/", 2)[-2:]) if path.startswith("/") else path
    return Cell(
        text=people.text(f"{short}{colon}{rest}"), title=people.text(source),
        href=hrefs.get(source, ""), is_long=True,
    )  # fmt: skip


_MOST_FINDINGS: Final = 30


def columns_of(parts: Iterable[str]) -> str:
    """Return sections in columns; empty without any."""
    drawn = "".join(parts)
    return f'<div class="columns">{drawn}</div>' if drawn else ""


def tabs(label: str, choices: Mapping[str, str], chosen: str) -> str:
    """Return links, one of them marked; the keys are addresses."""
    current = {chosen: ' aria-current="true"'}
    items = "".join(
        f'<a href="{html_text(address)}"{current.get(name, "")}>{html_text(name)}</a>'
        for address, name in choices.items()
    )
    return f'<nav class="tabs" aria-label="{html_text(label)}">{items}</nav>'


def select(name: str, label: str, choices: Iterable[str], chosen: str) -> str:
    """Return a drop-down of the choices and "any"."""
    values = ["", *choices]
    if chosen not in values:
        values.append(chosen)
    options = "".join(
        f'<option value="{html_text(value)}"{" selected" if value == chosen else ""}>'
        f"{html_text(value or 'any')}</option>"
        for value in values
    )
    return f'<label>{html_text(label)}<select name="{name}">{options}</select></label>'


# Hiding names of people on pages; files are not changed.

_NUMBERED: Final = re.compile(r"user \d+")
_PERSONS: Final = ("user", "owner")
_ADDRESSES: Final = ("href", "run_id")
_HOME: Final = re.compile(r"(?<=/home/)[^/\s]+|(?<=/Users/)[^/\s]+")


class People:
    """Replaces users by "user 1", "user 2", … if ``hidden``; each keeps the same number."""

    def __init__(self, *, hidden: bool) -> None:
        self.hidden = hidden
        self._numbers: dict[str, int] = {}

    def name(self, user: str) -> str:
        """Return a user's name or number."""
        if not self.hidden or not user or _NUMBERED.fullmatch(user):
            return user
        return f"user {self._numbers.setdefault(user, len(self._numbers) + 1)}"

    def text(self, text: str) -> str:
        """Return a text without known users and names in home directories."""
        if not self.hidden:
            return text
        shown = _HOME.sub(lambda found: self.name(found[0]).replace(" ", "-"), text)
        for user in self._numbers:
            shown = re.sub(rf"\b{re.escape(user)}\b", self.name(user), shown)
        return shown

    def plain(self, value: Any, key: str = "") -> Any:
        """Return a JSON value without names of people: users, paths and messages.

        Args:
            value: Text, a number, or a list or dict of such.
            key: The key of the value.
        """
        match value:
            case dict():
                return {name: self.plain(each, str(name)) for name, each in value.items()}
            case list() | tuple():
                return [self.plain(each, key) for each in value]
            case str() if key in _PERSONS:
                return self.name(value)
            case str() if key not in _ADDRESSES:
                return self.text(value)
            case _:
                return value

    def user_of(self, shown: str) -> str:
        """Return the user behind a shown name, for filters."""
        return next((user for user in self._numbers if self.name(user) == shown), shown)
