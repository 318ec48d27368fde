"""``outlay guard run | rent | reap | down``: spending under the guard's eyes."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from outlay.cli.guard_options import (
    DEFAULT_LOG,
    Ceiling,
    Lab,
    Log,
    VendorName,
    minute_of,
    open_guard,
    read_rate,
    say,
    watched,
)
from outlay.cli.options import AsJson
from outlay.cli.output import console, new_table, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue, Refused
from outlay.guard.commands import words
from outlay.guard.entries import Vendor
from outlay.guard.lease import Terms
from outlay.guard.reap import Census, Reaper
from outlay.guard.renting import Order, rent
from outlay.guard.supervise import Supervisor
from outlay.guard.vendors import preset
from outlay.guard.watch import start_watcher
from outlay.ledger import read_identity
from outlay.runs.inbox import leave_notice
from outlay.runs.options import Arguments, resolve
from outlay.units import Duration, Money
from outlay.units.numbers import exact_decimal

Label = Annotated[str, typer.Option(help="What the spend is called, such as lab02-train.")]
RateOption = Annotated[
    str,
    typer.Option("--rate", help='What all of it costs, such as "0.70 USD/h" or lambda:8xH100.'),
]
ListCommand = Annotated[
    str | None,
    typer.Option("--list", metavar="COMMAND", help="Prints everything that runs, as JSON."),
]
TerminateCommand = Annotated[
    str | None,
    typer.Option(
        "--terminate", metavar="COMMAND", help="Ends {id} for good; never merely stops it."
    ),
]


def show_run(
    label: Label,
    rate: RateOption,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- CMD...", help="The command and its arguments.")
    ] = None,
    max_hours: Annotated[
        str | None, typer.Option(help='The longest it may run: 3, or "90m".')
    ] = None,
    slice: Annotated[str, typer.Option(help="How much time is paid for at once.")] = "5m",
    notice: Annotated[str, typer.Option(help="How long it has from SIGTERM to SIGKILL.")] = "30s",
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where its run log goes; default: a new one."),
    ] = None,
    lab: Lab = None,
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Run a command that is the spend: it ends when its money or its time does.

    Example: outlay guard run --label lab02 --rate "0.70 USD/h" --max-hours 3 -- python train.py
    """
    if not command:
        raise InvalidValue("CMD", "nothing", "a command after --, such as -- python train.py")
    guard = open_guard(log, ceiling)
    terms = Terms(
        rate=read_rate(rate, name="--rate", currency=guard.currency),
        most=None if max_hours is None else _hours(max_hours),
        slice=Duration.parse(slice, name="--slice"),
        notice=Duration.parse(notice, name="--notice"),
    )
    arguments = Arguments(model=None, name=label, dir=directory)
    run_dir = resolve(arguments, os.environ, SYSTEM.wall_ns()).dir
    supervisor = Supervisor(guard, label, terms, lab=lab, run_dir=run_dir, say=say)
    outcome = supervisor.run(command, os.environ)
    if (identity := read_identity(run_dir)) is not None:
        leave_notice(identity.run_id, run_dir)
    if as_json:
        print_json(outcome)
    raise typer.Exit(outcome.exit_code or (0 if outcome.recorded else 1))


