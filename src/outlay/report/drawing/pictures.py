"""Charts as PNG, SVG and PDF files, drawn with matplotlib (extra ``report``).

The same figures give the same bytes: files hold neither dates nor random ids.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

from outlay.errors import InvalidValue, MissingExtra, choices
from outlay.report.drawing.charts import (
    COLOURS,
    Chart,
    GridChart,
    IntervalChart,
    LineChart,
    ParallelChart,
    PhaseStrip,
    Plane,
    RungChart,
    SpanChart,
    Waterfall,
    day_text,
    of_phase,
    ticks,
    time_unit,
)
from outlay.report.drawing.run_charts import money_bars, phase_strip, step_times
from outlay.report.run_document import verdict
from outlay.runs.reading import RunReading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = ("png", "svg", "pdf")
_PALETTE: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#000000", "#882255",
    "#44aa99", "#999933", "#332288", "#aa7755",
)  # fmt: skip
_OUTCOMES: Final = {
    "went on": "#009e73", "completed": "#0072b2", "open": "#bbbbbb", "pruned": "#999999",
    "failed": "#d55e00",
}  # fmt: skip
_DASHES: Final = ("solid", "dashed", "dotted")
_WIDTH_INCHES: Final = 6.4
_STYLE: Final[dict[Any, Any]] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "font.size": 10,
    "pdf.fonttype": 42,  # Fonts that publishers can embed.
    "savefig.dpi": 200,
    "svg.hashsalt": "outlay",
    "text.parse_math": False,  # A dollar in a name is a dollar.
}
_METADATA: Final[dict[str, dict[str, Any]]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def read_formats(text: str) -> tuple[str, ...]:
    """Parse formats such as ``png,pdf``; duplicates are dropped.

    Raises:
        InvalidValue: A format is unknown.
    """
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in FORMATS:
            raise InvalidValue("--pictures", name, choices(FORMATS))
    return tuple(dict.fromkeys(names))


def write_pictures(charts: Sequence[Chart], directory: Path, formats: Sequence[str]) -> list[Path]:
    """Write every chart in every format; return the files.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    if not formats:
        return []
    written = []
    with _style():
        directory.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            for kind in formats:
                path = directory / f"{chart.name}.{kind}"
                path.write_bytes(_picture(chart, kind))
                written.append(path)
    return written


