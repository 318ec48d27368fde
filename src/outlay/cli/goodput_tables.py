"""How a run's goodput looks in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from outlay.cli.output import console, new_table
from outlay.clock import utc_text
from outlay.goodput.summary import GoodputSummary, PhaseRow, WindowRow
from outlay.rates import share_out
from outlay.report.colours import of_phase
from outlay.units import Money
from outlay.units.quantity import duration_text

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
    table = new_table("phase", ">time", ">share", ">cost")
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
