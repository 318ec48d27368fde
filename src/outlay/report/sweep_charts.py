"""What the charts of a sweep show: points, lines, parts and spans of time, before any drawing.

Pure. The page draws them as SVG, and papers get them as pictures; both show the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from outlay.goodput.phases import added
from outlay.report.svg import Bar, Curve, Point, Stretch
from outlay.sweep.aggregate.rows import Row, Subject, in_time
from outlay.sweep.journal import Event
from outlay.sweep.targets import Target
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
        money = column == "cost"
        for unit in _units(row.get("currency") if money else used for row in known):
            mine = [row for row in known if not money or (row.get("currency") or "") == unit.name]
            if any(row[column] for row in mine):
                yield _plane(target, column, mine, unit, used)


def _plane(target: Target, column: str, rows: Sequence[Row], unit: _Unit, used: str) -> Plane:
    """Return the metric of runs against one thing that they used."""
    pairs = [(row[column], row["accuracy_value"]) for row in rows]
    front = pareto(pairs, more_is_better=target.direction == "max")
    return Plane(
        name=unit.in_name(f"metric_against_{used.lower()}"),
        title=unit.in_title(f"{target.metric} against {used}"),
        note=_FRONT,
        x_title=unit.name or used,
        y_title=target.metric,
        points=tuple(
            Point(x=x, y=y, label=row["run_id"], on_front=best)
            for (x, y), row, best in zip(pairs, rows, front, strict=True)
        ),
    )


def pareto(points: Sequence[tuple[float, float]], *, more_is_better: bool) -> list[bool]:
    """Return which points no other beats: cheaper or as cheap, and better or as good."""
    signed = [(x, y if more_is_better else -y) for x, y in points]
    return [not any(a <= x and b >= y and (a, b) != (x, y) for a, b in signed) for x, y in signed]


def _learning(subjects: Sequence[Subject], rows: Sequence[Row]) -> Iterator[Lines]:
    known = [(subject, row) for subject, row in zip(subjects, rows, strict=True) if _path(subject)]
    for unit in _units(_currency(subject) for subject, _ in known):
        curves, looks = [], dict[str, int]()
        mine = [(subject, row) for subject, row in known if _currency(subject) == unit.name]
        for subject, row in mine:
            look = looks.setdefault(row["configuration"], len(looks))
            points = tuple(_path(subject))
            curves.append(Curve(label=row["run_id"], points=points, look=look))
        yield Lines(
            name=unit.in_name("learning_for_the_money"),
            title=unit.in_title("Learning for the money"), note=_SPREAD, x_title=unit.name,
            y_title=mine[0][0].target.metric, curves=tuple(curves), labels=tuple(looks),
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
    known = [subject.facts for subject in subjects if subject.facts is not None]
    paid = [facts for facts in known if any(facts.phase_micros.values())]
    for unit in _units(facts.currency for facts in paid):
        micros: dict[str, int] = {}
        for facts in paid:
            if facts.currency == unit.name:
                micros = added(micros, facts.phase_micros)
        parts = (
            Bar(label=phase, value=amount, text=str(Money(amount, unit.name)))
            for phase, amount in sorted(micros.items(), key=lambda item: -item[1])
            if amount
        )
        total = Money(sum(micros.values()), unit.name)
        yield Waterfall(
            name=unit.in_name("where_the_dollars_went"),
            title=unit.in_title("Where the money went"), x_title=unit.name,
            note=f"Measured by the runs' own logs; together {total}.", bars=tuple(parts),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Unit:
    """What an axis counts; of money there may be several, which share no axis."""

    name: str
    several: bool

    def in_name(self, text: str) -> str:
        """Return a chart's name, with the unit where another chart has the same name."""
        return f"{text}_{self.name.lower()}" if self.several else text

    def in_title(self, text: str) -> str:
        """Return a chart's title likewise."""
        return f"{text} ({self.name})" if self.several else text


def _units(names: Iterable[str | None]) -> list[_Unit]:
    """Return every unit once."""
    found = list(dict.fromkeys(name or "" for name in names))
    return [_Unit(name, len(found) > 1) for name in found]


def _currency(subject: Subject) -> str:
    return "" if subject.facts is None else subject.facts.currency


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
