"""How a sweep looks while it runs: a live table on a terminal, a line per change elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outlay.budget.display import read_document
from outlay.budget.limits import currency_in, total_key
from outlay.cli.output import console, new_table
from outlay.clock import SYSTEM
from outlay.guard.lease import Terms
from outlay.ledger.price import KINDS, Kind
from outlay.sweep.engines.base import TaskStanding, jobs_in, ran_ns
from outlay.sweep.run.detached import Detached
from outlay.sweep.run.harness import Harness
from outlay.sweep.run.money import head_of
from outlay.sweep.state.manifest import (
    ManifestRun,
    SweepManifest,
    captured,
    planned,
    runs_of_kind,
)
from outlay.sweep.state.outcomes import RunState
from outlay.units import Money
from outlay.units.money import MICROS, sum_by_currency
from outlay.units.quantity import duration_text

_REFRESH_NS = 500_000_000
_ROWS = 30
_TOTALS = {"max_minutes": "time_minutes"}
"""What the total of a limit is called, where that is not its key without ``max_``."""


@contextmanager
def show_while(*, quiet: bool) -> Iterator[Callable[[Harness], None]]:
    """Show a sweep while it runs; yields what the harness calls at every look."""
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            shown = _Table(live)
            yield shown.look
            shown.leave()
    else:
        yield _StatusLines().look


class _Table:
    """Redraws the table, not more often than an eye can follow."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._next_ns = 0
        self._table: Table | None = None

    def look(self, harness: Harness) -> None:
        """Draw how things stand."""
        now_ns = SYSTEM.monotonic_ns()
        if now_ns >= self._next_ns or not harness.active:
            self._next_ns = now_ns + _REFRESH_NS
            manifest = harness.manifest
            standings = {a.run.id: a.engine.standing(a.ticket) for a in harness.active.values()}
            self._table = status_table(manifest, SYSTEM.wall_ns(), standings)
            line = Text(standing(manifest, SYSTEM.wall_ns(), standings))
            self._live.update(Group(self._table, line), refresh=True)

    def leave(self) -> None:
        """Leave the table on the screen, without the status line below it."""
        if self._table is not None:
            self._live.update(self._table, refresh=True)


class _StatusLines:
    """Prints a line whenever the status of a run changes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] | None = None

    def look(self, harness: Harness) -> None:
        """Print what has changed; what an earlier harness did is no news."""
        if self._seen is None:
            earlier = harness.manifest.states.items()
            self._seen = {
                run: (state.status, state.attempts)
                for run, state in earlier
                if state.status == "completed"
            }
        for run, state in harness.manifest.states.items():
            now = (state.status, state.attempts)
            if state.status != "pending" and self._seen.get(run) != now:
                self._seen[run] = now
                tail = f": {state.reason}" if state.reason else ""
                console.print(f"{run} {state.status}{tail}", soft_wrap=True)


Standings = Mapping[str, TaskStanding]
"""What a cluster says of running runs, by id."""
_NOT_ASKED: Final[Standings] = {}


def status_document(looked: Detached, now_ns: int, harness: int | None) -> dict[str, Any]:
    """Return how a sweep and its runs stand, under the documented names.

    ``harness`` is the process that runs it, if there is one.
    """
    manifest = looked.manifest
    jobs = jobs_in(manifest.root)
    return {
        "counts": _tally(manifest, looked.standing),
        "harness": harness,
        "ceiling": manifest.about.get("ceiling"),
        **totals_document(manifest),
        "running": _running(manifest, now_ns),
        "showback_running": _running(manifest, now_ns, "showback"),
        "head": head_of(manifest.root),
        "runs": [_run_document(looked, run, jobs, now_ns) for run in manifest.runs],
        "findings": looked.findings,
    }


def totals_document(manifest: SweepManifest) -> dict[str, list[Money]]:
    """Return what a sweep was planned to cost and has cost; cash and showback each by itself."""
    return {
        "planned": planned(manifest),
        "spent": captured(manifest),
        "showback_planned": planned(manifest, "showback"),
        "showback_spent": captured(manifest, "showback"),
    }


def _run_document(
    looked: Detached, run: str, jobs: Mapping[str, str], now_ns: int
) -> dict[str, Any]:
    manifest, stands = looked.manifest, looked.standing.get(run, TaskStanding())
    static, state = manifest.runs[run], manifest.state(run)
    going_ns, cost = _going_ns(manifest, run, now_ns), state.cost_micros
    return {
        "id": run,
        "status": _status(manifest, run, looked.standing),
        "job": stands.job or jobs.get(state.ticket) or None,
        "attempts": state.attempts,
        "elapsed_s": (state.elapsed_ns + going_ns) / 1e9,
        "planned": static.predicted_cost,
        "cost": None if cost is None else Money(cost, state.currency),
        "cost_kind": None if cost is None else static.kind_of_cost(state),
        "running": _going_cost(static, going_ns) if state.status == "running" else None,
        "charged": charged_of(manifest, run),
        "reason": stands.text or state.reason,
    }


def _status(manifest: SweepManifest, run: str, standings: Standings) -> str:
    """Return the status of a run; ``queued`` while it waits in a cluster's queue."""
    return "queued" if run in standings and standings[run].queued else manifest.state(run).status


def _tally(manifest: SweepManifest, standings: Standings) -> dict[str, int]:
    return dict(Counter(_status(manifest, run, standings) for run in manifest.runs))


