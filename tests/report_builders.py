"""Runs and sweeps for the tests of their reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledgers import HOUR, START_NS, Segment, dollars
from outlay.ledger import Metric
from outlay.report.document import to_html
from outlay.report.sweep_document import sweep_document
from outlay.runs.reading import RunReading, read_run
from outlay.sweep.aggregate.rows import Row, RunFacts, Seen, Subject, rows_of
from outlay.sweep.state.manifest import ManifestRun
from outlay.sweep.state.outcomes import Event, RunState

LATER_NS = START_NS + 1000 * HOUR
ABOUT = {"price": dollars(3600), "model": "a <b>", "run_id": "r1", "boot_id": "one"}  # $1 a second


def disrupted_run(run_dir: Path) -> RunReading:
    """Return a run that was killed after its fifth step and went on from its second."""
    first = Segment(about=ABOUT)
    for _ in range(3):
        first.step(1.0, wait=0.25)
    first.span("checkpoint_save", 0.5).checkpoint(2)
    first.step(1.0).step(1.0)
    second = Segment(start=10.0, about=ABOUT).span("checkpoint_restore", 0.5)
    for number, seconds in enumerate((1.0, 1.0, 1.0, 9.0, 1.0), 3):
        second.step(seconds, number=number, tokens=1000)
    second.add(Metric(t_ns=second.now_ns, name="accuracy", value=0.75)).end()
    for segment in (first, second):
        segment.write(run_dir)
    return read_run(run_dir, LATER_NS)


MINUTE = 60 * 10**9


def subject(
    number: int,
    value: float,
    micros: int,
    status: str = "completed",
    currency: str = "USD",
    wall_ns: int = 2 * MINUTE,
    totals: dict[str, float] | None = None,
) -> Subject:
    about = {"target_metric": "acc", "target_value": 0.8, "target_direction": "max"}
    limits = {"mode": "iso_cost", "limits": {"max_cost_usd": 1.0}}
    run = ManifestRun.of({
        "id": f"{number:03d}_<rate>", "params": {"lr": number}, "metadata": about, "budget": limits,
    })  # fmt: skip
    facts = RunFacts(
        source="ledger", steps=10, step_ns=MINUTE, items=100, cost_micros=micros, currency=currency,
        goodput=0.9, wall_ns=wall_ns, phases={"step": MINUTE}, phase_micros={"step": micros},
        metrics={"acc": [Seen(value / 2, MINUTE, 1), Seen(value, 2 * MINUTE, 2)]},
        assumptions=["assumed billed"],
    )  # fmt: skip
    state = RunState(status="completed" if status == "completed" else "error", reason=status)
    return Subject(run=run, state=state, facts=facts, totals=totals or {})


def page(name: str, subjects: list[Subject], rows: Sequence[Row], events: list[Event]) -> str:
    return to_html(sweep_document(name, subjects, rows, events))


def report() -> str:
    subjects = [subject(1, 0.9, 900_000), subject(2, 0.7, 950_000), subject(3, 0.95, 990_000)]
    events = [
        Event(t_ns=0, run="001_<rate>", status="running"),
        Event(t_ns=MINUTE, run="001_<rate>", status="error", reason="killed by SIGKILL"),
        Event(t_ns=MINUTE, run="001_<rate>", status="running"),
        Event(t_ns=3 * MINUTE, run="001_<rate>", status="completed"),
    ]
    return page("demo & more", subjects, rows_of(subjects), events)
