"""Status of a sweep: a live table on a terminal, a line per change elsewhere, JSON."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from outlay.budget.display import read_document
from outlay.budget.limits import currency_in, total_key
from outlay.cli.output import (
    FittingTable,
    TableCell,
    console,
    money_cell,
    new_table,
    print_sentence,
    shown_path,
    status_cell,
)
from outlay.clock import SYSTEM
from outlay.goodput.scheduling import Scheduling, scheduling_of
from outlay.guard.lease import Terms
from outlay.ledger import derive_attempts, read_lives
from outlay.sweep.engines.base import TaskStanding, is_scheduled, jobs_in, ran_ns
from outlay.sweep.run.detached import Detached
from outlay.sweep.run.harness import Harness
from outlay.sweep.run.sweep_guard import head_of, shown_book
from outlay.sweep.search.results import (
    SearchResults,
    reached_rung,
    rung_cells,
    rung_text,
    search_results,
)
from outlay.sweep.state.failures import FailedRun, failed_runs
from outlay.sweep.state.manifest import ManifestRun, SweepManifest, captured, planned
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money
from outlay.units.money import KINDS, MICROS, Kind, sum_by_unit
from outlay.units.quantity import duration_text
from outlay.units.shown import money_text

if TYPE_CHECKING:
    from outlay.sweep.aggregate.losing import LosingRun

_REFRESH_NS = 500_000_000
_ROWS = 30
_FAILED = 5
"""Of how many failed runs the last lines are shown."""
_TOTALS = {"max_minutes": "time_minutes"}
"""Names of totals that are not the limit's name without ``max_``."""


@contextmanager
def show_while(*, quiet: bool) -> Iterator[Callable[[Harness], None]]:
    """Show a sweep while it runs; yields the callback for the harness."""
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            shown = _LiveStatus(live)
            yield shown.update
            shown.finish()
        shown.print_failed()
    else:
        yield _StatusLines().update


class _LiveStatus:
    """Redraws the table at most twice a second."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._next_ns = 0
        self._table: RenderableType | None = None
        self._manifest: SweepManifest | None = None
        self._before: set[str] = set()

    def update(self, harness: Harness) -> None:
        """Redraw the table if it is due."""
        if self._manifest is None:
            states = harness.manifest.states.items()
            self._before = {run for run, state in states if state.status == "error"}
        self._manifest = harness.manifest
        now_ns = SYSTEM.monotonic_ns()
        if now_ns >= self._next_ns or not harness.active:
            self._next_ns = now_ns + _REFRESH_NS
            manifest = harness.manifest
            standings = {a.run.id: a.engine.standing(a.ticket) for a in harness.active.values()}
            self._table = _live_table(manifest, SYSTEM.wall_ns(), standings)
            line = Text(status_line(manifest, SYSTEM.wall_ns(), standings))
            self._live.update(Group(self._table, line), refresh=True)

    def finish(self) -> None:
        """Keep the table on the screen without the status line."""
        if self._table is not None:
            self._live.update(self._table, refresh=True)

    def print_failed(self) -> None:
        """Print the log and its last lines of every run that failed meanwhile."""
        if self._manifest is not None:
            print_failed(self._manifest, [r for r in self._manifest.runs if r not in self._before])


def print_failed(manifest: SweepManifest, runs: Collection[str] | None = None) -> None:
    """Print why runs failed, the log and its last lines; of those that failed alike, the first."""
    alike: dict[tuple[str, ...], list[FailedRun]] = {}
    for run in failed_runs(manifest, os.environ, runs):
        alike.setdefault((run.reason, *run.last_lines), []).append(run)
    kinds = list(alike.values())
    for first, *others in kinds[:_FAILED]:
        more = f" and {len(others)} more" if others else ""
        print_sentence(f"{first.run}{more} failed: {first.reason}")
        _print_log(first)
    if left := sum(map(len, kinds[_FAILED:])):
        print_sentence(f"… {left} more failed")


def _print_log(failed: FailedRun) -> None:
    console.print(f"  log: {shown_path(failed.log)}", soft_wrap=True)
    for line in failed.last_lines:
        text = Text(f"  | {line}", no_wrap=True, overflow="ellipsis")
        console.print(text, soft_wrap=not console.is_terminal)


class _StatusLines:
    """Prints a line whenever the status of a run changes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] | None = None

    def update(self, harness: Harness) -> None:
        """Print changes; runs completed by an earlier harness are not reported."""
        if self._seen is None:
            earlier = harness.manifest.states.items()
            self._seen = {
                run: (state.status, state.attempts)
                for run, state in earlier
                if state.status in ("completed", "pruned")
            }
        for run, state in harness.manifest.states.items():
            now = (state.status, state.attempts)
            if state.status != "pending" and self._seen.get(run) != now:
                self._seen[run] = now
                why = _reason(harness.manifest.runs[run], state)
                print_sentence(f"{run} {state.status}{f': {why}' if why else ''}")
                for failed in failed_runs(harness.manifest, os.environ, [run]):
                    _print_log(failed)


