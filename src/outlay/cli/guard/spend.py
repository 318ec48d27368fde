"""``outlay guard run | rent | reap | adopt | down``: spending below a ceiling."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from outlay.cli.guard.options import (
    DEFAULT_LOG,
    Ceiling,
    Lab,
    Log,
    VendorName,
    minute_of,
    open_guard,
    read_rate,
    read_terms,
    say,
    unit_of_rate,
    watched,
)
from outlay.cli.guard.pausing_options import (
    Act,
    Below,
    Deadline,
    Highest,
    Lowest,
    MaxAge,
    Offers,
    Pauses,
    PausingOptions,
    PayPerUse,
    PolicyName,
    PriceCommand,
    PriceFileOption,
    PricePoll,
    Steps,
    StoppedPrice,
    Work,
)
from outlay.cli.output import (
    AsJson,
    UserCommand,
    console,
    new_table,
    print_findings,
    print_json,
    print_sentence,
)
from outlay.clock import SYSTEM
from outlay.errors import InvalidValue, Refused
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import A_PAGE, Vendor, read_amount
from outlay.guard.gate import allowance_of, guard_of_hold, read_deadline, read_hold
from outlay.guard.lease import Terms
from outlay.guard.rental.rental import NotARental, RentalOrder, check_rate, rent, split_command
from outlay.guard.rental.vendor_commands import preset
from outlay.guard.rental.watch import Reaper, RentalInventory, start_watcher
from outlay.guard.spend_log import is_url
from outlay.guard.supervise import CommandOutcome, Supervisor
from outlay.ledger import read_identity
from outlay.machine import visible_gpus
from outlay.proc.identity import is_here
from outlay.rates import cost_at_most, gpu_rate, paid_time
from outlay.runs.inbox import leave_notice
from outlay.runs.options import Arguments, gpu_count, resolve
from outlay.units import Duration, Money, Rate, Unit
from outlay.units.billing_terms import BillingTerms
from outlay.units.money import GPU_HOURS, GPU_TIME
from outlay.units.quantity import exact_decimal

if TYPE_CHECKING:
    from outlay.pausing.machines import RentalTerms

Label = Annotated[str, typer.Option(help="Name of the operation, such as lab02-train.")]
RateOption = Annotated[
    str | None,
    typer.Option("--rate", help='Total price per hour, such as "0.70 USD/h" or lambda:8xH100.'),
]
Notice = Annotated[str, typer.Option(help="Time from SIGTERM to SIGKILL.")]
RunDirectory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Its run directory; default: a new one."),
]
MostRate = Annotated[
    str | None, typer.Option("--most-rate", help='Refuse a higher --rate, such as "2.50 USD/h".')
]
MaxHours = Annotated[
    str | None, typer.Option("--max-hours", help='The longest it may run: 3 for hours, or "90m".')
]
Limit = Annotated[str | None, typer.Option(help='Its budget, the most it may cost: "20 USD".')]
Pause = Annotated[str, typer.Option(help="Time between two polls of the vendor.")]
Poll = Annotated[str, typer.Option(help="How often the watcher polls the vendor.")]
ListCommand = Annotated[
    str | None,
    typer.Option(
        "--list", metavar="COMMAND", help="Command that prints everything running, as JSON."
    ),
]
TerminateCommand = Annotated[
    str | None,
    typer.Option(
        "--terminate",
        metavar="COMMAND",
        help="Command that terminates {id}; stopping it is not enough.",
    ),
]


ShowCommand = Annotated[
    str | None,
    typer.Option("--show", metavar="COMMAND", help="Command that prints the machine {id}."),
]
ListIsComplete = Annotated[
    bool,
    typer.Option("--list-is-complete", help="Lists of 10 rows or more are no pages either."),
]


def show_run(
    label: Label,
    rate: RateOption = None,
    command: UserCommand = None,
    gpus: Annotated[
        str | None,
        typer.Option(help="GPUs, below a ceiling of GPU-hours; default: those of this machine."),
    ] = None,
    limit: Limit = None,
    max_hours: MaxHours = None,
    most_rate: MostRate = None,
    slice: Annotated[str, typer.Option(help="Time that an extension of the hold pays for.")] = "5m",
    notice: Notice = "30s",
    directory: RunDirectory = None,
    offers: Offers = None,
    below: Below = None,
    policy: PolicyName = None,
    lowest: Lowest = None,
    highest: Highest = None,
    deadline: Deadline = None,
    work: Work = None,
    steps: Steps = None,
    pauses: Pauses = 10,
    act: Act = False,
    max_age: MaxAge = "15m",
    poll: PricePoll = "1m",
    price_file: PriceFileOption = None,
    price_command: PriceCommand = None,
    stopped_price: StoppedPrice = None,
    pay_per_use: PayPerUse = False,
    lab: Lab = None,
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Run a command below the ceiling; it is ended when its money or time runs out.

    With --offers it is paused and resumed by the price of an offer; what that would do is shown
    unless --act is given.

    Example: outlay guard run --label lab02 --rate "0.70 USD/h" --max-hours 3 -- python train.py
    """
    if not command:
        raise InvalidValue("CMD", "nothing", "a command after --, such as -- python train.py")
    options = PausingOptions(
        offers=offers, below=below, policy=policy, lowest=lowest, highest=highest,
        deadline=deadline, work=work, steps=steps, pauses=pauses, act=act, max_age=max_age,
        poll=poll, price_file=price_file, price_command=price_command,
        stopped_price=stopped_price, pay_per_use=pay_per_use,
    )  # fmt: skip
    if offers is not None:
        refused = {
            "--rate": rate, "--gpus": gpus, "--limit": limit, "--max-hours": max_hours,
            "--most-rate": most_rate,
        }  # fmt: skip
        _refuse_with_offers(refused)
        guard = open_guard(log, ceiling)
        terms = Terms(
            rate=guard.unit.rate(0), slice=Duration.parse(slice, name="--slice"),
            notice=Duration.parse(notice, name="--notice"),
            allowance=allowance_of(guard, os.environ),
        )  # fmt: skip
        _run_pausing(
            guard, options, terms, label=label, lab=lab, directory=directory, command=command,
            as_json=as_json,
        )  # fmt: skip
    options.refuse_without_offers()
    guard = _guard_here(log, ceiling, lambda: unit_of_rate(rate, gpus))
    per_hour = _rate_of_run(guard, rate, gpus, most_rate)
    before_end = Duration.parse(notice, name="--notice")
    terms = Terms(
        rate=per_hour,
        most=_longest(per_hour, limit, max_hours, before_end),
        slice=Duration.parse(slice, name="--slice"),
        notice=before_end,
        allowance=allowance_of(guard, os.environ),
    )
    run_dir = _run_dir(label, directory)
    supervisor = Supervisor(guard, label, terms, lab=lab, run_dir=run_dir, say=say)
    outcome = supervisor.run(command, os.environ)
    _finish_run(outcome, run_dir, as_json=as_json)


