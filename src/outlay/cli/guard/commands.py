"""``outlay guard``: its table of commands, and those used by hand around a launch."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from outlay.cli.guard import log as guard_log
from outlay.cli.guard import spend as guard_spend
from outlay.cli.guard.options import DEFAULT_LOG, Ceiling, Lab, Log, open_guard, read_rate, watched
from outlay.cli.output import AsJson, WrappingCommand, console, print_json, print_sentence
from outlay.clock import utc_text
from outlay.errors import InvalidValue, Refused
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.checklist import (
    Check,
    Flight,
    LaunchEstimate,
    LaunchPlan,
    cost_since_start,
    postflight,
    preflight,
    write_documents,
)
from outlay.guard.entries import read_amount
from outlay.guard.rental.watch import Reaper, RentalInventory
from outlay.guard.scopes import BUFFER, lab_of
from outlay.units import Money, Rate
from outlay.units.quantity import exact_decimal

app = typer.Typer(help="Check before spending; end rentals.", no_args_is_help=True)

# Help panels.
LOOK = "Look"
SPEND = "Spend below a ceiling"
RENT = "Rent, and end rentals"
LAUNCH = "Before and after a launch"
CORRECT = "Correct the spend log"
COPY = "Copy a spend log between a file and a book"

Confirm = Annotated[
    list[str] | None, typer.Option("--confirm", help="Name of a check that you made; repeatable.")
]


def show_authorize(
    label: Annotated[str, typer.Argument(help="The operation, such as lab02-tp-spinup.")],
    amount: Annotated[str, typer.Argument(help='The most it may cost, such as "3.00 USD".')],
    lab: Lab = None,
    key: Annotated[str, typer.Option(help="Idempotency key: repeated calls hold once.")] = "",
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Hold money for an operation; exit 3 if it does not fit below the ceiling.

    Example: outlay guard authorize lab02-tp-spinup "3.00 USD" --ceiling 5
    """
    guard = open_guard(log, ceiling)
    # Held by a person: this process ends now, and `outlay guard record` settles the hold.
    hold = guard.authorize(label, amount, lab=lab, key=key, by="a person")
    if as_json:
        print_json(hold)
    else:
        project = "" if hold.lab == BUFFER else f", project {hold.lab}"
        print_sentence(f"hold {hold.id}: {hold.amount} for {label}{project}")


def show_record(
    label: Annotated[str, typer.Argument(help="The operation, as authorised.")],
    amount: Annotated[
        str | None,
        typer.Argument(metavar="[AMOUNT]", help='Its cost, such as "2.10 USD"; or --rate.'),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help='Charge the time since its preflight at "0.70 USD/h".')
    ] = None,
    hold: Annotated[
        str | None, typer.Option(help="Id of the hold to settle; default: the oldest of the label.")
    ] = None,
    key: Annotated[str, typer.Option(help="Idempotency key: repeated calls record once.")] = "",
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Record what an operation cost and settle its hold.

    Example: outlay guard record lab02-tp-spinup "2.10 USD"
    """
    if (amount is None) == (rate is None):
        raise InvalidValue("AMOUNT", amount, "either what it cost, or --rate after a preflight")
    guard = open_guard(log, ceiling)
    if rate is None:
        captured = guard.record_actual(label, amount, hold=hold, key=key, basis="stated")
    else:
        per_hour = read_rate(rate, guard, name="--rate")
        cost = cost_since_start(guard, label, per_hour, now_ns=guard.log_time_ns())
        captured = guard.record_actual(label, cost, hold=hold, key=key, basis="estimated")
    if as_json:
        print_json(captured)
        return
    settled = f"settles hold {captured.hold}" if captured.hold else "was never authorised"
    print_sentence(f"{captured.actual} {captured.currency} for {label} ({settled})")


def show_void(
    hold: Annotated[str, typer.Argument(help="The hold's id.")],
    reason: Annotated[str, typer.Option(help="Why nothing was spent.")],
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Release a hold on which nothing was spent.

    Example: outlay guard void 1f0a2b3c4d5e --reason "the pod was never created"
    """
    guard = open_guard(log, None)
    guard.void(hold, reason)
    guard_log.print_status(guard, as_json=as_json)


