"""A budget's limits and totals as a document, for checkpoints and ``budget.json``. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from outlay.budget.limits import CURRENCY, EPOCHS, NS_PER_MINUTE, StopReason, total_key
from outlay.budget.terms import Budget
from outlay.budget.usage import CLOCKS, Usage
from outlay.decoding import BadDocument, decode
from outlay.errors import Finding, InvalidValue
from outlay.rates import units_of
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.quantity import MILLIJOULES_PER_WH

_NS_PER_MS = 1_000_000


class BudgetChanged(InvalidValue):
    """A run was resumed with other limits than it started with."""

    def __init__(self, changes: Mapping[str, tuple[object, object]]) -> None:
        shown = ", ".join(f"{key} {then!r} -> {now!r}" for key, (then, now) in changes.items())
        super().__init__(
            "budget",
            shown,
            "the limits this run started with, so that it stays comparable; "
            "allow_change=True accepts the change and records it "
            "(in OUTLAY_BUDGET: iso_time=3h,allow_change=true)",
        )
        self.changes = dict(changes)


def totals_of(
    total: Usage, steps_per_epoch: int | None, currency: str = CURRENCY
) -> dict[str, int | float]:
    """Return a total under the documented names."""
    return {
        "tokens": total.tokens,
        "time_ms": total.time_ns / _NS_PER_MS,
        "time_minutes": total.time_ns / NS_PER_MINUTE,
        "comm_bytes": total.comm_bytes,
        "energy_Wh": total.energy_mj / MILLIJOULES_PER_WH,
        total_key(currency): total.cost_micros / MICROS,
        "flops": total.flops,
        "steps": total.steps,
        "epochs": total.steps / steps_per_epoch if steps_per_epoch else 0.0,
    }


def remaining_of(total: Usage, budget: Budget) -> dict[str, int | float]:
    """Return what is left of each limit, in the unit of its key."""
    left: dict[str, int | float] = {}
    for bound in budget.bounds_known:
        amount = bound.left(total)
        if bound.dimension is EPOCHS:
            left[EPOCHS.key] = amount / (budget.steps_per_epoch or 1)
        else:
            left[bound.dimension.key] = bound.dimension.number(amount)
    return left


def snapshot_of(
    budget: Budget, total: Usage, clocks_ns: Mapping[str, int], reason: StopReason | None
) -> dict[str, Any]:
    """Return the whole state: limits, totals, clocks and stop reason."""
    return {
        "mode": budget.mode,
        "limits": dict(budget.limits),
        "steps_per_epoch": budget.steps_per_epoch,
        "charge": budget.charge,
        "totals": totals_of(total, budget.steps_per_epoch, budget.currency),
        "clocks_ms": {name: ns / _NS_PER_MS for name, ns in clocks_ns.items()},
        "stop_reason": None if reason is None else _reason_document(reason),
    }


def _reason_document(reason: StopReason) -> dict[str, Any]:
    return {
        "limit_key": reason.key,
        "before_step": bool(reason.asked),
        "text": str(reason),
        "unit": reason.bound.dimension.name,
        "limit": reason.bound.limit,
        "used": reason.used,
        "over": reason.over,
    }


def check_unchanged(budget: Budget, snapshot: Mapping[str, Any]) -> None:
    """Refuse a snapshot of another mode or other limits; one without any is accepted.

    Raises:
        BudgetChanged: They differ.
    """
    if not snapshot.get("mode", budget.mode):
        return  # A disabled budget's.
    limits = snapshot.get("limits", budget.limits)
    if not isinstance(limits, Mapping):
        raise BudgetChanged({"limits": (limits, dict(budget.limits))})
    changes = budget.changed_from(snapshot.get("mode", budget.mode), limits)
    if changes:
        raise BudgetChanged(changes)


_FIELDS: Final[dict[str, tuple[str, Callable[[float], int]]]] = {
    "tokens": ("tokens", round),
    "steps": ("steps", round),
    "flops": ("flops", round),
    "time_ms": ("time_ns", lambda ms: round(ms * _NS_PER_MS)),
    "comm_bytes": ("comm_bytes", round),
    "energy_Wh": ("energy_mj", lambda wh: round(wh * MILLIJOULES_PER_WH)),
}


def _fields(currency: str) -> dict[str, tuple[str, Callable[[float], int]]]:
    """Return each total's field of ``Usage`` and its parser, with money in one currency."""
    return _FIELDS | {
        total_key(currency): ("cost_units", lambda cost: units_of(Money(round(cost * MICROS))))
    }


_MEASURED: Final = ("tokens", "time_ms", "comm_bytes", "energy_Wh", "steps")
"""The totals that every snapshot has, including those of older versions."""


def check_totals(snapshot: Mapping[str, Any], currency: str = CURRENCY) -> None:
    """Refuse a snapshot with an impossible or missing total."""
    totals = snapshot.get("totals")
    if not isinstance(totals, Mapping):
        raise InvalidValue("totals", totals, f"a table with {', '.join(_MEASURED)}")
    for key in _fields(currency):
        if (key in totals or key in _MEASURED) and not _is_possible(totals.get(key)):
            raise InvalidValue(f"total {key!r}", totals.get(key), "a number, zero or more")


def usage_in(
    snapshot: Mapping[str, Any], *, otherwise: Usage, currency: str = CURRENCY
) -> tuple[Usage, list[Finding]]:
    """Return the totals of a snapshot; missing or impossible ones are those of ``otherwise``.

    An impossible total (negative, NaN, not a number) is a finding.
    """
    totals = snapshot.get("totals") or {}
    if not isinstance(totals, Mapping):
        message = f"the totals are {totals!r}, not a table; they are ignored"
        return otherwise, [Finding(source="budget snapshot", message=message)]
    amounts = dict(zip(otherwise.__struct_fields__, astuple(otherwise), strict=True))
    findings = []
    for key, (name, read) in _fields(currency).items():
        value = totals.get(key)
        if value is None:
            continue
        if _is_possible(value):
            amounts[name] = read(value)
        else:
            message = f"total {key!r} is {value!r}, which is impossible; it is ignored"
            findings.append(Finding(source="budget snapshot", message=message))
    return Usage(**amounts), findings


def _is_possible(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def clocks_in(snapshot: Mapping[str, Any], *, at_least: Mapping[str, int]) -> dict[str, int]:
    """Return the snapshot's clocks in nanoseconds, each ``at_least`` the given value."""
    saved = snapshot.get("clocks_ms", {})
    return {
        name: max(at_least[name], round(saved[name] * _NS_PER_MS))
        for name in CLOCKS
        if _is_possible(saved.get(name))
    }


def as_json(snapshot: Mapping[str, Any]) -> str:
    """Return the document as indented JSON with sorted keys and a final newline."""
    encoded = msgspec.json.encode(snapshot, order="sorted")
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def from_json(text: str | bytes) -> dict[str, Any]:
    """Parse a document that ``as_json`` wrote."""
    try:
        return decode(text, dict[str, Any])
    except BadDocument as error:
        raise InvalidValue("budget snapshot", text[:80], f"a JSON object ({error})") from None
