"""What an attempt needs before its first step: its place, its header, and what may stop it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlay.clock import Clock
from outlay.ledger import (
    SUPERVISOR,
    AttemptStarted,
    EndStatus,
    Price,
    RunIdentity,
    claim_identity,
    last_committed_step,
    ledger_dir,
)
from outlay.record import facts
from outlay.record.lock import RankLock
from outlay.runs.inbox import leave_notice
from outlay.runs.options import Options
from outlay.units import Rate

if TYPE_CHECKING:
    from outlay.budget.gate import BudgetGate
    from outlay.guard.gate import GuardGate
    from outlay.runs.guarding import JointGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A rank's place in a run.

    Attributes:
        lock: Held while the rank records; None where the directory cannot be written.
        resume_step: The step after the last committed checkpoint.
    """

    run_id: str
    lock: RankLock | None
    resume_step: int


def claim(options: Options, about: facts.Facts, run_id: str, start_ns: int) -> Claim:
    """Take the directory for a rank, and learn where the run left off.

    Raises:
        RunInUse: A live process records this rank already.
    """
    proposal = RunIdentity(
        run_id=run_id, model=options.model, name=options.name, created_ns=start_ns
    )
    holder = f"pid {about.pid}" + (f" on {about.host}" if about.host else "")
    lock = None
    try:
        run_id = claim_identity(options.dir, proposal).run_id
        lock = RankLock(ledger_dir(options.dir), about.rank, holder=holder)
    except OSError:
        pass  # The segment writer meets the same trouble, says so, and keeps trying.
    committed = last_committed_step(options.dir)
    if about.rank <= 0:
        leave_notice(run_id, options.dir)
    return Claim(run_id=run_id, lock=lock, resume_step=0 if committed is None else committed + 1)


def header_of(options: Options, about: facts.Facts, start_ns: int) -> AttemptStarted:
    """Return the first record of the attempt."""
    return AttemptStarted(
        t_ns=start_ns,
        model=options.model,
        name=options.name,
        tags=options.tags,
        gpu=options.gpu,
        gpus=options.gpus,
        price=options.price,
        stopped_price=options.stopped_price,
        **{name: getattr(about, name) for name in facts.Facts.__slots__},
    )


def budget_gate(options: Options, about: facts.Facts, clock: Clock) -> BudgetGate | None:
    """Return what enforces the budget; a supervisor leaves that to what it supervises."""
    if options.budget is None or about.rank == SUPERVISOR:
        return None
    from outlay.budget.gate import BudgetGate

    return BudgetGate(
        options.budget, options.dir, rank=about.rank, price=options.price, clock=clock
    )


def guard_gates(
    options: Options, about: facts.Facts, clock: Clock
) -> tuple[GuardGate | None, JointGuard | None]:
    """Return what keeps the money, on rank 0 alone, and what stops all ranks together."""
    price, asked = options.price, options.guard
    guarded = asked is not None or (price is not None and os.environ.get("OUTLAY_HOLD"))
    if not guarded or about.rank == SUPERVISOR:
        return None, None
    from outlay.guard.gate import GuardGate, read_guarding
    from outlay.runs.guarding import JointGuard

    if about.rank != 0:
        return None, JointGuard(None, clock=clock)
    guarding = read_guarding(asked, os.environ, priced=price is not None, clock=clock)
    assert guarding is not None
    assert price is not None
    rate = rate_of(price, options.gpus)
    gate = GuardGate(guarding, rate, options.name, os.environ, clock=clock)
    return gate, JointGuard(gate, clock=clock)


def rate_of(price: Price, gpus: int) -> Rate:
    """Return what the whole run costs per hour."""
    return Rate(price.micros_per_hour * gpus, price.currency)


def outcome_of(error: BaseException | None) -> tuple[EndStatus, str]:
    """Return how an attempt ended; of an error only its type, since its text may hold a secret."""
    match error:
        case None | GeneratorExit():
            return "completed", ""
        case KeyboardInterrupt():
            return "interrupted", "KeyboardInterrupt"
        case SystemExit(code=None | 0):
            return "completed", ""
        case _:
            return "failed", type(error).__name__
