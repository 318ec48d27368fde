"""``outlay goodput``: how much of a run was productive, and where the rest of its time went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from outlay.cli.document import rendered
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
    print_rows,
    print_sentence,
)
from outlay.clock import MOMENT, SYSTEM, parse_moment, utc_text
from outlay.cost.run_cost import grade_of_cost
from outlay.errors import InvalidValue, Refused
from outlay.goodput.follower import (
    GoodputFollower,
    GoodputSummary,
    PhaseRow,
    RunView,
    WindowRow,
    ideal_of,
    roll,
    summarise,
)
from outlay.goodput.phases import STEP
from outlay.goodput.throughput import ModelFlops, StepTimes, worst_steps
from outlay.goodput.timeline import Window
from outlay.rates import prices_of, share_out
from outlay.report import run_sections as sections
from outlay.report.drawing.charts import of_phase
from outlay.units import Duration, Money
from outlay.units.quantity import duration_text

# Rendering.

_BAR_WIDTH = 100
_OTHER = ""
"""In place of a phase: all that was not productive."""


def _render(view: RunView, summary: GoodputSummary) -> Iterator[RenderableType]:
    grade = grade_of_cost(prices_of(view.timeline.attempts), summary.assumptions)
    yield from rendered(
        [*sections.headline(view, summary, grade), *sections.circumstances(view, summary)]
    )
    yield ""
    if summary.phases:
        yield bar_of(summary.phases)
    yield from rendered(
        [
            *sections.phases(summary, grade),
            *sections.reliability(summary),
            *sections.steps(summary),
            *sections.checkpoints(view.timeline, summary),
            *sections.assumed(summary.assumptions),
        ]
    )


def bar_of(rows: list[PhaseRow]) -> Text:
    """Return a bar of the phases; each part has at least one character.

    It has two tones, productive and other, unless there are colours and room for one per phase.
    """
    width = min(console.width, _BAR_WIDTH)
    is_coloured = console.color_system is not None and not console.no_color
    if is_coloured and width >= _BAR_WIDTH:
        found = {row.phase: row.ns for row in rows}
        styles = {row.phase: of_phase(row.phase) for row in rows}
    else:
        productive = sum(row.ns for row in rows if row.phase == STEP)
        found = {STEP: productive, _OTHER: sum(row.ns for row in rows) - productive}
        styles = {STEP: of_phase(STEP), _OTHER: "dim"}
    parts = {name: ns for name, ns in found.items() if ns}
    beyond_one = share_out(max(width - len(parts), 0), parts)
    bar = Text()
    for name in parts:
        bar.append(("▒" if name == _OTHER else "█") * (1 + beyond_one[name]), style=styles[name])
    return bar


def _window_table(rows: list[WindowRow]) -> RenderableType:
    table = new_table("from", "to", ">wall time", ">goodput", "most badput", ">cost")
    for row in rows:
        goodput = "-" if row.goodput is None else f"{row.goodput:.1%}"
        table.add_row(
            utc_text(row.window.start_ns), utc_text(row.window.end_ns),
            duration_text(row.wall_ns), goodput, row.badput or "-", _cost(row),
        )  # fmt: skip
    return table


def _cells(row: PhaseRow | None) -> Sequence[str | Money]:
    """Return time, share and cost of a phase; "-" where a run does not have it."""
    if row is None:
        return ("-", "-", "-")
    return (duration_text(row.ns), f"{row.share:.1%}", _cost(row))


def _cost(row: PhaseRow | WindowRow) -> str | Money:
    return "no price" if row.cost is None else row.cost


app = typer.Typer(cls=DefaultGroup, help="How much of a run was productive.", no_args_is_help=True)

_WATCH_S = 2.0


def show_deviation(
    run: RunDir,
    worst: Annotated[int, typer.Option(min=1, help="How many steps to show.")] = 10,
    ideal: Annotated[
        str | None, typer.Option(help='The ideal step time, such as "250ms"; default: measured.')
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the ideal step time and the steps that deviate most from it.

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


@app.command(DEFAULT, hidden=True)
def show(
    run: RunDir,
    since: Annotated[
        str | None, typer.Option(help='Start: "2026-11-15T20:00Z", or "2h" for 2 hours ago.')
    ] = None,
    until: Annotated[str | None, typer.Option(help="End, in the same form.")] = None,
    window: Annotated[str | None, typer.Option(help='Only the last part, such as "1h".')] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FROM..TO", help='An interval to exclude, such as "2h..1h"; repeatable.'
        ),
    ] = None,
    rolling: Annotated[
        str | None, typer.Option(help='Also show rolling windows of this length, such as "1h".')
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="With --rolling: their distance; default: their length.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit 3 when goodput is under this many percent.")
    ] = None,
    flops_per_token: Annotated[
        float | None, typer.Option(help="FLOPs per token, about 6 per parameter; for MFU.")
    ] = None,
    peak_flops: Annotated[float | None, typer.Option(help="Peak FLOP/s of a GPU; for MFU.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's goodput and its badput by cause, in time and money.

    Example: outlay goodput runs/001 --window 1h --fail-under 90
    """
    if fail_under is not None and not 0 <= fail_under <= 100:
        raise InvalidValue("--fail-under", fail_under, "a percentage, 0 to 100")
    if watch and (as_json or fail_under is not None):
        other = "--json" if as_json else "--fail-under"
        raise InvalidValue("--watch", other, "one of the two, since --watch never ends")
    model = _model_flops(flops_per_token, peak_flops)
    lengths = _lengths(rolling, every)
    follower = GoodputFollower(run)

    def read() -> _GoodputAnswer:
        """Return the answer as of now: "2h" (ago) is another instant each time."""
        now_ns = SYSTEM.wall_ns()
        view = follower.view(now_ns)
        within = _parse_window(view, since=since, until=until, last=window, now_ns=now_ns)
        left_out = tuple(
            _parse_interval(text, name="--exclude", now_ns=now_ns) for text in exclude or ()
        )
        summary = summarise(view, within, exclusions=left_out, model=model)
        if lengths is None:
            return _GoodputAnswer(view, summary, None)
        return _GoodputAnswer(
            view, summary, roll(view, *lengths, within=within, exclusions=left_out)
        )

    if watch:
        _watch(read)
    answer = read()
    if as_json:
        print_json(answer.document())
    else:
        console.print(answer.rendered())
        print_findings(answer.summary.findings)
    _check_floor(answer.summary, fail_under)


