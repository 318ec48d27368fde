"""``outlay report``: one page about a run or a sweep; ``outlay web``: all pages, live."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from outlay.cli.output import AsJson, console, print_findings, print_json, print_sentence
from outlay.clock import SYSTEM
from outlay.errors import Finding, MissingExtra
from outlay.report.compared_runs import compare_document
from outlay.report.document import Document
from outlay.report.files import Form, read_sweep, setup_of, write_page, write_sweep_report
from outlay.report.pictures import save_charts, save_picture
from outlay.report.run_document import run_document
from outlay.runs.reading import RunReading, read_run
from outlay.sweep.run.detached import catch_up
from outlay.sweep.state.manifest import is_sweep

_ALERTS_EVERY_S = 60.0


def show_report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN|SWEEP...", help="Its directory; or several runs'.")
    ],
    html: Annotated[bool, typer.Option("--html", help="Write report.html (the default).")] = False,
    md: Annotated[bool, typer.Option("--md", help="Write report.md.")] = False,
    png: Annotated[
        bool,
        typer.Option(
            "--png",
            help="Write report.png, of a sweep its charts in pictures/; needs the extra `report`.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to write; default: RUN, SWEEP/reports, or here for several."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one page about a run or a sweep.

    What it got for its time and money, and how sure that is; several runs are compared on one
    page. With --json alone nothing is written.

    Example: outlay report runs/001 --html --md
    """
    asked: dict[Form, bool] = {"html": html, "md": md, "png": png}
    forms = [form for form, wanted in asked.items() if wanted]
    if not forms and not as_json:
        forms = ["html"]
    if len(paths) > 1:
        report = _comparison(paths, output or Path(), forms)
    else:
        report = (_sweep_report if is_sweep(paths[0]) else _run_report)(paths[0], output, forms)
    if as_json:
        print_json(report.document | {"files": report.files})
        return
    print_findings(report.findings)
    if report.verdict:
        print_sentence(report.verdict)
    for file in report.files:
        console.print(str(file), soft_wrap=True)


def show_web(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond loopback needs --token-file.")
    ] = "127.0.0.1",
    unix_socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Listen on a socket file that only you can open: for login nodes, where loopback "
            "is shared.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the token; default: a new one each time."),
    ] = None,
    hide_people: Annotated[
        bool, typer.Option("--hide-people", help="Show numbers instead of users' names.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show runs, money and sweeps in a browser, live.

    Read-only, on this machine alone, until Ctrl-C. The address holds a token that lets one browser
    in; --unix-socket is for login nodes, where loopback is shared.

    /metrics is for Prometheus, which bears the token. Alert rules in outlay.toml are evaluated.

    Example: outlay web --no-open
    """
    try:
        from outlay.web.access import ServerAddress
        from outlay.web.server import WebServer, metrics_route, serve
    except ImportError as error:
        raise MissingExtra("outlay web", "web") from error
    from outlay.alerts.rounds import AlertWatch
    from outlay.cli.guard.options import say
    from outlay.export.live_runs import LiveRuns
    from outlay.guard.rental.watch import known_logs
    from outlay.store import open_store
    from outlay.web.books import BookReader
    from outlay.web.page import People

    place = ServerAddress(host=host, port=port, unix_socket=unix_socket, token_file=token_file)

    def announce(url: str) -> None:
        if as_json:
            print_json({"url": url})
            return
        if unix_socket is not None:
            console.print(f"On your own machine: {place.forwarding()}", soft_wrap=True)
        console.print(f"{url}\nCtrl-C ends it.", soft_wrap=True)
        if not no_open and unix_socket is None and has_display(os.environ):
            webbrowser.open(url)

    people = People(hidden=hide_people)
    live = LiveRuns(open_store(), known_logs())
    AlertWatch(say).run_in_thread(_ALERTS_EVERY_S)
    more = [metrics_route(live, people.name)]
    serve(WebServer(BookReader(people=people)), place, announce, more)


def has_display(environ: Mapping[str, str]) -> bool:
    """Say whether a browser has somewhere to open a window; over ssh it has not."""
    return sys.platform == "darwin" or any(map(environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """What is shown of a report: its verdict and files to people, a document to programs."""

    verdict: str
    files: Sequence[Path]
    document: dict[str, Any]
    findings: Sequence[Finding] = ()


def _run_report(path: Path, output: Path | None, forms: Sequence[Form]) -> _Report:
    run = read_run(path)
    document = run_document(run, setup_of(path))
    files = write_page(document, output or path, forms, partial(save_picture, run)) if forms else []
    return _Report(verdict=document.verdict, files=files, document=_run_json(run, document))


def _comparison(paths: Sequence[Path], directory: Path, forms: Sequence[Form]) -> _Report:
    runs = [read_run(path) for path in paths]
    document = compare_document(runs)
    found = {"title": document.title, "runs": [run.figures for run in runs]}
    draw = partial(save_charts, document.charts(), title=document.title)
    files = write_page(document, directory, forms, draw) if forms else []
    findings = [finding for run in runs for finding in run.findings]
    return _Report(verdict="", files=files, document=found, findings=findings)


def _sweep_report(path: Path, output: Path | None, forms: Sequence[Form]) -> _Report:
    findings = catch_up(path).findings
    account = read_sweep(path, SYSTEM.wall_ns(), allow_missing=True)
    files = write_sweep_report(account, output or account.reports, forms) if forms else []
    return _Report(
        verdict=account.verdict,
        files=files,
        document={
            "title": account.summary.name, "verdict": account.verdict,
            "runs": account.summary.rows, "findings": findings,
        },
        findings=findings,
    )  # fmt: skip


def _run_json(run: RunReading, document: Document) -> dict[str, Any]:
    return {
        "title": document.title,
        "verdict": document.verdict,
        "figures": [
            {"section": section, "label": f.label, "value": f.value, "text": f.text,
             "grade": f.grade}
            for section, f in document.figures()
        ],
        "goodput": run.goodput,
        "cost": run.cost,
        "budget": None if run.budget is None else run.budget.document(),
        "advice": run.advice,
        "config": run.config,
    }  # fmt: skip