def _reason(run: ManifestRun, state: RunState) -> str:
    """Return why a run has its status; the rung of one that runs or waits there."""
    return state.reason or (rung_text(run, state) if state.status in ("running", "paused") else "")


TaskStandings = Mapping[str, TaskStanding]
"""The cluster's status of running runs, by run id."""
_NO_STANDINGS: Final[TaskStandings] = {}


def status_document(looked: Detached, now_ns: int, harness: int | None) -> dict[str, Any]:
    """Return the status of a sweep and its runs as JSON; ``harness`` is the pid that runs it."""
    manifest = looked.manifest
    jobs, running = jobs_in(manifest.root), _running(manifest, now_ns)
    failed = {each.run: each for each in failed_runs(manifest, os.environ)}
    return {
        "counts": _tally(manifest, looked.standing),
        "harness": harness,
        "ceiling": manifest.about.get("ceiling"),
        **({"book": shown_book(book)} if (book := manifest.about.get("book")) else {}),
        **totals_document(manifest),
        "running": _of_kind("cash", running),
        "showback_running": _of_kind("showback", running),
        "head": head_of(manifest.root),
        "runs": [
            _run_document(looked, run, jobs, now_ns) | {"failed": failed.get(run)}
            for run in manifest.runs
        ],
        "search": search_of(manifest),
        "losing": losing_of(manifest, now_ns),
        "findings": looked.findings,
    }


def totals_document(manifest: SweepManifest) -> dict[str, list[Money]]:
    """Return planned and actual cost, for cash and for showback."""
    plans, spent = planned(manifest), captured(manifest)
    return {
        "planned": _of_kind("cash", plans),
        "spent": _of_kind("cash", spent),
        "showback_planned": _of_kind("showback", plans),
        "showback_spent": _of_kind("showback", spent),
    }


def _of_kind(kind: Kind, amounts: list[Money]) -> list[Money]:
    return [money for money in amounts if money.kind == kind]


def _run_document(
    looked: Detached, run: str, jobs: Mapping[str, str], now_ns: int
) -> dict[str, Any]:
    manifest, stands = looked.manifest, looked.standing.get(run, TaskStanding())
    static, state = manifest.runs[run], manifest.state(run)
    current_ns, cost = _current_ns(manifest, run, now_ns), static.cost(state)
    waited = scheduling(manifest, run, looked.standing, now_ns)
    return {
        "id": run,
        "status": _status(manifest, run, looked.standing),
        "job": stands.job or jobs.get(state.ticket) or None,
        "attempts": state.attempts,
        "elapsed_s": (state.elapsed_ns + current_ns) / 1e9,
        "queue_s": None if waited is None else waited.queue_ns / 1e9,
        "scheduling_goodput": None if waited is None else waited.goodput,
        "planned": _text(static.planned_cost(state)),
        "cost": cost,
        "cost_kind": None if cost is None else cost.kind,
        "running": _current_cost(static, current_ns) if state.status == "running" else None,
        "charged": charged_of(manifest, run),
        "reason": stands.text or state.reason,
        "rung": reached_rung(static, state) + 1 if static.rungs and state.attempts else None,
    }


