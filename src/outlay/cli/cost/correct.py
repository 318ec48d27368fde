"""``outlay cost correct``: the price of a run that has ended."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.output import AsJson, RunDir, print_json, print_sentence
from outlay.clock import SYSTEM
from outlay.cost.closing import open_month, read_closed_months
from outlay.errors import InvalidValue
from outlay.guard.spend_log import login_name
from outlay.ledger.corrections import correct_price
from outlay.runs.collect import collect
from outlay.store import open_store


def correct_cost(
    run: RunDir,
    price: Annotated[
        str, typer.Option(help='The right price of a GPU-hour, such as "1.50 USD/h".')
    ],
    reason: Annotated[str, typer.Option(help="Why the recorded price is wrong.")],
    was: Annotated[
        str | None, typer.Option(help="The wrong price; needed if the run has several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Correct the recorded price of a run that has ended; the run's log keeps both.

    In a month that is closed nothing changes: the difference is booked in the open month.

    Example: outlay cost correct runs/001 --price "1.50 USD/h" --reason "typed 15"
    """
    from outlay.runs.reading import read_run

    now_ns, store = SYSTEM.wall_ns(), open_store()
    before = read_run(run, now_ns).cost.cost
    by = login_name()
    try:
        record = correct_price(run, price, was=was, by=by, reason=reason, now_ns=now_ns)
    except OSError as error:
        raise InvalidValue("RUN", str(run), f"a log that can be written ({error})") from None
    (row,) = collect(store, [run.resolve()], now_ns).figures
    closed, _ = read_closed_months(store)
    opened = open_month(row.started_ns, closed)
    if as_json:
        print_json(
            {
                "run": row.run_id, "price": record.price.text, "by": by, "reason": reason,
                "was": record.was and record.was.text, "cost": row.cost, "cost_was": before,
                "books_into": opened,
            }
        )  # fmt: skip
        return
    was_text = "no price" if record.was is None else record.was.text
    print_sentence(f"{row.name}: {record.price.text} instead of {was_text}, by {by}: {reason}")
    print_sentence(f"It cost {row.cost}, and not {before or 'an unknown amount'}.")
    if opened:
        print_sentence(f"What is different in closed months is booked in {opened}.")
