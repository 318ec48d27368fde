"""A budget's state as documents: snapshots, statements in the log, repair of lost steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, astuple

from outlay.budget.fold import Run, SegmentSpend, Surviving
from outlay.budget.limits import CURRENCY, EPOCHS, NS_PER_MINUTE, StopReason, total_key
from outlay.budget.terms import Budget
from outlay.budget.usage import CLOCKS, Charges, Ongoing, Period, Usage
from outlay.decoding import BadDocument, convert, decode
from outlay.errors import Finding, InvalidValue
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    BudgetStatement,
    PriceChanged,
    Record,
    SegmentId,
    SegmentLife,
    SlicesChanged,
    Step,
)
from outlay.rates import units_of
from outlay.units import Money
from outlay.units.money import MICROS
from outlay.units.quantity import MILLIJOULES_PER_WH

# Snapshots, for checkpoints and ``budget.json``

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


# Statements: a process's replayed state, written into its own segment
#
# A start restores the last statement and replays only the records after it. A statement has no
# authority over the records: a reader of the whole log replays them, and both results must agree.

FORM: Final = 1
"""The version of a statement's content."""

RUNS_MAX: Final = 256
"""How many runs of equal steps a statement lists; beyond that, neighbours are merged."""

_LISTED_MAX: Final = 128
"""How many prices, budget events or spans a statement may repeat; with more, none is written."""

_TERMS: Final = ("set", "changed", "dropped", "epoch", "ended")
Kept = PriceChanged | SlicesChanged | BudgetEvent | AttemptEnded
"""Records that a statement repeats; of budget events only the terms and the final totals."""


class LastStep(msgspec.Struct, frozen=True, array_like=True):
    """A process's last step before a statement: the model for steps that are lost after it."""

    step: int
    count: int
    t_ns: int
    dur_ns: int
    wait_ns: int
    tokens: int
    samples: int
    comm_bytes: int
    energy_mj: int
    flops: int

    @classmethod
    def of(cls, step: Step) -> LastStep:
        """Return the amounts of a step."""
        return cls(*(getattr(step, name) for name in cls.__struct_fields__))

    def record(self) -> Step:
        """Return the step without its sequence number."""
        return Step(**asdict(self))


class StatedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a statement: a ``SegmentSpend`` as plain values.

    Attributes:
        next_step, lowest: As in ``Surviving``.
        ongoing: The open span, and the spans since the last step.
        kept: Prices, slices, the terms of the budget and the end.
    """

    executed: Usage
    runs: list[Run]
    next_step: int
    lowest: int | None = None
    periods: list[Period]
    ongoing: Ongoing
    kept: list[Kept] = []
    last_step: LastStep | None = None
    first_step_ns: int | None = None
    before_steps_ns: int = 0
    last_sign_ns: int


def state_of(spend: SegmentSpend, kept: Sequence[Kept]) -> StatedState | None:
    """Return the state of a fold, or None if it is too large for a statement."""
    ongoing = spend.charges.ongoing
    if max(len(kept), len(spend.periods), len(ongoing.since_step)) > _LISTED_MAX:
        return None
    return StatedState(
        executed=spend.executed,
        runs=spend.surviving.outline(RUNS_MAX, spend.marks),
        next_step=spend.surviving.next_step,
        lowest=spend.surviving.lowest,
        periods=spend.periods,
        ongoing=ongoing,
        kept=list(kept),
        last_step=None if spend.last_step is None else LastStep.of(spend.last_step),
        first_step_ns=spend.first_step_ns,
        before_steps_ns=spend.before_steps_ns,
        last_sign_ns=spend.life.last_sign_ns,
    )


def read_state(statement: BudgetStatement) -> StatedState | None:
    """Return a statement's content, or None if it is not valid."""
    if statement.form != FORM or not 0 < statement.covers <= statement.seq:
        return None
    try:
        state = convert(statement.state, StatedState)
        Surviving.of(state.runs, next_step=state.next_step, lowest=state.lowest)
    except (BadDocument, OverflowError):
        return None
    return state if state.periods else None


def is_valid(statement: BudgetStatement) -> bool:
    """Return whether a statement can replace the records that it covers."""
    return read_state(statement) is not None


