"""Two months of a team: 41 runs, three of them alive, rentals, ceilings, three currencies.

Names have 72 characters and amounts up to eight digits, so that pages are seen at their widest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgers import START_NS, Segment
from outlay.clock import ManualClock
from outlay.cost.cost_book import CostBook
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Rental, Vendor
from outlay.guard.rental.watch import remember_log
from outlay.ledger import Metric, Price
from outlay.runs.collect import collect
from outlay.store import open_store

DAY_S: Final = 86_400.0
HOUR_S: Final = 3600.0
DAY_NS: Final = 86_400 * 10**9
RUNS: Final = 41
LIVE: Final = 3
LONG: Final = "pretrain-transformer-xl-8b-mixture-of-experts-fineweb-edu-seed-000000072"
MODELS: Final = ("bert-large", "llama-8b", "resnet-50", "whisper-small")
USERS: Final = ("ada", "grace", "linus")
TEAMS: Final = ("nlp", "speech", "vision")
OVER_MODEL: Final = "llama-8b"
DEAD: Final = "evaluation-that-died"


@dataclass(frozen=True)
class TwoMonths:
    """Where it is: the run directories, and the spend logs."""

    runs: tuple[Path, ...]
    logs: tuple[Path, ...]


def write_two_months(root: Path, now_ns: int, *, runs: int = RUNS) -> TwoMonths:
    """Write and register all of it, as it is at ``now_ns``; the store is that of OUTLAY_HOME."""
    directories = tuple(_write_run(root, number, runs, now_ns) for number in range(runs))
    store = open_store()
    collect(store, directories, now_ns)
    book = CostBook(store)
    spent = sum(row.paid.micros for row in book.reports(OVER_MODEL) if row.paid.currency == "USD")
    book.set_budget(OVER_MODEL, f"{spent * 100 // 101 / 1e6:.2f} USD", now_ns)
    book.set_budget("bert-large", "99999999 USD", now_ns)
    logs = _write_logs(root, now_ns)
    return TwoMonths(directories, logs)


def _write_run(root: Path, number: int, runs: int, now_ns: int) -> Path:
    lives, is_dead = number >= runs - LIVE, number == runs // 3
    hours = 3 + number * 7 % 29
    before_s = 60 * DAY_S * (runs - number) / runs if not lives else hours * HOUR_S + 7
    if is_dead:
        before_s = 35 * DAY_S
    currency = ("USD", "USD", "USD", "EUR", "USD", "CHF")[number % 6]
    per_hour = 900_000 if number == runs - 9 else 2 + number % 5 * 3
    name = LONG if number % 10 == 7 else f"{MODELS[number % 4]}-{number:03d}"
    about = {
        "run_id": f"r{number:03d}", "name": DEAD if is_dead else name,
        "model": MODELS[number % 4], "user": USERS[number % 3], "host": f"node-{number % 4}",
        "tags": {"team": TEAMS[number % 3], "project": f"project-{number % 5}"},
        "gpus": 1 + number % 4, "instance_id": "pod-7" if number == runs - 1 else "",
        "price": Price(micros_per_hour=per_hour * 1_000_000, currency=currency),
    }  # fmt: skip
    story = Segment(start=(now_ns - START_NS) / 1e9 - before_s, about=about)
    for step in range(30):
        length = hours * HOUR_S / 32
        story.step(length * 0.8, wait=length * (0.5 if step % 11 == 3 else 0.1), tokens=4096)
        story.add(Metric(t_ns=story.now_ns, name="loss", value=4 / (step + 2), step=step))
    if lives:
        story.heartbeat((now_ns - story.now_ns) / 1e9)
    else:
        story.checkpoint().span("evaluation", hours * 90)
        if not is_dead:
            story.end(("completed", "completed", "failed", "preempted")[number % 4])
    story.write(root / f"run-{number:03d}")
    return root / f"run-{number:03d}"


def _write_logs(root: Path, now_ns: int) -> tuple[Path, ...]:
    """Write a log over its day cap, one at 93 % with rentals, and one at 22 %."""
    spent_daily: tuple[tuple[str, str, str | None, int], ...] = (
        ("by-hand", "30000 USD", "1000", 300), ("rented", "1000 USD", None, 30),
        ("calm", "5000 EUR", None, 55),
    )  # fmt: skip
    found = []
    for name, ceiling, day, daily in spent_daily:
        path = root / name / "spend.jsonl"
        path.parent.mkdir(parents=True)
        amount, currency = ceiling.split()
        if day is not None:
            limits = {"ceiling_usd": int(amount), "ceiling_per_day_usd": int(day)}
            (path.parent / "manifest.json").write_text(json.dumps(limits | {"currency": currency}))
        for back in range(20, -1, -1):
            clock = ManualClock(now_ns - back * DAY_NS)
            guard = BudgetGuard(ceiling, path, clock=clock, currency=currency)
            last = back == 0 and day is not None
            guard.record_actual(f"lab0{back % 3}-sweep", 1542 if last else daily + back % 4)
        if name == "rented":
            _rent(guard, now_ns)
        remember_log(path)
        found.append(path)
    return tuple(found)


def _rent(guard: BudgetGuard, now_ns: int) -> None:
    for name, hours in (("pod-7", 20), ("pod-8-in-no-run", 9)):
        start, end = (_text(now_ns + int(s * 1e9)) for s in (-hours * HOUR_S, 6 * HOUR_S))
        vendor = Vendor(name="own", list=("list",), terminate=("end", "{id}"))
        rental = Rental(name=name, rate="2.50 USD/h", started=start, deadline=end, vendor=vendor)
        hold = guard.authorize(f"lab01-{name}", "70", rental=rental)
        guard.note("created", hold=hold, detail={"resource": name})
        guard.note("listed", hold=hold)


def _text(t_ns: int) -> str:
    from outlay.clock import utc_datetime

    return utc_datetime(t_ns).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
