"""Pages: ``outlay report`` of runs and sweeps, ``outlay digest`` of a period, ``outlay web``."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from outlay.cli.document import print_document
from outlay.cli.output import (
    AsJson,
    SpendLogs,
    console,
    new_console,
    print_findings,
    print_json,
    print_path,
    print_sentence,
)
from outlay.clock import SYSTEM, parse_moment
from outlay.errors import Finding, InvalidValue, MissingExtra
from outlay.export.spend_logs import shown_logs
from outlay.files import write_whole
from outlay.goodput.timeline import Window
from outlay.report.bill_document import confirmed_json
from outlay.report.compared_runs import compare_document
from outlay.report.digest import Digest, digest_document, limit_name, limit_percent, read_digest
from outlay.report.document import Document, to_html, to_markdown
from outlay.report.drawing.pictures import save_charts, save_picture
from outlay.report.files import (
    Form,
    ReportPlace,
    form_of,
    read_sweep,
    setup_of,
    write_page,
    write_sweep_report,
)
from outlay.report.run_document import run_document, run_json
from outlay.runs.reading import read_run
from outlay.store import open_store
from outlay.sweep.run.detached import catch_up
from outlay.sweep.state.manifest import is_sweep

_ALERTS_EVERY_S = 60.0
_PLAIN_HTTP = (
    "This is plain HTTP: others on the network can read the pages and the token on their way. If "
    "you do not trust them, listen on loopback behind a reverse proxy with TLS, or use ssh -L."
)


def show_report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|SWEEP...", help="Directory of a run or sweep, or of several runs."
        ),
    ],
    html: Annotated[bool, typer.Option("--html", help="Write report.html (the default).")] = False,
    md: Annotated[bool, typer.Option("--md", help="Write report.md.")] = False,
    png: Annotated[
        bool,
        typer.Option(
            "--png",
            help="Write report.png; for a sweep, charts in pictures/. Needs the extra `report`.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Where to write: a directory, or a file such as cmp.html; default: RUN, "
            "SWEEP/reports, or this directory for several runs.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page about a run or a sweep.

    Results, time, cost, and how certain each figure is; several runs are compared on one page.
    With --json alone no file is written.

    Example: outlay report runs/001 --html --md
    """
    asked: dict[Form, bool] = {"html": html, "md": md, "png": png}
    named = None if output is None else form_of(output)
    forms = [form for form, wanted in asked.items() if wanted or form == named]
    if not forms and not as_json:
        forms = ["html"]
    if len(paths) > 1:
        report = _comparison(paths, ReportPlace.of(output or Path()), forms)
    else:
        place = None if output is None else ReportPlace.of(output)
        report = (_sweep_report if is_sweep(paths[0]) else _run_report)(paths[0], place, forms)
    if as_json:
        print_json(report.document | {"files": report.files})
        return
    print_findings(report.findings)
    if report.verdict:
        print_sentence(report.verdict)
    for file in report.files:
        print_path(file)


def show_web(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one beyond loopback needs --token-file.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name or address that browsers open, such as box.lan; others are refused. "
            "Default: HOST. Can be repeated.",
        ),
    ] = None,
    unix_socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Listen on a socket file that only you can open: for login nodes, where other "
            "users reach loopback.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token; default: a new token.")
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Header in which a reverse proxy names the user, such as X-Remote-User; it is "
            "believed from --proxy only, and refused from others.",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="Address from which the reverse proxy connects. Repeatable."
        ),
    ] = None,
    hide_people: Annotated[
        bool, typer.Option("--hide-people", help="Show numbers instead of users' names.")
    ] = False,
    log: SpendLogs = None,
    as_json: AsJson = False,
) -> None:
    """Show runs, money and sweeps in a browser, live.

    Read-only, until Ctrl-C; reachable from this machine only, unless --host says otherwise. The URL
    holds a token that admits every browser that opens it; use --unix-socket on login nodes, where
    other users reach loopback.

    Prometheus scrapes /metrics with the token as bearer. Alert rules in outlay.toml are evaluated.

    Example: outlay web --no-open
    """
    try:
        from outlay.web.access import ServerAddress
        from outlay.web.server import WebServer, metrics_route, serve
        from outlay.web.viewer import ProxyUsers
    except ImportError as error:
        raise MissingExtra("outlay web", "web") from error
    from outlay.alerts.rounds import AlertWatch
    from outlay.cli.guard.options import say
    from outlay.export.live_runs import LiveRuns
    from outlay.web.book_reader import BookReader
    from outlay.web.page import People

    place = ServerAddress(
        host=host, port=port, names=tuple(name or ()), unix_socket=unix_socket,
        token_file=token_file, users=ProxyUsers.parse(user_header, proxy or ()),
    )  # fmt: skip
    warnings = [_PLAIN_HTTP] if place.is_exposed else []
    logs = shown_logs(log)

    def announce(url: str) -> None:
        AlertWatch(say, logs=lambda: logs).run_in_thread(_ALERTS_EVERY_S)
        if as_json:
            print_json({"url": url, "warnings": warnings})
            return
        for warning in warnings:
            print_sentence(warning)
        if unix_socket is not None:
            console.print(f"On your own machine: {place.forwarding()}", soft_wrap=True)
        console.print(f"{url}\nStop with Ctrl-C.", soft_wrap=True)
        if not no_open and unix_socket is None and has_display(os.environ):
            webbrowser.open(url)

    people = People(hidden=hide_people)
    live = LiveRuns(open_store(), logs)
    more = [metrics_route(live, people.name)]
    books = BookReader(people=people, logs=logs)
    try:
        serve(WebServer(books), place, announce, more)
    finally:
        live.close()
        books.close()


