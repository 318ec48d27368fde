"""The catalogue of a run's figures: each is named, computed, explained and formatted here, once.

Lists, CSV, JSON, Prometheus, OpenTelemetry, trackers and the comparison of runs are derived from
the catalogue.
A figure that a log must be read for is first a field of ``RunRow``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from outlay.clock import utc_text
from outlay.errors import InvalidValue
from outlay.escaping import html_table
from outlay.goodput.scheduling import Scheduling
from outlay.store.run_row import RunRow
from outlay.units import Energy, Money
from outlay.units.quantity import MILLIJOULES_PER_WH, duration_text
from outlay.units.shown import Grade, ago_text, beside_text, number_text

PREFIX = "outlay/"  # Of every name in an experiment tracker.


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureUnit:
    """How the values of a unit are shown to people, written as numbers, and named.

    Attributes:
        text: The value for people, at an instant in UTC nanoseconds.
        number: The value as a number; None for text.
        cell: The value in CSV and flat JSON; None for the number, else the text.
        suffix: Ends its name in CSV, flat JSON and ``--columns``.
        tracker: Ends its name in trackers; ``{currency}`` is that of the cost.
        prometheus: Ends its name there, by Prometheus's conventions.
        otlp: Ends its name in OpenTelemetry, and ``otlp_unit`` is its unit there (UCUM);
            ``{noun}`` is what is counted.
        scale: How many of the unit of these two the number is: 3,600 seconds are an hour.
        is_right: Whether a column of it is aligned right.
    """

    text: Callable[[Any, int], str]
    number: Callable[[Any], float] | None = None
    cell: Callable[[Any], object] | None = None
    suffix: str = ""
    tracker: str = ""
    prometheus: str = ""
    otlp: str = ""
    otlp_unit: str = "1"
    scale: float = 1
    is_right: bool = True


TEXT = FigureUnit(text=lambda value, _: str(value), is_right=False)
REST = FigureUnit(text=lambda value, _: str(value))
MOMENT = FigureUnit(text=lambda ns, _: utc_text(ns), is_right=False)
AGE = FigureUnit(text=lambda ns, now_ns: ago_text(now_ns - ns), cell=utc_text, is_right=False)
COUNT = FigureUnit(
    text=lambda value, _: f"{value:,}", number=float, cell=int, otlp_unit="{{{noun}}}"
)
NUMBER = FigureUnit(text=lambda value, _: number_text(value), number=float)
SHARE = FigureUnit(text=lambda value, _: f"{value:.1%}", number=float, prometheus="_ratio")
TIME = FigureUnit(
    text=lambda ns, _: duration_text(ns), number=lambda ns: ns / 1e9, suffix="_s", tracker="_s",
    prometheus="_seconds", otlp=".duration", otlp_unit="s",
)  # fmt: skip
HOURS = FigureUnit(
    text=lambda ns, _: f"{ns / 3.6e12:,.2f}", number=lambda ns: ns / 3.6e12, suffix="_hours",
    tracker="_hours", prometheus="_seconds", otlp=".duration", otlp_unit="s", scale=3600,
)  # fmt: skip
PER_SECOND = FigureUnit(
    text=lambda value, _: number_text(value), number=float, suffix="_per_s", tracker="_per_s",
    prometheus="_per_second", otlp=".rate", otlp_unit="{{{noun}}}/s",
)  # fmt: skip
PER_MONEY = FigureUnit(
    text=lambda value, _: number_text(value), number=float, suffix="_per_cost",
    tracker="_per_{currency}", prometheus="_per_{currency}", otlp=".per_cost",
    otlp_unit="{{{noun}}}/{{{currency}}}",
)  # fmt: skip
ENERGY = FigureUnit(
    text=lambda mj, _: str(Energy(mj)), number=lambda mj: mj / MILLIJOULES_PER_WH, suffix="_Wh",
    tracker="_Wh", prometheus="_watt_hours", otlp_unit="W.h",
)  # fmt: skip
MONEY = FigureUnit(
    text=lambda money, _: str(money), number=lambda money: float(money.amount),
    cell=lambda money: money.amount, tracker="_{currency}", prometheus="_{currency}",
    otlp_unit="{{{currency}}}",
)  # fmt: skip
TREND = FigureUnit(
    text=lambda values, _: trend_text(values),
    cell=lambda values: " ".join(f"{value:.4g}" for value in values), is_right=False,
)  # fmt: skip
PER_HOUR = replace(
    MONEY, suffix="_per_hour", tracker="_{currency}_per_hour", prometheus="_{currency}_per_hour",
    otlp_unit="{{{currency}}}/h",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigure:
    """One figure of a run.

    Attributes:
        stem: Its name without the unit.
        of: Its value; None where it is not known.
        about: What it is, in one sentence.
        label: Its heading.
        missing: What is shown where it is not known.
        counter: Whether it only grows.
        exported: Whether Prometheus, OpenTelemetry and trackers get it.
        tracked_as: Its name in trackers, if that is another; ``otlp_as`` that in OpenTelemetry.
        may_be_assumed: Whether it is the whole cost, of which a part may be assumed.
        compared: Whether the comparison of runs has it.
    """

    stem: str
    unit: FigureUnit
    of: Callable[[RunRow], Any]
    about: str
    label: str
    missing: str = ""
    counter: bool = False
    exported: bool = True
    tracked_as: str = ""
    otlp_as: str = ""
    may_be_assumed: bool = False
    compared: bool = False

    @property
    def name(self) -> str:
        """Its name in JSON, CSV and ``--columns``."""
        return self.stem + self.unit.suffix

    def tracker_name(self, currency: str) -> str:
        """Its name in experiment trackers, without the prefix."""
        return self.tracked_as or self.stem + self.unit.tracker.format(currency=currency)

    def prometheus_name(self, currency: str) -> str:
        """Its name in Prometheus."""
        total = "_total" if self.counter else ""
        return f"outlay_run_{self.stem}{self.unit.prometheus.format(currency=currency)}{total}"

    @property
    def otlp_name(self) -> str:
        """Its name in OpenTelemetry."""
        return f"outlay.run.{self.otlp_as or self.stem + self.unit.otlp}"

    def otlp_unit(self, currency: str) -> str:
        """Its unit in OpenTelemetry."""
        noun = self.stem.removesuffix("s")
        return self.unit.otlp_unit.format(noun=noun, currency=currency.upper())

    def number(self, row: RunRow) -> float | None:
        """Its value as a number; None for text, and where it is not known."""
        value = self.of(row)
        return None if value is None or self.unit.number is None else self.unit.number(value)

    def scaled(self, row: RunRow) -> float | None:
        """Its number in the unit of Prometheus and OpenTelemetry."""
        number = self.number(row)
        return None if number is None else number * self.unit.scale

    def text(self, row: RunRow, now_ns: int) -> str:
        """Its value for people, with the part of it that is assumed."""
        value = self.of(row)
        if value is None:
            return self.missing
        text = self.unit.text(value, now_ns)
        if not isinstance(value, Money):
            return text
        part = f" ({row.assumed} assumed)" if self.grade(row) == "assumed" else ""
        beside = beside_text(row.cost_beside) if self.may_be_assumed else ""
        return f"{text}{part}{beside}"

    def grade(self, row: RunRow) -> Grade:
        """How its value is known."""
        return "assumed" if self.may_be_assumed and row.assumed else "measured"

    def cell(self, row: RunRow) -> object:
        """Its value in CSV and flat JSON: a number, an exact amount, or text."""
        value = self.of(row)
        if value is None:
            return None
        return (self.unit.cell or self.unit.number or str)(value)


def _figure(
    stem: str, unit: FigureUnit, about: str, of: Callable[[RunRow], Any] | None = None,
    label: str = "", **more: Any,
) -> RunFigure:  # fmt: skip
    return RunFigure(
        stem=stem, unit=unit, about=about, label=label or stem.replace("_", " "),
        of=of or (lambda row: getattr(row, stem)), **more,
    )  # fmt: skip


def _tags(row: RunRow) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.tags.items())


def _budget_left(row: RunRow) -> str | None:
    if row.budget_used is None:
        return None
    return f"{1 - row.budget_used:.0%} of {row.budget_limit_text}"


def _scheduling_goodput(row: RunRow) -> float | None:
    if row.queue_ns is None or row.allocated_ns is None:
        return None
    return Scheduling(queue_ns=row.queue_ns, allocated_ns=row.allocated_ns).goodput


def _tokens_per_money(row: RunRow) -> float | None:
    return row.tokens / float(row.cost.amount) if row.tokens and row.cost else None


FIGURES: Final = (
    _figure("run_id", TEXT, "The run's unique identifier."),
    _figure("name", TEXT, "The run's name.", label="run"),
    _figure("status", TEXT, "Running, dead, or how the last attempt ended.", compared=True),
    _figure("model", TEXT, "What is trained."),
    _figure("user", TEXT, "Who started the last attempt."),
    _figure("host", TEXT, "Where the last attempt ran."),
    _figure("gpu", TEXT, "The kind of GPU.", label="GPU"),
    _figure("gpus", TEXT, "How many GPUs, a fraction of one included.", label="GPUs",
            exported=False),
    _figure("attempts", COUNT, "Starts of a run.", counter=True),
    _figure("steps", COUNT, "The number of a run's last step plus one.", compared=True),
    _figure("tokens", COUNT, "Tokens of all ranks, repeated work included.", counter=True),
    _figure("samples", COUNT, "Samples of all ranks, repeated work included.", counter=True),
    _figure("goodput", SHARE, "The productive share of wall time.", compared=True),
    _figure("metric", TEXT, "The metric that is shown of a run.", exported=False),
    _figure("metric_value", NUMBER, "Its last value.", label="metric", exported=False,
            compared=True),
    _figure("loss_trend", TREND, "A few values of the loss over the run, the last one included.",
            lambda row: row.loss_trend or None, label="loss", exported=False),
    _figure("cost", MONEY, "What a run cost up to its reading.", missing="no price",
            counter=True, may_be_assumed=True, compared=True),
    _figure("assumed", MONEY, "The part of the cost of which no record says that it was billed.",
            exported=False),
    _figure("wasted_cost", MONEY, "What everything but surviving steps cost.",
            lambda row: row.wasted, label="wasted", missing="no price", counter=True),
    _figure("cost_beside", REST, "What it cost in other currencies, if it paid in several.",
            lambda row: ", ".join(str(each.as_kind("cash")) for each in row.cost_beside) or None,
            label="other currencies", exported=False),
    _figure("burn", PER_HOUR, "What a run costs per hour now.", label="burn per hour",
            missing="no price"),
    _figure("currency", TEXT, "The currency of the cost.",
            lambda row: None if row.cost is None else row.cost.currency),
    _figure("kind", TEXT, "Whether the cost is cash or showback."),
    _figure("wall", TIME, "Wall time of a run.", lambda row: row.wall_ns, label="wall time",
            counter=True, otlp_as="duration", compared=True),
    _figure("step", TIME, "Time in steps, of the lowest rank.", lambda row: row.step_ns,
            label="step time", counter=True),
    _figure("data_wait", TIME, "Time waiting for data.", lambda row: row.wait_ns,
            label="data wait", counter=True),
    _figure("gpu", HOURS, "GPUs times the time of attempts.", lambda row: row.gpu_ns,
            label="GPU hours", counter=True),
    _figure("queue", TIME, "Time that its jobs waited in a cluster's queue, which costs nothing.",
            lambda row: row.queue_ns, label="queue time"),
    _figure("scheduling_goodput", SHARE,
            "The share of its jobs' time, in the queue and with their nodes, that they had nodes.",
            _scheduling_goodput),
    _figure("tokens", PER_SECOND, "Tokens over wall time.",
            lambda row: row.tokens / (row.wall_ns / 1e9) if row.wall_ns else None,
            label="tokens per second"),
    _figure("tokens", PER_MONEY, "Tokens for one unit of the cost's currency.", _tokens_per_money,
            label="tokens per unit of cost", compared=True),
    _figure("energy", ENERGY, "Energy of the GPUs, where it was measured.",
            lambda row: row.energy_mj or None, exported=False),
    _figure("budget_used", SHARE, "The used share of the limit that is used most.",
            label="budget used", missing="no budget", tracked_as="budget_fraction",
            otlp_as="budget.fraction"),
    _figure("budget_left", REST, "What is left of the limit that is used most.", _budget_left,
            missing="no budget", exported=False),
    _figure("started", MOMENT, "The first start.", lambda row: row.started_ns, exported=False),
    _figure("last_seen", AGE, "The last sign of life.", lambda row: row.last_seen_ns,
            label="last seen", exported=False),
    _figure("dir", TEXT, "The run's directory.", label="directory"),
    _figure("log_host", TEXT, "The host that has its log, if that is not reachable from here.",
            lambda row: row.log_host or None, label="log on", exported=False),
    _figure("as_of", MOMENT, "When that host last reported the figures.",
            lambda row: row.as_of_ns or None, label="as of", exported=False),
    _figure("tags", TEXT, "Tags of the last attempt.", _tags, exported=False),
)  # fmt: skip
BY_NAME: Final = {figure.name: figure for figure in FIGURES}


def figures_named(names: Sequence[str], option: str = "--columns") -> list[RunFigure]:
    """Return figures by name.

    Raises:
        InvalidValue: One of the names is none of the catalogue's.
    """
    for name in names:
        if name not in BY_NAME:
            raise InvalidValue(option, name, f"one of {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names]


_BARS: Final = "▁▂▃▄▅▆▇█"


def trend_text(values: Sequence[float]) -> str:
    """Return values as a row of bars, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    top = len(_BARS) - 1
    scale = top / (high - low) if math.isfinite(high - low) and high > low else 0.0
    return "".join(_BARS[min(top, int((value - low) * scale + 0.5))] for value in values)


