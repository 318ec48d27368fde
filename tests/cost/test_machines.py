"""Owned machines: their runs and the cost outside of runs add up."""

from __future__ import annotations

import shlex
import shutil
from csv import DictReader
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process, start_outlay
from ledgers import HOUR, SECOND, START_NS, Segment, dollars
from outlay.cost.charges import month_window
from outlay.cost.machines.owned_machines import (
    MACHINES,
    MachineCost,
    OwnedMachine,
    cost_of_machine,
    set_machine,
)
from outlay.errors import InvalidValue
from outlay.ledger import Price
from outlay.runs.reading import read_run, stored_row
from outlay.units import Money, Unit
from outlay.web.book_reader import BookReader
from outlay.web.money import money_page
from outlay.web.page import PageQuery

SHOWBACK = Unit("USD", "showback")
OWNED = Price(8_000_000, kind="showback")
MACHINE = OwnedMachine(host="node7", price=OWNED, since_ns=START_NS)


def write_run(directory: Path, *, hours: float = 1, price: Price = OWNED, **about: Any) -> Path:
    """Write a run of one step on node7."""
    facts = {"price": price, "host": "node7"} | about
    Segment(about=facts).step(hours * 3600).end().write(directory)
    return directory


def cost_in_month(machine: OwnedMachine, run: Path, now_ns: int) -> MachineCost:
    (month,) = cost_of_machine(machine, [stored_row(read_run(run, now_ns))], now_ns)
    return month


