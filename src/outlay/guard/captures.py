"""What the guard captures for a run: the cost that its own log adds up to.

The arithmetic is that of ``outlay.rates``, and the log is the one that every report reads, so what
is captured is what they show. Where there is no log, whoever held the money estimates.
"""

from __future__ import annotations

from pathlib import Path

from outlay.guard.books import is_machine
from outlay.ledger import SegmentId, alive_until, derive_attempts, read_lives
from outlay.rates import cost_to_last_record, run_rates
from outlay.units import Money


def cost_of_run(run_dir: Path) -> Money | None:
    """Return what a run has cost to its last record; None without a log or a price."""
    return cost_to_last_record(derive_attempts(read_lives(run_dir)))


def cost_on_machine(run_dir: Path, instance_id: str) -> Money | None:
    """Return what of a run's cost fell on one machine; None where none did, or without a price.

    What lies between two attempts on the machine belongs to the run.
    """
    attempts = derive_attempts(read_lives(run_dir))
    function = run_rates(attempts, attempts[-1].last_sign_ns).function if attempts else None
    there = [is_machine(instance_id, each.header.instance_id) for each in attempts]
    if function is None or not any(there):
        return None
    cost = Money(0, function.currency)
    for place, attempt in enumerate(attempts):
        if there[place]:
            stays = place + 1 < len(attempts) and there[place + 1]
            end_ns = attempts[place + 1].start_ns if stays else attempt.last_sign_ns
            cost += function.cost_between(attempt.start_ns, end_ns)
    return cost


def cost_of_attempt(run_dir: Path, segment: SegmentId, end_ns: int) -> Money | None:
    """Return what one process's part of a run has cost; None where the log does not say.

    It reaches from the end of the attempt before, so that the parts of a run sum to its cost to the
    micro-unit: each is the difference of two rounded totals.

    Args:
        run_dir: The run's directory.
        segment: Of the process that captures: a supervisor, or the training's first rank.
        end_ns: When it ended, whether or not that is in the log already.
    """
    attempts = derive_attempts(read_lives(run_dir))
    ours = [place for place, attempt in enumerate(attempts) if segment in attempt.ranks]
    if not ours:
        return None
    counted = alive_until(attempts[: ours[-1] + 1], end_ns)
    until_ns, start_ns = counted[-1].last_sign_ns, attempts[0].start_ns
    function = run_rates(counted, until_ns).function
    if function is None:
        return None
    before_ns = attempts[ours[0] - 1].last_sign_ns if ours[0] else start_ns
    earlier = function.cost_between(start_ns, before_ns)
    return function.cost_between(start_ns, until_ns) - earlier
