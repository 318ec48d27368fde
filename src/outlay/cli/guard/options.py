"""Options of the ``outlay guard`` commands, and how they open a spend log."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from outlay.clock import SYSTEM
from outlay.errors import InvalidValue
from outlay.escaping import terminal_text
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import manifest_path, read_manifest
from outlay.guard.entries import Vendor
from outlay.guard.errors import CeilingUnusable
from outlay.guard.gate import expected_price
from outlay.guard.rental.vendor_commands import PRESETS, preset
from outlay.guard.spend_log import LOG_NAME, FileSpendLog, named_log
from outlay.ledger.price import Price, is_price_name, typed_price
from outlay.machine import gpu_model, visible_gpus
from outlay.units import Rate, Unit
from outlay.units.billing_terms import BillingTerms
from outlay.units.money import GPU_TIME

if TYPE_CHECKING:
    from outlay.prices.current import ResolvedPrice

DEFAULT_LOG: Final = LOG_NAME
Log = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="The spend log, its directory, or a book's URL.",
        envvar="OUTLAY_SPEND_LOG",
    ),
]
Ceiling = Annotated[
    str | None,
    typer.Option(help="Above it launches are refused; default: of the manifest, else of the log."),
]
Lab = Annotated[
    str | None,
    typer.Option(
        "--project", "--lab", metavar="NAME", help="The project that pays; default: from the label."
    ),
]
VendorName = Annotated[str | None, typer.Option(help=f"One of {', '.join(PRESETS)}.")]


def open_guard(log: str, ceiling: str | None, *, lenient: bool = False) -> BudgetGuard:
    """Return the guard of a log.

    Args:
        log: The log, the directory it is in, or the URL of a book.
        ceiling: None takes it from the manifest or the log.
        lenient: Read only: also open a log that is damaged or states no ceiling.

    Raises:
        CeilingUnusable: No ceiling is stated.
        InvalidValue: There is no log to read.
    """
    path = named_log(log)
    if ceiling is not None:
        return BudgetGuard(ceiling, path)
    if not isinstance(path, Path):
        return BudgetGuard(0, path, environ={}) if lenient else BudgetGuard.of_log(path)
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


_UNSTATED = "XXX"  # In ISO 4217, no currency.


def unit_of_rate(rate: str | None, gpus: str | None) -> Unit:
    """Return the unit of ``--rate``, or of ``--gpus``, where no spend log states one.

    Raises:
        InvalidValue: Neither is given, or the price names no currency.
        PriceFileUnusable: It is a name, and the price file cannot be read.
    """
    if rate is None and gpus is not None:
        return GPU_TIME
    if rate is not None and is_price_name(rate):
        return _offered(rate, "--rate").price.unit
    unit = None if rate is None else _typed(rate, "--rate", currency=_UNSTATED).unit
    if unit is None or unit.currency == _UNSTATED:
        expected = 'a price with its currency, such as "0.70 USD/h": the book can\'t be asked'
        raise InvalidValue("--rate", rate, expected)
    return unit


def read_rate(text: str, guard: BudgetGuard, *, name: str) -> Rate:
    """Parse the hourly price of everything rented: an amount, or the name of an offer.

    Raises:
        InvalidValue: It is no price, or not in the unit of the guard.
        PriceFileUnusable: It is a name, and the price file cannot be read.
    """
    if not is_price_name(text):
        price = _typed(text, name, currency=guard.unit.currency)
        return _counted(price, guard, name).rate
    resolved = _offered(text, name)
    assert resolved.whole is not None
    price = _counted(resolved.price, guard, name)
    say(f"{resolved.whole} is the price of {price.origin}")
    if warning := price.age_warning(SYSTEM.wall_ns()):
        say(warning)
    return resolved.whole


def read_terms(text: str, guard: BudgetGuard, *, name: str) -> BillingTerms | None:
    """Return how a rental at a price is billed; its set-up time is part of its time already."""
    if is_price_name(text):
        price = _offered(text, name).price
    else:
        price = _typed(text, name, currency=guard.unit.currency)
    return None if price.terms is None else msgspec.structs.replace(price.terms, setup_ns=0)


def _typed(text: str, name: str, *, currency: str) -> Price:
    return typed_price(text, name=name, source="argument", currency=currency)


def _offered(text: str, name: str) -> ResolvedPrice:
    """Return the price of the named offer."""
    from outlay.prices.current import resolve_whole

    gpus = visible_gpus(os.environ)
    return resolve_whole(text, name=name, environ=os.environ, gpu=gpu_model(), gpus=gpus)


def _counted(price: Price, guard: BudgetGuard, name: str) -> Price:
    """Return a price that is in the unit of a guard."""
    if price.unit != guard.unit:
        raise InvalidValue(name, price.text, expected_price(guard, price.unit))
    return price


def say(text: str) -> None:
    """Print a message on stderr while a command runs; stdout belongs to the command."""
    try:
        sys.stderr.write(f"outlay: {terminal_text(text)}\n")
        sys.stderr.flush()
    except OSError:  # A closed stderr must not stop the end of a rental.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Python flushes it again on exit.


def watched(vendor: str | None) -> tuple[Vendor, ...]:
    """Return the vendor's preset as a tuple, empty without a name."""
    return (preset(vendor),) if vendor else ()


def minute_of(ts: str) -> str:
    """Shorten a timestamp of the spend log to the minute."""
    return f"{ts[:16].replace('T', ' ')}Z"
