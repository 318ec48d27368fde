"""A round of asking: vendors' lists, Slurm's accounts, rentals and owned nodes, and runs of here.

It only reads, and keeps the answers in the store. Nothing is ever ended by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outlay.errors import InvalidValue, OutlayError
from outlay.guard.rental.rental import list_machines
from outlay.guard.rental.vendor_commands import ListedMachine
from outlay.guard.rental.watch import living_rentals
from outlay.prices.current import read_rates
from outlay.rates import rate_of
from outlay.runs.accounting.sacct import SacctJob, read_accounts
from outlay.runs.accounting.sacct_import import import_jobs
from outlay.runs.collect import collect, find_runs, log_stamp, refresh_registered
from outlay.runs.inventory.machines_now import own_sources, owned_now
from outlay.runs.inventory.watch_settings import AskedVendor, WatchSettings
from outlay.slurm import accounts_text
from outlay.store.machine_lists import (
    SeenMachine,
    forget_lists,
    keep_answer,
    keep_failure,
    read_lists,
)
from outlay.store.runs import sighted_here

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from outlay.ledger.price import Price

SLURM = "slurm"
_PATIENCE_S = 30.0
"""For one vendor: rentals and alerts wait for the round."""
_FIRST_S = 7 * 86_400
"""How far back the first round reads Slurm's accounts."""
_MARGIN_S = 600
"""How much of the time before its last answer is read again: accounts are written late."""


def ask_round(
    store: Engine,
    settings: WatchSettings,
    logs: Sequence[str | Path],
    environ: Mapping[str, str],
    now_ns: int,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Register the runs of this host, and keep what everything that is to be asked answers.

    Raises:
        StoreUnavailable: The store does not answer; the next round catches up.
    """
    for finding in refresh_registered(store, now_ns).findings:
        say(str(finding))
    _register_found(store, settings.runs, now_ns, say)
    for asked in settings.vendors:
        _ask_vendor(store, asked, environ, say)
    if settings.slurm:
        _ask_slurm(store, now_ns, say)
    owned, rentals = own_sources()
    keep_answer(store, owned, _owned(now_ns))
    keep_answer(store, rentals, _rented(logs))
    sources = {each.source for each in settings.vendors} | ({SLURM} if settings.slurm else set())
    forget_lists(store, {*sources, owned, rentals})


def _register_found(
    store: Engine, roots: Sequence[Path], now_ns: int, say: Callable[[str], None]
) -> None:
    """Register the runs below some directories whose log is not the one that was last read."""
    if not roots:
        return
    seen = sighted_here(store)
    changed = [path for path in find_runs(roots) if log_stamp(path) != seen.get(str(path))]
    for finding in collect(store, changed, now_ns).findings:
        say(str(finding))


# Vendors


def _ask_vendor(
    store: Engine, asked: AskedVendor, environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    try:
        listing = list_machines(
            asked.vendor, environ, timeout_s=_PATIENCE_S, all_rows=asked.is_complete,
            rate=asked.listed_rate,
        )  # fmt: skip
    except OutlayError as error:  # Unreadable, or one of its variables is not set.
        say(f"{asked.source}: its list can't be read: {error}")
        keep_failure(store, asked.source, f"its list can't be read: {error}")
        return
    problem = "" if listing.complete else (
        f"its list has {listing.rows} rows and may be one page of more; if it is the whole list, "
        "state list_is_complete = true"
    )  # fmt: skip
    machines = (_listed(machine, asked) for machine in listing.machines)
    keep_answer(store, asked.source, machines, problem=problem)


def _listed(machine: ListedMachine, asked: AskedVendor) -> SeenMachine:
    rate = machine.rate or asked.rate
    return SeenMachine(
        kind="machine", id=machine.id, name=machine.name, since_ns=machine.created_ns or 0,
        rate="" if rate is None else str(rate),
    )  # fmt: skip


# Slurm


def _ask_slurm(store: Engine, now_ns: int, say: Callable[[str], None]) -> None:
    """Import the jobs that have ended since the last answer, and keep those that run."""
    before = next((each for each in read_lists(store) if each.source == SLURM), None)
    since_s = _FIRST_S
    if before is not None and before.answered_ns:
        since_s = max(0, (now_ns - before.answered_ns) // 10**9) + _MARGIN_S
    text = accounts_text(since_s)
    if text is None:
        keep_failure(store, SLURM, "sacct does not answer")
        return
    try:
        accounts = read_accounts(text, source="sacct")
        rates = read_rates()
    except InvalidValue as error:
        say(str(error))
        keep_failure(store, SLURM, str(error))
        return
    if accounts.jobs:
        for finding in import_jobs(store, accounts.jobs, rates, now_ns).findings:
            say(str(finding))
    keep_answer(store, SLURM, _running(accounts.running, rates))


def _running(jobs: Sequence[SacctJob], rates: Mapping[str, Price]) -> Iterator[SeenMachine]:
    for job in jobs:
        price, start = rates.get(job.partition), job.starts[-1]
        rate = "" if price is None or not job.gpus else str(rate_of(price.rate, job.gpus))
        yield SeenMachine(
            kind="job", id=job.shown, name=job.name, user=job.user, nodes=start.nodes,
            gpus=job.gpus, since_ns=start.start_ns, rate=rate,
        )  # fmt: skip


# This host


def _owned(now_ns: int) -> list[SeenMachine]:
    owned, _ = owned_now(now_ns)
    return [
        SeenMachine(
            kind="node", id=each.host, name=each.host, since_ns=each.since_ns,
            rate=str(each.price.rate),
        )
        for each in owned
    ]  # fmt: skip


def _rented(logs: Sequence[str | Path]) -> Iterator[SeenMachine]:
    rented, _ = living_rentals(logs)
    for each in rented:
        hold, rental = each.hold, each.hold.rental
        assert rental is not None
        yield SeenMachine(
            kind="rental", id=hold.resource or rental.name, name=rental.name, user=hold.lab,
            since_ns=rental.started_ns, until=rental.deadline, rate=rental.rate,
        )  # fmt: skip
