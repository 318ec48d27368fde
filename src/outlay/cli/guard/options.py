"""What the commands of ``outlay guard`` share: their options, and how they open a log."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.escaping import terminal_text
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import manifest_path, read_manifest
from outlay.guard.entries import Vendor
from outlay.guard.errors import CeilingUnusable
from outlay.guard.rental.vendors import PRESETS, preset
from outlay.guard.spend_log import FileSpendLog
from outlay.ledger.price import Price, is_price_name, typed_price
from outlay.record import facts
from outlay.units import Rate

DEFAULT_LOG: Final = Path("spend.jsonl")
Log = Annotated[
    Path,
    typer.Option(
        metavar="PATH", help="The spend log, or its directory.", envvar="OUTLAY_SPEND_LOG"
    ),
]
Ceiling = Annotated[
    str | None, typer.Option(help="The hard ceiling; default: the manifest's, else the log's last.")
]
Lab = Annotated[
    str | None,
    typer.Option(
        "--project", "--lab", metavar="NAME", help="The project that pays; default: the label's."
    ),
]
VendorName = Annotated[
    str | None, typer.Option(help=f"Whose commands are known: {', '.join(PRESETS)}.")
]
Confirm = Annotated[
    list[str] | None,
    typer.Option("--confirm", help="A check that you have made, by its name; repeatable."),
]


def open_guard(log: Path, ceiling: str | None, *, lenient: bool = False) -> BudgetGuard:
    """Return the guard of a log.

    Args:
        log: The log, or the directory it is in.
        ceiling: The ceiling, or None for the one that the manifest or the log states.
        lenient: For reading only: a log that can't be trusted, or states no ceiling, still opens.

    Raises:
        CeilingUnusable: Nothing states a ceiling.
        InvalidValue: There is no log to read.
    """
    path = log / DEFAULT_LOG if log.is_dir() else log
    if ceiling is not None:
        return BudgetGuard(ceiling, path)
    if lenient:
        if not FileSpendLog(path).is_known():
            raise InvalidValue("--log", str(path), "a spend log that exists")
        manifest = read_manifest(manifest_path(path))
        currency = "USD" if manifest is None else manifest.currency
        return BudgetGuard(0, path, currency=currency, environ={})
    try:
        return BudgetGuard.of_log(path)
    except CeilingUnusable as error:
        if path.exists():
            raise
        raise CeilingUnusable(
            str(path), "no such file", "--log PATH or --ceiling AMOUNT"
        ) from error


def read_rate(text: str, *, name: str, currency: str) -> Rate:
    """Return what all of something costs per hour: typed, or the whole offer that is named.

    Raises:
        InvalidValue: It cannot be used, or is showback: a guard holds cash alone.
        PriceFileUnusable: It is a name, and the known prices cannot be read.
    """
    if not is_price_name(text):
        return _cash(typed_price(text, name=name, source="argument", currency=currency), name).rate
    from outlay.prices.current import resolve_whole

    resolved = resolve_whole(
        text, name=name, environ=os.environ, gpu=facts.gpu_model(),
        gpus=facts.visible_gpus(os.environ),
    )  # fmt: skip
    assert resolved.whole is not None
    price = _cash(resolved.price, name)
    say(f"{resolved.whole} is the price of {price.origin}")
    if warning := price.age_warning(SYSTEM.wall_ns()):
        say(warning)
    return resolved.whole


def _cash(price: Price, name: str) -> Price:
    if price.kind != "cash":
        expected = 'a price in cash, since a guard holds cash alone; "cash" behind it says so'
        raise InvalidValue(name, price.text, expected)
    return price


def say(text: str) -> None:
    """Tell a person something while a command runs; standard output is the command's own."""
    with suppress(OSError):  # Nobody reads it any more; what costs money still has to be ended.
        sys.stderr.write(f"outlay: {terminal_text(text)}\n")
        sys.stderr.flush()


def watched(vendor: str | None) -> tuple[Vendor, ...]:
    """Return a vendor to be looked at, if one was named."""
    return (preset(vendor),) if vendor else ()


def minute_of(ts: str) -> str:
    """Return an instant of the spend log as people read it, to the minute."""
    return f"{ts[:16].replace('T', ' ')}Z"