def _finish_run(outcome: CommandOutcome, run_dir: Path, *, as_json: bool) -> NoReturn:
    if (identity := read_identity(run_dir)) is not None:
        leave_notice(identity.run_id, run_dir)
    if as_json:
        print_json(outcome)
    raise typer.Exit(outcome.exit_code or (0 if outcome.recorded or outcome.waits else 1))


def _run_pausing(
    guard: BudgetGuard,
    options: PausingOptions,
    terms: Terms,
    *,
    label: str,
    lab: str | None,
    directory: Path | None,
    command: Sequence[str],
    as_json: bool,
    rental: RentalTerms | None = None,
) -> NoReturn:
    """Run a command that is paused and resumed, or show what that would do; ends the process."""
    if directory is None and options.act:
        expected = "--dir DIR: started again with the same one, it goes on where it was"
        raise InvalidValue("--dir", None, expected)
    from outlay.cli.guard.pausing import run_with_pauses  # Here: policies load numpy.

    run_dir = _run_dir(label, directory)
    outcome = run_with_pauses(
        guard, options, terms, label=label, lab=lab, run_dir=run_dir, command=command,
        as_json=as_json, rental=rental,
    )  # fmt: skip
    if outcome is None:
        raise typer.Exit(0)
    _finish_run(outcome, run_dir, as_json=as_json)


def _refuse_with_offers(given: Mapping[str, str | None]) -> None:
    for name, value in given.items():
        if value is not None:
            expected = (
                "--offers without it: the ceiling, the deadline and the offer's price limit it"
            )
            raise InvalidValue(name, value, expected)


