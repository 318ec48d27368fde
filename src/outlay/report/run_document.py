"""A run's report: verdict, charts, time and cost, setup, advice. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from outlay.clock import utc_text
from outlay.goodput import phases as ph
from outlay.goodput.follower import GoodputSummary, PhaseRow
from outlay.record.supervision import BY_BUDGET, DECISIONS, PAUSES
from outlay.report import run_sections
from outlay.report.document import (
    Block,
    ChartBlock,
    Document,
    Figure,
    NoteBlock,
    Table,
    notebook_html,
    sections,
)
from outlay.report.drawing.run_charts import (
    MetricView,
    at_risk,
    metric_charts,
    phase_strip,
    step_times,
)
from outlay.report.html import Cell
from outlay.report.run_sections import MOST_ROWS
from outlay.runs.collect import elsewhere_text
from outlay.runs.figures import FIGURES
from outlay.runs.reading import RunReading
from outlay.store.run_row import RunRow
from outlay.units.quantity import duration_text
from outlay.units.shown import beside_text, counted, money_text


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """How a run was started, from sources other than its log.

    Attributes:
        in_sweep: Its status there, and the reason for it.
        hide: Removes names of people from a text.
    """

    command: Sequence[str] = ()
    configuration: Mapping[str, object] = field(default_factory=dict)
    sweep: str = ""
    in_sweep: str = ""
    hide: Callable[[str], str] = str


_NO_SETUP: Final = RunSetup()


# The verdict


def verdict(run: RunReading, setup: RunSetup = _NO_SETUP) -> str:
    """Return the run in a few sentences: duration, cost, goodput, largest loss, how it ended."""
    summary = run.goodput
    if not summary.wall_ns:
        return "Nothing is recorded yet: the run has no wall time."
    state = "So far" if summary.alive else "In all"
    price = "no price" if summary.cost is None else money_text(summary.cost)
    price += beside_text(each.cost for each in summary.cost_beside)
    spent = f"{state} {duration_text(summary.wall_ns)} of wall time, {price}"
    if summary.goodput is None:
        got = "; no steps were recorded, so the productive share is unknown."
    else:
        got = f"; {summary.goodput:.1%} of the time was productive. {_loss(summary)}"
    ended = _end(run, setup)
    return f"{spent}{got}{_stop(run, ended)}{ended}"


def _loss(summary: GoodputSummary) -> str:
    """Return the costliest phase besides productive steps; while paused, a run holds nothing."""
    losses = [row for row in summary.phases if row.phase not in (ph.STEP, ph.PAUSED)]
    if not losses:
        return "Nothing was lost."
    worst = max(losses, key=_worth)
    lost = duration_text(worst.ns)
    if worst.cost:
        lost += f", {money_text(worst.cost)}"
    count = len(summary.disruptions)
    again = f", over {counted(count, 'disruption')}" if count else ""
    return f"The largest loss was {worst.phase} ({lost}){again}."


def _worth(row: PhaseRow) -> tuple[int, int]:
    return (0 if row.cost is None else row.cost.micros, row.ns)


def _end(run: RunReading, setup: RunSetup) -> str:
    """Return how a run ended, unless it completed or still runs."""
    end = run.view.timeline.attempts[-1].end
    if run.goodput.alive or (end is not None and end.status == "completed"):
        return ""
    if end is None:
        return " It stopped without recording an end (killed or crashed)."
    if end.status == "paused" and end.reason.startswith(PAUSES):
        return f" It was paused: {end.reason.removeprefix(PAUSES)}; it can continue."
    if end.status == "paused":
        pruned = setup.in_sweep if setup.in_sweep.startswith("pruned") else ""
        rest = f", and is not continued ({pruned})." if pruned else ", and can continue."
        return f" It paused at the end of its budget{rest}"
    if run.budget is not None and end.reason.startswith(BY_BUDGET):
        return ""  # Said with the budget.
    how = "failed" if end.status == "failed" else f"was {end.status}"
    return f" It {how}: {end.reason}." if end.reason else f" It {how}."


def _stop(run: RunReading, ended: str) -> str:
    """Return how a run stands with its budget, unless how it ended says so."""
    if run.budget is None:
        return ""
    reason = run.budget.stop_reason
    if reason is None:
        return " It is within its budget."
    return "" if reason in ended else f" Its budget stopped it: {reason}."


# The report

_MOST_METRICS: Final = 12
_METRICS_OF_FILES: Final = (MetricView(axis="steps"), MetricView(axis="dollars"))
_ESTIMATES: Final = (
    "Amounts are time multiplied by a price. Measured: time from the run's log, at a price from a "
    "vendor's offer. Stated: measured time at a price that a user typed. Estimated: computed from "
    "measurements. Assumed: not measured by anything."
)


def run_document(
    run: RunReading, setup: RunSetup = _NO_SETUP, views: Sequence[MetricView] = _METRICS_OF_FILES
) -> Document:
    """Return a run's report; its metrics are drawn in each of ``views``."""
    identity = run.view.identity
    return Document(
        title=identity.name or identity.model or identity.run_id,
        verdict=verdict(run, setup),
        sections=sections(
            [
                ("The run", _run(run)),
                (
                    "What to change",
                    run_sections.advice(
                        run.advice, run.advice_floor, is_priced=run.cost.cost is not None
                    ),
                ),
                ("Timeline", _timeline(run)),
                ("Metrics", _metrics(run, views)),
                ("Attempts", _attempt_rows(run)),
                ("Where time and money went", run_sections.phases(run.goodput, run.cost.grade)),
                ("Reliability", _reliability(run.goodput)),
                ("Budget", _budget(run)),
                ("What a unit cost", run_sections.unit_costs(run.cost)),
                ("Step times", _steps(run, views)),
                ("Checkpoints", _checkpoints(run)),
                ("What was run", _setup(run, setup)),
                ("How the figures are known", _ground(run)),
            ],
            whole=(
                "The run",
                "What to change",
                "Timeline",
                "Metrics",
                "Attempts",
                "Where time and money went",
                "Reliability",
            ),
            folded=("How the figures are known",),
        ),
    )