def _text(money: Money | None) -> str | None:
    return None if money is None else str(money)


def _status(manifest: SweepManifest, run: str, standings: TaskStandings) -> str:
    """Return the status of a run; ``queued`` while its job waits in the cluster's queue."""
    return "queued" if run in standings and standings[run].queued else manifest.state(run).status


def _tally(manifest: SweepManifest, standings: TaskStandings) -> dict[str, int]:
    return dict(Counter(_status(manifest, run, standings) for run in manifest.runs))


def status_line(
    manifest: SweepManifest, now_ns: int, standings: TaskStandings = _NO_STANDINGS
) -> str:
    """Return one line with the number of runs by status and the sweep's amounts.

    "planned" is the predicted cost; "captured" ("cost" without a ceiling) the cost of ended
    attempts; "running" the estimated cost of running attempts up to now.
    """
    counted = sorted(_tally(manifest, standings).items())
    tally = ", ".join(f"{count} {status}" for status, count in counted)
    ended = captured(manifest)
    if not ended and not any(run.price for run in manifest.runs.values()):
        return f"{tally}; no price"
    ceiling, book = manifest.about.get("ceiling"), manifest.about.get("book")
    words = []
    for kind in KINDS:
        running = _of_kind(kind, _running(manifest, now_ns))
        prefix = "" if kind == "cash" else f"{kind} "
        name_of_cost = "captured" if ceiling or book else "cost"
        amounts = [("planned", planned(manifest)), (name_of_cost, ended)]
        known = [(name, of_it) for name, each in amounts if (of_it := _of_kind(kind, each))]
        words += [f"{prefix}{name} {_sum(amount)}" for name, amount in known]
        words += [f"{prefix}running ~{_about(running)}"] if running else []
    words += [f"ceiling {ceiling}"] if ceiling else []
    words += [f"drawn on {shown_book(book)}"] if book else []
    difference = _uncharged(manifest, ended) if len({each.kind for each in ended}) == 1 else ""
    return f"{tally}; {', '.join(words) or 'nothing planned'}{difference}"


def _uncharged(manifest: SweepManifest, ended: list[Money]) -> str:
    """Return how much of the cost budgets charged, once no run is running; "" if all of it."""
    charged = sum_by_unit(charge for run in manifest.runs if (charge := charged_of(manifest, run)))
    if not charged or any(state.status == "running" for state in manifest.states.values()):
        return ""
    if charged == [cost.as_kind("cash") for cost in ended]:
        return ""
    return (
        f"; budgets charged {_sum(charged)}, the rest is cost they do not charge, such as shutdown"
    )


def charged_of(manifest: SweepManifest, run: str) -> Money | None:
    """Return what a run's budget charged, from its last ``budget.json``; None without one."""
    document = read_document(manifest.root / manifest.runs[run].run_dir) or {}
    totals, limits = document.get("totals"), document.get("limits")
    currency = currency_in(limits if isinstance(limits, dict) else ())
    amount = totals.get(total_key(currency)) if isinstance(totals, dict) else None
    if not isinstance(amount, int | float) or isinstance(amount, bool):
        return None
    return Money(round(amount * MICROS), manifest.state(run).currency or "USD")


def _running(manifest: SweepManifest, now_ns: int) -> list[Money]:
    """Return the estimated cost of running attempts up to now, by unit."""
    times = ((run, _current_ns(manifest, run.id, now_ns)) for run in manifest.runs.values())
    return sum_by_unit(
        cost.as_kind(run.kind_of_cost(manifest.state(run.id)))
        for run, ns in times
        if ns and (cost := _current_cost(run, ns))
    )


