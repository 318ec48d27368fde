"""``outlay cost``: cost of runs, models and machines, and what it achieved.

Modules that read logs or draw charts are imported where used: a summary needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.cost import allocate, correct, files, forecasts, predictions
from outlay.cli.cost.tables import (
    ASSUMED,
    AsOf,
    UnknownModel,
    amount,
    assumed_suffix,
    comparison_table,
    must_be_drawable,
    open_books,
    parse_as_of,
    score,
)
from outlay.cli.output import (
    DEFAULT,
    AsJson,
    CellContent,
    DefaultGroup,
    Model,
    Png,
    RunDir,
    console,
    new_table,
    print_findings,
    print_json,
    print_rows,
    print_sentence,
    short_id,
)
from outlay.clock import SYSTEM, parse_moment, utc_text
from outlay.cost.compare import (
    ModelComparison,
    by_model,
    compare,
    of_last_unit,
    pareto_front,
    point_of,
    return_on_investment,
    with_accuracy,
)
from outlay.cost.cost_book import by_currency, report_cells
from outlay.cost.spending import Spending, Subtotal, spend_of
from outlay.errors import InvalidValue
from outlay.ledger.price import typed_price
from outlay.prices.energy_factors import MJ_PER_KWH, read_factors
from outlay.runs.figures import BY_NAME
from outlay.store.run_row import RunRow
from outlay.units import Money, Unit
from outlay.units.money import Kind
from outlay.units.shown import counted, money_of

if TYPE_CHECKING:
    from outlay.cost.run_cost import RunCost

app = typer.Typer(
    cls=DefaultGroup, help="What runs and models cost and will cost.", no_args_is_help=True
)
app.add_typer(forecasts.app, name="alert")
app.add_typer(forecasts.app, name="ceiling", hidden=True)
app.add_typer(forecasts.app, name="budget", hidden=True)


@app.command(DEFAULT, hidden=True)
def show(run: RunDir, as_json: AsJson = False) -> None:
    """Show a run's cost by phase, and per step, sample, token and 1.0 of accuracy.

    Example: outlay cost runs/001
    """
    from outlay.cli.document import print_blocks
    from outlay.report import run_sections
    from outlay.runs.reading import read_run

    reading = read_run(run)
    cost = reading.cost
    if as_json:
        print_json(cost_json(cost))
        return
    print_blocks(run_sections.phases(reading.goodput, cost.grade))
    console.print()
    print_blocks(
        [
            run_sections.gpu_time(cost), *run_sections.energy(cost.energy_mj),
            *run_sections.unit_costs(cost),
            *run_sections.prices(cost), *run_sections.grounds(cost),
        ]
    )  # fmt: skip
    print_findings(cost.findings)


def cost_json(cost: RunCost) -> dict[str, object]:
    """Return a run's cost as JSON."""
    currency, used, factors = cost.cost and cost.cost.currency, cost.energy_mj, read_factors()
    energy = {
        "kwh": used / MJ_PER_KWH, "emitted_g": factors.emitted_g(used), "cost": factors.cost(used)
    }  # fmt: skip
    return {
        "cost": cost, "per": cost.unit_costs(), "per_currency": currency,
        "energy": energy if used else None,
    }  # fmt: skip


