"""``outlay guard``: what may be launched, what is held, what was spent."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.guard import launch as guard_plan
from outlay.cli.guard import log as guard_books
from outlay.cli.guard import spend as guard_spend
from outlay.cli.guard.options import DEFAULT_LOG, Ceiling, Lab, Log, open_guard, read_rate
from outlay.cli.output import AsJson, WrappingCommand, console, print_json
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.guard.checklist import cost_since_start

app = typer.Typer(help="Ask before spending; end what is rented.", no_args_is_help=True)

# The panels of its help.
LOOK = "Look"
SPEND = "Spend below a ceiling"
RENT = "Rent, and end what was rented"
LAUNCH = "Around a launch"
CORRECT = "Correct the books"


def show_authorize(
    label: Annotated[str, typer.Argument(help="The operation, such as lab02-tp-spinup.")],
    amount: Annotated[str, typer.Argument(help='The most it may cost, such as "3.00 USD".')],
    lab: Lab = None,
    key: Annotated[str, typer.Option(help="Idempotency key: asking twice holds once.")] = "",
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Set money aside for an operation; exit 3 when there is no room.

    Example: outlay guard authorize lab02-tp-spinup "3.00 USD" --ceiling 5
    """
    guard = open_guard(log, ceiling)
    # This process is about to end; whoever types `outlay guard record` settles the hold.
    hold = guard.authorize(label, amount, lab=lab, key=key, by="a person")
    if as_json:
        print_json(hold)
    else:
        text = f"hold {hold.id}: {hold.amount} for {label}, project {hold.lab}"
        console.print(text, soft_wrap=True)


def show_record(
    label: Annotated[str, typer.Argument(help="The operation, as it was authorised.")],
    amount: Annotated[
        str | None,
        typer.Argument(metavar="[AMOUNT]", help='What it cost, such as "2.10 USD"; or --rate.'),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help='Charge the time since its preflight, at "0.70 USD/h".')
    ] = None,
    hold: Annotated[str | None, typer.Option(help="The hold it settles.")] = None,
    key: Annotated[str, typer.Option(help="Idempotency key: recording twice counts once.")] = "",
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Record what an operation really cost; it settles the label's oldest hold.

    Example: outlay guard record lab02-tp-spinup "2.10 USD"
    """
    if (amount is None) == (rate is None):
        raise InvalidValue("AMOUNT", amount, "either what it cost, or --rate after a preflight")
    guard = open_guard(log, ceiling)
    if rate is None:
        captured = guard.record_actual(label, amount, hold=hold, key=key)
    else:
        per_hour = read_rate(rate, name="--rate", currency=guard.currency)
        cost = cost_since_start(guard, label, per_hour, now_ns=SYSTEM.wall_ns())
        captured = guard.record_actual(label, cost, hold=hold, key=key, basis="estimated")
    if as_json:
        print_json(captured)
        return
    settled = f"settles hold {captured.hold}" if captured.hold else "was never authorised"
    text = f"{captured.actual} {captured.currency} for {label} ({settled})"
    console.print(text, soft_wrap=True)


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
    guard_books.print_status(guard, as_json=as_json)


def show_correct(
    label: Annotated[str, typer.Argument(help="The operation.")],
    difference: Annotated[str, typer.Argument(help="The difference, such as -0.50.")],
    reason: Annotated[str, typer.Option(help="Where the right figure comes from.")],
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Add a difference to what was recorded; nothing is ever edited.

    Example: outlay guard correct lab02-tp-spinup --reason "invoice 7" -- -0.50
    """
    guard = open_guard(log, None)
    guard.correct(label, difference, reason)
    guard_books.print_status(guard, as_json=as_json)


for panel, name, command in (
    (LOOK, "status", guard_books.show_status),
    (LOOK, "history", guard_books.show_history),
    (LOOK, "verify", guard_books.show_verify),
    (SPEND, "run", guard_spend.show_run),
    (SPEND, "authorize", show_authorize),
    (SPEND, "record", show_record),
    (RENT, "rent", guard_spend.show_rent),
    (RENT, "down", guard_spend.show_down),
    (RENT, "reap", guard_spend.show_reap),
    (RENT, "adopt", guard_spend.show_adopt),
    (LAUNCH, "init", guard_plan.show_init),
    (LAUNCH, "preflight", guard_plan.show_preflight),
    (LAUNCH, "postflight", guard_plan.show_postflight),
    (CORRECT, "set-ceiling", guard_books.show_set_ceiling),
    (CORRECT, "reconcile", guard_books.show_reconcile),
    (CORRECT, "void", show_void),
    (CORRECT, "correct", show_correct),
    (CORRECT, "accept", guard_books.show_accept),
):
    wraps = WrappingCommand if name == "run" else None
    app.command(name, cls=wraps, rich_help_panel=panel)(command)
