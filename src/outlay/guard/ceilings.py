"""Where ceilings come from: the caller, ``manifest.json`` beside the log, the environment.

The tighter of caller and manifest binds; the environment overrides both. Whatever can't be
understood refuses everything: a ceiling that is guessed at is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import msgspec

from outlay.errors import InvalidValue
from outlay.guard.errors import CeilingUnusable
from outlay.guard.policy import Ceilings, Override, Settled
from outlay.guard.scopes import lab_of
from outlay.units import Money

OVERRIDES = ("LYNX_CLOUD_BUDGET_USD", "OUTLAY_CEILING_USD")
_AMOUNT = "an amount of zero or more, such as 5.00"


class Manifest(msgspec.Struct, kw_only=True, omit_defaults=True):
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


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest, or None when there is none.

    Raises:
        CeilingUnusable: There is one, and it can't be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise CeilingUnusable(str(path), str(error), "a readable manifest.json") from error


def money(value: object, *, where: str, currency: str) -> Money:
    """Return a limit as Money, rounded to the micro-unit.

    Raises:
        CeilingUnusable: It is no amount of zero or more, or another currency.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise CeilingUnusable(where, value, _AMOUNT)
    try:
        parsed = Money.parse(value, name=where, currency=currency)
    except InvalidValue:
        raise CeilingUnusable(where, value, _AMOUNT) from None
    if parsed.currency != currency:
        raise CeilingUnusable(where, value, f"an amount in {currency}")
    return parsed


def with_manifest(given: Ceilings, manifest: Manifest, *, where: str) -> Ceilings:
    """Return the ceilings that bind when both the caller and a manifest set some."""
    currency = given.whole.currency
    if manifest.currency != currency:
        raise CeilingUnusable(where, manifest.currency, f"currency {currency}")

    def tighter(a: Money | None, b: Decimal | None, key: str) -> Money | None:
        limit = None if b is None else money(b, where=f"{where}: {key}", currency=currency)
        return min((x for x in (a, limit) if x is not None), default=None)

    labs = {
        lab_of("", name): money(cap, where=f"{where}: ceiling_per_lab", currency=currency)
        for name, cap in manifest.ceiling_per_lab.items()
    }
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
