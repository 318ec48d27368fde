"""``outlay goodput``: how much of a run was productive, and where the rest went."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from outlay.cli.goodput_deviation import show_deviation
from outlay.cli.goodput_tables import difference_table, render, window_table
from outlay.cli.groups import DefaultGroup
from outlay.cli.moments import parse_interval, parse_window
from outlay.cli.options import AsJson, RunDir
from outlay.cli.output import console, errors, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue, Refused
from outlay.goodput.follower import GoodputFollower
from outlay.goodput.importing import import_payloads
from outlay.goodput.summary import GoodputSummary, WindowRow, roll, summarise
from outlay.goodput.throughput import ModelFlops
from outlay.units import Duration

app = typer.Typer(
    cls=DefaultGroup,
    help="How much of a run was productive, and where the rest went.",
    no_args_is_help=True,
)

_WATCH_S = 2.0


@app.command("show")
def show(
    run: RunDir,
    since: Annotated[
        str | None,
        typer.Option(help='From when, such as "2026-11-15T20:00Z", or "2h" for 2 hours ago.'),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Until when, likewise.")] = None,
    window: Annotated[
        str | None, typer.Option(help='Only the last part of it, such as "1h".')
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="FROM..TO", help='What to leave out, such as "2h..1h"; repeatable.'),
    ] = None,
    rolling: Annotated[
        str | None, typer.Option(help='Also show windows of this length, such as "1h".')
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="With --rolling: how far apart; default: their length.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it, live.")] = False,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit 3 when goodput is under this many percent.")
    ] = None,
    flops_per_token: Annotated[
        float | None, typer.Option(help="FLOPs a token takes, about 6 per parameter; for MFU.")
    ] = None,
    peak_flops: Annotated[
        float | None, typer.Option(help="FLOPs per second of one GPU at its peak; for MFU.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's goodput and its badput by cause, in time and money.

    Example: outlay goodput runs/001 --window 1h --fail-under 90
    """
    if fail_under is not None and not 0 <= fail_under <= 100:
        raise InvalidValue("--fail-under", fail_under, "a percentage, 0 to 100")
    if watch and (as_json or fail_under is not None):
        other = "--json" if as_json else "--fail-under"
        raise InvalidValue("--watch", other, "one of the two: watching has no end to answer at")
    model = _model_flops(flops_per_token, peak_flops)
    question = _Question(
        since=since, until=until, last=window, exclude=tuple(exclude or ()),
        lengths=_lengths(rolling, every), model=model,
    )  # fmt: skip
    follower = GoodputFollower(run)
    if watch:
        _watch(question, follower)
    answer = question.ask(follower)
    if as_json:
        print_json(answer.document())
    else:
        console.print(answer.rendered())
        print_findings(answer.summary.findings)
    _check_floor(answer.summary, fail_under)


def _watch(question: _Question, follower: GoodputFollower) -> NoReturn:
    """Show the answer again and again, until somebody interrupts."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            answer = question.ask(follower)
            wrong = (Text(f"{each.severity} {each}") for each in answer.summary.findings)
            live.update(Group(answer.rendered(), *wrong), refresh=True)
            SYSTEM.sleep(_WATCH_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is asked about a run, as it was typed: how long ago "2h" is changes as time goes on.

    Attributes:
        lengths: How long rolling windows are and how far apart, in ns; None without any.
    """

    since: str | None
    until: str | None
    last: str | None
    exclude: tuple[str, ...]
    lengths: tuple[int, int] | None
    model: ModelFlops | None

    def ask(self, follower: GoodputFollower) -> _Answer:
        """Return the answer as of now."""
        now_ns = SYSTEM.wall_ns()
        view = follower.view(now_ns)
        window = parse_window(
            view, since=self.since, until=self.until, last=self.last, now_ns=now_ns
        )
        left_out = tuple(
            parse_interval(text, name="--exclude", now_ns=now_ns) for text in self.exclude
        )
        summary = summarise(view, window, exclusions=left_out, model=self.model)
        if self.lengths is None:
            return _Answer(summary, None)
        return _Answer(summary, roll(view, *self.lengths, within=window, exclusions=left_out))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was asked about a run; ``windows`` is None when nobody asked for rolling ones."""

    summary: GoodputSummary
    windows: list[WindowRow] | None

    def document(self) -> dict[str, object]:
        found: dict[str, object] = {
            field.name: getattr(self.summary, field.name) for field in fields(self.summary)
        }
        return found if self.windows is None else found | {"rolling": self.windows}

    def rendered(self) -> RenderableType:
        shown = render(self.summary)
        return shown if self.windows is None else Group(shown, "", window_table(self.windows))


def _lengths(rolling: str | None, every: str | None) -> tuple[int, int] | None:
    if rolling is None:
        if every is not None:
            raise InvalidValue("--every", every, "--rolling LENGTH beside it")
        return None
    length_ns = Duration.parse(rolling, name="--rolling").ns
    return length_ns, length_ns if every is None else Duration.parse(every, name="--every").ns


@app.command("diff")
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run's directory.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another run's directory.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs, phase by phase.

    Example: outlay goodput diff runs/001 runs/002
    """
    now_ns = SYSTEM.wall_ns()
    summaries = [summarise(GoodputFollower(run).view(now_ns)) for run in (first, second)]
    if as_json:
        print_json({"a": summaries[0], "b": summaries[1]})
        return
    console.print(difference_table(*summaries))
    for summary in summaries:
        print_findings(summary.findings)


@app.command("import")
def import_log(
    payloads: Annotated[
        Path, typer.Argument(metavar="PAYLOADS.jsonl", help="One logged payload per line.")
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to make the run log.")],
    as_json: AsJson = False,
) -> None:
    """Make a run log of payloads that ml-goodput-measurement logged.

    Example: outlay goodput import payloads.jsonl runs/imported
    """
    findings = import_payloads(payloads, directory)
    if as_json:
        print_json({"dir": directory, "findings": findings})
        return
    console.print(f"Imported. Look at it with: outlay goodput {directory}", soft_wrap=True)
    print_findings(findings)


def _model_flops(per_token: float | None, peak: float | None) -> ModelFlops | None:
    if per_token is None and peak is None:
        return None
    if per_token is None or peak is None:
        given = (per_token, peak)
        raise InvalidValue("MFU", given, "both --flops-per-token and --peak-flops")
    return ModelFlops(per_token=per_token, peak=peak)


def _check_floor(summary: GoodputSummary, floor_percent: float | None) -> None:
    if floor_percent is None:
        return
    goodput = summary.goodput
    # Not a hundred times as much on the left: 0.29 * 100 is less than 29.
    if goodput is None or goodput < floor_percent / 100:
        shown = "is unknown, which" if goodput is None else f"{goodput:.1%}"
        errors.print(f"goodput {shown} is under {floor_percent:g}%")
        raise typer.Exit(Refused.exit_code)


app.command("deviation")(show_deviation)