def _current_cost(run: ManifestRun, current_ns: int) -> Money | None:
    return None if run.rate is None else Terms(rate=run.rate).cost(current_ns)


def _sum(amounts: list[Money]) -> str:
    return " + ".join(str(amount.as_kind("cash")) for amount in amounts)


def _about(amounts: list[Money]) -> str:
    return " + ".join(money_text(amount.as_kind("cash")) for amount in amounts)


def exceptional_runs(manifest: SweepManifest, now_ns: int) -> dict[str, str]:
    """Return the runs that a person should look at, with the reason: failed, refused, slow."""
    found = {}
    for name, run in manifest.runs.items():
        state = manifest.state(name)
        if state.status in _EXCEPTIONAL:
            found[name] = state.reason
        elif state.status == "running" and (why := _slow(manifest, run, now_ns)):
            found[name] = why
    return found


_EXCEPTIONAL: Final = ("error", "skipped", "preempted", "cancelled")
_LEAST_COMPLETED: Final = 3
_SLOW: Final = 1.5
"""A run is slow if it takes longer than this multiple of the median of those that completed."""


def _slow(manifest: SweepManifest, run: ManifestRun, now_ns: int) -> str:
    """Return by how much a run is slower than the completed ones with its budget; "" if not."""
    took = [
        state.elapsed_ns
        for name, state in manifest.states.items()
        if state.status == "completed" and manifest.runs[name].limits == run.limits
    ]
    if len(took) < _LEAST_COMPLETED:
        return ""
    usual_ns = statistics.median(took)
    elapsed_ns = manifest.state(run.id).elapsed_ns + _current_ns(manifest, run.id, now_ns)
    if elapsed_ns <= _SLOW * usual_ns:
        return ""
    return f"slow: usually {duration_text(round(usual_ns))}"


def status_table(
    manifest: SweepManifest,
    now_ns: int,
    standings: TaskStandings,
    *,
    runs: Mapping[str, str] | None = None,
    with_queue: bool = True,
) -> FittingTable:
    """Return the runs of a sweep.

    Args:
        manifest: The sweep.
        now_ns: UTC nanoseconds.
        standings: What the cluster says of running runs.
        runs: The runs to show, each with a remark; default: all, with the reason of their status.
        with_queue: Whether to read the begin and end of every log that is shown, for its time in
            a queue.
    """
    names = manifest.runs if runs is None else runs
    waits = {run: scheduling(manifest, run, standings, now_ns) for run in names if with_queue}
    queued = [">queued"] if any(waits.values()) else []
    headings = (">budget used", ">planned", ">cost", "reason")
    table = new_table(
        "run", "status", ">time", *queued, *headings,
        first=("run", "status", "cost", "reason", "time", "budget used"),
    )  # fmt: skip
    for run in names:
        static, state = manifest.runs[run], manifest.state(run)
        current_ns = _current_ns(manifest, run, now_ns)
        elapsed_ns = state.elapsed_ns + current_ns
        told = standings.get(run, TaskStanding()).text or (runs or {}).get(run)
        table.add_row(
            run, status_cell(_status(manifest, run, standings)),
            duration_text(elapsed_ns) if elapsed_ns else "",
            *(duration_text(waited.queue_ns) if (waited := waits[run]) else "" for _ in queued),
            _budget_used(manifest.root / static.run_dir), static.planned_cost(state),
            _cost(state, static, current_ns), told or _reason(static, state),
        )  # fmt: skip
    return table


