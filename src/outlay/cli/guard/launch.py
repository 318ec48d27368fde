"""``outlay guard init | preflight | postflight``: around a launch; none of them launches."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from outlay.cli.guard.options import (
    DEFAULT_LOG,
    Ceiling,
    Confirm,
    Lab,
    Log,
    open_guard,
    read_rate,
    watched,
)
from outlay.cli.output import AsJson, console, print_json
from outlay.clock import SYSTEM, utc_text
from outlay.errors import InvalidValue, Refused
from outlay.guard.checklist import (
    Check,
    Flight,
    LaunchEstimate,
    LaunchPlan,
    SurveySummary,
    postflight,
    preflight,
    write_documents,
)
from outlay.guard.entries import lab_of
from outlay.guard.rental.watch import Reaper
from outlay.units import Money, Rate
from outlay.units.quantity import exact_decimal


def show_init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the pages and the log go.")
    ],
    ceiling: Annotated[str, typer.Option(help="The hard ceiling, such as 5.")],
    lab: Annotated[
        list[str] | None,
        typer.Option(
            "--project",
            "--lab",
            metavar="NAME=CAP",
            help="A project's cap, such as 02=3.00; repeatable.",
        ),
    ] = None,
    day: Annotated[str | None, typer.Option(help="A cap on every day, UTC.")] = None,
    month: Annotated[str | None, typer.Option(help="A cap on every month, UTC.")] = None,
    buffer: Annotated[str, typer.Option(help="For retries and setup.")] = "0",
    gpus: Annotated[int, typer.Option(help="GPUs of the dearest project.")] = 2,
    price: Annotated[str | None, typer.Option(help="Per GPU-hour; default: 0.35, assumed.")] = None,
    hours: Annotated[str, typer.Option(help="How long the dearest project takes.")] = "3",
    vendor: Annotated[str, typer.Option(help="The vendor that was picked.")] = "<chosen>",
    survey_date: Annotated[str, typer.Option(help="When prices were looked up.")] = "",
    survey_price: Annotated[
        list[str] | None, typer.Option(help="A vendor's price, such as runpod=0.35; repeatable.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an earlier plan.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write budget.md, pre-flight-checklist.md and manifest.json; launch nothing.

    Example: outlay guard init budget --ceiling 5 --project 02=3.00 --project 03=0 --buffer 2.00
    """
    estimate = LaunchEstimate(
        gpus=gpus,
        price=Rate.parse(price or "0.35", name="--price"),
        hours=exact_decimal(hours, name="--hours", expected="a number of hours"),
        assumed=price is None,
    )
    plan = LaunchPlan(
        ceiling=Money.parse(ceiling, name="--ceiling"),
        labs={
            lab_of("", n): Money.parse(v, name=f"project {n}") for n, v in _pairs(lab, "--project")
        },
        buffer=Money.parse(buffer, name="--buffer"),
        day=None if day is None else Money.parse(day, name="--day"),
        month=None if month is None else Money.parse(month, name="--month"),
        estimate=estimate,
        survey=SurveySummary(
            vendor=vendor, date=survey_date, prices=dict(_pairs(survey_price, "--survey-price"))
        ),
    )
    paths = write_documents(directory, plan, replace=replace)
    if as_json:
        print_json({"written": [os.fspath(path) for path in paths], "total": plan.total})
        return
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
    console.print(f"{plan.total} of {plan.ceiling} are planned; nothing was launched")


