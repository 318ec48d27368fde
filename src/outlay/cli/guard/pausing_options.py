"""Options of ``outlay guard run --offers`` and ``outlay guard rent --offers``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from outlay.errors import InvalidValue

POLICIES: Final = ("double-threshold", "always-on")
Offers = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE:GPU", help="Pause and resume by the price of this offer: lambda:8xH100."
    ),
]
Below = Annotated[str | None, typer.Option(help='Run up to this price, such as "2 USD/h".')]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", help=f"One of {', '.join(POLICIES)}; default: the first."),
]
Lowest = Annotated[
    str | None, typer.Option(help="The lowest price expected; default: of the last 30 days.")
]
Highest = Annotated[
    str | None, typer.Option(help="The highest price expected; default: of the last 30 days.")
]
Deadline = Annotated[
    str | None, typer.Option(help="When it is to be done, such as 2026-12-01T08:00 (UTC).")
]
Work = Annotated[str | None, typer.Option(help='How long it trains in all, such as "20h".')]
Steps = Annotated[int | None, typer.Option(help="The number of steps after which it is done.")]
Pauses = Annotated[int, typer.Option(help="It is not paused more often.")]
Act = Annotated[
    bool, typer.Option("--act", help="Start it; else only what would be done is shown.")
]
MaxAge = Annotated[str, typer.Option(help="An older price is no news.")]
PricePoll = Annotated[str, typer.Option("--poll", help="How often the price is read.")]
PriceFileOption = Annotated[
    Path | None, typer.Option("--price-file", help="A file that states the price: 2.10 USD/h.")
]
PriceCommand = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="A command that prints the price.")
]
StoppedPrice = Annotated[
    str | None, typer.Option(help="What the machine costs while paused, such as 0.20 USD/h.")
]
PayPerUse = Annotated[
    bool, typer.Option("--pay-per-use", help="Only running is paid for, a pause costs nothing.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PausingOptions:
    """The options of pausing, as they were typed."""

    offers: str | None
    below: str | None
    policy: str | None
    lowest: str | None
    highest: str | None
    deadline: str | None
    work: str | None
    steps: int | None
    pauses: int
    act: bool
    max_age: str
    poll: str
    price_file: Path | None
    price_command: str | None
    stopped_price: str | None = None
    pay_per_use: bool = False

    def refuse_without_offers(self) -> None:
        """Refuse options that mean nothing without ``--offers``."""
        given = {
            "--below": self.below, "--policy": self.policy, "--deadline": self.deadline,
            "--act": self.act or None, "--price-file": self.price_file, "--work": self.work,
            "--price-command": self.price_command, "--stopped-price": self.stopped_price,
            "--pay-per-use": self.pay_per_use or None, "--steps": self.steps,
            "--lowest": self.lowest, "--highest": self.highest,
        }  # fmt: skip
        for name, value in given.items():
            if value is not None:
                expected = "--offers SOURCE:GPU with it: the offer whose price decides"
                raise InvalidValue(name, str(value), expected)
