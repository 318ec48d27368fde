"""``outlay guard``: what may be launched, what is held, what was spent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from outlay.cli import guard_plan, guard_spend
from outlay.cli.guard_options import Ceiling, Log, open_guard
from outlay.cli.options import AsJson
from outlay.cli.output import console, fits, new_table, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.errors import Finding, InvalidValue
from outlay.guard.books import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import AnyLine, Simple
from outlay.guard.policy import Standing
from outlay.guard.preflight import cost_since_start
from outlay.guard.stale import why_stale
from outlay.units import Money, Rate

app = typer.Typer(
    help="Ask before spending, record after it, and end what was rented.", no_args_is_help=True
)
guard_spend.register(app)
guard_plan.register(app)

_BAR_WIDTH = 24


@app.command("authorize")
def show_authorize(
    label: Annotated[str, typer.Argument(help="The operation, such as lab02-tp-spinup.")],
    amount: Annotated[str, typer.Argument(help='The most it may cost, such as "3.00 USD".')],
    log: Log = Path("spend.jsonl"),
    ceiling: Ceiling = None,
    lab: Annotated[str | None, typer.Option(help="The lab that pays.")] = None,
    key: Annotated[str, typer.Option(help="Idempotency key: asking twice holds once.")] = "",
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
        text = f"hold {hold.id}: {hold.amount} for {label}, lab {hold.lab}"
        console.print(text, soft_wrap=True)


@app.command("record")
def show_record(
    label: Annotated[str, typer.Argument(help="The operation, as it was authorised.")],
    amount: Annotated[
        str | None, typer.Argument(help='What it cost, such as "2.10 USD"; or --rate.')
    ] = None,
    log: Log = Path("spend.jsonl"),
    ceiling: Ceiling = None,
    rate: Annotated[
        str | None, typer.Option(help='Charge the time since its preflight, at "0.70 USD/h".')
    ] = None,
    hold: Annotated[str | None, typer.Option(help="The hold it settles.")] = None,
    key: Annotated[str, typer.Option(help="Idempotency key: recording twice counts once.")] = "",
    as_json: AsJson = False,
) -> None:
    """Record what an operation really cost; it settles the label's oldest hold.

    Example: outlay guard record lab02-tp-spinup "2.10 USD"
    """
    if (amount is None) == (rate is None):
        raise InvalidValue("AMOUNT", amount, "what it cost, or --rate and a recorded preflight")
    guard = open_guard(log, ceiling)
    if rate is None:
        captured = guard.record_actual(label, amount, hold=hold, key=key)
    else:
        per_hour = Rate.parse(rate, name="rate", currency=guard.currency)
        cost = cost_since_start(guard, label, per_hour, now_ns=SYSTEM.wall_ns())
        captured = guard.record_actual(label, cost, hold=hold, key=key, basis="estimated")
    if as_json:
        print_json(captured)
        return
    settled = f"settles hold {captured.hold}" if captured.hold else "was never authorised"
    text = f"{captured.actual} {captured.currency} for {label} ({settled})"
    console.print(text, soft_wrap=True)


@app.command("void")
def show_void(
    hold: Annotated[str, typer.Argument(help="The hold's id.")],
    reason: Annotated[str, typer.Option(help="Why nothing was spent.")],
    log: Log = Path("spend.jsonl"),
    as_json: AsJson = False,
) -> None:
    """Release a hold on which nothing was spent.

    Example: outlay guard void 1f0a2b3c4d5e --reason "the pod was never created"
    """
    guard = open_guard(log, None)
    guard.void(hold, reason)
    _show_status(guard, as_json=as_json)


@app.command("correct")
def show_correct(
    label: Annotated[str, typer.Argument(help="The operation.")],
    difference: Annotated[str, typer.Argument(help="The difference, such as -0.50.")],
    reason: Annotated[str, typer.Option(help="Where the right figure comes from.")],
    log: Log = Path("spend.jsonl"),
    as_json: AsJson = False,
) -> None:
    """Add a difference to what was recorded; nothing is ever edited.

    Example: outlay guard correct lab02-tp-spinup --reason "invoice 7" -- -0.50
    """
    guard = open_guard(log, None)
    guard.correct(label, difference, reason)
    _show_status(guard, as_json=as_json)


@app.command("status")
def show_status(
    log: Log = Path("spend.jsonl"), ceiling: Ceiling = None, as_json: AsJson = False
) -> None:
    """Show every scope's limit, what was spent and held, and the open holds.

    Example: outlay guard status --log experiments/35-cloud-budget/spend.jsonl
    """
    _show_status(open_guard(log, ceiling), as_json=as_json)


@app.command("verify")
def show_verify(log: Log = Path("spend.jsonl"), as_json: AsJson = False) -> None:
    """Check that no line of the spend log was changed, removed or moved; exit 3 if one was.

    Example: outlay guard verify
    """
    guard = open_guard(log, None, lenient=True)
    verification = guard.verify()
    if as_json:
        print_json(verification)
    else:
        sound = "sound" if verification.sound else "NOT SOUND"
        chained = f"{verification.chained} of {verification.lines} lines chained"
        console.print(f"{guard.log_path}: {sound}, {chained}", soft_wrap=True)
        print_findings(verification.findings)
    raise typer.Exit(0 if verification.sound else 3)


@app.command("history")
def show_history(
    log: Log = Path("spend.jsonl"),
    label: Annotated[str | None, typer.Option(help="Only this operation.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show every line of the spend log, oldest first.

    Example: outlay guard history --label lab02-tp-spinup
    """
    guard = open_guard(log, None, lenient=True)
    lines = [line for line in guard.log.lines() if label in (None, line.op_label)]
    if as_json:
        print_json([{"kind": _kind(line), "line": line} for line in lines])
        return
    table = new_table("time", "what", "operation", ">estimated", ">actual", "hold")
    for line in lines:
        hold = getattr(line, "hold", "")
        table.add_row(
            str(line.ts)[:19].replace("T", " "), _kind(line), line.op_label,
            str(line.estimated or ""), "" if line.actual is None else str(line.actual), hold,
        )  # fmt: skip
    console.print(table)