def _refuse_without_offers(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value:
            expected = "--offers SOURCE:GPU with it: only then a command trains on the machine"
            raise InvalidValue(name, str(value), expected)


def _run_dir(label: str, directory: Path | None) -> Path:
    arguments = Arguments(model=None, name=label, dir=directory)
    return resolve(arguments, os.environ, SYSTEM.wall_ns()).dir


def _guard_here(log: str, ceiling: str | None, unit_away: Callable[[], Unit]) -> BudgetGuard:
    """Return the guard of a log; a rented machine need not reach the book of its hold."""
    is_rented = bool(read_deadline(os.environ)) and read_hold(os.environ) is not None
    if ceiling is None and is_rented and is_url(log):
        return guard_of_hold(log, os.environ, unit_away=unit_away)
    return open_guard(log, ceiling)


def show_rent(
    label: Label,
    create: Annotated[str, typer.Option(metavar="COMMAND", help="Creation command, with {name}.")],
    rate: RateOption = None,
    command: UserCommand = None,
    vendor: VendorName = None,
    list_command: ListCommand = None,
    terminate_command: TerminateCommand = None,
    show_command: ShowCommand = None,
    list_is_complete: ListIsComplete = False,
    id_from: Annotated[
        str | None, typer.Option(help="Where the output of --create has the id, such as json:.id.")
    ] = None,
    limit: Limit = None,
    max_hours: MaxHours = None,
    most_rate: MostRate = None,
    margin: Annotated[str, typer.Option(help="Terminate this long before the deadline.")] = "2m",
    settle: Annotated[str, typer.Option(help="Search time if --create failed.")] = "60s",
    poll: Poll = "30s",
    notice: Notice = "30s",
    directory: RunDirectory = None,
    offers: Offers = None,
    below: Below = None,
    policy: PolicyName = None,
    lowest: Lowest = None,
    highest: Highest = None,
    deadline: Deadline = None,
    work: Work = None,
    steps: Steps = None,
    pauses: Pauses = 10,
    act: Act = False,
    max_age: MaxAge = "15m",
    price_poll: Annotated[str, typer.Option(help="How often the price is read.")] = "1m",
    price_file: PriceFileOption = None,
    price_command: PriceCommand = None,
    lab: Lab = None,
    log: Log = DEFAULT_LOG,
    ceiling: Ceiling = None,
    as_json: AsJson = False,
) -> None:
    """Rent something that is billed until terminated, with a watcher that ends it on time.

    With --offers a command trains on it. It is ended and rented again by the price of that offer;
    what that would do is shown unless --act is given.

    Example: outlay guard rent --label lab02 --limit "20 USD" --rate "0.70 USD/h" --vendor runpod
    --create 'runpodctl pod create --name {name} --gpu-id "NVIDIA GeForce RTX 4090"'
    """
    every, before_end = Duration.parse(poll, name="--poll"), Duration.parse(margin)
    machine = _vendor(
        vendor, list_command, terminate_command, id_from, show=show_command,
        is_complete=list_is_complete,
    )  # fmt: skip
    options = PausingOptions(
        offers=offers, below=below, policy=policy, lowest=lowest, highest=highest,
        deadline=deadline, work=work, steps=steps, pauses=pauses, act=act, max_age=max_age,
        poll=price_poll, price_file=price_file, price_command=price_command,
    )  # fmt: skip
    if offers is not None:
        _refuse_with_offers({"--rate": rate, "--most-rate": most_rate})
        if not command:
            expected = "a command after --, which trains on the machine"
            raise InvalidValue("CMD", "nothing", expected)
        from outlay.pausing.machines import RentalTerms  # Here: policies load numpy.

        guard = open_guard(log, ceiling)
        rental = RentalTerms(
            label=label, lab=lab, vendor=machine, create=split_command(create, name="--create"),
            limit=None if limit is None else read_amount(limit, name="--limit", unit=guard.unit),
            most=None if max_hours is None else _hours(max_hours), margin=before_end,
            settle=Duration.parse(settle, name="--settle"), poll=every,
        )  # fmt: skip
        lease = Terms(rate=guard.unit.rate(0), notice=Duration.parse(notice, name="--notice"))
        _run_pausing(
            guard, options, lease, label=label, lab=lab, directory=directory, command=command,
            as_json=as_json, rental=rental,
        )  # fmt: skip
    options.refuse_without_offers()
    _refuse_without_offers({"--dir": directory, "CMD": command})
    if rate is None:
        raise InvalidValue("--rate", None, 'the total price per hour, such as "0.70 USD/h"')
    guard = open_guard(log, ceiling)
    per_hour = _rate(rate, most_rate, guard)
    terms = read_terms(rate, guard, name="--rate")
    order = RentalOrder(
        label=label,
        limit=_rental_limit(per_hour, limit, max_hours, before_end, terms),
        terms=terms,
        rate=per_hour,
        vendor=machine,
        create=split_command(create, name="--create"),
        lab=lab,
        most=None if max_hours is None else _hours(max_hours),
        margin=before_end,
        settle=Duration.parse(settle, name="--settle"),
    )
    hold = rent(
        guard, order, os.environ, say=say,
        start_watcher=lambda held: start_watcher(guard.log_name, held, os.environ, every),
    )  # fmt: skip
    assert hold.rental is not None
    if as_json:
        print_json(hold)
        return
    print_sentence(
        f"{hold.rental.name} is {hold.resource}; hold {hold.id}: {hold.amount}. It is terminated "
        f"at {hold.rental.deadline[:19]}Z, or now with `outlay guard down {label}`."
    )


def show_reap(
    terminate: Annotated[
        bool, typer.Option("--terminate", help="End overdue rentals, settle those that are gone.")
    ] = False,
    vendor: VendorName = None,
    list_command: ListCommand = None,
    list_is_complete: ListIsComplete = False,
    pause: Pause = "5s",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Compare what runs at vendors with the spend log; safe to repeat, as from cron.

    Exits 3 if a rental of ours is overdue, lost or was never listed, if another machine has its
    name, or if a vendor does not answer.

    Example: outlay guard reap --terminate
    """
    guard, pause_s = open_guard(log, None), Duration.parse(pause, name="--pause").seconds
    reaper = Reaper(
        guard, os.environ, extra=_lister(vendor, list_command), say=say,
        all_rows=list_is_complete,
    )  # fmt: skip
    inventory = reaper.inventory()
    if terminate:
        reaper.reap(inventory, pause_s=pause_s)
        inventory = reaper.inventory()
    _show_inventory(inventory, as_json=as_json)
    bad = inventory.findings or any(row.is_wrong for row in inventory.rows)
    raise typer.Exit(Refused.exit_code if bad else 0)


def show_adopt(
    hold: Annotated[
        str | None, typer.Argument(metavar="[HOLD]", help="A rental's hold; default: all orphans.")
    ] = None,
    poll: Poll = "30s",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Start a new watcher here for rentals whose watcher is dead.

    Example: outlay guard adopt 1f0a2b3c4d5e
    """
    guard, every = open_guard(log, None), Duration.parse(poll, name="--poll")
    orphans = Reaper(guard, os.environ).orphans()
    if hold is not None:
        orphans = (_adoptable(guard, hold),)
    for orphan in orphans:
        start_watcher(guard.log_name, orphan, os.environ, every)
    books = guard.log.books()
    adopted = [books.rental(orphan.id) or orphan for orphan in orphans]
    if as_json:
        print_json(adopted)
        return
    for each in adopted:
        print_sentence(f"hold {each.id} ({each.op_label}) is watched by {each.watcher}")
    if not adopted:
        console.print("every rental has a watcher")


def _adoptable(guard: BudgetGuard, hold_id: str) -> Hold:
    hold = guard.log.books().hold(hold_id)
    if hold.rental is None:
        raise NotARental(hold.id)
    if is_here(hold.watcher):
        raise InvalidValue(
            "HOLD", hold_id, f"a rental without a watcher; {hold.watcher} watches it"
        )
    return hold


def show_down(
    label: Annotated[str, typer.Argument(help="The operation whose rentals to end.")],
    pause: Pause = "5s",
    rounds: Annotated[int, typer.Option(help="Number of polls before giving up.")] = 60,
    list_is_complete: ListIsComplete = False,
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """End all rentals of an operation and wait until they are gone.

    Example: outlay guard down lab02-train
    """
    guard, pause_s = open_guard(log, None), Duration.parse(pause, name="--pause").seconds
    holds = [hold for hold in guard.holds() if hold.op_label == label and hold.rental]
    if not holds:
        expected = "an operation with a rental; `outlay guard status` lists them"
        raise InvalidValue("LABEL", label, expected)
    reaper = Reaper(guard, os.environ, say=say, all_rows=list_is_complete)
    gone = {hold.id: reaper.end(hold, rounds=rounds, pause_s=pause_s) for hold in holds}
    if as_json:
        print_json([{"hold": hold, "gone": ended} for hold, ended in gone.items()])
    raise typer.Exit(0 if all(gone.values()) else 1)


def _show_inventory(inventory: RentalInventory, *, as_json: bool) -> None:
    if as_json:
        print_json({"rows": inventory.rows, "findings": inventory.findings})
        return
    table = new_table("vendor", "name", "id", "state", "operation", "ends at")
    for row in inventory.rows:
        ends = minute_of(row.deadline) if row.deadline else ""
        state = f"{row.state} since {minute_of(row.since)}" if row.since else row.state
        table.add_row(row.vendor, row.name, row.id, state, row.label, ends)
    console.print(table if inventory.rows else "nothing is rented")
    print_findings(inventory.findings)


def _rate_of_run(guard: BudgetGuard, rate: str | None, gpus: str | None, most: str | None) -> Rate:
    """Return what a command costs per hour: ``--rate``, or its GPUs below GPU-hours."""
    if guard.unit != GPU_TIME:
        if gpus is not None:
            expected = f"--rate instead, since {guard.log_name} counts {guard.unit}, not GPU-hours"
            raise InvalidValue("--gpus", gpus, expected)
        if rate is None:
            raise InvalidValue("--rate", None, 'the total price per hour, such as "0.70 USD/h"')
        return _rate(rate, most, guard)
    if rate is not None and gpus is not None:
        raise InvalidValue("--gpus", gpus, "either --gpus or --rate")
    return _rate(f"{_gpus_here(gpus)} {GPU_HOURS}/h" if rate is None else rate, most, guard)


def _gpus_here(stated: str | None) -> Decimal:
    """Return how many GPUs a command has: as stated, else those that it will see."""
    if stated is None:
        found = os.environ.get("OUTLAY_GPUS") or visible_gpus(os.environ)
        if not found:
            expected = "the number of GPUs, as none were found on this machine: --gpus 8"
            raise InvalidValue("--gpus", None, expected)
        stated = str(found)
    return gpu_rate(gpu_count(stated, name="--gpus")).per_hour.amount


def _rate(rate: str, most: str | None, guard: BudgetGuard) -> Rate:
    """Parse ``--rate``; refuse one above ``--most-rate``."""
    per_hour = read_rate(rate, guard, name="--rate")
    check_rate(per_hour, None if most is None else read_rate(most, guard, name="--most-rate"))
    return per_hour


def _longest(
    rate: Rate, limit: str | None, max_hours: str | None, notice: Duration
) -> Duration | None:
    """Return the shorter of the hours and the time that the limit pays for, notice included."""
    ends = [] if max_hours is None else [_hours(max_hours)]
    if limit is not None and (paid_ns := paid_time(_limit(rate, limit), rate)) is not None:
        if paid_ns <= notice.ns:
            least = f"more than {cost_at_most(rate, notice.ns)}, the cost of --notice {notice}"
            raise InvalidValue("--limit", limit, f"{least}; or a shorter notice")
        ends.append(Duration(paid_ns))
    return min(ends, default=None)


def _limit(rate: Rate, text: str) -> Money:
    return read_amount(text, name="--limit", unit=rate.unit)


def _rental_limit(
    rate: Rate,
    limit: str | None,
    max_hours: str | None,
    margin: Duration,
    terms: BillingTerms | None,
) -> Money:
    """Return the limit, or the cost of the longest time and the margin, as the vendor bills it."""
    if limit is not None:
        return _limit(rate, limit)
    if max_hours is None:
        raise InvalidValue("--limit", None, "--limit, --max-hours, or both")
    longest_ns = _hours(max_hours).ns + margin.ns
    return cost_at_most(rate, terms.billed_ns(longest_ns) if terms else longest_ns)


def _hours(text: str) -> Duration:
    """Parse a number of hours, or a duration such as "90m"."""
    try:
        hours = exact_decimal(text, name="--max-hours", expected="hours")
    except InvalidValue:
        return Duration.parse(text, name="--max-hours")
    return Duration(int(hours * Decimal(3600 * 10**9)))


def _vendor(
    name: str | None,
    list_command: str | None,
    terminate: str | None,
    id_from: str | None,
    *,
    show: str | None,
    is_complete: bool,
) -> Vendor:
    """Return the vendor's commands: a preset, the user's own, or a mix."""
    if not name and not (list_command and terminate):
        raise InvalidValue("--vendor", name, "--vendor, or both --list and --terminate")
    vendor = preset(name) if name else Vendor(name="own", list=(), terminate=())
    if list_command:
        # The user's command prints a bare array and reads no input.
        vendor = msgspec.structs.replace(
            vendor, list=split_command(list_command, name="--list"), items="", stdin="", show=(),
            created_key="created_at", total="", whole_below=A_PAGE,
        )  # fmt: skip
    if show:
        vendor = msgspec.structs.replace(vendor, show=split_command(show, name="--show"))
    if is_complete:
        vendor = msgspec.structs.replace(vendor, whole_below=0)
    if terminate:
        vendor = msgspec.structs.replace(
            vendor, terminate=split_command(terminate, name="--terminate")
        )
    return msgspec.structs.replace(vendor, id_from=id_from) if id_from else vendor


def _lister(name: str | None, list_command: str | None) -> tuple[Vendor, ...]:
    """Return a vendor that is only listed, as a tuple; empty without a name."""
    if list_command:
        return (
            Vendor(
                name=name or "own", list=split_command(list_command, name="--list"), terminate=()
            ),
        )
    return watched(name)
