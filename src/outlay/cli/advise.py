"""``outlay advise``: what to change about a run or a model, and what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from outlay.advise.advice_book import AdviceBook
from outlay.advise.advice_followed import advice_followed, followed_text
from outlay.advise.batch_size import unmeasured
from outlay.advise.recommendation import (
    OptimizationRecommendation,
    merged,
    of_kind,
    total_savings,
)
from outlay.advise.run_advice import Circumstances, floor_of
from outlay.advise.tiers import SPOT_MTTF_HOURS
from outlay.cli.cost.kept_files import keep_cost_files
from outlay.cli.document import print_blocks
from outlay.cli.output import AsJson, console, print_findings, print_json, print_sentence
from outlay.clock import SYSTEM
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.goodput.follower import RunView, read_view
from outlay.prices.offer import Offer
from outlay.prices.price_book import MAX_AGE_NS, PriceBook
from outlay.report import run_sections
from outlay.runs.collect import refresh_registered
from outlay.store import open_store
from outlay.store.runs import RunFilter, list_runs
from outlay.units import Duration, Money

_NEWEST_RUNS = 10
_STATE_A_PRICE = 'set one: outlay.run(price="1.50 USD/h"), or the variable OUTLAY_PRICE'


def show_advice(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run's directory.")] = None,
    model: Annotated[
        str | None, typer.Option(help=f"Instead: the newest {_NEWEST_RUNS} runs of a model.")
    ] = None,
    speed: Annotated[
        list[str] | None,
        typer.Option(
            help="Speed of another GPU relative to the present one, such as H100=2.2; repeatable."
        ),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many evaluations a live run makes in total; else what its budget pays for.",
        ),
    ] = None,
    spot_mttf: Annotated[
        str, typer.Option(help="Mean time until a spot machine is preempted.")
    ] = f"{SPOT_MTTF_HOURS:g}h",
    deadline: Annotated[str | None, typer.Option(help='Longest time for the run: "48h".')] = None,
    max_age: Annotated[
        str, typer.Option(help="Ignore prices last seen longer ago than this.")
    ] = f"{MAX_AGE_NS // 86_400_000_000_000}d",
    why: Annotated[
        bool, typer.Option("--why", help="Show all of them, with evidence and assumptions.")
    ] = False,
    backtest: Annotated[
        bool,
        typer.Option(
            "--backtest", help="With --model: whether earlier advice was followed, and its effect."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what to change and what it saves.

    At most three lines; --why has the evidence. The confidence is how often such savings were
    right in simulated trainings. Other GPUs are compared at the prices last fetched; prices set by
    hand are used at any age.

    Example: outlay advise runs/001 --speed H100=2.2 --deadline 48h
    """
    if (run is None) == (model is None):
        raise InvalidValue("advise", None if run is None else str(run), "a RUN, or --model MODEL")
    if backtest:
        _show_backtest(model, as_json=as_json)
        return
    book = PriceBook(open_store())
    since_ns = SYSTEM.wall_ns() - Duration.parse(max_age, name="--max-age").ns
    offers = book.cheapest_rentable(since_ns=since_ns)
    around = Circumstances(
        offers=offers,
        speeds=_speeds(speed or []),
        total_evaluations=evaluations,
        spot_mttf_hours=_hours(spot_mttf, "--spot-mttf"),
        deadline_hours=None if deadline is None else _hours(deadline, "--deadline"),
    )
    dirs = [run] if run is not None else _runs_of(model or "")
    advice = _advise(dirs, around, strict=run is not None)
    found = advice.found
    findings = [*advice.findings, *_too_old(book, offers, max_age), *book.damage]
    if as_json:
        print_json(
            advice_json(found, advice.floor)
            | {"not_measured": advice.missing, "findings": findings}
        )
        return
    sections = run_sections.advice if why else run_sections.advice_in_short
    print_blocks(sections(found, advice.floor, is_priced=advice.priced))
    for line in advice.missing if why else ():
        console.print(line)
    if not why and (found or advice.missing):
        console.print("Evidence, assumptions and what to measure: add --why", style="dim")
    print_findings(findings)


