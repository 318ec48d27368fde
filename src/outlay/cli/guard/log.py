"""Commands on the spend log itself: ``outlay guard status``, ``verify``, ``export`` and so on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from outlay.cli.guard.options import DEFAULT_LOG, Ceiling, Log, minute_of, open_guard, say
from outlay.cli.output import (
    AsJson,
    CellContent,
    FittingTable,
    TableCell,
    console,
    money_cell,
    new_table,
    print_findings,
    print_head,
    print_json,
    print_sentence,
    shown_path,
)
from outlay.clock import SYSTEM
from outlay.cost.cost_book import CostBook
from outlay.errors import Finding, InvalidValue, OutlayError, Refused
from outlay.guard.away.waiting_settlements import deliver_all, waiting_for
from outlay.guard.balance import Hold, unit_of
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.captures import correct_late
from outlay.guard.ceilings import ScopeStanding
from outlay.guard.entries import (
    AnyLine,
    Captured,
    Corrected,
    Simple,
    basis_of,
    line_kind,
    micros_of,
    read_amount,
)
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.rental.rental import disown_namesakes, settle_by_hand
from outlay.guard.scopes import HOUR
from outlay.guard.spend_log import is_url
from outlay.runs.collect import refresh_registered
from outlay.runs.money.spending_reader import charges_on, refresh_books
from outlay.slurm import SlurmLimit, own_limits
from outlay.store import open_store
from outlay.store.runs import RunFilter, list_runs
from outlay.team import PostgresSpendLog, open_postgres
from outlay.team.transfer import export_book, import_file
from outlay.units import Money, Unit
from outlay.units.shown import counted

_BAR_WIDTH = 20
_BASES = {"stated": "stated by people", "other": "by other programs"}


def show_status(log: Log = DEFAULT_LOG, ceiling: Ceiling = None, as_json: AsJson = False) -> None:
    """Show the ceiling and its caps, what is spent and held of each, and the open holds.

    Example: outlay guard status --log experiments/35-cloud-budget/spend.jsonl
    """
    try:
        guard = open_guard(log, ceiling)
        correct_captures(guard)
        print_status(guard, as_json=as_json, slurm_limits=own_limits())
    except SpendLogUnusable:
        if is_url(log):
            for line in _waiting_lines(open_guard(log, None, lenient=True)):
                say(line)
        raise


def show_deliver(as_json: AsJson = False) -> None:
    """Deliver captures that wait on this machine for a book that was away; exit 1 if any still do.

    A hold is settled once, however often its capture is delivered.

    Example: outlay guard deliver
    """
    done = deliver_all(BudgetGuard.of_log)
    if as_json:
        print_json({"delivered": done.delivered, "waiting": done.waiting})
    else:
        for settlement in done.delivered:
            print_sentence(f"delivered: {settlement}")
        for each in done.waiting:
            print_sentence(f"waits: {each.settlement or each.path}: {each.why}")
        if not done.delivered and not done.waiting:
            console.print("nothing waits")
    raise typer.Exit(1 if done.waiting else 0)


def _waiting_lines(guard: BudgetGuard) -> list[str]:
    """Return what waits on this machine for a guard's book."""
    files = waiting_for(guard.log_name)
    known = [each.settlement for each in files if each.settlement is not None]
    if not files:
        return []
    total = sum((each.actual.micros for each in known), 0)
    unit = known[0].actual.unit if known else guard.unit
    what = f"{counted(len(files), 'settlement')}, {unit.money(total)}"
    return [f"{what} on this machine not delivered yet: `outlay guard deliver`"]


def correct_captures(guard: BudgetGuard) -> list[Finding]:
    """Append corrections for time that ranks recorded after their run was captured.

    A log that cannot be written stays as it is: `guard verify` reports what is missing.
    """
    spent = guard.log.books().captured()
    lines = guard.log.lines()
    if not any(isinstance(line, Captured) and line.part is not None for line in lines):
        return []

    def correct(label: str, more: Money, reason: str) -> None:
        nonlocal spent
        guard.correct(label, more.amount, reason, spent=guard.unit.money(spent))
        spent += more.micros

    try:
        return correct_late(lines, _registered_runs(), correct)
    except (OutlayError, OSError):
        return []


