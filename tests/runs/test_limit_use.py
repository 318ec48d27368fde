"""Limits of models and of spend logs: what is used of them, and which are exceeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import in_process
from ledgers import Segment, dollars
from outlay.clock import ManualClock
from outlay.cost.cost_book import CostBook
from outlay.guard.away.polled_log import PolledLog
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.rental.watch import remember_log
from outlay.runs.collect import collect
from outlay.runs.limit_use import LimitUse, exceeded, over_limit, read_limits
from outlay.store import open_store
from outlay.units import Money


def use(spent: str, held: str = "0 USD", limit: str = "100 USD") -> LimitUse:
    limit_money, spent_money, held_money = (Money.parse(each) for each in (limit, spent, held))
    return LimitUse(name="whole", limit=limit_money, spent=spent_money, held=held_money)


@pytest.mark.parametrize(
    ("spent", "held", "state", "text"),
    [
        ("79.99", "0", "below", "80%"),
        ("60", "20", "near", "80%, nearly used up"),
        ("100", "0", "near", "100%, nearly used up"),
        ("60", "41", "over", "1.0% over"),
    ],
)
def test_a_limit_is_below_near_or_over_by_what_is_spent_and_held(
    spent: str, held: str, state: str, text: str
) -> None:
    found = use(spent, held)
    assert (found.state, found.share_text) == (state, text)


def test_a_limit_of_zero_is_over_once_something_is_used() -> None:
    assert [use("0", limit="0 USD").share_text, use("1", limit="0 USD").state] == ["closed", "over"]
    assert [each.limit.micros for each in exceeded([use("101"), use("1", limit="0 USD")])] == [
        0, 100_000_000,
    ]  # fmt: skip


def test_what_is_over_its_limit_is_the_first_error_that_outlay_says(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A budget of a model, and the day of a log that states a ceiling for it."""
    Segment(about={"run_id": "one", "model": "bert", "price": dollars(101)}).step(3600).end().write(
        tmp_path / "run"
    )
    store = open_store()
    collect(store, [tmp_path / "run"], clock.wall_ns())
    CostBook(store).set_budget("bert", "100 USD", clock.wall_ns())
    path = tmp_path / "spend.jsonl"
    BudgetGuard("50 USD", path).record_actual("lab02-one", "592 USD")
    remember_log(path)
    uses = read_limits(store, [PolledLog(path)], [])
    assert [each.source for each in over_limit(uses)] == [str(path), "model bert"]
    said = in_process().out
    assert said.startswith("What is wrong: ")
    assert "What is wrong: 2 limits exceeded" in said
    first, second = said.partition("exceeded\n")[2].splitlines()[:2]
    assert "whole is over its limit by 542.00 USD: 592.00 USD of 50.00 USD" in first
    assert "budget of bert is over its limit by 1.00 USD: 101.00 USD of 100.00 USD" in second
    assert [each["severity"] for each in in_process("--json").json["findings"]] == ["error"] * 2