def standing(manifest: SweepManifest, now_ns: int, standings: Standings = _NOT_ASKED) -> str:
    """Return in a line how many runs stand how, and every amount of the sweep under its name.

    Planned is what was foreseen; captured (without a ceiling: cost) what the attempts that have
    ended cost; running what the others should have cost by now.
    """
    counted = sorted(_tally(manifest, standings).items())
    tally = ", ".join(f"{count} {status}" for status, count in counted)
    ended = {kind: captured(manifest, kind) for kind in KINDS}
    if not any(ended.values()) and not any(run.price for run in manifest.runs.values()):
        return f"{tally}; no price"
    ceiling = manifest.about.get("ceiling")
    words = []
    for kind in KINDS:  # Side by side, and never added.
        running = _running(manifest, now_ns, kind)
        said = "" if kind == "cash" else f"{kind} "
        name_of_cost = "captured" if ceiling else "cost"
        amounts = [("planned", planned(manifest, kind)), (name_of_cost, ended[kind])]
        words += [f"{said}{name} {_sum(amount)}" for name, amount in amounts if amount]
        words += [f"{said}running ~{_sum(running)}"] if running else []
    words += [f"ceiling {ceiling}"] if ceiling else []
    one_kind = [] if all(ended.values()) else ended["cash"] or ended["showback"]
    difference = _difference(manifest, one_kind) if one_kind else ""
    return f"{tally}; {', '.join(words) or 'nothing planned'}{difference}"


def _difference(manifest: SweepManifest, ended: list[Money]) -> str:
    """Say what the runs' budgets charged of their cost, and what the rest is, once all is over."""
    charged = sum_by_currency(
        charge for run in manifest.runs if (charge := charged_of(manifest, run))
    )
    if not charged or any(state.status == "running" for state in manifest.states.values()):
        return ""
    if charged == ended:
        return ""
    return f"; budgets charged {_sum(charged)}, the rest is what they do not charge, such as ending"


def charged_of(manifest: SweepManifest, run: str) -> Money | None:
    """Return what a run's own budget has charged, as it last wrote it; None where it did not."""
    document = read_document(manifest.root / manifest.runs[run].run_dir) or {}
    totals, limits = document.get("totals"), document.get("limits")
    currency = currency_in(limits if isinstance(limits, dict) else ())
    amount = totals.get(total_key(currency)) if isinstance(totals, dict) else None
    if not isinstance(amount, int | float) or isinstance(amount, bool):
        return None
    return Money(round(amount * MICROS), manifest.state(run).currency or "USD")


def _running(manifest: SweepManifest, now_ns: int, kind: Kind = "cash") -> list[Money]:
    """Return what running attempts should have cost by now, of one kind of price."""
    going = ((run, _going_ns(manifest, run.id, now_ns)) for run in runs_of_kind(manifest, kind))
    return sum_by_currency(cost for run, ns in going if ns and (cost := _going_cost(run, ns)))


def _going_cost(run: ManifestRun, going_ns: int) -> Money | None:
    rate = run.rate
    return None if rate is None else Terms(rate=rate).cost(going_ns)


def _sum(amounts: list[Money]) -> str:
    return " + ".join(map(str, amounts))


def status_table(manifest: SweepManifest, now_ns: int, standings: Standings) -> Table:
    """Return the runs of a sweep: those that run or failed first when they are many."""
    table = new_table("run", "status", ">time", ">budget used", ">planned", ">cost", "reason")
    names = list(manifest.runs)
    if len(names) > _ROWS:
        dull = ("pending", "completed")
        names.sort(key=lambda run: manifest.state(run).status in dull)
    for run in names[:_ROWS]:
        static, state = manifest.runs[run], manifest.state(run)
        going_ns = _going_ns(manifest, run, now_ns)
        table.add_row(
            run, _status(manifest, run, standings), _time(state.elapsed_ns + going_ns),
            _budget_used(manifest.root / static.run_dir), static.predicted_cost or "",
            _cost(state, static, going_ns),
            standings.get(run, TaskStanding()).text or state.reason,
        )  # fmt: skip
    if len(names) > _ROWS:
        table.add_row(f"… {len(names) - _ROWS} more", "", "", "", "", "", "")
    return table


def _time(ns: int) -> str:
    return duration_text(ns) if ns else ""


def _going_ns(manifest: SweepManifest, run: str, now_ns: int) -> int:
    """Return how long a running attempt has run, without its time in a cluster's queue."""
    state = manifest.state(run)
    if state.status != "running" or state.started_ns is None:
        return 0
    engine, directory = manifest.runs[run].engine, manifest.root / run
    return ran_ns(engine, directory, state.ticket, since_ns=state.started_ns, now_ns=now_ns)


def _cost(state: RunState, run: ManifestRun, going_ns: int) -> str:
    """Return what a run has cost; of a running attempt, what it should have by now."""
    so_far = _going_cost(run, going_ns)
    if state.status == "running" and so_far is not None:
        return f"~{Money(so_far.micros + (state.cost_micros or 0), so_far.currency)}"
    return "" if state.cost_micros is None else str(Money(state.cost_micros, state.currency))


def _budget_used(run_dir: Path) -> str:
    """Return how much of the fullest limit a run has used, as it last wrote it down.

    Whatever else stands in that file, which a training of any kind may have written, is left out.
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
