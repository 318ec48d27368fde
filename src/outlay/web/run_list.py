"""The list of runs: its filter, groups, columns and views, all of them in the address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import msgspec

from outlay.clock import parse_moment
from outlay.errors import InvalidValue
from outlay.escaping import html_text
from outlay.report import html
from outlay.report.compared_runs import figure_cell
from outlay.report.html import Cell
from outlay.runs.figures import FIGURES, RunFigure
from outlay.store.run_row import RunRow
from outlay.store.runs import (
    GROUPED_BY,
    SORTED_BY,
    RunFilter,
    RunGroup,
    run_groups,
    values_of,
)
from outlay.units import Money
from outlay.units.money import sum_by_unit
from outlay.units.shown import counted, money_text
from outlay.web.book_reader import BookReader
from outlay.web.page import PageQuery, chip, run_href, select, tabs

PAGE: Final = 100
_CHOICES: Final = 200
_ALWAYS: Final = ("run_id", "name", "status")
_FIRST: Final = ("cost", "goodput", "loss_trend")
_FIGURES: Final = {each.name: each for each in FIGURES if each.name not in _ALWAYS}
COLUMNS: Final = {name: _FIGURES[name] for name in (*_FIRST, *_FIGURES)}
_USUAL: Final = (*_FIRST, "metric_value", "model", "user", "steps", "last_seen")
_HEADINGS: Final = Counter(each.label for each in COLUMNS.values())
_SORT: Final = {"cost": "cost_micros", "started": "started_ns", "last_seen": "last_seen_ns"}
"""The columns of the store by which figures of other names are sorted."""
_ORDERS: Final = {
    "": "newest first", "-last_seen_ns": "last seen", "-cost_micros": "highest cost",
    "goodput": "lowest goodput", "metric_value": "lowest metric", "-metric_value": "highest metric",
    "-steps": "most steps", "name": "name",
}  # fmt: skip
_CHIPS: Final = {
    "q": "search", "status": "status", "model": "model", "user": "user", "tag": "tag",
    "since": "since", "until": "until",
}  # fmt: skip


# What is asked for


def wanted_by(ask: PageQuery, books: BookReader) -> RunFilter:
    """Return the filter of a query; an invalid date is ignored."""
    tag, equals, value = ask.get("tag").partition("=")
    return RunFilter(
        text=ask.get("q")[:200], status=ask.get("status") or None, model=ask.get("model") or None,
        user=books.people.user_of(ask.get("user")) or None, tag=tag or None,
        tag_value=value if equals else None, since_ns=_moment(ask, "since", books),
        until_ns=_moment(ask, "until", books),
    )  # fmt: skip


def _moment(ask: PageQuery, name: str, books: BookReader) -> int | None:
    try:
        return (
            parse_moment(ask.get(name), name=name, now_ns=books.now_ns) if ask.get(name) else None
        )
    except InvalidValue:
        return None


def wanted_rows(ask: PageQuery, books: BookReader) -> list[RunRow]:
    """Return the rows of the page that is asked for."""
    return books.rows(
        wanted_by(ask, books), sort=_sort(ask), limit=PAGE, offset=_offset(ask), group=_group(ask)
    )


def wanted_groups(ask: PageQuery, books: BookReader) -> list[RunGroup]:
    """Return what all runs of the filter cost, by group; as of the last refresh."""
    wanted, by = wanted_by(ask, books), _group(ask)
    key = (wanted, by, books.stamp([]))
    return books.cache.get(key, lambda: run_groups(books.store, wanted, by))


def total_of(groups: Sequence[RunGroup]) -> list[Money]:
    """Return what groups cost, by unit."""
    return sum_by_unit(chain.from_iterable(each.costs for each in groups))


def _sort(ask: PageQuery) -> str:
    found = ask.get("sort")
    return found if found.removeprefix("-") in SORTED_BY else "-started_ns"


def _group(ask: PageQuery) -> str:
    return ask.one_of("group", GROUPED_BY, "")


def _columns(ask: PageQuery) -> list[str]:
    """Return the chosen figures; older addresses have the names of the store's columns."""
    chosen = ask.every("col") or _USUAL
    return [name for name in COLUMNS if name in chosen or _SORT.get(name) in chosen]


def _offset(ask: PageQuery) -> int:
    return (ask.number("page", 1, most=10**6) - 1) * PAGE


def without_people(row: RunRow, books: BookReader) -> RunRow:
    """Return a row with the names of people hidden, if they are to be."""
    people = books.people
    return msgspec.structs.replace(row, user=people.name(row.user), dir=people.text(row.dir))


# What is shown


def list_verdict(ask: PageQuery, count: int, costs: Sequence[Money]) -> str:
    """Return how many runs there are, and what all of them cost."""
    if not count and not any(ask.get(name) for name in _CHIPS):
        return ""
    filtered = " with this filter" if any(ask.get(name) for name in _CHIPS) else ""
    spent = f", which cost {' and '.join(map(money_text, costs))}" if any(costs) else ""
    return f"{counted(count, 'registered run')}{filtered}{spent}."


