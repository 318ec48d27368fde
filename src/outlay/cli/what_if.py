"""``outlay what-if``: a run's own timeline under other terms, and on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from outlay.advise.overhead import Reliability, optimal_interval
from outlay.advise.spot import ReclaimRate, SpotHistory, SpotOffer, SpotUse, guess, ranked_outlooks
from outlay.advise.tiers import SPOT_MTTF_HOURS, options_of
from outlay.advise.what_if import OtherTerms, checkpointed_work, recorded_reclaims, replay
from outlay.cli.document import print_blocks
from outlay.cli.output import AsJson, print_findings, print_json
from outlay.clock import SYSTEM
from outlay.decoding import csv_records, open_csv
from outlay.errors import Finding, InvalidValue
from outlay.goodput.failure_rate import mttf_hours
from outlay.goodput.follower import RunView, read_view
from outlay.goodput.reliability import mean_save_ns
from outlay.ledger import exact_gpus
from outlay.policy.pauses import pause_cost_of
from outlay.prices.gpus import matching_names, resolve
from outlay.prices.offer import Offer, Tier
from outlay.prices.price_book import PriceBook
from outlay.report import what_if_sections
from outlay.runs.past_attempts import failure_counts, failures_of, spot_history
from outlay.store import open_store
from outlay.units import Duration, Rate
from outlay.units.quantity import NS_PER_HOUR, duration_text
from outlay.units.shown import counted

_AUTO = "auto"


def show_what_if(
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    checkpoint_every: Annotated[
        str | None,
        typer.Option(help='Training between two saves: "20m", or "auto" for what costs least.'),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Another GPU, at its stored price unless --price is given.")
    ] = None,
    speed: Annotated[
        str | None, typer.Option(help="Speed of a step relative to this run's: 2.2.")
    ] = None,
    price: Annotated[str | None, typer.Option(help='Price per GPU-hour: "2.10 USD/h".')] = None,
    spot: Annotated[
        bool, typer.Option("--spot", help="Machines are taken back at random.")
    ] = False,
    mttf: Annotated[
        str | None,
        typer.Option(
            help="Mean time until that happens; default: as recorded in your runs on such "
            f"machines, else {SPOT_MTTF_HOURS:g}h."
        ),
    ] = None,
    restart_time: Annotated[
        str | None, typer.Option(help="From a failure until training resumes.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of GPUs.")] = None,
    scaling: Annotated[
        str, typer.Option(help="Share of the ideal speed-up that more GPUs bring.")
    ] = "1",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Failures to replay: a CSV with a column failed_h, hours since the start."
        ),
    ] = None,
    deadline: Annotated[str | None, typer.Option(help='Longest time for the run: "3d".')] = None,
    offers: Annotated[
        bool, typer.Option("--offers", help="Rank the stored offers of the GPU instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay a run under other terms.

    Shows what it would have saved, lost, repeated and paid, and when it would have been done. Where
    chance decides there is an interval. Without other terms it is the run.

    Example: outlay what-if runs/001 --checkpoint-every 20m --spot --mttf 6h
    """
    view = read_view(run, SYSTEM.wall_ns())
    book = PriceBook(open_store()) if gpu is not None or offers else None
    rentable = [] if book is None else book.cheapest_rentable()
    count = gpus if gpus is not None else int(exact_gpus(view.timeline.attempts[-1].header.gpus))
    rate = None if price is None else Rate.parse(price, name="--price")
    if gpu is not None and rate is None and not offers:
        rate = _stored_price(rentable, gpu, count, Tier.SPOT if spot else Tier.ON_DEMAND)
    reclaim = None
    if spot or mttf is not None:
        history = SpotHistory() if mttf else spot_history(open_store(), SYSTEM.wall_ns())
        reclaim = _reclaim(view, mttf, history, gpu)
    is_auto = checkpoint_every == _AUTO
    every = _best_interval(view, reclaim, restart_time) if is_auto else None
    terms = OtherTerms(
        checkpoint_every_ns=_ns(None if is_auto else checkpoint_every, "--checkpoint-every")
        if every is None
        else every.ns,
        checkpoint_source="" if every is None else every.source,
        speed=None if speed is None else _fraction(speed, "--speed"),
        price=rate,
        gpus=gpus,
        scaling=_fraction(scaling, "--scaling"),
        restart_ns=_ns(restart_time, "--restart-time"),
        reclaim=reclaim,
        failures_ns=None if trace is None else _failures(trace),
        deadline_ns=_ns(deadline, "--deadline"),
    )
    if offers:
        _show_machines(view, terms, rentable, gpu=gpu, gpus=count, mttf=mttf, as_json=as_json)
        return
    own, other = replay(view), replay(view, terms)
    if as_json:
        print_json({"own": own, "other": other, "findings": view.findings})
        return
    print_blocks(what_if_sections.replayed(own, other, terms.deadline_ns))
    print_findings(view.findings)