def _watch(read: Callable[[], _GoodputAnswer]) -> NoReturn:
    """Refresh the result until interrupted."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            answer = read()
            wrong = (Text(f"{each.severity} {each}") for each in answer.summary.findings)
            live.update(Group(*wrong, answer.rendered()), refresh=True)
            SYSTEM.sleep(_WATCH_S)


def goodput_json(summary: GoodputSummary) -> dict[str, object]:
    """Return a summary as JSON."""
    return {field.name: getattr(summary, field.name) for field in fields(summary)}


@dataclass(frozen=True, slots=True)
class _GoodputAnswer:
    """A summary; ``windows`` is None unless rolling windows were asked for."""

    view: RunView
    summary: GoodputSummary
    windows: list[WindowRow] | None

    def document(self) -> dict[str, object]:
        found = goodput_json(self.summary)
        return found if self.windows is None else found | {"rolling": self.windows}

    def rendered(self) -> RenderableType:
        windows = [] if self.windows is None else ["", _window_table(self.windows)]
        return Group(*_render(self.view, self.summary), *windows)


def _parse_interval(text: str, *, name: str, now_ns: int) -> Window:
    """Parse ``FROM..TO``; each end is an instant or how long ago."""
    begin, dots, end = (part.strip() for part in text.partition(".."))
    if not (begin and dots and end):
        raise InvalidValue(name, text, f'FROM..TO, such as "2h..1h"; each end is {MOMENT}')
    start_ns = parse_moment(begin, name=name, now_ns=now_ns)
    end_ns = parse_moment(end, name=name, now_ns=now_ns)
    if end_ns < start_ns:
        raise InvalidValue(name, text, "an end that is not before the start")
    return Window(start_ns, end_ns)


def _parse_window(
    view: RunView, *, since: str | None, until: str | None, last: str | None, now_ns: int
) -> Window | None:
    """Return the window that the options select; None for the whole run."""
    since_ns = None if since is None else parse_moment(since, name="--since", now_ns=now_ns)
    until_ns = None if until is None else parse_moment(until, name="--until", now_ns=now_ns)
    if last is not None:
        if since_ns is not None:
            raise InvalidValue("--window", last, "either --window or --since, not both")
        end_ns = now_ns if until_ns is None else until_ns
        return view.window(end_ns - Duration.parse(last, name="--window").ns, end_ns)
    if since_ns is None and until_ns is None:
        return None
    return view.window(since_ns, until_ns)


def _lengths(rolling: str | None, every: str | None) -> tuple[int, int] | None:
    """Return length and distance of rolling windows in ns; None for no windows."""
    if rolling is None:
        if every is not None:
            raise InvalidValue("--every", every, "--rolling LENGTH as well")
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
    from outlay.report.compared_runs import phases_by_run  # Not needed for one run.
    from outlay.runs.reading import read_run

    readings = [read_run(run) for run in (first, second)]
    if as_json:
        print_json({"a": readings[0].goodput, "b": readings[1].goodput})
        return
    rows = []
    for phase, pair in phases_by_run(readings).items():
        cells = map(_cells, pair)
        rows.append((phase, *(cell for both in zip(*cells, strict=True) for cell in both)))
    columns = ("phase", ">time A", ">time B", ">share A", ">share B", ">cost A", ">cost B")
    print_rows(columns, rows, first=("phase", "cost A", "cost B"))
    for reading in readings:
        print_findings(reading.findings)


@app.command("import")
def import_log(
    payloads: Annotated[Path, typer.Argument(metavar="PAYLOADS.jsonl", help="A payload per line.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the run log.")],
    as_json: AsJson = False,
) -> None:
    """Convert payloads logged by ml-goodput-measurement into a run log.

    Example: outlay goodput import payloads.jsonl runs/imported
    """
    from outlay.compat.ml_goodput_measurement.goodput_cache import import_payloads

    findings = import_payloads(payloads, directory)
    if as_json:
        print_json({"dir": directory, "findings": findings})
        return
    print_sentence(f"Imported. Show it with: outlay goodput {directory}")
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
    # Divide the right side: 0.29 * 100 is less than 29 in floats.
    if goodput is None or goodput < floor_percent / 100:
        shown = "is unknown, which" if goodput is None else f"{goodput:.1%}"
        errors.print(f"goodput {shown} is under {floor_percent:g}%")
        raise typer.Exit(Refused.exit_code)


app.command("deviation")(show_deviation)