def show_correct(
    label: Annotated[str, typer.Argument(help="The operation.")],
    difference: Annotated[str, typer.Argument(help="The difference, such as -0.50.")],
    reason: Annotated[str, typer.Option(help="The source of the right figure.")],
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Append a correction; recorded lines are never changed.

    Example: outlay guard correct lab02-tp-spinup --reason "invoice 7" -- -0.50
    """
    guard = open_guard(log, None)
    guard.correct(label, difference, reason)
    guard_log.print_status(guard, as_json=as_json)


# Before and after a launch. None of these commands launches anything.


def show_init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write; the log goes there, too.")
    ],
    ceiling: Annotated[str, typer.Option(help="Above it launches are refused, such as 5.")],
    lab: Annotated[
        list[str] | None,
        typer.Option(
            "--project",
            "--lab",
            metavar="NAME=CAP",
            help="A project's cap, such as 02=3.00; repeatable.",
        ),
    ] = None,
    day: Annotated[str | None, typer.Option(help="A cap per day, UTC.")] = None,
    month: Annotated[str | None, typer.Option(help="A cap per month, UTC.")] = None,
    buffer: Annotated[str, typer.Option(help="For retries and setup.")] = "0",
    gpus: Annotated[int, typer.Option(help="GPUs of the most expensive project.")] = 2,
    price: Annotated[str | None, typer.Option(help="Per GPU-hour; default: 0.35, assumed.")] = None,
    hours: Annotated[str, typer.Option(help="Hours of the most expensive project.")] = "3",
    vendor: Annotated[str, typer.Option(help="The chosen vendor.")] = "<chosen>",
    survey_date: Annotated[str, typer.Option(help="Date of the prices.")] = "",
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
        vendor=vendor,
        survey_date=survey_date,
        survey_prices=dict(_pairs(survey_price, "--survey-price")),
    )
    paths = write_documents(directory, plan, replace=replace)
    if as_json:
        print_json({"written": [os.fspath(path) for path in paths], "total": plan.total})
        return
    for path in paths:
        print_sentence(f"wrote {path}")
    console.print(f"{plan.total} of {plan.ceiling} planned; nothing was launched")


def show_preflight(
    label: Annotated[str, typer.Option(help="The operation to be launched.")],
    estimate: Annotated[str, typer.Option(help='Its expected cost, such as "2.10 USD".')],
    rate: Annotated[
        str | None, typer.Option(help='Total price per hour: "0.70 USD/h" or lambda:8xH100.')
    ] = None,
    lab: Lab = None,
    vendor: Annotated[
        str | None, typer.Option(help="Check what else runs at runpod, vast or lambda.")
    ] = None,
    confirm: Confirm = None,
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Check everything before a launch, with questions for a person; exit 3 on a failure.

    Example: outlay guard preflight --label lab02-tp --estimate "2.10 USD" --rate "0.70 USD/h"
    """
    guard = open_guard(log, ceiling)
    flight = Flight(
        label=label,
        estimate=read_amount(estimate, name="--estimate", unit=guard.unit),
        rate=None if rate is None else read_rate(rate, guard, name="--rate"),
        lab=lab,
    )
    now_ns = guard.log_time_ns()
    checks = preflight(guard, flight, now_ns=now_ns, inventory=_inventory(guard, vendor))
    checks = _ask(checks, confirm or [], as_json=as_json)
    passed = all(check.passed for check in checks)
    if passed:
        detail = {"start": utc_text(now_ns), "estimate": str(flight.estimate)}
        guard.note("preflight", label, detail=detail)
    _show_checks(checks, passed=passed, as_json=as_json)


def show_postflight(
    label: Annotated[str, typer.Option(help="The operation that was launched.")],
    proof: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A screenshot of the vendor's console.")
    ] = None,
    vendor: Annotated[
        str | None, typer.Option(help="Check what still runs at runpod, vast or lambda.")
    ] = None,
    confirm: Confirm = None,
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Check that everything ended and was settled, and record the proof; exit 3 on a failure.

    Example: outlay guard postflight --label lab02-tp --proof proof-terminated.png
    """
    guard = open_guard(log, None)
    if proof is not None and not proof.is_file():
        raise InvalidValue("--proof", str(proof), "a file, such as a screenshot")
    inventory = _inventory(guard, vendor)
    confirmed = [*(confirm or []), *(["gone"] if proof else [])]
    checks = _ask(postflight(guard, label, inventory=inventory), confirmed, as_json=as_json)
    passed = all(check.passed for check in checks)
    if passed:
        detail = {"ended": utc_text(guard.log_time_ns())}
        if proof is not None:
            digest = hashlib.sha256(proof.read_bytes()).hexdigest()
            detail |= {"proof": proof.name, "sha256": digest}
        guard.note("postflight", label, detail=detail)
    _show_checks(checks, passed=passed, as_json=as_json)


def _inventory(guard: BudgetGuard, vendor: str | None) -> RentalInventory | None:
    return Reaper(guard, os.environ, extra=watched(vendor)).inventory() if vendor else None


def _ask(checks: tuple[Check, ...], confirmed: list[str], *, as_json: bool) -> tuple[Check, ...]:
    """Ask for the checks that only a person can make; without a terminal they stay open."""
    width = max(console.width - len(" [y/N]: "), 1)
    names = set(confirmed)
    for check in checks:
        askable = check.passed is None and check.name not in names
        question = fill(f"{check.text}?", width)
        if askable and sys.stdin.isatty() and not as_json and typer.confirm(question):
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


for panel, name, command in (
    (LOOK, "status", guard_log.show_status),
    (LOOK, "history", guard_log.show_history),
    (LOOK, "verify", guard_log.show_verify),
    (SPEND, "run", guard_spend.show_run),
    (SPEND, "authorize", show_authorize),
    (SPEND, "record", show_record),
    (RENT, "rent", guard_spend.show_rent),
    (RENT, "down", guard_spend.show_down),
    (RENT, "reap", guard_spend.show_reap),
    (RENT, "adopt", guard_spend.show_adopt),
    (LAUNCH, "init", show_init),
    (LAUNCH, "preflight", show_preflight),
    (LAUNCH, "postflight", show_postflight),
    (CORRECT, "set-ceiling", guard_log.show_set_ceiling),
    (CORRECT, "reconcile", guard_log.show_reconcile),
    (CORRECT, "void", show_void),
    (CORRECT, "correct", show_correct),
    (CORRECT, "accept", guard_log.show_accept),
    (CORRECT, "deliver", guard_log.show_deliver),
    (COPY, "export", guard_log.show_export),
    (COPY, "import", guard_log.show_import),
):
    wraps = WrappingCommand if name in ("run", "rent") else None
    app.command(name, cls=wraps, rich_help_panel=panel)(command)