def has_display(environ: Mapping[str, str]) -> bool:
    """Return whether a browser can open a window; over ssh it cannot."""
    return sys.platform == "darwin" or any(map(environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """Output of ``outlay report``; ``document`` is its JSON."""

    verdict: str
    files: Sequence[Path]
    document: dict[str, Any]
    findings: Sequence[Finding] = ()


def _run_report(path: Path, output: ReportPlace | None, forms: Sequence[Form]) -> _Report:
    run = read_run(path)
    document, place = run_document(run, setup_of(path)), output or ReportPlace(directory=path)
    files = write_page(document, place, forms, partial(save_picture, run)) if forms else []
    found = run_json(run, document) | {"figures": document.rows()}
    return _Report(verdict=document.verdict, files=files, document=found)


def _comparison(paths: Sequence[Path], place: ReportPlace, forms: Sequence[Form]) -> _Report:
    runs = [read_run(path) for path in paths]
    document = compare_document(runs)
    found = {"title": document.title, "runs": [run.figures for run in runs]}
    draw = partial(save_charts, document.charts(), title=document.title)
    files = write_page(document, place, forms, draw) if forms else []
    findings = [finding for run in runs for finding in run.findings]
    return _Report(verdict="", files=files, document=found, findings=findings)


def _sweep_report(path: Path, output: ReportPlace | None, forms: Sequence[Form]) -> _Report:
    findings = catch_up(path).findings
    account = read_sweep(path, SYSTEM.wall_ns(), allow_missing=True)
    place = output or ReportPlace(directory=account.reports)
    files = write_sweep_report(account, place, forms) if forms else []
    return _Report(
        verdict=account.verdict,
        files=files,
        document={
            "title": account.summary.name, "verdict": account.verdict,
            "runs": account.summary.cells, "search": account.summary.search, "findings": findings,
        },
        findings=findings,
    )  # fmt: skip


# ``outlay digest``: what a period cost, for reading, as Markdown, or as HTML.


def show_digest(
    since: Annotated[str, typer.Option(help="Start: an instant, or how long ago: 7d.")] = "7d",
    form: Annotated[
        Literal["text", "markdown", "html"], typer.Option("--format", help="Output format.")
    ] = "text",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file instead of printing.")
    ] = None,
    log: SpendLogs = None,
    as_json: AsJson = False,
) -> None:
    """Show the week on one page.

    Cost by user and model; productive, wasted by cause, and in no run; dead runs; budgets and
    ceilings near their limit; the month's forecast; the largest savings.

    Example: outlay digest --since 7d --format html --output week.html
    """
    now_ns = SYSTEM.wall_ns()
    start_ns = parse_moment(since, name="--since", now_ns=now_ns)
    if start_ns >= now_ns:
        raise InvalidValue("--since", since, "an instant in the past")
    digest = read_digest(open_store(), shown_logs(log), Window(start_ns, now_ns), now_ns)
    document = digest_document(digest)
    if as_json:
        print_json(_digest_json(digest))
    elif output is not None:
        write_whole(output, _render(document, form).encode())
        print_path(output)
    elif form == "text":
        print_document(document, console)
    else:
        typer.echo(_render(document, form), nl=False)


def _render(document: Document, form: str) -> str:
    if form == "text":
        page = StringIO()
        print_document(document, new_console(page))
        return page.getvalue()
    return to_html(document, is_sheet=True) if form == "html" else to_markdown(document)


def _digest_json(digest: Digest) -> dict[str, object]:
    return {
        "period": digest.period,
        "totals": {str(unit): money for unit, money in digest.totals().items()},
        "before": {
            "period": digest.period_before,
            "totals": {
                str(unit): unit.money(sum(p.micros for p in digest.before if p.unit == unit))
                for unit in sorted({part.unit for part in digest.before})
            },
        },
        "by_phase": {str(unit): digest.by_phase(unit) for unit in digest.totals()},
        "parts": [
            {
                "user": part.user, "model": part.model, "phase": part.phase,
                "micros": part.micros, "currency": part.unit.currency, "kind": part.unit.kind,
            }
            for part in digest.parts
        ],
        "month": {
            str(unit): unit.money(round(total.point))
            for unit, total in digest.months.items()
        },
        "month_interval": {
            str(unit): {
                "low": unit.money(round(total.low)),
                "high": unit.money(round(total.high)),
                "confidence": total.confidence,
            }
            for unit, total in digest.months.items()
            if total.low is not None and total.high is not None
        },
        "limits": [
            {
                "name": limit_name(e), "used": e.used, "limit": e.limit,
                "percent": limit_percent(e),
            }
            for e in digest.limits
        ],
        "dead": digest.dead,
        "advice": [
            {
                "saves": line.saves, "kind": line.unit.kind, "runs": line.runs,
                "best": line.best.to_dict(),
            }
            for line in digest.advice
        ],
        "confirmed": list(map(confirmed_json, digest.confirmed)),
        "heads": digest.heads,
        "now": digest.now.document(),
        "findings": digest.findings,
    }  # fmt: skip
