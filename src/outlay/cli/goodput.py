"""``outlay goodput``: how much of a run was productive, and where the rest went."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from outlay.cli.moments import parse_interval, parse_window
from outlay.cli.output import (
    DEFAULT,
    AsJson,
    DefaultGroup,
    RunDir,
    console,
    errors,
    new_table,
    print_findings,
    print_json,
)
from outlay.clock import SYSTEM, utc_text
from outlay.errors import InvalidValue, Refused
from outlay.goodput.follower import (
    GoodputFollower,
    GoodputSummary,
    PhaseRow,
    WindowRow,
    ideal_of,
    roll,
    summarise,
)
from outlay.goodput.importing import import_payloads
from outlay.goodput.throughput import ModelFlops, StepTimes, worst_steps
from outlay.rates import share_out
from outlay.report.charts import of_phase
from outlay.units import Duration, Money
from outlay.units.quantity import duration_text

# How a run's goodput looks in a terminal.

_BAR_WIDTH = 100


def render(summary: GoodputSummary) -> RenderableType:
    """Return the summary for a terminal of any width."""
    parts: list[RenderableType] = [_headline(summary)]
    if summary.phases:
        parts += [bar_of(summary.phases), _phase_table(summary), Text("")]
    return Group(*parts, *(Text(line) for line in _details(summary)))


def _headline(summary: GoodputSummary) -> Text:
    goodput = "no wall time"
    if summary.wall_ns:
        known = summary.goodput is not None
        goodput = f"{summary.goodput:.1%}" if known else "unknown: no steps were recorded"
    state = "still running" if summary.alive else "the run is over"
    line = Text.assemble(("goodput ", "bold"), (goodput, "bold green"), f"  {state}\n")
    start, end = utc_text(summary.window.start_ns), utc_text(summary.window.end_ns)
    cost = "no price" if summary.cost is None else str(summary.cost)
    cost += f", of which assumed {summary.assumed}" if summary.assumed else ""
    wall = duration_text(summary.wall_ns)
    return line.append(f"{start} to {end}\nwall time {wall}, cost {cost}\n")


def bar_of(rows: list[PhaseRow]) -> Text:
    """Return one line in which every phase has its share; none that exists is invisible."""
    width = min(console.width, _BAR_WIDTH)
    beyond_one = share_out(max(width - len(rows), 0), {row.phase: row.ns for row in rows})
    bar = Text()
    for row in rows:
        bar.append("█" * (1 + beyond_one[row.phase]), style=of_phase(row.phase))
    return bar


def _phase_table(summary: GoodputSummary) -> RenderableType:
    table = new_table("phase", ">time", ">share of time", ">cost")
    for row in summary.phases:
        name = Text.assemble(("█ ", of_phase(row.phase)), row.phase)
        table.add_row(name, duration_text(row.ns), f"{row.share:.1%}", _money(row.cost))
    table.add_section()
    wall, cost = duration_text(summary.wall_ns), _money(summary.cost)
    table.add_row("  total", wall, "100.0%", cost, style="bold")
    return table


def window_table(rows: list[WindowRow]) -> RenderableType:
    """Return rolling windows, a row each."""
    table = new_table("from", "to", ">wall time", ">goodput", "most badput", ">cost")
    for row in rows:
        goodput = "-" if row.goodput is None else f"{row.goodput:.1%}"
        table.add_row(
            utc_text(row.window.start_ns), utc_text(row.window.end_ns),
            duration_text(row.wall_ns), goodput, row.badput or "-", _money(row.cost),
        )  # fmt: skip
    return table


def _details(summary: GoodputSummary) -> list[str]:
    # A part was asked for, and these are known of all of it alone.
    of_all = " (whole run)" if summary.of_whole_run else ""
    lines = [_reliability(summary), _progress(summary) + of_all]
    if summary.slices is not None:
        slices = summary.slices
        lines.append(
            f"slices       goodput {slices.goodput:.1%} weighted by slices; "
            f"{slices.stepping:.1%} of them trained, {slices.available:.1%} could"
        )
    if summary.disruptions and summary.ettr is not None:
        lines.insert(1, f"ETTR         {summary.ettr:.1%} of wall time not lost to disruptions")
    if speed := summary.throughput.per_wall_second:
        lines.append(f"throughput   {speed:,.0f} tokens/s of wall time")
    if summary.mfu is not None and summary.mfu.of_productive is not None:
        lines.append(
            f"MFU          {summary.mfu.of_wall:.1%} of wall time, "
            f"{summary.mfu.of_productive:.1%} while productive"
        )
    if summary.typical_step_ns is not None:
        typical = duration_text(summary.typical_step_ns)
        lines.append(
            f"steps        {typical} typical (host time), {summary.stalls} stalled{of_all}"
        )
    for phase, ns in summary.beside.items():
        lines.append(f"beside       {phase} {duration_text(ns)}, overlapped with training")
    if summary.idle_ns:
        lines.append(f"idle         {duration_text(summary.idle_ns)} after completed attempts")
    for row in summary.ranks[:5]:
        step = duration_text(row.median_step_ns)
        lines.append(
            f"rank {row.rank:<8}{step} median step, {row.slowdown:.2f}x the fastest{of_all}"
        )
    return [*lines, *(f"assumed      {text}" for text in summary.assumptions)]


def _reliability(summary: GoodputSummary) -> str:
    count = len(summary.disruptions)
    if not count:
        return "disruptions  none"
    mttf = summary.mttf
    mean = "unknown" if mttf.mean_ns is None else duration_text(mttf.mean_ns)
    high = "?" if mttf.high_ns is None else duration_text(mttf.high_ns)
    interval = f"{mttf.confidence:.0%} interval {duration_text(mttf.low_ns)} to {high}"
    of_all = " in the whole run" if summary.of_whole_run else ""
    return f"disruptions  {count}; mean time to failure{of_all} {mean} ({interval})"


def _progress(summary: GoodputSummary) -> str:
    progress = summary.progress
    if progress.last_step is None:
        return "progress     no steps recorded: busy or idle is known, productive is not"
    since = "the start" if progress.committed_step is None else f"step {progress.committed_step}"
    risk = duration_text(progress.at_risk_ns)
    cost = "" if progress.at_risk_cost is None else f" ({progress.at_risk_cost})"
    return f"progress     step {progress.last_step}; at risk since {since}: {risk}{cost}"


def difference_table(first: GoodputSummary, second: GoodputSummary) -> RenderableType:
    """Return two runs side by side, a row for each phase that either has."""
    table = new_table("phase", ">time A", ">time B", ">share A", ">share B", ">cost A", ">cost B")
    rows = ({row.phase: row for row in summary.phases} for summary in (first, second))
    in_first, in_second = rows
    for phase in {**in_first, **in_second}:
        a, b = in_first.get(phase), in_second.get(phase)
        table.add_row(
            phase, _time(a), _time(b), _share(a), _share(b),
            _money(a.cost) if a else "-", _money(b.cost) if b else "-",
        )  # fmt: skip
    table.add_section()
    table.add_row(
        "total", duration_text(first.wall_ns), duration_text(second.wall_ns), "", "",
        _money(first.cost), _money(second.cost), style="bold",
    )  # fmt: skip
    return table


def _money(cost: Money | None) -> str:
    return "no price" if cost is None else str(cost)


def _time(row: PhaseRow | None) -> str:
    return "-" if row is None else duration_text(row.ns)


def _share(row: PhaseRow | None) -> str:
    return "-" if row is None else f"{row.share:.1%}"


# ``outlay goodput deviation``: how far a run's steps are from the ideal one.


def show_deviation(
    run: RunDir,
    worst: Annotated[int, typer.Option(min=1, help="How many steps to show.")] = 10,
    ideal: Annotated[
        str | None, typer.Option(help='What a step should take, such as "250ms"; else measured.')
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the ideal step time and the steps that were farthest from it.

    Example: outlay goodput deviation runs/001 --worst 20
    """
    stated = None if ideal is None else Duration.parse(ideal, name="--ideal").seconds
    if stated is not None and stated <= 0:
        raise InvalidValue("--ideal", ideal, "a duration above zero")
    view = GoodputFollower(run).view(SYSTEM.wall_ns())
    times, ideal_ns = StepTimes.of(view.timeline.own), ideal_of(view, stated)
    rows = [] if ideal_ns is None else worst_steps(times, ideal_ns, worst)
    if as_json:
        print_json({"ideal_ns": ideal_ns, "worst": rows, "findings": view.findings})
        return
    if ideal_ns is None:
        console.print("No step has a duration yet: nothing to compare.")
    else:
        basis = "measured" if stated is None else "stated"
        console.print(f"ideal step {duration_text(round(ideal_ns))} ({basis}, host time)")
        table = new_table(">step", ">took", ">off")
        for row in rows:
            sign = "-" if row.off_ns < 0 else "+"
            off = f"{sign}{duration_text(abs(row.off_ns))}"
            table.add_row(str(row.step), duration_text(row.own_ns), off)
        console.print(table)
    print_findings(view.findings)


app = typer.Typer(cls=DefaultGroup, help="How much of a run was productive.", no_args_is_help=True)

_WATCH_S = 2.0


@app.command(DEFAULT, hidden=True)
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

    def ask(self, follower: GoodputFollower) -> _GoodputAnswer:
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
            return _GoodputAnswer(summary, None)
        return _GoodputAnswer(
            summary, roll(view, *self.lengths, within=window, exclusions=left_out)
        )


@dataclass(frozen=True, slots=True)
class _GoodputAnswer:
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