def stored_document(row: RunRow, now_ns: int) -> Document:
    """Return the report of a run whose log is on another host: its figures in the store."""
    known = (figure for figure in FIGURES if figure.of(row) not in (None, "", ()))
    figures = (
        Figure(each.label, each.cell(row), each.text(row, now_ns), each.grade(row))
        for each in known
    )
    return Document(
        title=row.name or row.model or row.run_id,
        verdict=f"Figures {elsewhere_text(row)}; `outlay report` there shows the rest.",
        sections=sections([("The run", figures)], whole=("The run",)),
    )


_IN_NOTEBOOKS: Final = ("The run", "Where time and money went", "Budget", "What to change")


def run_html(run: RunReading) -> str:
    """Return the main sections of a run's report for a notebook."""
    return notebook_html(run_document(run), _IN_NOTEBOOKS)


def run_json(run: RunReading, document: Document) -> dict[str, object]:
    """Return what the JSON of a run's report and of its page share."""
    return {
        "title": document.title,
        "verdict": document.verdict,
        "goodput": run.goodput,
        "cost": run.cost,
        "budget": None if run.budget is None else run.budget.document(),
        "advice": run.advice,
        "config": run.config,
    }


def _run(run: RunReading) -> Iterator[Block]:
    cost = run.cost
    yield from run_sections.headline(run.view, run.goodput, cost.grade)
    if cost.accuracy is not None:
        yield Figure("best accuracy", cost.accuracy, f"{cost.accuracy:.4g}", leads=True)
    yield from run_sections.circumstances(run.view, run.goodput)
    yield Figure("attempts", len(run.view.timeline.attempts), _attempts(run))
    yield run_sections.gpu_time(cost)
    yield from run_sections.energy(cost.energy_mj)
    if cost.steps != run.figures.steps:
        text = f"{cost.steps:,}, repeated ones included"
        yield Figure("steps executed", cost.steps, text)
    if cost.tokens:
        yield Figure("tokens", cost.tokens, f"{cost.tokens:,}")
    if cost.samples:
        yield Figure("samples", cost.samples, f"{cost.samples:,}")
    yield from _guard(run)


def _metrics(run: RunReading, views: Sequence[MetricView]) -> Iterator[Block]:
    names = run.view.account.metric_names()
    drawn = [list(metric_charts({"": run.view}, wanted, _MOST_METRICS)) for wanted in views]
    for charts in zip_longest(*drawn):  # A metric's axes are side by side.
        yield from (ChartBlock(chart) for chart in charts if chart is not None)
    if len(names) > _MOST_METRICS:
        yield NoteBlock(f"The first {_MOST_METRICS} of {len(names):,} metrics are shown.")


def _attempt_rows(run: RunReading) -> Iterator[Block]:
    """Yield the attempts, where there are several: when, where, and how each ended."""
    attempts = run.view.timeline.attempts
    if len(attempts) < 2:
        return
    rows = tuple(
        (
            number, _moment(each.start_ns), duration_text(each.last_sign_ns - each.start_ns),
            each.header.host, "no end recorded" if each.end is None else each.end.status,
            "" if each.end is None else each.end.reason,
        )
        for number, each in list(enumerate(attempts, 1))[-MOST_ROWS:]
    )  # fmt: skip
    yield Table(("attempt", "started", "for", "host", "end", "reason"), rows)


def _moment(t_ns: int) -> Cell:
    return Cell(text=utc_text(t_ns), at_ns=t_ns)