@app.command("reconcile")
def show_reconcile(
    hold: Annotated[str | None, typer.Argument(help="A hold to settle.")] = None,
    actual: Annotated[str | None, typer.Option(help='What it cost, such as "1.20 USD".')] = None,
    void: Annotated[str | None, typer.Option(help="Why nothing was spent on it.")] = None,
    as_held: Annotated[
        bool, typer.Option("--as-held", help="Record all of it as spent; an assumption.")
    ] = False,
    log: Log = Path("spend.jsonl"),
    as_json: AsJson = False,
) -> None:
    """List holds that nobody may be left to settle, or settle one.

    Example: outlay guard reconcile 1f0a2b3c4d5e --actual "1.20 USD"
    """
    guard = open_guard(log, None)
    if hold is not None:
        _settle(guard, hold, actual=actual, void=void, as_held=as_held)
    stale = {
        found.id: why
        for found in guard.holds()
        if (why := why_stale(found, SYSTEM.wall_ns())) or found.state == "unknown"
    }
    if as_json:
        print_json([_hold_row(found) for found in guard.holds() if found.id in stale])
        return
    for found in guard.holds():
        if found.id in stale:
            why = stale[found.id] or "what it pays for is unknown"
            since = found.ts[:16].replace("T", " ") + "Z"
            console.print(
                f"hold {found.id}: {found.amount} for {found.op_label} since {since}; {why}",
                soft_wrap=True,
            )  # fmt: skip
    if not stale:
        console.print("every hold has somebody to settle it")


def _settle(
    guard: BudgetGuard, hold_id: str, *, actual: str | None, void: str | None, as_held: bool
) -> None:
    hold = guard.log.books().hold(hold_id)
    if sum([actual is not None, void is not None, as_held]) != 1:
        raise InvalidValue("reconcile", hold_id, "one of --actual, --void or --as-held")
    if void is not None:
        guard.void(hold, void)
    else:
        amount: object = hold.amount if actual is None else actual
        basis = "assumed" if as_held else "measured"
        guard.record_actual(hold.op_label, amount, hold=hold, basis=basis)


def _show_status(guard: BudgetGuard, *, as_json: bool) -> None:
    standings, holds, findings = guard.standings(), guard.holds(), guard.findings()
    if as_json:
        print_json(_Status(guard, standings, holds, findings).document())
        return
    table = _scopes_table(standings, bars=True)
    console.print(table if fits(table) else _scopes_table(standings, bars=False))
    if holds:
        console.print()
        console.print(_holds_table(holds))
    print_findings(findings)


def _scopes_table(standings: tuple[Standing, ...], *, bars: bool) -> Table:
    table = new_table("scope", ">limit", ">spent", ">held", ">remaining", *([""] if bars else []))
    for row in standings:
        amounts = map(str, (row.limit, row.captured, row.held, row.remaining))
        table.add_row(str(row.scope), *amounts, *([_bar(row)] if bars else []))
    return table


def _holds_table(holds: tuple[Hold, ...]) -> object:
    table = new_table("hold", "operation", "lab", ">held", "since", "state")
    for hold in holds:
        state = " ".join(part for part in (hold.state, hold.resource) if part) or "open"
        since = hold.ts[:16].replace("T", " ") + "Z"
        table.add_row(hold.id, hold.op_label, hold.lab, str(hold.amount), since, state)
    return table


def _bar(row: Standing) -> Text:
    """Return spent, held and free as a bar; a limit that was passed fills it in red."""
    limit = max(row.limit.micros, 1)
    spent = min(_BAR_WIDTH, -(-row.captured.micros * _BAR_WIDTH // limit))
    held = min(_BAR_WIDTH - spent, -(-row.held.micros * _BAR_WIDTH // limit))
    over = row.remaining < Money(0, row.limit.currency)
    bar = Text("█" * spent, style="red" if over else "cyan")
    bar.append("▒" * held, style="yellow")
    return bar.append("·" * (_BAR_WIDTH - spent - held), style="dim")


@dataclass(frozen=True)
class _Status:
    guard: BudgetGuard
    standings: tuple[Standing, ...]
    holds: tuple[Hold, ...]
    findings: tuple[Finding, ...]

    def document(self) -> dict[str, object]:
        return {
            "log": os.fspath(self.guard.log_path),
            "ceiling": self.guard.ceilings.whole,
            "scopes": [
                {
                    "scope": str(row.scope), "limit": row.limit, "spent": row.captured,
                    "held": row.held, "remaining": row.remaining,
                }
                for row in self.standings
            ],
            "holds": [_hold_row(hold) for hold in self.holds],
            "findings": self.findings,
        }  # fmt: skip


def _hold_row(hold: Hold) -> dict[str, object]:
    return {
        "hold": hold.id, "op_label": hold.op_label, "lab": hold.lab, "held": hold.amount,
        "since": hold.ts, "by": hold.by, "state": hold.state, "resource": hold.resource,
        "deadline": hold.rental.deadline if hold.rental else None,
    }  # fmt: skip


def _kind(line: AnyLine) -> str:
    if isinstance(line, Simple):
        return "simple"
    event = getattr(line, "event", "")
    return event or str(type(line).__struct_config__.tag)
