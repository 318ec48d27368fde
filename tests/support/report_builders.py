"""Runs and sweeps for the tests of their reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ledgers import HOUR, START_NS, Segment, dollars
from outlay.account.columns import Work
from outlay.ledger import Metric
from outlay.report.document import to_html
from outlay.report.sweep_document import sweep_document
from outlay.runs.reading import RunReading, read_run
from outlay.store.run_row import RunRow
from outlay.sweep.aggregate.rows import RunFacts, Seen, SweepRow, labelled
from outlay.sweep.state.manifest import ManifestRun
from outlay.sweep.state.outcomes import Event, RunState
from outlay.units import Money

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


def run_row(**figures: Any) -> RunRow:
    """Return the figures of a completed run, with those stated."""
    texts = {"run_id": "r", "dir": "/r", "model": "bert", "name": "r", "status": "completed"}
    numbers = {"attempts": 1, "steps": 1, "tokens": 1, "started_ns": 0, "last_seen_ns": 1}
    return RunRow(**(texts | numbers | figures))


def sweep_row(
    number: int,
    value: float,
    micros: int,
    status: str = "completed",
    currency: str = "USD",
    wall_ns: int = 2 * MINUTE,
    totals: dict[str, float] | None = None,
) -> SweepRow:
    about = {"target_metric": "acc", "target_value": 0.8, "target_direction": "max"}
    limits = {"mode": "iso_cost", "limits": {"max_cost_usd": 1.0}}
    run = ManifestRun.of({
        "id": f"{number:03d}_<rate>", "params": {"lr": number}, "metadata": about, "budget": limits,
    })  # fmt: skip
    facts = RunFacts(
        source="ledger", work=Work(steps=10, step_ns=MINUTE), items=100,
        phase_micros={"step": micros},
        metrics={"acc": [Seen(value / 2, MINUTE, 1), Seen(value, 2 * MINUTE, 2)]},
        row=run_row(
            cost=Money(micros, currency), goodput=0.9, wall_ns=wall_ns,
            assumptions=("assumed billed",),
        ),
    )  # fmt: skip
    state = RunState(status="completed" if status == "completed" else "error", reason=status)
    return SweepRow(run=run, state=state, facts=facts, totals=totals or {})


def page(name: str, rows: Sequence[SweepRow], events: Sequence[Event] = ()) -> str:
    return to_html(sweep_document(name, labelled(rows), events))


def report() -> str:
    values = {1: (0.9, 900_000), 2: (0.7, 950_000), 3: (0.95, 990_000)}
    events = [
        Event(t_ns=0, run="001_<rate>", status="running"),
        Event(t_ns=MINUTE, run="001_<rate>", status="error", reason="killed by SIGKILL"),
        Event(t_ns=MINUTE, run="001_<rate>", status="running"),
        Event(t_ns=3 * MINUTE, run="001_<rate>", status="completed"),
    ]
    return page("demo & more", [sweep_row(n, *each) for n, each in values.items()], events)
