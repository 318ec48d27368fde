"""The books themselves: which runs there are, and how they stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import AsJson
from outlay.cli.output import console, new_table, print_findings, print_json
from outlay.clock import SYSTEM, utc_text
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.ledger.price import KINDS, Kind
from outlay.runs.collect import Collected, collect, find_runs, refresh_registered
from outlay.runs.figures import RunFigures, read_figures
from outlay.store import open_store
from outlay.store.runs import list_runs
from outlay.units import Money
from outlay.units.quantity import duration_text


def overview(*, as_json: bool) -> None:
    """Show what runs now, what it burns per hour, and what is wrong."""
    now_ns = SYSTEM.wall_ns()
    collected = refresh_registered(open_store(), now_ns)
    running = [figures for figures in collected.figures if figures.status == "running"]
    findings = [*collected.findings, *_wrong(collected.figures)]
    burn = total_burn(running)
    if as_json:
        amounts = {kind: [each.money for each in burn if each.kind == kind] for kind in KINDS}
        said = {"burn_per_hour": amounts["cash"], "showback_per_hour": amounts["showback"]}
        print_json({"running": running, **said, "findings": findings})
        return
    if running:
        console.print(_running_table(running, now_ns))
        console.print(f"\nBurning now: {', '.join(map(str, burn)) or 'no price'}")
    else:
        console.print("Nothing is running. Start with: outlay exec -- python train.py")
    if findings:
        console.print("\nWhat is wrong", style="bold")
        print_findings(findings)


@dataclass(frozen=True, slots=True)
class Burn:
    """What runs cost per hour together, of one currency and one kind."""

    kind: Kind
    money: Money

    def __str__(self) -> str:
        return f"{self.money}/h" if self.kind == "cash" else f"{self.money}/h {self.kind}"


def total_burn(running: list[RunFigures]) -> list[Burn]:
    """Return what the runs cost per hour together; cash and showback each by itself."""
    totals: dict[tuple[Kind, str], int] = {}
    for figures in running:
        if figures.cost is not None and figures.burn_micros_per_hour is not None:
            key = figures.kind, figures.cost.currency
            totals[key] = totals.get(key, 0) + figures.burn_micros_per_hour
    return [Burn(kind, Money(micros, unit)) for (kind, unit), micros in sorted(totals.items())]


def show_runs(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Only runs at or below this directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs: status, attempts, steps, cost, last seen.

    Example: outlay runs experiments/
    """
    now_ns = SYSTEM.wall_ns()
    if directory is not None:
        _must_exist(directory)
        found = _runs_below(directory, now_ns)
        rows = sorted(found.figures, key=lambda f: -f.started_ns)
        findings = [*found.findings, *_in_logs(rows)]
        _show_figures(rows, findings, now_ns, as_json=as_json)
        return
    engine = open_store()
    collected = refresh_registered(engine, now_ns)
    stored = list_runs(engine)
    findings = [*collected.findings, *_in_logs(collected.figures)]
    if as_json:
        print_json({"runs": stored, "findings": findings})
        return
    if not stored:
        console.print("No runs are registered. Register some with: outlay collect DIR")
        return
    table = new_table("run", "status", ">attempts", ">steps", ">cost", "last seen", "directory")
    for row in stored:
        cost = str(row.cost) if row.cost is not None else "no price"
        table.add_row(
            row.name, row.status, str(row.attempts), f"{row.steps:,}", cost,
            _ago(now_ns - row.last_seen_ns), row.dir,
        )  # fmt: skip
    console.print(table)
    print_findings(findings)


def show_collect(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories that hold runs.")
    ],
    as_json: AsJson = False,
) -> None:
    """Register every run below some directories, any number of times with the same result.

    Example: outlay collect experiments/ /mnt/shared/runs
    """
    for directory in directories:
        _must_exist(directory)
    collected = collect(open_store(), list(find_runs(directories)), SYSTEM.wall_ns())
    findings = [*collected.findings, *_in_logs(collected.figures)]
    if as_json:
        print_json({"registered": len(collected.figures), "findings": findings})
        return
    noun = "run" if len(collected.figures) == 1 else "runs"
    console.print(f"Registered {len(collected.figures)} {noun}.")
    print_findings(findings)


def _runs_below(directory: Path, now_ns: int) -> Collected:
    """Read the runs below a directory; one that cannot be read does not hide the others."""
    found = Collected([], [])
    for path in find_runs([directory]):
        try:
            found.figures.append(read_figures(path, now_ns))
        except (OutlayError, OSError) as error:
            found.findings.append(Finding(source=str(path), message=str(error)))
    return found


def _show_figures(
    rows: list[RunFigures], findings: list[Finding], now_ns: int, *, as_json: bool
) -> None:
    if as_json:
        print_json({"runs": rows, "findings": findings})
        return
    if not rows:
        console.print("No runs here. A run is a directory with ledger/*.jsonl in it.")
        print_findings(findings)
        return
    table = new_table("run", "status", ">attempts", ">steps", ">cost", "last seen", "directory")
    for row in rows:
        table.add_row(
            row.name, row.status, str(row.attempts), f"{row.steps:,}", _cost(row),
            _ago(now_ns - row.last_seen_ns), row.dir,
        )  # fmt: skip
    console.print(table)
    print_findings(findings)


def _running_table(running: list[RunFigures], now_ns: int) -> object:
    table = new_table("run", ">steps", ">for", ">cost so far", ">per hour", "last seen")
    for figures in running:
        burn = figures.burn_micros_per_hour
        per_hour = (
            "no price"
            if burn is None or figures.cost is None
            else f"{Money(burn, figures.cost.currency)}{_kind(figures)}"
        )
        table.add_row(
            figures.name, f"{figures.steps:,}", duration_text(figures.wall_ns),
            _cost(figures), per_hour, _ago(now_ns - figures.last_seen_ns),
        )  # fmt: skip
    return table


def _in_logs(all_figures: Iterable[RunFigures]) -> list[Finding]:
    """Return what is wrong in the logs of several runs; which one it is stands in front."""
    return [
        replace(finding, source=f"{figures.dir}: {finding.source}")
        for figures in all_figures
        for finding in figures.findings
    ]


def _wrong(all_figures: list[RunFigures]) -> list[Finding]:
    """Return what deserves a look: findings in open runs, and runs that died without a word."""
    findings = _in_logs(all_figures)
    for figures in all_figures:
        if figures.status == "dead":
            when = utc_text(figures.last_seen_ns)
            message = f"{figures.name} gave no sign of life since {when} and did not say goodbye"
            findings.append(Finding(source=figures.dir, message=message, severity="warning"))
    return findings


def _must_exist(directory: Path) -> None:
    if not directory.is_dir():
        raise InvalidValue("DIR", str(directory), "an existing directory")


def _cost(figures: RunFigures) -> str:
    return "no price" if figures.cost is None else f"{figures.cost}{_kind(figures)}"


def _kind(figures: RunFigures) -> str:
    return "" if figures.kind == "cash" else f" {figures.kind}"


def _ago(ns: int) -> str:
    return "just now" if ns < 5 * 10**9 else f"{duration_text(ns)} ago"