def show_rent(
    label: Label,
    rate: RateOption,
    limit: Annotated[str, typer.Option(help='What it may cost, such as "20 USD".')],
    create: Annotated[str, typer.Option(metavar="COMMAND", help="Creates it, with {name} in it.")],
    vendor: VendorName = None,
    list_command: ListCommand = None,
    terminate_command: TerminateCommand = None,
    id_from: Annotated[
        str | None, typer.Option(help="Where creation prints the id, such as json:.id.")
    ] = None,
    max_hours: Annotated[
        str | None, typer.Option(help='The longest it may live: 3, or "90m".')
    ] = None,
    margin: Annotated[str, typer.Option(help="Termination begins this early.")] = "2m",
    settle: Annotated[str, typer.Option(help="How long to look for a failed creation.")] = "60s",
    poll: Annotated[str, typer.Option(help="How often the watcher asks the vendor.")] = "30s",
    vendor_timer: Annotated[
        str, typer.Option(help="A timer set at the vendor; recorded, never trusted.")
    ] = "",
    lab: Lab = None,
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Rent something that bills on by itself, with a watcher that ends it in time.

    Example: outlay guard rent --label lab02 --limit "20 USD" --rate "0.70 USD/h" --vendor runpod
    --create 'runpodctl pod create --name {name} --gpu-id "NVIDIA GeForce RTX 4090"'
    """
    guard, every = open_guard(log, ceiling), Duration.parse(poll, name="--poll")
    order = Order(
        label=label,
        limit=Money.parse(limit, name="--limit", currency=guard.currency),
        rate=read_rate(rate, name="--rate", currency=guard.currency),
        vendor=_vendor(vendor, list_command, terminate_command, id_from),
        create=words(create, name="--create"),
        lab=lab,
        most=None if max_hours is None else _hours(max_hours),
        margin=Duration.parse(margin, name="--margin"),
        settle=Duration.parse(settle, name="--settle"),
        vendor_timer=vendor_timer,
    )
    hold = rent(
        guard, order, os.environ, say=say,
        start_watcher=lambda held: start_watcher(guard.log_path, held, os.environ, every),
    )  # fmt: skip
    assert hold.rental is not None
    if as_json:
        print_json(hold)
        return
    console.print(
        f"{hold.rental.name} is {hold.resource}; hold {hold.id}: {hold.amount}. It is told to end "
        f"at {hold.rental.deadline[:19]}Z, or now with `outlay guard down {label}`.",
        soft_wrap=True,
    )  # fmt: skip


def show_reap(
    terminate: Annotated[
        bool, typer.Option("--terminate", help="End what is overdue and ours, settle what is gone.")
    ] = False,
    vendor: VendorName = None,
    list_command: ListCommand = None,
    pause: Annotated[
        str, typer.Option(help="How long to wait between two looks at the vendor.")
    ] = "5s",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Compare what vendors run with the books; safe to run from cron, any number of times.

    Exits 3 while something of ours is overdue or lost, or a vendor does not answer.

    Example: outlay guard reap --terminate
    """
    guard, pause_s = open_guard(log, None), Duration.parse(pause, name="--pause").seconds
    reaper = Reaper(guard, os.environ, extra=_lister(vendor, list_command), say=say)
    census = reaper.census()
    if terminate:
        rentals = guard.log.books().rentals
        for row in census.rows:
            if row.needs_ending:
                reaper.end(rentals[row.hold], pause_s=pause_s)
            elif row.state in ("gone", "not listed"):
                reaper.settle(rentals[row.hold], pause_s=pause_s)
        census = reaper.census()
    _show_census(census, as_json=as_json)
    bad = census.findings or any(r.needs_ending or r.state == "lost" for r in census.rows)
    raise typer.Exit(Refused.exit_code if bad else 0)


def show_down(
    label: Annotated[str, typer.Argument(help="The operation whose rented things to end.")],
    pause: Annotated[
        str, typer.Option(help="How long to wait between two looks at the vendor.")
    ] = "5s",
    rounds: Annotated[int, typer.Option(help="How often to look before giving up.")] = 60,
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """End everything that was rented for an operation, and wait until it is gone.

    Example: outlay guard down lab02-train
    """
    guard, pause_s = open_guard(log, None), Duration.parse(pause, name="--pause").seconds
    holds = [hold for hold in guard.holds() if hold.op_label == label and hold.rental]
    if not holds:
        expected = "an operation with something rented; `outlay guard status` lists them"
        raise InvalidValue("LABEL", label, expected)
    reaper = Reaper(guard, os.environ, say=say)
    gone = {hold.id: reaper.end(hold, rounds=rounds, pause_s=pause_s) for hold in holds}
    if as_json:
        print_json([{"hold": hold, "gone": ended} for hold, ended in gone.items()])
    raise typer.Exit(0 if all(gone.values()) else 1)


def _show_census(census: Census, *, as_json: bool) -> None:
    if as_json:
        print_json({"rows": census.rows, "findings": census.findings})
        return
    table = new_table("vendor", "name", "id", "state", "operation", "ends at")
    for row in census.rows:
        table.add_row(
            row.vendor,
            row.name,
            row.id,
            row.state,
            row.label,
            minute_of(row.deadline) if row.deadline else "",
        )
    console.print(table if census.rows else "nothing is rented")
    print_findings(census.findings)


def _hours(text: str) -> Duration:
    """Return "3" as three hours; "90m" and "1h30m" as they say."""
    try:
        hours = exact_decimal(text, name="--max-hours", expected="hours")
    except InvalidValue:
        return Duration.parse(text, name="--max-hours")
    return Duration(int(hours * Decimal(3600 * 10**9)))


def _vendor(
    name: str | None, list_command: str | None, terminate: str | None, id_from: str | None
) -> Vendor:
    """Return the vendor's commands: a preset, our own, or a preset with some of our own."""
    if not name and not (list_command and terminate):
        raise InvalidValue("--vendor", name, "--vendor, or both --list and --terminate")
    vendor = preset(name) if name else Vendor(name="own", list=(), terminate=())
    if list_command:
        # Our own command prints what it prints: a bare array, and it reads nothing.
        own = words(list_command, name="--list")
        vendor = msgspec.structs.replace(vendor, list=own, items="", stdin="")
    if terminate:
        vendor = msgspec.structs.replace(vendor, terminate=words(terminate, name="--terminate"))
    return msgspec.structs.replace(vendor, id_from=id_from) if id_from else vendor


def _lister(name: str | None, list_command: str | None) -> tuple[Vendor, ...]:
    """Return a vendor to be looked at and never told anything, if one was named."""
    if list_command:
        return (Vendor(name=name or "own", list=words(list_command, name="--list"), terminate=()),)
    return watched(name)
