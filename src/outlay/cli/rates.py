"""What a GPU-hour costs on each partition of a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.options import AsJson
from outlay.cli.output import console, new_table, print_json
from outlay.ledger import Price
from outlay.prices.partition_rates import rate_text, read_rate, read_rates, set_rate

app = typer.Typer(
    help="What a GPU-hour costs on each partition of your cluster.", no_args_is_help=True
)

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

    Example: outlay rates set gpu-a100 "1.20 USD/h"
    """
    _show(set_rate(partition, read_rate(rate, partition, name="RATE")), as_json=as_json)


@app.command("remove")
def remove_partition(partition: Partition, as_json: AsJson = False) -> None:
    """Forget a partition's rate; what was priced with it stays as it is.

    Example: outlay rates remove gpu-a100
    """
    _show(set_rate(partition, None), as_json=as_json)


@app.command("show")
def show_rates(as_json: AsJson = False) -> None:
    """Show every partition that has a rate.

    Example: outlay rates show
    """
    _show(read_rates(), as_json=as_json)


def _show(rates: dict[str, Price], *, as_json: bool) -> None:
    if as_json:
        print_json({name: rate_text(rate) for name, rate in rates.items()})
        return
    if not rates:
        console.print('No partition has a rate. Set one with: outlay rates set gpu "1.20 USD/h"')
        return
    table = new_table("partition", ">per GPU-hour", "kind")
    for name, rate in rates.items():
        table.add_row(name, str(rate.rate), rate.kind)
    console.print(table)