@app.command("summary")
def summary(png: Png = None, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Show the cost of every model so far.

    Example: outlay cost summary --png cost.png
    """
    books = open_books(parse_as_of(as_of))
    rows, outside = books.reports(), books.outside_of_runs()
    findings = [*books.findings, *books.unpriced()]
    models = {name: compare(found) for name, found in by_model(rows).items()}
    every = (part for row in rows for part in by_currency(row))
    if books.as_of_ns is None:
        totals = Spending(spends=(*map(spend_of, every), *outside)).totals()
    else:
        totals = books.reading.spending.totals()  # Of closed months, as their documents say.
    if png is not None:
        must_be_drawable(png, models, "a cost")
        _save_summary(models, png)
    if as_json:
        print_json(
            {
                "models": models,
                "rented_in_no_run": [each.cost for each in outside if each.source == "rental"],
                "beyond_use": [each.cost for each in outside if each.source == "increment"],
                "commitments": [each.cost for each in outside if each.source == "commitment"],
                "by_bills": [each.cost for each in outside if each.source == "bill"],
                "owned_in_no_run": [
                    {"host": each.name, "month": utc_text(each.booked_ns)[:7], "cost": each.cost}
                    for each in outside
                    if each.source == "owned"
                ],
                "totals": _amounts(totals, "cash"),
                "showback_totals": _amounts(totals, "showback"),
                "assumed": {str(unit): float(t.assumed.amount) for unit, t in totals.items()},
                "as_of": as_of,
                "findings": findings,
            }
        )
        return
    if not totals:
        console.print("No costs are known. Register runs with: outlay import runs DIR")
    else:
        console.print(comparison_table(models))
        console.print()
        for source, said in _OUTSIDE.items():
            found = tuple(each for each in outside if each.source == source)
            for each in Spending(spends=found).totals().values():
                print_sentence(f"{said}: {each.cost}")
        for total in totals.values():
            cost = amount(float(total.cost.amount), total.cost.unit)
            print_sentence(f"Total: {cost}{assumed_suffix(total.assumed)}", style="bold")
    print_findings(findings)


_OUTSIDE = {
    "rental": "Rented, in no run",
    "owned": "Owned, in no run",
    "increment": "Billed beyond the time of runs",
    "commitment": "Commitments",
    "bill": "Corrected by bills",
}


def _save_summary(models: Mapping[str, ModelComparison], png: Path) -> None:
    """Draw cost by model, one chart per unit."""
    from outlay.report.drawing.pictures import save_charts
    from outlay.report.drawing.run_charts import money_bars

    found: dict[Unit, dict[str, Money]] = {}
    for name, each in models.items():
        unit = Unit(each.currency, each.kind)
        found.setdefault(unit, {})[name] = money_of(each.total_cost, unit)
    save_charts(
        [money_bars(parts, title=f"Cost by model, {unit}") for unit, parts in found.items()], png
    )


@app.command("model")
def show_model(model: Model, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Show the runs of a model with their cost and accuracy.

    Example: outlay cost model bert-base
    """
    books = open_books(parse_as_of(as_of))
    rows = books.reports(model)
    if not rows:
        raise UnknownModel(model, [row.model for row in books.reports()])
    models = {name: compare(found) for name, found in by_model(rows).items()}
    findings = [*books.findings, *books.unpriced(model)]
    if as_json:
        runs = [report_cells(row) for row in rows]
        document = {"model": model, "as_of": as_of, "figures": models, "runs": runs}
        print_json(document | {"findings": findings})
        return
    console.print(comparison_table(models))
    console.print()
    with_assumed = any(row.assumed for row in rows)
    assumed = [ASSUMED] if with_assumed else []
    columns = ("run", "when", ">cost", *assumed, ">GPU-hours", ">accuracy", "source")
    print_rows(columns, [_run_cells(row, with_assumed=with_assumed) for row in rows])
    print_findings(findings)


def _run_cells(row: RunRow, *, with_assumed: bool) -> Sequence[CellContent]:
    return (
        short_id(row.run_id), utc_text(row.at_ns)[:10], row.cost,
        *([row.assumed] if with_assumed else []), BY_NAME["gpu_hours"].text(row, 0),
        score(row.accuracy), row.source,
    )  # fmt: skip


machines = typer.Typer(
    help="Your own nodes: their cost, in runs and in no run.", no_args_is_help=True
)
app.add_typer(machines, name="machines")
Host = Annotated[str, typer.Argument(metavar="HOST", help="Host name, as recorded by its runs.")]


@machines.command("set")
def set_machine(
    host: Host,
    price: Annotated[
        str,
        typer.Argument(
            metavar="PRICE",
            help='Of the whole machine, such as "12 USD/h"; showback unless followed by "cash".',
        ),
    ],
    since: Annotated[str, typer.Option(help="Start of the cost: an instant, or how long ago.")],
    until: Annotated[str | None, typer.Option(help="End of the cost, in the same form.")] = None,
    user: Annotated[str, typer.Option(help="Who pays for it while no run is on it.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option(help="The same by tag, such as team=nlp; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set the price of a node that you own, and since when.

    Example: outlay cost machines set node7 "12 USD/h" --since 2026-11-01
    """
    from outlay.cost.machines.owned_machines import OwnedMachine, set_machine

    now_ns = SYSTEM.wall_ns()
    set_machine(
        OwnedMachine(
            host=host,
            price=typed_price(price, name="PRICE", source="stated", kind="showback"),
            since_ns=parse_moment(since, name="--since", now_ns=now_ns),
            until_ns=None if until is None else parse_moment(until, name="--until", now_ns=now_ns),
            user=user,
            tags=dict(map(_parse_tag, tag or ())),
        )
    )
    show_machines(as_json=as_json)


def _parse_tag(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise InvalidValue("--tag", text, "a tag such as team=nlp")
    return name, value


@machines.command("remove")
def remove_machine(host: Host, as_json: AsJson = False) -> None:
    """Remove a machine; the cost of its runs does not change.

    Example: outlay cost machines remove node7
    """
    from outlay.cost.machines.owned_machines import MACHINES

    MACHINES.remove(host)
    show_machines(as_json=as_json)


@machines.command("show")
def show_machines(as_json: AsJson = False) -> None:
    """Show every machine's cost up to now, in runs and in no run.

    Example: outlay cost machines show
    """
    from outlay.cost.machines.owned_machines import MACHINES, cost_of_machine

    books = open_books()
    reports = books.book.reports(with_charges=True)
    rows = []
    for machine in MACHINES.read().values():
        nothing = machine.price.unit.money(0)
        months = cost_of_machine(machine, reports, books.now_ns)
        cost = sum((month.cost for month in months), start=nothing)
        in_runs = sum((month.in_runs for month in months), start=nothing)
        rows.append((machine, cost, in_runs))
    if as_json:
        print_json(
            {
                "machines": [
                    {
                        "host": machine.host,
                        "price": machine.price.text,
                        "kind": machine.price.kind,
                        "since": utc_text(machine.since_ns),
                        "until": machine.until_ns and utc_text(machine.until_ns),
                        "user": machine.user,
                        "tags": machine.tags,
                        "cost": cost,
                        "in_runs": in_runs,
                        "in_no_run": cost - in_runs,
                    }
                    for machine, cost, in_runs in rows
                ],
                "findings": books.findings,
            }
        )
        return
    columns = ("machine", "price", "since", ">cost", ">in runs", ">in no run")
    print_rows(
        columns,
        [
            (
                machine.host, machine.price.text, utc_text(machine.since_ns)[:10],
                cost, in_runs, cost - in_runs,
            )
            for machine, cost, in_runs in rows
        ],
    )  # fmt: skip
    print_findings(books.findings)


commitments = typer.Typer(
    help="Capacity that is paid for a term: what of it was used, and what not.",
    no_args_is_help=True,
)
app.add_typer(commitments, name="commitments")
CommitmentName = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name, such as the id on the vendor's bill.")
]


@commitments.command("set")
def set_commitment(
    name: CommitmentName,
    price: Annotated[
        str, typer.Argument(metavar="PRICE", help='Of all its GPUs, such as "16 USD/h".')
    ],
    provider: Annotated[str, typer.Option(help="Whose reserved offers use it.")],
    gpus: Annotated[int, typer.Option(min=1, help="How many GPUs it has.")],
    since: Annotated[str, typer.Option(help="Start of its term: an instant, or how long ago.")],
    until: Annotated[str, typer.Option(help="End of its term: an instant.")],
    as_json: AsJson = False,
) -> None:
    """State a commitment: GPUs of a provider that are paid for a term, used or not.

    Runs use it if their price is a reserved offer of the provider, such as lambda:8xH100:reserved.

    Example: outlay cost commitments set lambda-2026 "16 USD/h" --provider lambda --gpus 8
    --since 2026-01-01 --until 2027-01-01
    """
    from outlay.cost.machines.commitments import Commitment, set_commitment

    now_ns = SYSTEM.wall_ns()
    set_commitment(
        Commitment(
            name=name,
            provider=provider,
            price=typed_price(price, name="PRICE", source="stated"),
            gpus=gpus,
            since_ns=parse_moment(since, name="--since", now_ns=now_ns),
            until_ns=parse_moment(until, name="--until", now_ns=now_ns),
        )
    )
    show_commitments(as_json=as_json)


@commitments.command("remove")
def remove_commitment(name: CommitmentName, as_json: AsJson = False) -> None:
    """Remove a commitment; the cost of runs does not change.

    Example: outlay cost commitments remove lambda-2026
    """
    from outlay.cost.machines.commitments import COMMITMENTS

    COMMITMENTS.remove(name)
    show_commitments(as_json=as_json)


@commitments.command("show")
def show_commitments(as_json: AsJson = False) -> None:
    """Show what commitments cost up to now, used and unused.

    Example: outlay cost commitments show
    """
    from outlay.cost.machines.commitments import COMMITMENTS, cost_of_commitment

    books = open_books()
    reports = books.book.reports(with_charges=True)
    rows = [cost_of_commitment(e, reports, books.now_ns) for e in COMMITMENTS.read().values()]
    if as_json:
        print_json(
            {
                "commitments": [
                    {
                        "name": row.commitment.name,
                        "provider": row.commitment.provider,
                        "price": row.commitment.price.text,
                        "gpus": row.commitment.gpus,
                        "since": utc_text(row.commitment.since_ns),
                        "until": utc_text(row.commitment.until_ns),
                        "cost": row.cost,
                        "used": row.used,
                        "unused": row.unused,
                    }
                    for row in rows
                ],
                "findings": books.findings,
            }
        )
        return
    print_rows(
        ("commitment", "price", "until", ">cost", ">used", ">unused"),
        [
            (
                row.commitment.name, row.commitment.price.text,
                utc_text(row.commitment.until_ns)[:10], row.cost, row.used, row.unused,
            )
            for row in rows
        ],
    )  # fmt: skip
    print_findings(books.findings)


@app.command("compare")
def compare_models(
    model: Annotated[str | None, typer.Option(help="Compare only the runs of this model.")] = None,
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs by accuracy, cost, time and energy; show those that no other run dominates.

    Example: outlay cost compare --model bert-base --png front.png
    """
    books = open_books()
    rows = books.reports(model)
    candidates, front = with_accuracy(rows), pareto_front(rows)
    models = {name: compare(found) for name, found in by_model(rows).items()}
    if png is not None:
        from outlay.report.drawing.pictures import save_charts
        from outlay.report.drawing.run_charts import accuracy_against_cost

        must_be_drawable(png, candidates, "a run with an accuracy")
        save_charts(accuracy_against_cost(candidates, front, title=model or "All runs"), png)
    findings = [*books.findings, *books.unpriced(model)]
    if as_json:
        print_json(
            {"models": models, "front": [point_of(row) for row in front], "findings": findings}
        )
        return
    if models:
        console.print(comparison_table(models))
    if front:
        console.print("\nBest runs: no other is better in everything", style="bold")
        assumed = [ASSUMED] if any(each.assumed for each in front) else []
        table = new_table("run", ">accuracy", ">cost", *assumed, ">hours", ">Wh")
        for each in front:
            point, currency = point_of(each), each.paid.currency
            energy = "-" if point["energy_wh"] is None else f"{point['energy_wh']:,.1f}"
            table.add_row(
                short_id(each.run_id), score(each.accuracy), amount(point["cost"], currency),
                *([amount(point["assumed"], currency)] if assumed else []),
                f"{point['hours']:,.2f}", energy,
            )  # fmt: skip
        console.print(table)
    else:
        console.print("No run with an accuracy is known: run.metric('accuracy', ...) records one.")
    print_findings(findings)


@app.command("roi")
def roi(model: Model, as_json: AsJson = False) -> None:
    """Show what a model's runs cost and the accuracy gained.

    Example: outlay cost roi bert-base
    """
    books = open_books()
    found = return_on_investment(model, of_last_unit(books.book.reports(model)))
    if not found.runs:
        raise UnknownModel(model, [row.model for row in books.book.reports()])
    findings = [*books.findings, *books.unpriced(model)]
    if as_json:
        print_json(asdict(found) | {"findings": findings})
        return
    currency = found.currency
    assumed = Money.parse(found.assumed_investment, currency=currency)
    spent = f"{amount(found.total_investment, currency)}{assumed_suffix(assumed)}"
    console.print(f"{counted(found.runs, 'run')}, {spent}")
    console.print(
        f"accuracy: first {score(found.first_accuracy)}, "
        f"last {score(found.current_accuracy)}, best {score(found.best_accuracy)}"
    )
    if found.gains:
        table = new_table("run", ">accuracy", ">gained", ">spent since", f">per {currency}")
        for gain in found.gains:
            rate = "-" if gain.per_dollar is None else f"{gain.per_dollar:.3g}"
            table.add_row(
                short_id(gain.run_id), score(gain.accuracy), f"{gain.gained:+.4f}",
                amount(gain.spent, currency), rate,
            )  # fmt: skip
        console.print(table)
    print_findings(findings)


def _amounts(totals: Mapping[Unit, Subtotal], kind: Kind) -> dict[str, float]:
    return {u.currency: float(t.cost.amount) for u, t in totals.items() if u.kind == kind}


app.command("forecast")(forecasts.show_forecast)
app.command("predict")(predictions.show_prediction)
app.command("allocate")(allocate.allocate_cost)
app.command("correct")(correct.correct_cost)
app.command("import")(files.import_files)
app.command("export")(files.export_files)