def _setup(run: RunReading, setup: RunSetup) -> Iterator[Block]:
    """Yield what is needed to run it again: command, commit, host, parameters, versions."""
    header = run.view.timeline.attempts[-1].header
    command = shlex.join(setup.command or run.command)
    stated = {
        "run": run.run_id, "model": run.view.identity.model, "sweep": setup.sweep,
        "in its sweep": setup.in_sweep, "command": command,
        "commit": header.git_commit, "host": header.host, "user": header.user,
        "GPU": f"{run.figures.gpus} x {header.gpu}" if header.gpu else "",
        "Slurm job": header.slurm_job, "partition": header.slurm_partition,
        "machine": header.instance_id, "directory": str(run.view.dir or ""),
    }  # fmt: skip
    for label, text in stated.items():
        if text:
            shown = setup.hide(text)
            yield Figure(label, shown, shown, copies=label in _COPIED)
    yield from run_sections.prices(run.cost)
    for title, found in (
        ("parameter", parameters_of(run, setup)), ("tag", header.tags),
        ("version of", header.versions),
    ):  # fmt: skip
        if found:
            rows = tuple((name, setup.hide(str(found[name]))) for name in found)
            noun = title.removesuffix(" of")
            folded = counted(len(rows), noun) if len(rows) > _SHORT else ""
            yield Table((title, "value"), rows, folded=folded)


_COPIED: Final = ("run", "command", "commit", "machine", "Slurm job", "directory")
_SHORT: Final = 6


def parameters_of(run: RunReading, setup: RunSetup) -> dict[str, object]:
    """Return a run's parameters; a nested one as ``outer.inner``."""
    return dict(_flat({**setup.configuration, **run.config}, ""))


def _flat(settings: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _guard(run: RunReading) -> Iterator[Block]:
    """Yield the guard's last note; it has the head for ``outlay guard verify --expect``."""
    segments = run.view.account.segments.values()
    notes = (note for segment in segments for note in segment.notes)
    said = [note for note in notes if note.text.startswith("guard: ") and "; head " in note.text]
    if said:
        last = max(said, key=lambda each: each.t_ns).text.removeprefix("guard: ")
        yield Figure("guard", last, last)


def _attempts(run: RunReading) -> str:
    attempts = run.view.timeline.attempts
    end = attempts[-1].end
    if end is None:
        how = "still runs" if run.goodput.alive else "stopped without recording an end"
    else:
        how = end.status
    return f"{len(attempts)}; the last {how}"


def _budget(run: RunReading) -> Iterator[Block]:
    if run.budget is None:
        return iter(())
    return run_sections.budget(run.budget, run.status)


def _timeline(run: RunReading) -> Iterator[Block]:
    rows = run.goodput.phases
    if rows:
        phases = [(row.phase, f"{row.share:.1%}") for row in rows]
        yield ChartBlock(phase_strip(run.view.timeline, phases))
    if marks := _marks(run):
        yield Table(("at", "decision", "why"), marks[-MOST_ROWS:])


def _marks(run: RunReading) -> list[tuple[Cell, str, str]]:
    """Return why its supervisor started and paused it, or did not start it, in order of time."""
    segments = run.view.account.segments.values()
    notes = (note for segment in segments for note in segment.notes)
    said = [note for note in notes if note.text.startswith(DECISIONS)]
    texts = ((note.t_ns, *note.text.partition(": ")) for note in sorted(said, key=lambda n: n.t_ns))
    return [(_moment(t_ns), decision, why) for t_ns, decision, _, why in texts]


def _steps(run: RunReading, views: Sequence[MetricView]) -> Iterator[Block]:
    chart = step_times(run.view.timeline, views[0].steps)
    if chart is not None:
        yield ChartBlock(chart)
    elif run.cost.steps:
        yield NoteBlock("One step was recorded: too few to compare.")
        return
    yield from run_sections.steps(run.goodput)


def _checkpoints(run: RunReading) -> Iterator[Block]:
    yield from run_sections.checkpoints(run.view.timeline, run.goodput)
    if (chart := at_risk(run.view.timeline)) is not None:
        yield ChartBlock(chart)


def _reliability(summary: GoodputSummary) -> Iterator[Block]:
    if not summary.disruptions:
        return
    yield from run_sections.reliability(summary)
    rows = tuple(
        (
            _moment(each.at_ns), each.host, each.reason, duration_text(each.down_ns),
            duration_text(each.init_ns), duration_text(each.restore_ns),
            duration_text(each.startup_ns), duration_text(each.catch_up_ns),
        )
        for each in summary.disruptions[-MOST_ROWS:]
    )  # fmt: skip
    headings = ("at", "host", "reason", "down", "init", "restore", "first step", "catch-up")
    yield Table(headings, rows, is_list=True)
    if len(summary.disruptions) > MOST_ROWS:
        yield NoteBlock(f"The last {MOST_ROWS} of {len(summary.disruptions):,} are shown.")


def _ground(run: RunReading) -> Iterator[Block]:
    yield NoteBlock(_ESTIMATES)
    yield from run_sections.grounds(run.cost)
    for finding in run.goodput.findings:
        yield NoteBlock(f"{finding.severity.capitalize()}: {finding}")
    if not run.goodput.findings:
        yield NoteBlock("No problems were found in the log.")
