"""The budget as a document: what a checkpoint embeds and ``budget.json`` holds.

Pure: values to dictionaries and back; writing the file is ``outlay.budget.document``'s subject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from outlay.budget.amounts import NS_PER_MINUTE
from outlay.budget.clocks import CLOCKS
from outlay.budget.dimensions import EPOCHS
from outlay.budget.limits import StopReason
from outlay.budget.terms import Budget
from outlay.budget.usage import Usage
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
            "allow_change=True accepts the change and records it",
        )
        self.changes = dict(changes)


def totals_of(total: Usage, steps_per_epoch: int | None) -> dict[str, int | float]:
    """Return a total under the documented names; counts are whole."""
    return {
        "tokens": total.tokens,
        "time_ms": total.time_ns / _NS_PER_MS,
        "time_minutes": total.time_ns / NS_PER_MINUTE,
        "comm_bytes": total.comm_bytes,
        "energy_Wh": total.energy_mj / MILLIJOULES_PER_WH,
        "cost_usd": total.cost_micros / MICROS,
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
    """Return the whole state: what was asked, what was used, on which clock, and why it stopped."""
    return {
        "mode": budget.mode,
        "limits": dict(budget.limits),
        "steps_per_epoch": budget.steps_per_epoch,
        "charge": budget.charge,
        "totals": totals_of(total, budget.steps_per_epoch),
        "clocks_ms": {name: ns / _NS_PER_MS for name, ns in clocks_ns.items()},
        "stop_reason": None if reason is None else _reason_document(reason),
    }


def _reason_document(reason: StopReason) -> dict[str, Any]:
    amounts = {"limit": reason.bound.limit, "used": reason.used, "over": reason.over}
    return {
        "limit_key": reason.key,
        "before_step": bool(reason.asked),
        "text": str(reason),
        "unit": reason.bound.dimension.name,
    } | amounts


def check_unchanged(budget: Budget, snapshot: Mapping[str, Any]) -> None:
    """Refuse a snapshot of another mode or of other limits.

    Raises:
        BudgetChanged: They differ; a snapshot that states none is taken as it is.
    """
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
    "cost_usd": ("cost_units", lambda usd: units_of(Money(round(usd * MICROS)))),
}


def usage_in(snapshot: Mapping[str, Any], *, otherwise: Usage) -> tuple[Usage, list[Finding]]:
    """Return the totals of a snapshot; what is missing or impossible is taken from ``otherwise``.

    A total that no run can have (negative, NaN, no number) is a finding, and gives nothing back.
    """
    totals = snapshot.get("totals") or {}
    if not isinstance(totals, Mapping):
        message = f"the totals are {totals!r}, not a table of them; nothing was taken over"
        return otherwise, [Finding(source="budget snapshot", message=message)]
    amounts = dict(zip(otherwise.__struct_fields__, astuple(otherwise), strict=True))
    findings = []
    for key, (name, read) in _FIELDS.items():
        value = totals.get(key)
        if value is None:
            continue
        if _is_possible(value):
            amounts[name] = read(value)
        else:
            message = f"total {key!r} is {value!r}, which no run can have; it was not taken over"
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
    """Return the snapshot's clocks in nanoseconds; none runs back."""
    saved = snapshot.get("clocks_ms", {})
    return {
        name: max(at_least[name], round(saved[name] * _NS_PER_MS))
        for name in CLOCKS
        if _is_possible(saved.get(name))
    }


def as_json(snapshot: Mapping[str, Any]) -> str:
    """Return the document as people read it: indented, keys sorted, a newline at its end."""
    encoded = msgspec.json.encode(snapshot, order="sorted")
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def from_json(text: str | bytes) -> dict[str, Any]:
    """Return a document as it was written.

    Raises:
        InvalidValue: It is no JSON object.
    """
    try:
        return decode(text, dict[str, Any])
    except BadDocument as error:
        raise InvalidValue("budget snapshot", text[:80], f"a JSON object ({error})") from None
