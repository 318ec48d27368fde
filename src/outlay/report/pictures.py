"""Charts of sweeps and runs as files; needs matplotlib (extra ``report``)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np

from outlay.errors import InvalidValue, MissingExtra, choices
from outlay.goodput import phases as ph
from outlay.report.charts import (
    COLOURS,
    Drawable,
    IntervalChart,
    LineChart,
    Plane,
    SpanChart,
    Waterfall,
    of_phase,
    ticks,
    time_unit,
)
from outlay.report.run_charts import own_seconds
from outlay.report.run_document import verdict
from outlay.runs.reading import RunReading
from outlay.units.money import MICROS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The charts of a sweep as files for papers and slides: PNG, SVG and PDF.
#
# The same figures give the same bytes: neither the date nor a random number enters a file.

FORMATS: Final = ("png", "svg", "pdf")
_PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#000000")
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
    """Return formats from a text such as ``png,pdf``, each once.

    Raises:
        InvalidValue: One of them is not known.
    """
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in FORMATS:
            raise InvalidValue("--pictures", name, choices(FORMATS))
    return tuple(dict.fromkeys(names))


def write_pictures(
    charts: Sequence[Drawable], directory: Path, formats: Sequence[str]
) -> list[Path]:
    """Write every chart in every format; return the files.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    if not formats:
        return []
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("drawing pictures", "report") from None
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context():
        mpl.rcdefaults()  # What a user has set for other plots does not change these.
        mpl.rcParams.update(_STYLE)
        for chart in charts:
            for kind in formats:
                path = directory / f"{chart.name}.{kind}"
                path.write_bytes(_picture(chart, kind))
                written.append(path)
    return written


def _picture(chart: Drawable, kind: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_INCHES, _height_inches(chart)), layout="constrained")
    _draw(figure.add_subplot(), chart)
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=_METADATA[kind])
    return stream.getvalue()


def _height_inches(chart: Drawable) -> float:
    match chart:
        case Plane() | LineChart():
            return 4.0
        case Waterfall():
            rows = len(chart.bars)
        case SpanChart():
            rows = len({one.row for one in chart.stretches})
        case IntervalChart():
            rows = len(chart.rows)
        case _:
            assert_never(chart)
    return 1.0 + 0.3 * rows


def _draw(axes: Axes, chart: Drawable) -> None:
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
    for curve in chart.curves:
        look = curve.look or 0
        (line,) = axes.plot(
            *_columns(curve.points), color=_PALETTE[look % COLOURS],
            linestyle=_DASHES[look // COLOURS % len(_DASHES)],
        )  # fmt: skip
        shown.setdefault(look, line)
    handles = [shown[look] for look in range(len(chart.labels))]
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    place = beside if len(handles) > COLOURS else {}
    axes.legend(handles, chart.labels, frameon=False, fontsize="small", **place)
    _frame(axes, chart, [point for curve in chart.curves for point in curve.points])


def _frame(axes: Axes, chart: Plane | LineChart, points: Sequence[tuple[float, float]]) -> None:
    """Put round ticks on both axes, and say what they count."""
    across, up = (ticks(values) for values in _columns(points))
    axes.set_xticks([tick.value for tick in across], [tick.label for tick in across])
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
        half = row.half_width or 0.0
        axes.errorbar(row.mean, number, xerr=half, color=_PALETTE[1], marker="|", capsize=3)
    _rows(axes, [row.label for row in chart.rows])
    _scale(axes, [value for row in chart.rows for value in row.values], chart.x_title)


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()


def _scale(axes: Axes, values: Sequence[float], title: str) -> None:
    across = ticks(values)
    axes.set_xticks([tick.value for tick in across], [tick.label for tick in across])
    axes.set_xlabel(title)


# A run's report as one picture, for slides and chats; needs matplotlib (extra ``report``).


def save_picture(run: RunReading, path: Path) -> None:
    """Write phases, money and step times as a PNG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing a report", "report") from None
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(verdict(run), fontsize=9, wrap=True)
    shares, money, steps = figure.subplots(3, 1, height_ratios=(1, 2, 2))
    _draw_shares(shares, run)
    _draw_money(money, run)
    _draw_steps(steps, run)
    figure.savefig(path, format="png", dpi=150)


def _draw_shares(axes: Any, run: RunReading) -> None:
    left = 0.0
    for row in run.goodput.phases:
        label = f"{row.phase} {row.share:.1%}"
        axes.barh([0], [row.share * 100], left=left, color=of_phase(row.phase), label=label)
        left += row.share * 100
    axes.set(yticks=[], xlabel="% of wall time", xlim=(0, 100))
    axes.legend(ncols=4, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _draw_money(axes: Any, run: RunReading) -> None:
    if run.cost.cost is None:
        axes.text(0.5, 0.5, "no price", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    parts = run.cost.by_phase
    amounts = [part.micros / MICROS for part in parts.values()]
    bars = axes.barh(list(parts), amounts, color=[of_phase(phase) for phase in parts])
    axes.bar_label(bars, [f" {part}" for part in parts.values()], fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set(xlabel=f"{run.cost.cost.currency}, together {run.cost.cost}")


def _draw_steps(axes: Any, run: RunReading) -> None:
    own = own_seconds(run.view.timeline)
    axes.plot(np.arange(len(own)), own, color=of_phase(ph.STEP), linewidth=0.7)
    axes.set(xlabel="steps executed", ylabel="seconds a step")
