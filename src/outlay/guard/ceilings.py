"""Where ceilings come from: the caller, ``manifest.json`` beside the log, the environment.

The tighter of caller and manifest binds; the environment overrides both. Whatever can't be
understood refuses everything: a ceiling that is guessed at is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import msgspec

from outlay.decoding import BadDocument, decode, read_file
from outlay.errors import InvalidValue, choices
from outlay.guard.books import Books
from outlay.guard.errors import CeilingUnusable
from outlay.guard.policy import Ceilings, Override, Settled
from outlay.guard.scopes import lab_of
from outlay.units import Money

OVERRIDES = ("LYNX_CLOUD_BUDGET_USD", "OUTLAY_CEILING_USD")
_AMOUNT = "an amount of zero or more, such as 5.00"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``: the documented keys, and two caps of ours."""

    seed: int = 35000
    lab: str = "00-cloud-budget-and-tooling"
    hardware_target: str = "to be filled in lab 02"
    vendor: str = "<chosen>"
    currency: str
    ceiling_usd: Decimal
    ceiling_per_lab: dict[str, Decimal] = {}
    spend_log_path: str = "spend.jsonl"
    vendor_snapshot_date: str = ""
    vendor_snapshot_prices: dict[str, str | float] = {}
    ceiling_per_day_usd: Decimal | None = None
    ceiling_per_month_usd: Decimal | None = None


def manifest_path(log_path: Path) -> Path:
    """Return where the manifest of a log is sought: beside it."""
    return log_path.parent / "manifest.json"


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest, or None when there is none.

    Raises:
        CeilingUnusable: There is one, and it can't be read, or states a ceiling of no known kind.
    """
    try:
        raw = read_file(path)
        manifest = decode(raw, Manifest)
        names = decode(raw, dict[str, object])
    except FileNotFoundError:
        return None
    except (OSError, BadDocument) as error:
        raise CeilingUnusable(str(path), str(error), "a readable manifest.json") from error
    known = [name for name in Manifest.__struct_fields__ if name.startswith("ceiling")]
    for name in names:
        # Any other key is the user's own; a ceiling with a typing error in it would bind nothing.
        if name.startswith("ceiling") and name not in known:
            raise CeilingUnusable(str(path), name, choices(known))
    return manifest


def stated_ceiling(log_path: Path, books: Books, environ: Mapping[str, str]) -> Money:
    """Return the ceiling that a log's manifest, its last line or the environment states.

    Raises:
        CeilingUnusable: None of them states one.
    """
    path = manifest_path(log_path)
    manifest, currency = read_manifest(path), books.currency or "USD"
    if manifest is not None:
        where = f"{path}: ceiling_usd"
        return money(manifest.ceiling_usd, where=where, currency=manifest.currency)
    if books.ceiling_micros is not None:
        return Money(books.ceiling_micros, currency)
    for name in OVERRIDES:
        if name in environ:
            return money(environ[name], where=name, currency=currency)
    expected = "a ceiling: name one, or write a manifest with `outlay guard init`"
    raise CeilingUnusable(str(log_path), None, expected)


def money(value: object, *, where: str, currency: str) -> Money:
    """Return a limit as Money, rounded to the micro-unit.

    Raises:
        CeilingUnusable: It is no amount of zero or more, or another currency.
    """
    try:
        parsed = Money.parse(value, name=where, currency=currency)
    except InvalidValue:
        raise CeilingUnusable(where, value, _AMOUNT) from None
    if parsed.micros < 0:
        raise CeilingUnusable(where, value, _AMOUNT)
    if parsed.currency != currency:
        raise CeilingUnusable(where, value, f"an amount in {currency}")
    return parsed


def lab_caps(caps: Mapping[str, object], *, where: str, currency: str) -> dict[str, Money]:
    """Return a cap for each lab.

    Raises:
        CeilingUnusable: A cap is no amount, or two of them are for the same lab.
    """
    limits: dict[str, Money] = {}
    for name, cap in caps.items():
        lab = lab_of("", name)
        if lab in limits:
            raise CeilingUnusable(where, sorted(caps), f"one cap for lab {lab}")
        limits[lab] = money(cap, where=where, currency=currency)
    return limits


def with_manifest(given: Ceilings, path: Path) -> Ceilings:
    """Return the ceilings that bind: the caller's, and the manifest's if there is one.

    Raises:
        CeilingUnusable: The manifest can't be understood, or is in another currency.
    """
    manifest = read_manifest(path)
    if manifest is None:
        return given
    currency, where = given.whole.currency, str(path)
    if manifest.currency != currency:
        raise CeilingUnusable(where, manifest.currency, f"currency {currency}")

    def tighter(a: Money | None, b: Decimal | None, key: str) -> Money | None:
        limit = None if b is None else money(b, where=f"{where}: {key}", currency=currency)
        return min((x for x in (a, limit) if x is not None), default=None)

    labs = lab_caps(manifest.ceiling_per_lab, where=f"{where}: ceiling_per_lab", currency=currency)
    whole = money(manifest.ceiling_usd, where=f"{where}: ceiling_usd", currency=currency)
    return Ceilings(
        whole=min(given.whole, whole),
        labs=given.labs or labs,
        day=tighter(given.day, manifest.ceiling_per_day_usd, "ceiling_per_day_usd"),
        month=tighter(given.month, manifest.ceiling_per_month_usd, "ceiling_per_month_usd"),
    )


def settle(configured: Ceilings, environ: Mapping[str, str]) -> Settled:
    """Return the ceilings in force once the environment has had its say.

    Raises:
        CeilingUnusable: A variable holds no amount, or both are set and differ.
    """
    currency = configured.whole.currency
    found = {
        name: money(environ[name], where=name, currency=currency)
        for name in OVERRIDES
        if name in environ
    }
    if not found:
        return Settled(ceilings=configured, override=None)
    if len(set(found.values())) > 1:
        raise CeilingUnusable(" and ".join(found), [str(x) for x in found.values()], "one value")
    variable, whole = next(iter(found.items()))
    override = Override(variable=variable, over=configured.whole, loosens=whole > configured.whole)
    return Settled(ceilings=replace(configured, whole=whole), override=override)