def _show_machines(
    view: RunView, terms: OtherTerms, rentable: list[Offer], *, gpu: str | None, gpus: int,
    mttf: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Rank offers by their cost for the same work; those that likely miss the deadline are last.

    A spot offer is taken back as often as recorded on the vendor's machines with that GPU.
    """
    named = gpu or view.timeline.attempts[-1].header.gpu
    if not named:
        raise InvalidValue("--gpu", None, "the GPU to rank: the run's log names none")
    history = spot_history(open_store(), SYSTEM.wall_ns())
    stated = _stated(mttf)
    speeds = {resolve(named).name: float(terms.speed or 1)}
    options = [
        (option, rate)
        for offer in rentable
        for rate in (_reclaim_of(offer, stated, history),)
        for option in options_of(
            [offer], speeds, gpus=gpus, currency=view.unit.currency,
            spot_mttf_hours=SPOT_MTTF_HOURS if rate is None else rate.mttf_hours,
        )
    ]  # fmt: skip
    work = checkpointed_work(view, terms)
    found = ranked_outlooks(options, work)
    notes = list(view.findings)
    if not found:
        message = f"no stored offer of {gpus}x {named}: run outlay prices fetch"
        notes.append(Finding(source="prices", message=message, severity="warning"))
    if as_json:
        reclaim = _reclaim(view, mttf, history)
        print_json({"machines": found, "reclaim": reclaim, "work": work, "findings": notes})
        return
    print_blocks(what_if_sections.machines(found, view.unit.currency, work))
    print_findings(notes)


@dataclass(frozen=True, slots=True)
class _Interval:
    """Training between two saves, and why."""

    ns: int
    source: str


def _best_interval(view: RunView, reclaim: ReclaimRate | None, restart: str | None) -> _Interval:
    """Return the interval that costs least where machines are taken back, or fail, as known."""
    save_ns = mean_save_ns(view.timeline)
    if not save_ns:
        expected = "an interval such as 20m, since no save is in the run's log"
        raise InvalidValue("--checkpoint-every", _AUTO, expected)
    restart_ns = _ns(restart, "--restart-time")
    if restart_ns is None:
        restart_ns = pause_cost_of(view.timeline).start_ns
    if reclaim is not None:
        mttf, source = reclaim.mttf_hours, reclaim.source
    else:
        own = failures_of(list(view.timeline.attempts))
        among = failure_counts(open_store(), SYSTEM.wall_ns())
        found = mttf_hours(own, among)
        if found is None:
            expected = "an interval such as 20m, or --mttf: no failure was ever recorded"
            raise InvalidValue("--checkpoint-every", _AUTO, expected)
        mttf = found
        source = f"{counted(own.failures, 'failure')} in {own.hours:.0f} h of this run"
        if among:
            seen = counted(sum(each.failures for each in among), "failure")
            source += f"; {seen} in {counted(len(among), 'registered run')}"
    hours = optimal_interval(
        Reliability(save=save_ns / NS_PER_HOUR, mttf=mttf, restart=restart_ns / NS_PER_HOUR)
    )
    ns = max(1, round(hours * NS_PER_HOUR))
    text = (
        f"saving every {duration_text(ns)} costs least if it fails every {mttf:.3g} h on average "
        f"({source})"
    )
    return _Interval(ns, text)


def _stated(mttf: str | None) -> ReclaimRate | None:
    if mttf is None:
        return None
    return ReclaimRate(mttf_hours=Duration.parse(mttf, name="--mttf").ns / NS_PER_HOUR)


def _reclaim_of(
    offer: Offer, stated: ReclaimRate | None, history: SpotHistory
) -> ReclaimRate | None:
    spot = SpotOffer.of(offer)
    return None if spot is None else stated or history.rate(spot)


def _reclaim(
    view: RunView, mttf: str | None, history: SpotHistory, gpu: str | None = None
) -> ReclaimRate:
    """Return how often its machines are taken back.

    As stated, else as recorded: on the machines of its own offer, on those with the GPU of any
    vendor, in this run; else a guess.
    """
    header = view.timeline.attempts[-1].header
    own, named = SpotOffer.of_price(header.price), gpu or header.gpu
    use = SpotUse() if own is None else history.of(own)
    found = _stated(mttf)
    if found is None and own is not None and gpu is None:
        found = use.rate(own.text)
    if found is None and named:
        found = history.rate_of_gpu(named)
    where = "spot machines" if own is None else own.text
    return found or recorded_reclaims(view) or guess(use, where)


def _stored_price(rentable: list[Offer], gpu: str, gpus: int, tier: Tier) -> Rate:
    found = [
        each
        for each in rentable
        if each.tier is tier and each.gpu_count == gpus and matching_names(gpu, [each.gpu])
    ]
    if not found:
        expected = f"a GPU with a stored {tier} price for {gpus} of them, or --price"
        raise InvalidValue("--gpu", gpu, expected)
    cheapest = min((each.price_per_gpu for each in found), key=lambda price: price.micros)
    return cheapest.unit.rate(cheapest.micros)


def _ns(text: str | None, name: str) -> int | None:
    return None if text is None else Duration.parse(text, name=name).ns


def _fraction(text: str, name: str) -> Fraction:
    try:
        return Fraction(Decimal(text))
    except (InvalidOperation, ValueError, OverflowError):
        raise InvalidValue(name, text, "a number such as 2.2") from None


def _failures(path: Path) -> tuple[int, ...]:
    """Return the instants of a trace, in nanoseconds since the start."""
    found = []
    for line, row in enumerate(csv_records(open_csv(path)), start=2):
        hours = _fraction(row.get("failed_h", ""), f"{path}, line {line}, column failed_h")
        if hours < 0:
            raise InvalidValue(f"{path}, line {line}", float(hours), "hours since the start")
        found.append(round(hours * NS_PER_HOUR))
    return tuple(found)
