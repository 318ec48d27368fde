"""What registered runs cost within a month.

Exact from their reports and logs; split by time, with a finding, only where a log is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import MAXYEAR, UTC, datetime
from pathlib import Path

from outlay.clock import wall_ns_of
from outlay.cost.book import CostRow
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.goodput.breakdown import Window
from outlay.ledger.price import Kind
from outlay.store.runs import RunRow
from outlay.units import Money

_MONTH = re.compile(r"(\d{4})-(\d{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCharge:
    """What one run cost within a period."""

    run: RunRow
    window: Window
    cost: Money
    gpu_us: int
    kind: Kind = "cash"


@dataclass(frozen=True, slots=True)
class MonthlyCharges:
    """What runs cost within a period, and what is in doubt about it."""

    charges: list[RunCharge]
    findings: list[Finding]


def month_window(text: str) -> Window:
    """Return ``2026-10`` as the window of that month in UTC.

    Raises:
        InvalidValue: It is no month.
    """
    match = _MONTH.fullmatch(text)
    year, month = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1970 <= year < MAXYEAR or not 1 <= month <= 12:
        raise InvalidValue("month", text, "a month such as 2026-10")
    following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return Window(wall_ns_of(datetime(year, month, 1, tzinfo=UTC)), wall_ns_of(following))


def owner_by(by: str) -> Callable[[RunRow], str]:
    """Return what says whose a run is; "" where the run does not say.

    Args:
        by: ``user``, ``model``, ``team``, ``project`` (tags of that name), or ``tag:NAME``.

    Raises:
        InvalidValue: It is none of these.
    """
    match by.split(":", 1):
        case ["user"]:
            return lambda run: run.user
        case ["model"]:
            return lambda run: run.model
        case [("team" | "project") as tag]:
            return lambda run: run.tags.get(tag, "")
        case ["tag", tag] if tag:
            return lambda run: run.tags.get(tag, "")
        case _:
            raise InvalidValue("--by", by, "user, model, team, project or tag:NAME")


def charges_within(
    runs: Iterable[RunRow], reports: Iterable[CostRow], period: Window, now_ns: int
) -> MonthlyCharges:
    """Return what each run cost within a period.

    A run that lies in it as a whole costs what its report says; one that reaches beyond it is read
    again, since prices may have changed within it.
    """
    known = {report.run_id: report for report in reports}
    charges: list[RunCharge] = []
    findings: list[Finding] = []
    for run in runs:
        window = _overlap(run, period)
        report = known.get(run.run_id)
        if window is None or report is None:
            continue
        whole = period.start_ns <= run.started_ns and run.last_seen_ns <= period.end_ns
        if whole:
            charge = RunCharge(run=run, window=window, cost=report.cost, gpu_us=report.gpu_us)
        else:
            charge, doubt = _part(run, report, window, now_ns)
            findings += doubt
        charges.append(replace(charge, kind=report.kind))
    return MonthlyCharges(charges, findings)


def _overlap(run: RunRow, period: Window) -> Window | None:
    start_ns = max(run.started_ns, period.start_ns)
    end_ns = min(run.last_seen_ns, period.end_ns)
    return Window(start_ns, end_ns) if start_ns < end_ns else None


def _part(
    run: RunRow, report: CostRow, window: Window, now_ns: int
) -> tuple[RunCharge, list[Finding]]:
    from outlay.cost.run_cost import cost_of
    from outlay.goodput.follower import read_view

    try:
        cost = cost_of(read_view(Path(run.dir), now_ns), window)
    except (OutlayError, OSError):
        cost = None
    if cost is not None and cost.cost is not None:
        gpu_us = cost.gpu_ns // 1000
        return RunCharge(run=run, window=window, cost=cost.cost, gpu_us=gpu_us), []
    micros = _by_time(report.cost_micros, run, window)
    gpu_us = _by_time(report.gpu_us, run, window)
    message = f"{run.name} reaches beyond the period and its log cannot be read: split by time"
    doubt = Finding(source=run.dir, message=message, severity="warning")
    part = RunCharge(run=run, window=window, cost=Money(micros, report.currency), gpu_us=gpu_us)
    return part, [doubt]


def _by_time(amount: int, run: RunRow, window: Window) -> int:
    """Return the window's part of an amount; the parts of adjacent windows sum to the whole."""
    length_ns = run.last_seen_ns - run.started_ns

    def until(wall_ns: int) -> int:
        return amount * (wall_ns - run.started_ns) // length_ns

    return until(window.end_ns) - until(window.start_ns)
