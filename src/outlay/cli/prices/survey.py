"""``outlay prices partition`` and ``survey``: partitions' prices, and vendors compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.output import AsJson, console, new_table, print_json
from outlay.cli.prices.offers import (
    VENDORS,
    ask,
    offer_table,
    priced,
    print_some_findings,
    writing_to,
)
from outlay.clock import SYSTEM
from outlay.errors import Finding, InvalidValue
from outlay.guard.checklist import SURVEY_FILE
from outlay.ledger import Price
from outlay.prices.book import PriceBook
from outlay.prices.current import rate_text, read_rate, read_rates, set_rate
from outlay.prices.offer import Snapshot
from outlay.prices.survey import Survey, as_markdown, justification, survey
from outlay.store import open_store

# What a GPU-hour costs on each partition of a cluster.

app = typer.Typer(help="What a GPU-hour costs on each partition.", no_args_is_help=True)

Partition = Annotated[str, typer.Argument(metavar="PARTITION", help="As Slurm names it.")]


@app.command("set")
def set_partition(
    partition: Partition,
    rate: Annotated[
        str,
        typer.Argument(
            metavar="RATE",
            help='Per GPU-hour, such as "1.20 USD/h"; showback, unless "cash" follows.',
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Set what a GPU-hour costs on a partition, for sweeps and imported jobs from now on.

    Example: outlay prices partition set gpu-a100 "1.20 USD/h"
    """
    _show_rates(set_rate(partition, read_rate(rate, partition, name="RATE")), as_json=as_json)


@app.command("remove")
def remove_partition(partition: Partition, as_json: AsJson = False) -> None:
    """Forget a partition's rate; what was priced with it stays as it is.

    Example: outlay prices partition remove gpu-a100
    """
    _show_rates(set_rate(partition, None), as_json=as_json)


@app.command("show")
def show_rates(as_json: AsJson = False) -> None:
    """Show every partition that has a rate.

    Example: outlay prices partition show
    """
    _show_rates(read_rates(), as_json=as_json)


def _show_rates(rates: dict[str, Price], *, as_json: bool) -> None:
    if as_json:
        print_json({name: rate_text(rate) for name, rate in rates.items()})
        return
    if not rates:
        console.print(
            'No partition has a rate. Set one with: outlay prices partition set gpu "1.20 USD/h"'
        )
        return
    table = new_table("partition", ">per GPU-hour", "kind")
    for name, rate in rates.items():
        table.add_row(name, str(rate.rate), rate.kind)
    console.print(table)


# ``outlay prices survey``: vendors compared for one short job, with a pick and its reasons.


def show_survey(
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in one machine.")] = 2,
    vendors: Annotated[str, typer.Option(help="Whom to ask, separated by commas.")] = ",".join(
        VENDORS
    ),
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="Compare this card instead of the usual ones, such as H100; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help=f"Also write {SURVEY_FILE} there."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask nobody; plan with the placeholder price.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare vendors, and pick one.

    For a short job: the cheapest spot offer with NVLink, else a single node.

    Example: outlay prices survey --gpus 2 --vendors runpod,lambda,vast -o experiments/cloud-budget
    """
    names = [name.strip() for name in vendors.split(",") if name.strip()]
    if not names:
        raise InvalidValue("--vendors", vendors, f"names separated by commas: {','.join(VENDORS)}")
    snapshots = _not_asked(names) if offline else ask(names)
    if not offline:
        book = PriceBook(open_store())
        book.record(snapshots)
        book.publish()
    result = survey(snapshots, gpus=gpus, taken_ns=SYSTEM.wall_ns(), only=gpu or ())
    path = None if output is None else output / SURVEY_FILE
    if path is not None:
        with writing_to("--output", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(as_markdown(result), encoding="utf-8")
    if as_json:
        print_json(_as_json(result, path))
        return
    _show(result, path)


def _not_asked(names: list[str]) -> list[Snapshot]:
    now_ns = SYSTEM.wall_ns()
    return [
        Snapshot(
            source=name,
            fetched_ns=now_ns,
            findings=(Finding(source=name, message="not loaded: asked to stay offline"),),
            failed=True,
        )
        for name in names
    ]


def _show(result: Survey, path: Path | None) -> None:
    offers = [offer for row in result.rows for offer in row.offers]
    if offers:
        console.print(offer_table(offers, result.taken_ns))
        console.print()
    console.print(justification(result).replace("**", ""))
    print_some_findings(result.findings)
    if path is not None:
        console.print(f"Written: {path}", soft_wrap=True)


def _as_json(result: Survey, path: Path | None) -> dict[str, object]:
    plan = result.placeholder
    return {
        "gpus": result.gpus,
        "taken_ns": result.taken_ns,
        "rule": result.rule,
        "pick": None if result.pick is None else priced(result.pick),
        "placeholder": None
        if plan is None
        else {"per_gpu": plan.per_gpu, "cost": plan.cost, "ceiling": plan.ceiling},
        "justification": justification(result),
        "vendors": [
            {
                "vendor": row.vendor,
                "fitting": row.fitting,
                "problem": row.problem,
                "offers": [priced(offer) for offer in row.offers],
            }
            for row in result.rows
        ],
        "findings": result.findings,
        "path": path,
    }