def _show_backtest(model: str | None, *, as_json: bool) -> None:
    """Show what became of advice on the newest runs of a model."""
    if model is None:
        raise InvalidValue("--backtest", None, "--model MODEL as well")
    views, findings = [], list[Finding]()
    for directory in reversed(_runs_of(model)):
        try:
            views.append(read_view(directory, SYSTEM.wall_ns()))
        except (OutlayError, OSError) as error:
            findings.append(Finding(source=str(directory), message=str(error)))
    rows = advice_followed(views)
    if as_json:
        said = followed_text(rows) if rows else ""
        print_json({"model_name": model, "followed": rows, "in_all": said, "findings": findings})
        return
    if not rows:
        console.print(f"{model}: no saving was advised on a run that another one followed.")
    for row in rows:
        console.print(f"{row.run_id}: {row.text}")
    if rows:
        print_sentence(f"{model}: {followed_text(rows)}.")
    print_findings(findings)


def advice_json(
    found: Sequence[OptimizationRecommendation], floor: Money | None
) -> dict[str, object]:
    """Return recommendations as JSON; savings below ``floor`` are not among them."""
    return {
        "recommendations": of_kind(found, "saving"),
        "trades": of_kind(found, "trade"),
        "observations": of_kind(found, "observation"),
        "total_savings": total_savings(found),
        "nothing_below": floor,
    }


def _hours(text: str, name: str) -> float:
    return Duration.parse(text, name=name).seconds / 3600


def _too_old(book: PriceBook, offers: Sequence[Offer], max_age: str) -> list[Finding]:
    """Return a finding if prices were ignored because of their age."""
    count = len(book.cheapest_rentable()) - len(offers)
    if count <= 0:
        return []
    message = (
        f"{count:,} were last seen more than {max_age} ago and ignored: run outlay prices fetch"
    )
    return [Finding(source="prices", message=message, severity="warning")]


def _speeds(texts: list[str]) -> dict[str, float]:
    speeds: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            speeds[name] = float(number)
        except ValueError:
            speeds[name] = 0.0
        if not name or not 0 < speeds[name] < float("inf"):
            raise InvalidValue("--speed", text, "a GPU and its speed, such as H100=2.2")
    return speeds


def _runs_of(model: str) -> list[Path]:
    store = open_store()
    refresh_registered(store, SYSTEM.wall_ns())
    rows = list_runs(store, RunFilter(model=model), limit=_NEWEST_RUNS)
    if not rows:
        raise InvalidValue("--model", model, "a model with registered runs: outlay import runs DIR")
    return [Path(row.dir) for row in rows]


@dataclass(slots=True)
class _Advice:
    """Advice on some runs.

    Attributes:
        priced: Whether any of the runs has a price.
        floor: The smallest saving that is reported; only for a single run.
        missing: What to measure for more recommendations; only for a stated run.
    """

    found: list[OptimizationRecommendation] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    priced: bool = False
    floor: Money | None = None
    missing: list[str] = field(default_factory=list)


def _unpriced(view: RunView, directory: Path) -> list[Finding]:
    if view.rates is not None:
        return []
    message = f"has no price, so no saving can be computed; {_STATE_A_PRICE}"
    return [Finding(source=str(directory), message=message, severity="warning")]


def _advise(dirs: list[Path], around: Circumstances, *, strict: bool) -> _Advice:
    """Advise on runs; unless ``strict``, a run that cannot be read becomes a finding."""
    keep_cost_files("advice")
    book, advice = AdviceBook(open_store()), _Advice()
    for directory in dirs:
        try:
            view = read_view(directory, SYSTEM.wall_ns())
            advice.found += book.advise(view, around, SYSTEM.wall_ns())
            advice.findings += [*view.findings, *_unpriced(view, directory)]
            advice.priced |= view.rates is not None
            advice.floor = floor_of(view) if len(dirs) == 1 else None
            advice.missing = unmeasured(view) if strict else []
        except (OutlayError, OSError) as error:
            if strict:
                raise
            advice.findings.append(Finding(source=str(directory), message=str(error)))
    keep_cost_files("advice")
    advice.found = merged(advice.found)
    return advice