@contextmanager
def _style() -> Iterator[None]:
    """Draw in outlay's style, whatever the user's matplotlibrc says."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("drawing pictures", "report") from None
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def _picture(chart: Chart, kind: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_INCHES, _height_inches(chart)), layout="constrained")
    _draw(figure.add_subplot(), chart)
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=_METADATA[kind])
    return stream.getvalue()


def _height_inches(chart: Chart) -> float:
    match chart:
        case Plane() | LineChart() | ParallelChart():
            return 4.0
        case PhaseStrip():
            return 2.5
        case Waterfall():
            rows = len(chart.bars)
        case SpanChart():
            rows = len({one.row for one in chart.stretches})
        case IntervalChart() | GridChart():
            rows = len(chart.rows)
        case RungChart():
            rows = len(chart.bars)
        case _:
            assert_never(chart)
    return 1.0 + 0.3 * rows


def _draw(axes: Axes, chart: Chart) -> None:
    match chart:
        case Plane():
            _plane(axes, chart)
        case LineChart():
            _lines(axes, chart)
        case Waterfall():
            _waterfall(axes, chart)
        case SpanChart():
            _spans(axes, chart)
        case IntervalChart():
            _intervals(axes, chart)
        case PhaseStrip():
            _strip(axes, chart)
        case ParallelChart():
            _parallel(axes, chart)
        case GridChart():
            _grid(axes, chart)
        case RungChart():
            _rungs(axes, chart)
        case _:
            assert_never(chart)


def _plane(axes: Axes, chart: Plane) -> None:
    front = sorted((point.x, point.y) for point in chart.points if point.on_front)
    rest = [(point.x, point.y) for point in chart.points if not point.on_front]
    axes.plot(*_columns(front), color=_PALETTE[1], marker="o", markeredgecolor="black")
    axes.plot(*_columns(rest), color=_PALETTE[0], marker="o", markersize=4, linestyle="none")
    _frame(axes, chart, [(point.x, point.y) for point in chart.points])


def _lines(axes: Axes, chart: LineChart) -> None:
    shown = dict[int, Any]()
    for place, curve in enumerate(chart.curves):
        look = place if curve.look is None else curve.look
        (line,) = axes.plot(
            *_columns(curve.points), color=_PALETTE[look % COLOURS],
            linestyle=_DASHES[look // COLOURS % len(_DASHES)],
        )  # fmt: skip
        shown.setdefault(look, line)
    handles = [shown[look] for look in range(len(chart.labels))]
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    more = beside if len(handles) > COLOURS else {}
    axes.legend(handles, chart.labels, frameon=False, fontsize="small", **more)
    _frame(axes, chart, [point for curve in chart.curves for point in curve.points])


def _frame(axes: Axes, chart: Plane | LineChart, points: Sequence[tuple[float, float]]) -> None:
    """Set ticks and titles of both axes."""
    across, up = (ticks(values) for values in _columns(points))
    in_days = isinstance(chart, LineChart) and chart.in_days
    labels = [day_text(tick.value) if in_days else tick.label for tick in across]
    axes.set_xticks([tick.value for tick in across], labels)
    axes.set_yticks([tick.value for tick in up], [tick.label for tick in up])
    axes.set_xlabel(chart.x_title)
    axes.set_ylabel(chart.y_title)
    axes.grid(axis="y", linewidth=0.5, alpha=0.5)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _waterfall(axes: Axes, chart: Waterfall) -> None:
    labels = [f"{part.label}  {part.text}" for part in chart.bars]
    amounts = [part.value / 1e6 for part in chart.bars]
    begins = [sum(amounts[:number]) for number in range(len(amounts))]
    axes.barh(range(len(amounts)), amounts, left=begins, color=_PALETTE[0])
    for row, (begin, part) in enumerate(zip(begins, chart.bars, strict=True)):
        if part.ends is not None:
            ends = [begin + end / 1e6 for end in part.ends]
            axes.plot(ends, [row, row], color=_PALETTE[1], linewidth=3)
    _rows(axes, labels)
    _scale(axes, [0.0, sum(amounts)], chart.x_title)


def _spans(axes: Axes, chart: SpanChart) -> None:
    rows = {row: n for n, row in enumerate(dict.fromkeys(one.row for one in chart.stretches))}
    divisor, unit = time_unit(max(one.end for one in chart.stretches))
    for one in chart.stretches:
        start, end = one.start / divisor, one.end / divisor
        fill, edge = ("none", _PALETTE[1]) if one.mark else (_PALETTE[0], _PALETTE[0])
        axes.barh(rows[one.row], end - start, left=start, height=0.6, color=fill, edgecolor=edge)
        if one.mark:
            axes.plot(end, rows[one.row], marker="x", color=_PALETTE[1], zorder=3)
    _rows(axes, list(rows))
    _scale(axes, [0.0, *(one.end / divisor for one in chart.stretches)], unit)


def _intervals(axes: Axes, chart: IntervalChart) -> None:
    for number, row in enumerate(chart.rows):
        places = [number] * len(row.values)
        axes.plot(row.values, places, "o", color=_PALETTE[0], markersize=4)
        low, high = row.ends or (row.mean, row.mean)
        sides = [[row.mean - low], [high - row.mean]]
        axes.errorbar(row.mean, number, xerr=sides, color=_PALETTE[1], marker="|", capsize=3)
    _rows(axes, [row.label for row in chart.rows])
    _scale(axes, [value for row in chart.rows for value in row.values], chart.x_title)


def _strip(axes: Axes, chart: PhaseStrip) -> None:
    divisor, unit = time_unit(chart.seconds)
    edges = [*(part.start / divisor for part in chart.parts), chart.seconds / divisor]
    found = [dict(part.shares) for part in chart.parts]
    shares = [[each.get(phase, 0.0) for each in (*found, found[-1])] for phase, _ in chart.phases]
    axes.stackplot(
        edges, shares, step="post", colors=[of_phase(phase) for phase, _ in chart.phases],
        labels=[f"{phase} {text}" for phase, text in chart.phases],
    )  # fmt: skip
    axes.set(yticks=[], ylim=(0, 1))
    _scale(axes, [0.0, chart.seconds / divisor], unit)
    axes.legend(ncols=4, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)


def _parallel(axes: Axes, chart: ParallelChart) -> None:
    from matplotlib import colormaps

    for line in chart.lines:
        colour = colormaps["Blues"](0.25 + 0.75 * line.goodness)
        axes.plot(range(len(line.places)), line.places, color=colour)
    for number, axis in enumerate(chart.axes):
        axes.axvline(number, color="black", linewidth=0.8)
        for place, label in axis.ticks:
            axes.annotate(label, (number, place), xytext=(3, 0), textcoords="offset points",
                          fontsize=7, va="center")  # fmt: skip
    axes.set_xticks(range(len(chart.axes)), [axis.title for axis in chart.axes], fontsize=8)
    axes.set(yticks=[], ylim=(-0.05, 1.05))


def _grid(axes: Axes, chart: GridChart) -> None:
    import numpy as np

    shades = np.full((len(chart.rows), len(chart.columns)), np.nan)
    for cell in chart.cells:
        shades[cell.row, cell.column] = 0.1 + 0.8 * cell.goodness
        colour = "white" if cell.goodness > 0.6 else "black"
        axes.text(cell.column, cell.row, cell.text, ha="center", va="center", color=colour)
    axes.imshow(shades, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(chart.columns)), chart.columns)
    axes.set_yticks(range(len(chart.rows)), chart.rows)
    axes.set(xlabel=chart.x_title, ylabel=chart.y_title)


def _rungs(axes: Axes, chart: RungChart) -> None:
    for outcome in chart.outcomes:
        counts = [dict(bar.parts)[outcome] for bar in chart.bars]
        begins = [_before(bar.parts, outcome) for bar in chart.bars]
        axes.barh(range(len(counts)), counts, left=begins, color=_OUTCOMES[outcome], label=outcome)
    _rows(axes, [f"{bar.label}  {bar.text}" for bar in chart.bars])
    axes.set_xlabel("runs")
    axes.legend(fontsize=7, frameon=False)


def _before(parts: Sequence[tuple[str, int]], outcome: str) -> int:
    """Return how many runs are in the parts before one."""
    names = [name for name, _ in parts]
    return sum(count for _, count in parts[: names.index(outcome)])


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()


def _scale(axes: Axes, values: Sequence[float], title: str) -> None:
    across = ticks(values)
    axes.set_xticks([tick.value for tick in across], [tick.label for tick in across])
    axes.set_xlabel(title)


# Several charts in one picture


def save_charts(charts: Sequence[Chart], path: Path, *, title: str = "") -> None:
    """Write charts as one PNG, one below the other.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    with _style():
        from matplotlib.figure import Figure

        heights = [_height_inches(chart) for chart in charts]
        figure = Figure(figsize=(10, sum(heights, 0.5)), layout="constrained")
        figure.suptitle(title, fontsize=9, wrap=True)
        grid = figure.add_gridspec(max(len(charts), 1), 1, height_ratios=heights or [1])
        for place, chart in enumerate(charts):
            axes = figure.add_subplot(grid[place])
            axes.set_title(chart.title)
            _draw(axes, chart)
        figure.savefig(path, format="png", metadata=_METADATA["png"])


def save_picture(run: RunReading, path: Path) -> None:
    """Write a run's phases, cost and step times as a PNG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    phases = [(row.phase, f"{row.share:.1%}") for row in run.goodput.phases]
    found: list[Chart | None] = [phase_strip(run.view.timeline, phases) if phases else None]
    if run.cost.by_phase:
        found.append(money_bars(run.cost.by_phase, title="Where the money went"))
    charts = [chart for chart in (*found, step_times(run.view.timeline)) if chart is not None]
    save_charts(charts, path, title=verdict(run))
