"""What attempts of a sweep cost, also those whose harness died before it could say.

What an attempt costs is what it adds to the cost of its run's log, so that captures, journal and
every report of the run have one amount.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outlay.clock import Clock
from outlay.guard.captures import cost_of_run, run_part
from outlay.guard.entries import RunPart
from outlay.ledger import AttemptEnded, GpuCount, end_segment, exact_gpus, read_identity
from outlay.ledger.price import typed_price
from outlay.rates import cost_at_most, paid_time, rate_of
from outlay.record.supervision import Supervision, latest_supervision
from outlay.sweep.attempt_log import ENDS, end_instant_ns, shell_code, supervised
from outlay.sweep.engines.base import Ended
from outlay.sweep.outcomes import Verdict
from outlay.sweep.states import RunState
from outlay.units import Money, Rate

_ASSUMED: Final = "nobody saw it end; assumed to have run as long as its money lasted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCost:
    """What an attempt cost.

    Attributes:
        cost: None where nobody knows.
        logged_micros: What the run's log adds up to now, in the currency of ``cost``; None where
            the log does not say.
        assumed: Whether its end was not seen.
        part: Of which run's log it is the cost, where it is one's.
    """

    cost: Money | None
    logged_micros: int | None = None
    assumed: bool = False
    part: RunPart | None = None


def rate_in(static: Mapping[str, Any]) -> Rate | None:
    """Return what a run of a manifest costs per hour, all its GPUs."""
    price = static.get("price")
    charged = exact_gpus(charged_in(static))
    return rate_of(Rate.parse(price, name="price"), charged) if price else None


def charged_in(static: Mapping[str, Any]) -> GpuCount:
    """Return the GPUs that a run of a manifest is charged for."""
    return static.get("charged_gpus") or gpus_in(static)


def gpus_in(static: Mapping[str, Any]) -> int:
    """Return the most GPUs that a run of a manifest may have."""
    return static.get("most_gpus") or static.get("gpus") or 1


def end_for_another(
    static: Mapping[str, Any],
    directory: Path,
    state: RunState,
    *,
    verdict: Verdict,
    ended: Ended,
    held: Money | None,
    clock: Clock,
) -> None:
    """Write down how an attempt of this machine ended whose harness died before it could.

    Args:
        static: The run, as the manifest has it.
        directory: Where its log is.
        state: How it stands; its attempt has no end yet.
        verdict: What becomes of it.
        ended: How it ended, as far as anybody knows.
        held: The money that was held for it. Where nobody saw its end it is taken to have run for
            as long as that lasts, and not beyond the present.
        clock: Where the time comes from.
    """
    now_ns, begun_ns = clock.wall_ns(), state.started_ns or clock.wall_ns()
    latest = latest_supervision(directory)
    is_ours = latest is not None and latest[1].start_ns >= begun_ns
    start_ns = latest[1].start_ns if latest is not None and is_ours else begun_ns
    rate, reason = rate_in(static), verdict.reason
    end_ns: int | None = end_instant_ns(start_ns, ended, now_ns)
    if not ended.is_measured:
        paid_ns = None if rate is None or held is None else paid_time(held, rate)
        end_ns = None if paid_ns is None else min(now_ns, start_ns + paid_ns)
        reason = f"{reason}; {_ASSUMED}"
    if end_ns is None:
        return  # What its log says last is its end.
    status = ENDS.get(verdict.status, "failed")
    if latest is not None and is_ours:
        last = AttemptEnded(
            t_ns=end_ns, status=status, reason=reason, exit_code=shell_code(ended)
        )  # fmt: skip
        with suppress(OSError):
            end_segment(latest[0], last)
        return
    price = static.get("price")
    stated = typed_price(price, name="price", source="sweep") if price else None
    what = supervised(static["id"], directory, stated, charged_in(static))
    Supervision(what, {}, clock=clock, start_ns=start_ns).end(
        status, reason, exit_code=shell_code(ended), t_ns=end_ns
    )


def price_attempt(
    directory: Path,
    state: RunState,
    rate: Rate | None,
    ended: Ended,
    *,
    recorded: bool | None = None,
) -> AttemptCost:
    """Return what an attempt that has ended cost.

    Args:
        directory: Where its log is.
        state: How the run stood before: what its log had added up to.
        rate: What the sweep says that it costs per hour.
        ended: How it ended, for an attempt without a log.
        recorded: Whether its supervisor could write its log; None for a supervisor elsewhere.
    """
    if recorded is None:
        recorded = latest_supervision(directory) is not None
    estimated = None
    if rate is not None and ended.is_measured:
        estimated = cost_at_most(rate, ended.elapsed_ns)
    total = cost_of_run(directory)
    currency = state.currency if rate is None else rate.currency
    if total is None or currency not in ("", total.currency):
        return AttemptCost(cost=estimated)
    added = total.micros - (state.logged_micros or 0)
    if not recorded or added < 0:
        return AttemptCost(cost=estimated, logged_micros=total.micros)
    return AttemptCost(
        cost=Money(added, total.currency), logged_micros=total.micros,
        assumed=not ended.is_measured, part=_part_of(directory),
    )  # fmt: skip


def _part_of(directory: Path) -> RunPart | None:
    """Return which run it is, and the newest supervisor's segment."""
    identity, latest = read_identity(directory), latest_supervision(directory)
    return None if identity is None or latest is None else run_part(identity.run_id, latest[1])


def late_cost(directory: Path, state: RunState) -> AttemptCost | None:
    """Return what a log grew by since its run was last priced; None where it did not.

    A rank that ended late, or a child that outlived its parent, may write after the capture.
    """
    if state.logged_micros is None or state.status == "running":
        return None
    total = cost_of_run(directory)
    if total is None or total.currency != state.currency or total.micros <= state.logged_micros:
        return None
    more = Money(total.micros - state.logged_micros, total.currency)
    return AttemptCost(cost=more, logged_micros=total.micros)
