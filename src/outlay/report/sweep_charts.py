"""What the charts of a sweep show: points, lines, parts and spans of time, before any drawing.

Pure. The page draws them as SVG, and papers get them as pictures; both show the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from outlay.report.svg import Bar, Curve, Point, Stretch, pareto
from outlay.sweep.aggregate.rows import Row, Subject, in_time
from outlay.sweep.journal import Event
from outlay.units import Money

_AXES: Final = (
    ("cost", "cost"), ("wall_minutes", "minutes"), ("tokens", "tokens"), ("energy_Wh", "Wh"),
)  # fmt: skip
_FRONT: Final = "Measured, a point per run. The line joins those that no cheaper run equals."
_SPREAD: Final = "Estimated: a run's dollars are spread evenly over its wall time."
_CROSS: Final = "A cross: it failed, was ended or killed."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Titled:
    """What every chart has: a name for files, a title, and what it rests on."""

    name: str
    title: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane(_Titled):
    """Runs as points: what they got against what they used."""

    x_title: str
    y_title: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(_Titled):
    """Learning curves; ``labels`` name the configurations in the order of their looks."""

    x_title: str
    y_title: str
    curves: tuple[Curve, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall(_Titled):
    """The parts of a sum, the largest first."""

    x_title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans(_Titled):
    """The attempts of runs over time, in seconds since the first."""

    stretches: tuple[Stretch, ...]


Chart = Plane | Lines | Waterfall | Spans


def charts_of(
    subjects: Sequence[Subject], rows: Sequence[Row], events: Sequence[Event]
) -> list[Chart]:
    """Return every chart that there are figures for."""
    return [
        *_against(subjects, rows),
        *_learning(subjects, rows),
        *_waterfall(subjects),
        *_over_time(events),
    ]


def _against(subjects: Sequence[Subject], rows: Sequence[Row]) -> Iterator[Plane]:
    """Yield the metric against dollars, time, tokens and energy, where they were measured."""
    target = next((s.target for s in subjects if s.target.metric), None)
    if target is None:
        return
    for column, used in _AXES:
        known = [row for row in rows if None not in (row.get(column), row.get("accuracy_value"))]
        if not any(row[column] for row in known):
            continue
        pairs = [(row[column], row["accuracy_value"]) for row in known]
        front = pareto(pairs, more_is_better=target.direction == "max")
        points = (
            Point(x=x, y=y, label=row["run_id"], on_front=best)
            for (x, y), row, best in zip(pairs, known, front, strict=True)
        )
        yield Plane(
            name=f"metric_against_{used.lower()}",
            title=f"{target.metric} against {used}",
            note=_FRONT,
            x_title=known[0].get("currency") or used if column == "cost" else used,
            y_title=target.metric,
            points=tuple(points),
        )


def _learning(subjects: Sequence[Subject], rows: Sequence[Row]) -> Iterator[Lines]:
    curves, looks = [], dict[str, int]()
    unit = metric = ""
    for subject, row in zip(subjects, rows, strict=True):
        path = _path(subject)
        if subject.facts is not None and path:
            look = looks.setdefault(row["configuration"], len(looks))
            curves.append(Curve(label=row["run_id"], points=tuple(path), look=look))
            unit, metric = subject.facts.currency, subject.target.metric
    if curves:
        yield Lines(
            name="learning_for_the_money", title="Learning for the money", note=_SPREAD,
            x_title=unit, y_title=metric, curves=tuple(curves), labels=tuple(looks),
        )  # fmt: skip


def _path(subject: Subject) -> list[tuple[float, float]]:
    """Return a run's metric along what it had cost by then."""
    facts = subject.facts
    if facts is None or not facts.cost_micros or not facts.wall_ns:
        return []
    per_ns = facts.cost_micros / 1e6 / facts.wall_ns
    seen = in_time(facts.metrics.get(subject.target.metric, ()))
    return [(one.elapsed_ns * per_ns, one.value) for one in seen if one.elapsed_ns is not None]


def _waterfall(subjects: Sequence[Subject]) -> Iterator[Waterfall]:
    micros: dict[str, int] = {}
    currency = ""
    for subject in subjects:
        if subject.facts is not None:
            currency = subject.facts.currency or currency
            for phase, amount in subject.facts.phase_micros.items():
                micros[phase] = micros.get(phase, 0) + amount
    parts = [
        Bar(label=phase, value=amount, text=str(Money(amount, currency)))
        for phase, amount in sorted(micros.items(), key=lambda item: -item[1])
        if amount
    ]
    if parts:
        total = Money(sum(micros.values()), currency)
        yield Waterfall(
            name="where_the_dollars_went", title="Where the dollars went", x_title=currency,
            note=f"Measured by the runs' own logs; together {total}.", bars=tuple(parts),
        )  # fmt: skip


def _over_time(events: Iterable[Event]) -> Iterator[Spans]:
    stretches = sorted(_attempts(events), key=lambda one: (one.start, one.row))
    if stretches:
        first = stretches[0].start
        since = tuple(
            Stretch(row=one.row, start=one.start - first, end=one.end - first, mark=one.mark)
            for one in stretches
        )
        yield Spans(name="runs_over_time", title="Runs over time", note=_CROSS, stretches=since)


def _attempts(events: Iterable[Event]) -> Iterator[Stretch]:
    """Yield every attempt that has ended, in seconds."""
    begun: dict[str, int] = {}
    for event in events:
        if event.status == "running":
            begun[event.run] = event.t_ns
        elif event.run in begun:
            start_ns = begun.pop(event.run)
            mark = "" if event.status == "completed" else f"{event.status}: {event.reason}"
            yield Stretch(row=event.run, start=start_ns / 1e9, end=event.t_ns / 1e9, mark=mark)