def show_preflight(
    label: Annotated[str, typer.Option(help="What is about to be launched.")],
    estimate: Annotated[str, typer.Option(help='What it should cost, such as "2.10 USD".')],
    rate: Annotated[
        str | None,
        typer.Option(help='What all of it costs, such as "0.70 USD/h" or lambda:8xH100.'),
    ] = None,
    lab: Lab = None,
    vendor: Annotated[
        str | None, typer.Option(help="Ask runpod, vast or lambda what else runs.")
    ] = None,
    confirm: Confirm = None,
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Check everything before a launch, ask for what no machine can know; exit 3 on a failure.

    Example: outlay guard preflight --label lab02-tp --estimate "2.10 USD" --rate "0.70 USD/h"
    """
    guard = open_guard(log, ceiling)
    flight = Flight(
        label=label,
        estimate=Money.parse(estimate, name="--estimate", currency=guard.currency, rounding="up"),
        rate=None if rate is None else read_rate(rate, name="--rate", currency=guard.currency),
        lab=lab,
    )
    now_ns = SYSTEM.wall_ns()
    census = Reaper(guard, os.environ, extra=watched(vendor)).census() if vendor else None
    checks = preflight(guard, flight, now_ns=now_ns, census=census)
    checks = _ask(checks, confirm or [], as_json=as_json)
    passed = all(check.passed for check in checks)
    if passed:
        detail = {"start": utc_text(now_ns), "estimate": str(flight.estimate)}
        guard.note("preflight", label, detail=detail)
    _show_checks(checks, passed=passed, as_json=as_json)


def show_postflight(
    label: Annotated[str, typer.Option(help="What was launched.")],
    proof: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A screenshot of the vendor's console.")
    ] = None,
    vendor: Annotated[
        str | None, typer.Option(help="Ask runpod, vast or lambda what still runs.")
    ] = None,
    confirm: Confirm = None,
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Check that all of it ended and was settled, and record the proof; exit 3 on a failure.

    Example: outlay guard postflight --label lab02-tp --proof proof-terminated.png
    """
    guard = open_guard(log, None)
    if proof is not None and not proof.is_file():
        raise InvalidValue("--proof", str(proof), "a file, such as a screenshot")
    census = Reaper(guard, os.environ, extra=watched(vendor)).census() if vendor else None
    confirmed = [*(confirm or []), *(["gone"] if proof else [])]
    checks = _ask(postflight(guard, label, census=census), confirmed, as_json=as_json)
    passed = all(check.passed for check in checks)
    if passed:
        detail = {"ended": utc_text(SYSTEM.wall_ns())}
        if proof is not None:
            digest = hashlib.sha256(proof.read_bytes()).hexdigest()
            detail |= {"proof": proof.name, "sha256": digest}
        guard.note("postflight", label, detail=detail)
    _show_checks(checks, passed=passed, as_json=as_json)


def _ask(checks: tuple[Check, ...], confirmed: list[str], *, as_json: bool) -> tuple[Check, ...]:
    """Ask a person what no machine can tell; without a person, what is not confirmed fails."""
    names = set(confirmed)
    for check in checks:
        askable = check.passed is None and check.name not in names
        if askable and sys.stdin.isatty() and not as_json and typer.confirm(f"{check.text}?"):
            names.add(check.name)
    return tuple(check.confirmed(names) for check in checks)


def _show_checks(checks: tuple[Check, ...], *, passed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"passed": passed, "checks": checks})
    else:
        console.print(_checks_table(checks))
    raise typer.Exit(0 if passed else Refused.exit_code)


def _checks_table(checks: tuple[Check, ...]) -> Table:
    marks = {
        True: Text("ok", style="green"),
        False: Text("FAILED", style="red"),
        None: Text("open", style="red"),
    }
    table = Table.grid(padding=(0, 1))
    for check in checks:
        hint = f" (--confirm {check.name})" if check.passed is None else ""
        table.add_row(marks[check.passed], Text(f"{check.text}{hint}"))
    return table


def _pairs(values: list[str] | None, name: str) -> list[tuple[str, str]]:
    pairs = []
    for value in values or []:
        key, equals, content = value.partition("=")
        if not (key.strip() and equals and content.strip()):
            raise InvalidValue(name, value, "a name and an amount, such as 02=3.00")
        pairs.append((key.strip(), content.strip()))
    return pairs