def show_verify(
    expect: Annotated[str, typer.Option(metavar="HASH", help="Head in an earlier report.")] = "",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Check that no line was changed, removed or moved, and every decision; exit 3 on an error.

    Example: outlay guard verify --expect 3f9c0d52a1b7
    """
    guard = open_guard(log, None, lenient=True)
    verification = guard.verify(expect=expect, runs=_registered_runs())
    if as_json:
        print_json(verification)
    else:
        sound = "sound" if verification.sound else "NOT SOUND"
        chained = f"{verification.chained} of {verification.lines} lines chained"
        print_sentence(f"{shown_path(str(guard.log_name))}: {sound}, {chained}")
        print_head(verification.head)
        print_findings(verification.findings)
    raise typer.Exit(0 if verification.sound else Refused.exit_code)


def _registered_runs() -> dict[str, Path]:
    """Return the directories of the registered runs by run id."""
    store = open_store()
    refresh_registered(store, SYSTEM.wall_ns())
    return {row.run_id: Path(row.dir) for row in list_runs(store, RunFilter())}


def show_accept(
    reason: Annotated[str, typer.Option(help="Why the log is right as it is.")],
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Accept a spend log that was restored or changed; a line records who and why.

    Example: outlay guard accept --reason "the disk was restored from the backup of Monday"
    """
    guard = open_guard(log, None, lenient=True)
    guard.accept(reason)
    if as_json:
        print_json({"log": str(guard.log_name), "head": guard.head})
        return
    print_sentence(f"{shown_path(str(guard.log_name))}: accepted as it is")
    print_head(guard.head)


BookOption = Annotated[
    str, typer.Option("--log", metavar="URL", help="The book.", envvar="OUTLAY_SPEND_LOG")
]


def show_export(
    file: Annotated[Path, typer.Argument(help="The spend log to write; there is none yet.")],
    log: BookOption,
    as_json: AsJson = False,
) -> None:
    """Write a book as a spend log in a file, byte for byte, with its head.

    Example: outlay guard export spend.jsonl --log "postgresql://db.example/spend?book=vision"
    """
    book = open_postgres(log)
    head = export_book(book, file)
    _show_copy(book, file, as_json=as_json, head=head.hash)


def show_import(
    file: Annotated[Path, typer.Argument(help="The spend log to copy.")],
    log: BookOption,
    as_json: AsJson = False,
) -> None:
    """Copy a spend log in a file into an empty book, byte for byte.

    The file stays as it is; launches that still use it no longer share the book's ceiling.

    Example: outlay guard import spend.jsonl --log "postgresql://db.example/spend?book=vision"
    """
    book = open_postgres(log)
    import_file(file, book)
    _show_copy(book, file, as_json=as_json, head=book.head())


def _show_copy(book: PostgresSpendLog, file: Path, *, as_json: bool, head: str) -> None:
    if as_json:
        print_json({"log": str(book.name), "file": str(file), "head": head})
        return
    print_sentence(f"{shown_path(file)} and {book.name} have the same lines")
    print_head(head)


def show_set_ceiling(
    amount: Annotated[str, typer.Argument(help='The new ceiling, such as "8 USD".')],
    reason: Annotated[str, typer.Option(help="Why it changes.")],
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Raise or lower the ceiling, also in the manifest if there is one; a line records who and why.

    Example: outlay guard set-ceiling "8 USD" --reason "agreed with the team on Monday"
    """
    guard = open_guard(log, None)
    guard.set_ceiling(amount, reason)
    print_status(open_guard(log, None), as_json=as_json)


def show_history(
    label: Annotated[str | None, typer.Option(help="Only this operation.")] = None,
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """Show every line of the spend log, oldest first.

    Example: outlay guard history --label lab02-tp-spinup
    """
    guard = open_guard(log, None, lenient=True)
    lines = [line for line in guard.log.lines() if label in (None, line.op_label)]
    if as_json:
        print_json([{"kind": line_kind(line), "line": line} for line in lines])
        return
    table = new_table(
        "time (UTC)", "what", "operation", ">estimated", ">actual", "hold", "basis",
        first=("time (UTC)", "what", "operation", "actual", "estimated"),
    )  # fmt: skip
    for line in lines:
        table.add_row(
            str(line.ts)[:19].replace("T", " "), line_kind(line), line.op_label,
            _amount(line.estimated, line), _amount(line.actual, line), getattr(line, "hold", ""),
            getattr(line, "basis", ""),
        )  # fmt: skip
    console.print(table)
    found = Counter[str]()
    for line in lines:
        if isinstance(line, Captured | Corrected | Simple) and line.actual is not None:
            found[basis_of(line)] += micros_of(line.actual)
    if found:
        _print_basis(_by_basis(found, unit_of(lines[0].currency)))


def show_reconcile(
    hold: Annotated[str | None, typer.Argument(metavar="[HOLD]", help="A hold to settle.")] = None,
    actual: Annotated[str | None, typer.Option(help='What it cost, such as "1.20 USD".')] = None,
    void: Annotated[str | None, typer.Option(help="Why nothing was spent on it.")] = None,
    as_held: Annotated[bool, typer.Option("--as-held", help="Assume it was all spent.")] = False,
    gone: Annotated[
        bool, typer.Option("--gone", help="A rental is gone, although no list shows that.")
    ] = False,
    not_ours: Annotated[
        bool, typer.Option("--not-ours", help="What has a rental's name is somebody else's.")
    ] = False,
    reason: Annotated[str, typer.Option(help="How you know: with --gone or --not-ours.")] = "",
    log: Log = DEFAULT_LOG,
    as_json: AsJson = False,
) -> None:
    """List holds that may have no process left to settle them, or settle one.

    With --gone, a person states that a rental ended; its cost is --actual, else the time at its
    rate.

    Example: outlay guard reconcile 1f0a2b3c4d5e --actual "1.20 USD"
    """
    guard = open_guard(log, None)
    if hold is None and (actual is not None or void is not None or as_held or gone or not_ours):
        raise InvalidValue("HOLD", None, "the id of a hold; `outlay guard status` lists them")
    if (gone or not_ours) != bool(reason):
        raise InvalidValue("--reason", reason, "why, with --gone or --not-ours and only there")
    if hold is not None and gone:
        _settle_gone(guard, hold, reason, actual=actual, void=void, as_held=as_held)
    elif hold is not None and not_ours:
        disown_namesakes(guard, hold, reason)
    elif hold is not None:
        _settle(guard, hold, actual=actual, void=void, as_held=as_held)
    known = {found.id: why for found, why in guard.stale_holds()}
    reasons = [(found, (known.get(found.id, ""), found.doubt)) for found in guard.holds()]
    stale = [(found, "; ".join(filter(None, why))) for found, why in reasons if any(why)]
    if as_json:
        print_json([_hold_row(found) for found, _ in stale])
        return
    for found, why in stale:
        held = f"{found.amount} for {found.op_label} since {minute_of(found.ts)}"
        print_sentence(f"hold {found.id}: {held}; {why}")
    if not stale:
        console.print("no hold needs to be settled by hand")


def _settle_gone(
    guard: BudgetGuard,
    hold_id: str,
    reason: str,
    *,
    actual: str | None,
    void: str | None,
    as_held: bool,
) -> None:
    if void is not None or (actual is not None and as_held):
        raise InvalidValue("--gone", hold_id, "with it, one of --actual or --as-held, or neither")
    cost, basis = None, "estimated"
    if actual is not None:
        cost = read_amount(actual, name="--actual", unit=guard.unit)
        basis = "stated"
    elif as_held:
        cost, basis = guard.log.books().hold(hold_id).amount, "assumed"
    settle_by_hand(guard, hold_id, os.environ, reason=reason, cost=cost, basis=basis, say=say)


def _settle(
    guard: BudgetGuard, hold_id: str, *, actual: str | None, void: str | None, as_held: bool
) -> None:
    hold = guard.log.books().hold(hold_id)
    if sum([actual is not None, void is not None, as_held]) != 1:
        expected = "one of --actual, --void, --as-held, --gone or --not-ours"
        raise InvalidValue("reconcile", hold_id, expected)
    if void is not None:
        guard.void(hold, void)
    else:
        amount: object = hold.amount if actual is None else actual
        basis = "assumed" if as_held else "stated"
        guard.record_actual(hold.op_label, amount, hold=hold, basis=basis)


def print_status(
    guard: BudgetGuard, *, as_json: bool, slurm_limits: Sequence[SlurmLimit] | None = None
) -> None:
    """Show every scope and every open hold, and the limits of Slurm where it was asked for them."""
    if as_json:
        slurm = {} if slurm_limits is None else {"slurm_limits": slurm_limits}
        print_json(status_json(guard) | slurm)
        return
    standings, holds, findings = guard.standings(), guard.holds(), guard.findings()
    console.print(scopes_table(standings))
    if holds:
        console.print()
        console.print(_holds_table(holds))
    rentals = [hold for hold in holds if hold.rental is not None]
    if rentals:
        console.print()
        console.print(_rentals_table(rentals))
    _print_basis(_by_basis(guard.log.books().captured_by_basis(), guard.unit))
    print_head(guard.head)
    for line in (*map(str, slurm_limits or ()), *_waiting_lines(guard)):
        print_sentence(line)
    print_findings(findings)


def status_json(guard: BudgetGuard) -> dict[str, object]:
    """Return every scope and every open hold as JSON; writes nothing."""
    scopes = [
        {
            "scope": str(row.scope), "limit": row.limit, "spent": row.captured,
            "held": row.held, "remaining": row.remaining, "refuses": row.refuses,
        }
        for row in guard.standings()
    ]  # fmt: skip
    waits = {} if isinstance(guard.log_name, Path) else {"waiting": waiting_for(guard.log_name)}
    return {
        "log": str(guard.log_name),
        "unit": str(guard.unit),
        "ceiling": guard.ceilings.whole,
        "head": guard.head,
        "spent_by_basis": _by_basis(guard.log.books().captured_by_basis(), guard.unit),
        "scopes": scopes,
        "holds": [_hold_row(hold) | _shares_of(hold) for hold in guard.holds()],
        "findings": guard.findings(),
        **waits,
    }


def _by_basis(micros: Mapping[str, int], unit: Unit) -> dict[str, Money]:
    return {basis: unit.money(amount) for basis, amount in micros.items()}


def _print_basis(amounts: Mapping[str, Money]) -> None:
    """Print what was measured beside what people stated and the rest, unless all was measured."""
    if amounts.keys() - {"measured"}:
        parts = (f"{amount} {_BASES.get(basis, basis)}" for basis, amount in amounts.items())
        print_sentence(f"spent: {', '.join(parts)}")


def scopes_table(standings: tuple[ScopeStanding, ...]) -> FittingTable:
    """Return the table of limits, with a bar of what is used of each."""
    table = new_table(
        "scope", ">limit", ">spent", ">held", ">remaining", "",
        first=("scope", "remaining", "limit", "spent", "held"),
    )  # fmt: skip
    for row in standings:
        amounts = (row.limit, row.captured, row.held, row.remaining)
        per = "/h" if row.scope.period == HOUR else ""
        name = f"{row.scope}{'' if row.refuses else ' (warns)'}"
        cells = [money_cell(each, after=per) for each in amounts]
        table.add_row(name, *cells, _bar(row), style="red" if _is_over(row) else None)
    return table


def _is_over(row: ScopeStanding) -> bool:
    return row.remaining < row.limit.unit.money(0)


def _holds_table(holds: tuple[Hold, ...]) -> object:
    table = new_table(
        "hold", "operation", "project", ">held", "since", "state",
        first=("hold", "operation", "held", "state", "since"),
    )  # fmt: skip
    for hold in holds:
        state = hold.doubt or hold.state
        state = " ".join(part for part in (state, hold.resource) if part) or "open"
        since = minute_of(hold.ts)
        table.add_row(hold.id, hold.op_label, hold.lab, hold.amount, since, state)
    return table


def _shares_of(hold: Hold) -> dict[str, Money]:
    """Return a rental's cost up to now, the part of it in runs, and the rest.

    The rest is negative if runs on the rental claim more than it costs.
    """
    if hold.rental is None:
        return {}
    now_ns, store = SYSTEM.wall_ns(), open_store()
    cost = hold.rental.cost_until(now_ns)
    refresh_books(store, now_ns)
    charges = charges_on(hold, cost.unit, CostBook(store).reports(with_charges=True))
    in_runs = cost.unit.money(sum(charge.micros for charge in charges))
    return {"cost": cost, "in_runs": in_runs, "in_no_run": cost - in_runs}


def _rentals_table(holds: list[Hold]) -> FittingTable:
    table = new_table("rental", "ends at", ">cost so far", ">in runs", ">in no run")
    for hold in holds:
        assert hold.rental is not None
        name, ends = hold.resource or hold.rental.name, minute_of(hold.rental.deadline)
        table.add_row(name, ends, *_shares_of(hold).values())
    return table


def _bar(row: ScopeStanding) -> Text:
    """Return a bar of spent, held and free; red if the limit is exceeded."""
    limit = max(row.limit.micros, 1)
    # Corrections can make the spent amount negative.
    spent = max(0, min(_BAR_WIDTH, -(-row.captured.micros * _BAR_WIDTH // limit)))
    held = min(_BAR_WIDTH - spent, -(-row.held.micros * _BAR_WIDTH // limit))
    bar = Text("█" * spent, style="red" if _is_over(row) else "cyan")
    bar.append("▒" * held, style="yellow")
    return bar.append("·" * (_BAR_WIDTH - spent - held), style="dim")


def _hold_row(hold: Hold) -> dict[str, object]:
    return {
        "hold": hold.id, "op_label": hold.op_label, "lab": hold.lab, "held": hold.amount,
        "since": hold.ts, "by": hold.by, "state": hold.state, "resource": hold.resource,
        "deadline": hold.rental.deadline if hold.rental else None, "doubt": hold.doubt,
        "not_listed_since": hold.missing or None, "namesakes": hold.namesakes,
    }  # fmt: skip


def _amount(value: Decimal | None, line: AnyLine) -> CellContent:
    if value is None:
        return ""
    money = unit_of(line.currency).money(micros_of(value))
    return TableCell(text=f"{value} {line.currency}", money=money)
