"""What attempts say of their machines: kept or given back between two; and of their prices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

from outlay.errors import Finding
from outlay.ledger import Attempt, AttemptStarted, Price
from outlay.ledger.price import Kind
from outlay.units.quantity import duration_text

# What became of a machine between two attempts, as far as records say.
#
# It stayed up where the next attempt ran on the same instance; else in the same start of the same
# Slurm job; else under the same boot *and* the same process 1, since a container sees its host's
# boot id. A different answer to the first of these that both attempts recorded means another
# machine.

_ELASTIC = re.compile(r"torchelastic-(?P<run>.*)-(?P<restarts>\d+)")


class MachineAfter(Enum):
    """What became of an attempt's machine."""

    TAKEN_BACK = "the scheduler took it back"
    KEPT = "the next attempt ran on it"
    ANOTHER = "the next attempt ran on another one"
    UNKNOWN = "no record says"


def machine_after(attempt: Attempt, following: Attempt | None) -> MachineAfter:
    """Return what became of the machine after ``attempt``."""
    if given_back(attempt, following):
        return MachineAfter.TAKEN_BACK
    if following is None:
        return MachineAfter.UNKNOWN
    same = (_same_machine if attempt.nodes and following.nodes else _same_boot)(
        attempt.header, following.header
    )
    if same is None:
        return MachineAfter.UNKNOWN
    return MachineAfter.KEPT if same else MachineAfter.ANOTHER


def given_back(attempt: Attempt, following: Attempt | None) -> bool:
    """Say whether the scheduler took the machine back after ``attempt``."""
    if attempt.end is not None and attempt.end.status == "preempted":
        return True
    if following is None or not attempt.header.slurm_job:
        return False
    if attempt.header.slurm_job != following.header.slurm_job:
        return False
    restarts = attempt.header.slurm_restart, following.header.slurm_restart
    if all(restarts):
        return restarts[0] != restarts[1]
    before, after = attempt.header.launch, following.header.launch
    return before != after and not _restarted_in_place(before, after)


def _same_machine(before: AttemptStarted, after: AttemptStarted) -> bool | None:
    """Say whether two attempts ran on one machine; None where no record says."""
    if before.instance_id and after.instance_id:
        return before.instance_id == after.instance_id
    if before.slurm_job or after.slurm_job:
        return before.slurm_job == after.slurm_job  # Another start of it was given back.
    if before.boot_id and after.boot_id and before.boot_id != after.boot_id:
        return False
    if before.boot_id and after.boot_id and before.init_start and after.init_start:
        return before.init_start == after.init_start
    return None


def _same_boot(before: AttemptStarted, after: AttemptStarted) -> bool | None:
    """Say the same of logs that hold nothing but the boot, which says nothing where it differs."""
    return True if before.boot_id and before.boot_id == after.boot_id else None


def _restarted_in_place(before: str, after: str) -> bool:
    """Say whether torchrun started its workers anew, inside the allocation it had.

    Its launch ids end in the number of such restarts, which begins at 0 with every torchrun.
    """
    earlier, later = _ELASTIC.fullmatch(before), _ELASTIC.fullmatch(after)
    if earlier is None or later is None or earlier["run"] != later["run"]:
        return False
    return int(later["restarts"]) > int(earlier["restarts"])


# The prices that a run had: of which kind they are, where they came from, how old they were.
#
# A run's cost is of one kind, that of its first price: cash and showback are never added.

_A_MOMENT_NS = 1_000_000_000  # So long a program may take to look its price up.


def prices_of(attempts: Sequence[Attempt]) -> tuple[Price, ...]:
    """Return every price that was in force, each once, in the order of time."""
    return tuple(dict.fromkeys(price for _, price in _dated(attempts)))


def kind_of_cost(attempts: Sequence[Attempt]) -> Kind:
    """Return of which kind a run's cost is: that of its first price."""
    return next((price.kind for _, price in _dated(attempts)), "cash")


def price_findings(attempts: Sequence[Attempt], currency: str) -> Iterator[Finding]:
    """Yield which prices are not counted or were old, and which time has none."""
    kind, dated = kind_of_cost(attempts), list(_dated(attempts))
    for other in sorted({price.kind for _, price in dated} - {kind}):
        message = f"a {other} price is not counted: the run's cost is {kind}"
        yield Finding(source="prices", message=message)
    warned: dict[str, str | None] = {}
    for t_ns, price in dated:
        warned.setdefault(price.offer, price.age_warning(t_ns))
    yield from map(_warning, filter(None, warned.values()))
    headers = [attempt.header for attempt in attempts]
    stopped = [p for h in headers for p in (h.stopped_price, h.stopped_machine_price) if p]
    named = {price.currency for price in (*stopped, *(price for _, price in dated))}
    for foreign in sorted(named - {currency}):
        message = f"a price in {foreign} is not counted: the run pays in {currency}"
        yield Finding(source="prices", message=message)
    yield from _unpriced(attempts)


def _unpriced(attempts: Sequence[Attempt]) -> Iterator[Finding]:
    """Yield which time has no price."""
    first_ns = [next((t_ns for t_ns, _ in _dated([attempt])), None) for attempt in attempts]
    if missing := first_ns.count(None):
        yield _warning(f"{missing} of {len(attempts)} attempts have no price and are not charged")
    for attempt, t_ns in zip(attempts, first_ns, strict=True):
        if t_ns is not None and t_ns - attempt.start_ns > _A_MOMENT_NS:
            began = duration_text(t_ns - attempt.start_ns)
            yield _warning(f"an attempt had no price in its first {began}, which are not charged")


def _warning(message: str) -> Finding:
    return Finding(source="prices", message=message, severity="warning")


def _dated(attempts: Sequence[Attempt]) -> Iterator[tuple[int, Price]]:
    """Yield every price with the instant from which it was in force."""
    for attempt in attempts:
        if attempt.header.price is not None:
            yield attempt.start_ns, attempt.header.price
        for change in sorted(attempt.prices, key=lambda change: (change.t_ns, change.seq)):
            yield change.t_ns, change.price
