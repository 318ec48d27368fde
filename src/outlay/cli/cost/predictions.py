"""``outlay cost predict``: the cost of a run by its configuration."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.cost.tables import amount, interval, open_books
from outlay.cli.output import AsJson, console, print_findings, print_json
from outlay.errors import InvalidValue

if TYPE_CHECKING:
    from outlay.cost.prediction import CostPrediction, PredictionTest


def show_prediction(
    like: Annotated[
        Path, typer.Option(metavar="RUN", help="A run's directory; its figures, where none is set.")
    ],
    tokens: Annotated[float | None, typer.Option(help="Tokens to train on, such as 2e9.")] = None,
    samples: Annotated[float | None, typer.Option(help="Samples, if tokens are not set.")] = None,
    steps: Annotated[float | None, typer.Option(help="Steps, if neither is set.")] = None,
    parameters: Annotated[float | None, typer.Option(help="Parameters of the model.")] = None,
    sequence_length: Annotated[float | None, typer.Option(help="Tokens in a sequence.")] = None,
    gpus: Annotated[float | None, typer.Option(help="Number of GPUs.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Kind of GPU, as runs recorded it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict what a run costs, from what recorded runs cost for their tokens, size and GPUs.

    Shows the runs that it rests on, what it extrapolates, and its error on those runs.

    Example: outlay cost predict --like runs/001 --tokens 2e9 --gpus 16
    """
    from outlay.cost.compare import of_last_unit
    from outlay.cost.prediction import (
        LEAST_RUNS,
        backtest_prediction,
        changed,
        configuration_of,
        past_runs,
        predict_cost,
    )
    from outlay.runs.reading import read_run

    asked = changed(
        configuration_of(read_run(like).figures),
        tokens=tokens, samples=samples, steps=steps, parameters=parameters,
        sequence_length=sequence_length, gpus=gpus, gpu=gpu,
    )  # fmt: skip
    books = open_books()
    rows = of_last_unit(books.book.reports())
    past = past_runs(rows)
    found = predict_cost(asked, past)
    if found is None:
        wanted = f"{LEAST_RUNS} finished runs with a cost that recorded tokens, samples or steps"
        raise InvalidValue("--like", str(like), wanted)
    tested, currency = backtest_prediction(asked, past), rows[-1].paid.currency
    if as_json:
        document = asdict(found) | {"currency": currency, "configuration": asked, "test": tested}
        print_json(document | {"findings": books.findings})
        return
    for line in prediction_lines(found, tested, currency):
        console.print(line)
    print_findings(books.findings)


def prediction_lines(
    found: CostPrediction, tested: PredictionTest | None, currency: str
) -> list[str]:
    """Return a prediction as lines of text."""
    from outlay.cost.prediction import rests_on

    shown = interval(found.low, found.high, currency)
    lines = [f"cost {amount(found.cost, currency)}{shown}, {found.confidence:.0%} interval"]
    lines.append(rests_on(found))
    lines += [f"extrapolates {each}" for each in found.beyond]
    if tested is not None:
        lines.append(
            f"each of {tested.runs} runs from the others: median error {tested.error:.0%}; with "
            f"the median cost of its model {tested.median_error:.0%}"
        )
        if not tested.is_better:
            lines.append("the median cost of a model is the better prediction here")
    return lines
