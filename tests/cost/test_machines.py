"""Owned machines: their runs and the cost outside of runs add up."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process
from ledgers import HOUR, SECOND, START_NS, Segment, dollars
from outlay.cost.machines import OwnedMachine, cost_of_machine, read_machines, set_machine
from outlay.errors import InvalidValue
from outlay.ledger import Price
from outlay.units import Money, Unit

SHOWBACK = Unit("USD", "showback")
OWNED = Price(8_000_000, kind="showback")
MACHINE = OwnedMachine(host="node7", price=OWNED, since_ns=START_NS)


def write_run(directory: Path, *, hours: float = 1, price: Price = OWNED, **about: Any) -> Path:
    """Write a run of one step on node7."""
    facts = {"price": price, "host": "node7"} | about
    Segment(about=facts).step(hours * 3600).end().write(directory)
    return directory


def test_runs_and_the_cost_outside_of_them_sum_to_the_machine(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    row = cost_of_machine(MACHINE, [run], START_NS + 3 * HOUR)
    assert (row.cost, row.in_runs) == (SHOWBACK.money(24_000_000), SHOWBACK.money(8_000_000))
    assert row.in_no_run == SHOWBACK.money(16_000_000)


@pytest.mark.parametrize(
    "about",
    [{"host": "node8"}, {"price": dollars(8)}, {"price": Price(8_000_000, "EUR", kind="showback")}],
    ids=["another node", "cash", "another currency"],
)
def test_a_run_on_another_host_or_of_another_kind_does_not_count(
    tmp_path: Path, about: dict[str, Any]
) -> None:
    row = cost_of_machine(MACHINE, [write_run(tmp_path, **about)], START_NS + 3 * HOUR)
    assert row.in_runs == SHOWBACK.money(0)


def test_a_run_counts_between_since_and_until(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path, hours=4)
    machine = OwnedMachine(
        host="node7", price=OWNED, since_ns=START_NS + HOUR, until_ns=START_NS + 3 * HOUR
    )
    row = cost_of_machine(machine, [run], START_NS + 9 * HOUR)
    assert (row.cost, row.in_runs) == (SHOWBACK.money(16_000_000), SHOWBACK.money(16_000_000))


def test_a_run_on_two_nodes_is_split_by_share(tmp_path: Path) -> None:
    for rank, host in enumerate(("node7", "node8")):
        facts = {"host": host, "nodes": 2, "node": rank, "price": dollars(8), "gpus": 2}
        Segment(rank=rank, about=facts | {"launch": "x", "pid": rank}).step(3600).end().write(
            tmp_path
        )
    machine = OwnedMachine(host="node8", price=dollars(8), since_ns=START_NS)
    row = cost_of_machine(machine, [tmp_path], START_NS + HOUR)
    assert (row.cost, row.in_runs) == (Money(8_000_000), Money(8_000_000))


def test_a_machine_is_stated_shown_and_removed(tmp_path: Path) -> None:
    assert in_process("cost", "machines", "set", "node7", "12 USD/h", "--since", "2h").code == 0
    run = write_run(tmp_path / "run")
    assert in_process("collect", run).code == 0
    (row,) = in_process("cost", "machines", "show", "--json").json["machines"]
    assert (row["host"], row["kind"], row["in_runs"]["micros"]) == ("node7", "showback", 0)
    assert 24_000_000 <= row["cost"]["micros"] == row["in_no_run"]["micros"] < 24_100_000
    assert "in no run" in in_process("cost", "machines", "show").out
    assert in_process("cost", "machines", "remove", "node7", "--json").json["machines"] == []
    assert in_process("cost", "machines", "remove", "node7").code == 2


def test_an_end_before_the_begin_is_refused() -> None:
    with pytest.raises(InvalidValue, match="--until"):
        set_machine(
            OwnedMachine(host="n", price=OWNED, since_ns=START_NS, until_ns=START_NS - SECOND)
        )
    assert read_machines() == {}


def test_the_example_of_the_help_works_and_its_date_begins_at_midnight_utc() -> None:
    shown = in_process("cost", "machines", "set", "--help").out
    example = shown.partition("Example: outlay ")[2].partition("\u256d")[0]
    (row,) = in_process(*shlex.split(example), "--json").json["machines"]
    assert row["since"] == "2026-11-01 00:00:00Z"


@pytest.mark.parametrize("since", ["2026-13-01", "2026-11-01T09:00", "1 November"])
def test_an_invalid_date_or_one_without_a_zone_is_refused(since: str) -> None:
    assert in_process("cost", "machines", "set", "node7", "12 USD/h", "--since", since).code == 2