def test_runs_and_the_cost_outside_of_them_sum_to_the_machine(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    row = cost_in_month(MACHINE, run, START_NS + 3 * HOUR)
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
    row = cost_in_month(MACHINE, write_run(tmp_path, **about), START_NS + 3 * HOUR)
    assert row.in_runs == SHOWBACK.money(0)


def test_a_run_counts_between_since_and_until(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path, hours=4)
    machine = OwnedMachine(
        host="node7", price=OWNED, since_ns=START_NS + HOUR, until_ns=START_NS + 3 * HOUR
    )
    row = cost_in_month(machine, run, START_NS + 9 * HOUR)
    assert (row.cost, row.in_runs) == (SHOWBACK.money(16_000_000), SHOWBACK.money(16_000_000))


def test_a_run_on_two_nodes_is_split_by_share(tmp_path: Path) -> None:
    for rank, host in enumerate(("node7", "node8")):
        facts = {"host": host, "nodes": 2, "node": rank, "price": dollars(8), "gpus": 2}
        Segment(rank=rank, about=facts | {"launch": "x", "pid": rank}).step(3600).end().write(
            tmp_path
        )
    machine = OwnedMachine(host="node8", price=dollars(8), since_ns=START_NS)
    row = cost_in_month(machine, tmp_path, START_NS + HOUR)
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


def test_machines_that_are_stated_at_once_are_all_kept() -> None:
    hosts = [f"node{n}" for n in range(8)]
    stating = [
        start_outlay("cost", "machines", "set", host, "8 USD/h", "--since", "2026-01-01")
        for host in hosts
    ]
    assert [each.wait() for each in stating] == [0] * len(hosts)
    assert list(MACHINES.read()) == hosts


def test_an_end_before_the_begin_is_refused() -> None:
    with pytest.raises(InvalidValue, match="--until"):
        set_machine(
            OwnedMachine(host="n", price=OWNED, since_ns=START_NS, until_ns=START_NS - SECOND)
        )
    assert MACHINES.read() == {}


def test_the_example_of_the_help_works_and_its_date_begins_at_midnight_utc() -> None:
    shown = in_process("cost", "machines", "set", "--help").out
    example = shown.partition("Example: outlay ")[2].partition("\u256d")[0]
    (row,) = in_process(*shlex.split(example), "--json").json["machines"]
    assert row["since"] == "2026-11-01 00:00:00Z"


@pytest.mark.parametrize("since", ["2026-13-01", "2026-11-01T09:00", "1 November"])
def test_an_invalid_date_or_one_without_a_zone_is_refused(since: str) -> None:
    assert in_process("cost", "machines", "set", "node7", "12 USD/h", "--since", since).code == 2


# A machine in the books


def on_n1(root: Path, name: str, start_h: float, dollars_paid: float) -> Path:
    """Write a run on n1 at 3 USD an hour, in November 2023."""
    about = {"host": "n1", "price": dollars(3), "run_id": name, "name": name, "user": "ada"}
    start_s = (month_window("2023-11").start_ns - START_NS) / SECOND + start_h * 3600
    story = Segment(start=start_s, about=about | {"model": "m", "nodes": 1})
    story.step(dollars_paid / 3 * 3600).end().write(root / name)
    return root / name


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(DictReader(path.read_text().splitlines()))


def total_on_every_screen(tmp_path: Path) -> dict[str, Decimal]:
    def said(*words: object) -> Any:
        done = in_process(*words, "--json")
        assert done.code == 0, done.err
        return done.json

    table, focus = tmp_path / "table.csv", tmp_path / "focus.csv"
    month = ("--by", "team", "--month", "2023-11", "--csv", table, "--focus", focus)
    allocated = said("cost", "allocate", *month)
    (total,) = allocated["totals"]
    digest = said("digest", "--since", "2023-11-01T00:00Z")
    query = PageQuery(path="/money", query=[("month", "2023-11")])
    rows = money_page(query, BookReader()).rows

    def in_file(path: Path, column: str) -> Decimal:
        return sum((Decimal(row[column]) for row in rows_of(path)), start=Decimal(0))

    return {
        "summary": Decimal(str(said("cost", "summary")["totals"]["USD"])),
        "allocate": Decimal(total["total"]["micros"]) / 10**6,
        "csv": in_file(table, "total"),
        "focus": in_file(focus, "EffectiveCost"),
        "digest": Decimal(digest["totals"]["USD"]["micros"]) / 10**6,
        "money": sum((Decimal(str(row["cost"])) for row in rows), start=Decimal(0)),
    }


@pytest.fixture
def n1(tmp_path: Path) -> list[Path]:
    """A machine of 2,160 USD a month with three runs of 216 USD on it."""
    runs = [
        on_n1(tmp_path, name, at, cost)
        for name, at, cost in (("a", 1, 20), ("b", 100, 100), ("c", 300, 96))
    ]
    november = ("--since", "2023-11-01", "--until", "2023-12-01", "--tag", "team=infra")
    stated = ("cost", "machines", "set", "n1", "3 USD/h cash", *november)
    assert in_process(*stated).code == 0
    assert in_process("collect", *runs).code == 0
    return runs


@pytest.mark.usefixtures("n1")
def test_every_screen_has_the_part_of_a_machine_in_no_run(tmp_path: Path) -> None:
    (row,) = in_process("cost", "machines", "show", "--json").json["machines"]
    assert (row["in_runs"]["micros"], row["in_no_run"]["micros"]) == (216_000_000, 1_944_000_000)
    found = total_on_every_screen(tmp_path)
    assert found == dict.fromkeys(found, Decimal(2160))
    table = {row["owner"]: row["total"] for row in rows_of(tmp_path / "table.csv")}
    assert table == {"infra": "1944", "(untagged)": "216"}


def test_a_machine_costs_the_same_after_a_log_on_it_was_deleted(
    tmp_path: Path, n1: list[Path]
) -> None:
    shutil.rmtree(n1[1])
    found = total_on_every_screen(tmp_path)
    assert found == dict.fromkeys(found, Decimal(2160))


def test_runs_that_cost_more_than_their_machine_are_a_finding(tmp_path: Path) -> None:
    run = on_n1(tmp_path, "a", 1, 20)
    stated = ("n1", "1 USD/h cash", "--since", "2023-11-01T01:00Z", "--until", "2023-11-01T02:00Z")
    assert in_process("cost", "machines", "set", *stated).code == 0
    assert in_process("collect", run).code == 0
    summary = in_process("cost", "summary", "--json").json
    assert summary["totals"] == {"USD": 18.0}, "of 20 USD, 3 were within the hour"
    (finding,) = [each["message"] for each in summary["findings"] if each["source"] == "n1"]
    assert finding.startswith("the runs on it cost 2.00 USD more than the machine")