def _live_table(manifest: SweepManifest, now_ns: int, standings: TaskStandings) -> RenderableType:
    """Return the runs of a sweep; of many, the running and failed ones first."""
    names = list(manifest.runs)
    if len(names) > _ROWS:
        last = ("paused", "pending", "completed", "pruned")
        places = {status: place for place, status in enumerate(last, 1)}
        names.sort(key=lambda run: places.get(manifest.state(run).status, 0))
    shown = dict.fromkeys(names[:_ROWS], "")
    table = status_table(manifest, now_ns, standings, runs=shown, with_queue=False)
    left_out = len(names) - len(shown)
    return Group(table, Text(f"… {left_out} more")) if left_out else table


def search_of(manifest: SweepManifest) -> SearchResults | None:
    """Return what the search of a sweep found so far; None if it has no rungs."""
    return search_results((run, manifest.state(name)) for name, run in manifest.runs.items())


def losing_of(manifest: SweepManifest, now_ns: int) -> list[LosingRun]:
    """Return the open runs that are unlikely to pass the best; reads logs only if some are open."""
    if not any(state.status in ("running", "paused") for state in manifest.states.values()):
        return []
    # Imported here: it loads NumPy.
    from outlay.sweep.aggregate.aggregator import aggregate

    return aggregate(manifest.root, now_ns, allow_missing=True).losing


def rung_table(found: SearchResults) -> FittingTable:
    """Return the rungs of a search; empty columns are left out."""
    headings, rows = rung_cells(found)
    table = new_table(*(name if name in ("entry", "budget") else f">{name}" for name in headings))
    for row in rows:
        table.add_row(*("" if cell is None else _cell_text(cell) for cell in row))
    return table


def _cell_text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _current_ns(manifest: SweepManifest, run: str, now_ns: int) -> int:
    """Return the elapsed time of a running attempt, without its time in the queue; else 0."""
    state = manifest.state(run)
    if state.status != "running" or state.started_ns is None:
        return 0
    engine, directory = manifest.runs[run].engine, manifest.root / run
    return ran_ns(engine, directory, state.ticket, since_ns=state.started_ns, now_ns=now_ns)


def scheduling(
    manifest: SweepManifest, run: str, standings: TaskStandings, now_ns: int
) -> Scheduling | None:
    """Return the queue time of a run on a cluster, its present wait included; None if unknown."""
    state, static = manifest.state(run), manifest.runs[run]
    if not is_scheduled(static.engine) or state.started_ns is None:
        return None
    attempts = derive_attempts(read_lives(manifest.root / static.run_dir, times_only=True))
    known = scheduling_of(attempts) if attempts else Scheduling(queue_ns=0, allocated_ns=0)
    if known is None or _status(manifest, run, standings) != "queued":
        return known if attempts else None
    since_ns = max([state.started_ns, *(attempt.last_sign_ns for attempt in attempts)])
    return replace(known, queue_ns=known.queue_ns + now_ns - since_ns)


def _cost(state: RunState, run: ManifestRun, current_ns: int) -> TableCell:
    """Return the cost of a run; with "~" the estimate up to now of one that is running."""
    so_far = _current_cost(run, current_ns)
    if state.status == "running" and so_far is not None:
        cost = Money(so_far.micros + (state.cost_micros or 0), so_far.currency)
        return money_cell(cost, before="~")
    if state.cost_micros is None:
        return TableCell(text="")
    return money_cell(Money(state.cost_micros, state.currency))


def _budget_used(run_dir: Path) -> str:
    """Return the share of the limit used most, from the run's ``budget.json``.

    Any program may have written that file: values of unexpected types are ignored.
    """
    document = read_document(run_dir) or {}
    limits, totals = document.get("limits"), document.get("totals")
    if not isinstance(limits, dict) or not isinstance(totals, dict):
        return ""
    shares = [
        used / limit
        for key, limit in limits.items()
        for used in [totals.get(_TOTALS.get(key, key.removeprefix("max_")), 0)]
        if isinstance(limit, int | float) and isinstance(used, int | float) and limit
    ]
    return f"{max(shares):.0%}" if shares else ""