def list_parts(
    ask: PageQuery, rows: Sequence[RunRow], groups: Sequence[RunGroup], books: BookReader
) -> list[str]:
    """Return the list of runs with its views, filter and active filters."""
    columns = _columns(ask)
    if not ask.every("col") and any(row.log_host for row in rows):
        columns.append("log_host")
    count = sum(each.count for each in groups)
    return [
        _views(ask, books), _filters(ask, columns, books), _active(ask),
        _listed(ask, columns, rows, groups, count, books),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """What registered runs can be filtered and grouped by, as of the last refresh."""

    statuses: Sequence[str]
    models: Sequence[str]
    users: Sequence[str]
    groupings: Sequence[str]


def _choices(books: BookReader) -> _Choices:
    def make() -> _Choices:
        store = books.store
        statuses, models, users = (
            values_of(store, name, limit=_CHOICES) for name in ("status", "model", "user")
        )
        groupings = [by for by in ("model", "team") if len(values_of(store, by, limit=2)) > 1]
        return _Choices(statuses=statuses, models=models, users=users, groupings=groupings)

    return books.cache.get(("choices", books.stamp([])), make)


def _views(ask: PageQuery, books: BookReader) -> str:
    """Return named links to views; the script adds those that a reader saves."""
    choices = _choices(books)
    found = {"": "all", "since=7d": "last 7 days", "sort=-cost_micros": "costliest"}
    statuses = (s for s in ("running", "failed", "dead") if s in choices.statuses)
    found |= {f"status={status}": status for status in statuses}
    found |= {f"group={by}": f"by {by}" for by in choices.groupings}
    links = {f"/runs?{query}" if query else "/runs": name for query, name in found.items()}
    return (
        f'<div class="views">{tabs("Views", links, links.get(ask.address(), ""))}'
        '<div class="saved" hx-morph-skip></div></div>'
    )


def _filters(ask: PageQuery, columns: Sequence[str], books: BookReader) -> str:
    choices = _choices(books)
    users = [books.people.name(user) for user in choices.users]
    boxes = "".join(
        f'<label><input type="checkbox" name="col" value="{name}"'
        f"{' checked' if name in columns else ''}>{html_text(_label(each))}</label>"
        for name, each in COLUMNS.items()
    )
    groups = {"": "nothing"} | {by: by for by in GROUPED_BY}
    sort = "" if _sort(ask) == "-started_ns" else _sort(ask)
    usual = html_text(ask.address(col="", page=""))
    # Without autocompletion, Back shows the form of that address, not what was last chosen in it.
    return (
        '<form class="filters" action="/runs" data-apply role="search" autocomplete="off">'
        '<label class="wider">Search<input type="search" name="q" '
        f'value="{html_text(ask.get("q"))}" placeholder="name, id, host, tag, directory"></label>'
        f"{select('status', 'Status', choices.statuses, ask.get('status'))}"
        f"{select('model', 'Model', choices.models, ask.get('model'))}"
        f"{select('user', 'User', users, ask.get('user'))}"
        f"{_choice('group', 'Group by', groups, _group(ask))}"
        f"{_choice('sort', 'Sort by', _ORDERS, sort)}<button>Filter</button>"
        "<details><summary>More filters, and columns</summary>"
        f'<div class="row">{_text_input(ask, "tag", "Tag", "team=nlp")}'
        f"{_text_input(ask, 'since', 'Since', '7d')}"
        f"{_text_input(ask, 'until', 'Until', '2026-11-01')}</div>"
        f'<fieldset class="checks" data-usual="{" ".join(_USUAL)}">'
        f'<legend class="hidden">Columns</legend>{boxes}</fieldset>'
        f'<p class="note"><a href="{usual}">The usual columns</a></p></details></form>'
    )


def _label(figure: RunFigure) -> str:
    """Return the heading of a column, or its name where several have the same heading."""
    return figure.stem.replace("_", " ") if _HEADINGS[figure.label] > 1 else figure.label


def _choice(name: str, label: str, choices: Mapping[str, str], chosen: str) -> str:
    """Return a drop-down; an order of a heading that is not among the choices is added."""
    added = chosen.removeprefix("-").replace("_", " ")
    shown = choices if chosen in choices else {**choices, chosen: added}
    options = "".join(
        f'<option value="{html_text(value)}"{" selected" if value == chosen else ""}>'
        f"{html_text(text)}</option>"
        for value, text in shown.items()
    )
    return f'<label>{label}<select name="{name}">{options}</select></label>'


def _text_input(ask: PageQuery, name: str, label: str, example: str) -> str:
    return (
        f'<label>{label}<input type="text" name="{name}" value="{html_text(ask.get(name))}" '
        f'placeholder="{example}" size="10"></label>'
    )


def _active(ask: PageQuery) -> str:
    """Return the active filters, each with a link that removes it."""
    items = [
        f'<li>{label} <b>{html_text(ask.get(name))}</b> <a href="'
        f'{html_text(ask.address(**{name: "", "page": ""}))}" aria-label="Remove the filter '
        f'{label} {html_text(ask.get(name))}">&times;</a></li>'
        for name, label in _CHIPS.items()
        if ask.get(name)
    ]
    if len(items) > 1:
        every = dict.fromkeys((*_CHIPS, "page"), "")
        items.append(f'<li><a href="{html_text(ask.address(**every))}">Remove all</a></li>')
    return f'<ul class="active" aria-label="Active filters">{"".join(items)}</ul>' if items else ""


def _listed(
    ask: PageQuery, columns: Sequence[str], rows: Sequence[RunRow], groups: Sequence[RunGroup],
    count: int, books: BookReader,
) -> str:  # fmt: skip
    if not rows:
        if ask.query:
            return html.section("Runs", html.empty("No run matches the filter."))
        said = "No runs are registered. Register some with"
        return html.section("Runs", html.empty(said, "outlay import runs DIR"))
    shown = {"name": "run", "status": "status"} | {name: COLUMNS[name].label for name in columns}
    headings = [_heading(ask, name, title) for name, title in shown.items()]
    cells, heads = _grouped(ask, columns, rows, groups, books)
    table = html.table(headings, cells, caption="Runs", groups=heads, is_list=True)
    chosen = (
        '<form id="chosen" action="/compare" autocomplete="off"><p class="pages">'
        f"<button>Compare selected runs</button>{_pager(ask, count)}</p></form>"
    )
    return f"<section>{table}{chosen}</section>"


def _grouped(
    ask: PageQuery, columns: Sequence[str], rows: Sequence[RunRow], groups: Sequence[RunGroup],
    books: BookReader,
) -> tuple[list[list[object]], list[int]]:  # fmt: skip
    """Return the rows of the table, and which of them head a group."""
    by = _group(ask)
    named = {each.name: each for each in groups}
    cells: list[list[object]] = []
    heads: list[int] = []
    last: str | None = None
    for row in rows:
        name = _group_of(row, by)
        if by and name != last and name in named:
            heads.append(len(cells))
            cells.append([*_group_cells(ask, by, named[name], columns, books)])
        last = name
        cells.append(_cells(row, columns, books))
    return cells, heads


def _group_of(row: RunRow, by: str) -> str:
    match by:
        case "model":
            return row.model
        case "user":
            return row.user
        case _:
            return row.tags.get(by, "")


def _group_cells(
    ask: PageQuery, by: str, group: RunGroup, columns: Sequence[str], books: BookReader
) -> Iterator[object]:
    """Yield the heading of a group: all its runs, on this page or not, and their costs."""
    name = books.people.name(group.name) if by == "user" else group.name
    narrowed = {by: name} if by in _CHIPS else {"tag": f"{by}={name}"}
    href = ask.address(**narrowed, group="", page="") if name else ""
    yield Cell(text=name or f"no {by}", href=href, title=name)
    yield counted(group.count, "run")
    for column in columns:
        costs = ", ".join(map(money_text, group.costs)) if column == "cost" else ""
        yield Cell(text=costs, is_number=True) if costs else None


def _cells(row: RunRow, columns: Sequence[str], books: BookReader) -> list[object]:
    name, shown = row.name or row.run_id, without_people(row, books)
    title = f"{name}\n{shown.dir}"
    return [
        Cell(text=name, href=run_href(row.run_id), title=title, check=row.run_id, is_name=True),
        chip(row.status),
        *(figure_cell(COLUMNS[column], shown, books.now_ns) for column in columns),
    ]


def _heading(ask: PageQuery, name: str, title: str) -> str | Cell:
    """Return a heading that sorts by its column; a second click reverses the order."""
    name, sort = _SORT.get(name, name), _sort(ask)
    if name not in SORTED_BY:
        return title
    turned = name if sort == f"-{name}" else f"-{name}"
    order = {name: "ascending", f"-{name}": "descending"}.get(sort, "")
    return Cell(text=title, href=ask.address(sort=turned, page=""), chip=order)


def _pager(ask: PageQuery, count: int) -> str:
    page, pages = _offset(ask) // PAGE + 1, -(-count // PAGE)
    links = [(page - 1, "Previous page", page > 1), (page + 1, "Next page", page < pages)]
    drawn = "".join(
        f'<a href="{html_text(ask.address(page=str(number)))}">{text}</a>'
        for number, text, there in links
        if there
    )
    return f"<span>Page {page:,} of {max(pages, 1):,}</span>{drawn}"