def restore_spend(
    segment: SegmentId, header: AttemptStarted | None, statement: BudgetStatement
) -> SegmentSpend:
    """Return the fold of all records that a valid statement covers."""
    state = read_state(statement)
    assert state is not None
    life = SegmentLife(segment)
    life.fold([*([header] if header else []), *state.kept])
    life.last_sign_ns = state.last_sign_ns
    return SegmentSpend(
        life,
        surviving=Surviving.of(state.runs, next_step=state.next_step, lowest=state.lowest),
        executed=state.executed,
        periods=state.periods,
        events=[record for record in state.kept if isinstance(record, BudgetEvent)],
        last_step=None if state.last_step is None else state.last_step.record(),
        first_step_ns=state.first_step_ns,
        before_steps_ns=state.before_steps_ns,
        charges=Charges(state.ongoing),
    )


def is_kept(record: Kept) -> bool:
    """Return whether a statement repeats this record."""
    return not isinstance(record, BudgetEvent) or record.event in _TERMS


def last_valid(records: Sequence[Record]) -> BudgetStatement | None:
    """Return the last valid statement among a segment's records."""
    statements = (one for one in reversed(records) if isinstance(one, BudgetStatement))
    return next(filter(is_valid, statements), None)


# Repair: stand-ins for steps that a damaged log has lost, so that damage gives no budget back

_AMOUNTS: Final = (
    "dur_ns", "wait_ns", "tokens", "samples", "comm_bytes", "energy_mj", "flops",
)  # fmt: skip


def repair(
    records: Sequence[Record],
    unplaced: int = 0,
    *,
    first_seq: int = 1,
    last: Step | None = None,
    has_totals: bool = False,
) -> tuple[list[Record], int]:
    """Insert stand-ins where steps are missing, each as large as the larger of its neighbours.

    Returns the records, and how many steps were assumed.

    Args:
        records: One segment's, in sequence.
        unplaced: How many unreadable lines correspond to no hole in the sequence: they may have
            been at its end.
        first_seq: The first number that can be missing; the header is never a step.
        last: The last step before ``records``.
        has_totals: Whether the attempt's final totals were recorded before ``records``.
    """
    repaired: list[Record] = []
    next_seq, missing, hole, assumed = first_seq, 0, 0, 0
    for record in records:
        if record.seq > next_seq:
            hole = hole if missing else len(repaired)
            missing += record.seq - next_seq
        next_seq = record.seq + 1
        if isinstance(record, Step):
            count = _lost_steps(last, record, missing)
            if count:
                before = repaired[hole - 1] if hole else None
                place = (before.seq, before.t_ns) if before else (first_seq - 1, record.t_ns)
                stand_in = _stand_in([last or record, record], record.step - count, count, place)
                repaired.insert(hole, stand_in)
                assumed += count
            last, missing = record, 0
        repaired.append(record)
    at_end = missing + unplaced
    if at_end and last is not None and not (has_totals or _has_totals(repaired)):
        place = (repaired[-1].seq, repaired[-1].t_ns) if repaired else (first_seq - 1, last.t_ns)
        repaired.append(_stand_in([last], last.step + last.count, at_end, place))
        assumed += at_end
    return repaired, assumed


def _lost_steps(last: Step | None, following: Step, missing: int) -> int:
    """Return how many steps the records missing before ``following`` can have held."""
    if last is None:
        return min(missing, following.step)
    skipped = following.step - last.step - last.count
    return min(max(0, skipped), missing * max(last.count, following.count))


def _stand_in(neighbours: Sequence[Step], step: int, count: int, after: tuple[int, int]) -> Step:
    """Return ``count`` steps as large as the largest neighbour, placed ``after`` (seq, t_ns)."""
    each = {
        name: max(-(-getattr(one, name) // one.count) for one in neighbours) for name in _AMOUNTS
    }
    amounts = {name: amount * count for name, amount in each.items()}
    seq, t_ns = after
    return Step(seq=seq + 1, t_ns=t_ns, step=step, count=count, **amounts)


def _has_totals(records: Sequence[Record]) -> bool:
    """Return whether the attempt recorded its final totals, so that nothing is assumed."""
    return any(isinstance(one, BudgetEvent) and one.event == "ended" for one in records)