USUAL = ("name", "status", "attempts", "steps", "cost", "last_seen", "dir")
"""The columns of a list of runs, unless others are named."""


def line_of(row: RunRow, now_ns: int) -> str:
    """Return a run in one line: its name and a few figures."""
    shown = (BY_NAME[name] for name in ("status", "attempts", "steps", "cost", "goodput"))
    texts = {figure.label: figure.text(row, now_ns) for figure in shown}
    known = {label: text for label, text in texts.items() if text}
    words = [f"{label} {text}" if label != "status" else text for label, text in known.items()]
    return f"{row.name or row.run_id}: {', '.join(words)}"


def table_html(rows: Sequence[RunRow], now_ns: int) -> str:
    """Return a list of runs as a table, for a notebook."""
    figures = figures_named(USUAL)
    lines = ((figure.text(row, now_ns) for figure in figures) for row in rows)
    return html_table((figure.label for figure in figures), lines)


def numbers_of(row: RunRow, currency: str) -> dict[str, float]:
    """Return every exported number under its name in trackers; unknown ones are left out."""
    known = {figure.tracker_name(currency): figure.number(row) for figure in exported_numbers()}
    return {name: value for name, value in known.items() if value is not None}


def exported_numbers() -> Iterator[RunFigure]:
    """Yield the figures that Prometheus, OpenTelemetry and trackers get as numbers."""
    return (figure for figure in FIGURES if figure.exported and figure.unit.number is not None)


def facts_of(row: RunRow) -> dict[str, str]:
    """Return every exported text under its name in trackers; empty ones are left out."""
    texts = (figure for figure in FIGURES if figure.exported and figure.unit is TEXT)
    found = {figure.name: str(value) for figure in texts if (value := figure.of(row))}
    return found if row.cost is not None else {n: text for n, text in found.items() if n != "kind"}


def flat(row: RunRow) -> dict[str, object]:
    """Return the figures that ``run.summary()`` states."""
    cells = {name: BY_NAME[name].cell(row) for name in _SUMMARY}
    amounts = {name: float(cell) for name, cell in cells.items() if isinstance(cell, Decimal)}
    amounts |= {f"cost_{each.currency.lower()}": float(each.amount) for each in row.cost_beside}
    return {f"{PREFIX}{name}": cell for name, cell in (cells | amounts).items()}


_SUMMARY = (
    "run_id", "attempts", "steps", "tokens", "samples", "wall_s", "step_s", "data_wait_s",
    "tokens_per_s", "cost", "currency",
)  # fmt: skip
