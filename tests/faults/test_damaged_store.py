"""Damaged cells in the store: every command shows the other rows and names the skipped ones."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Integer

from command_line import in_process
from hostile import good_run
from outlay.advise.recommendation import OptimizationRecommendation
from outlay.compat.cost_module.analyzer import CostAnalyzer
from outlay.compat.cost_module.optimizer import CostOptimizer
from outlay.compat.cost_module.training import TrainingMetrics
from outlay.store import schema

CELLS = {
    "words": "'many'",
    "blob": "x'fffe00'",
    "no UTF-8": "CAST(x'ff61' AS TEXT)",
    "NUL": "CAST(x'610062' AS TEXT)",
    "beyond 64 bits": "1e300",
    "a fraction": "1.5",
    "JSON of another kind": "'[1]'",
}
PRICES = [
    ["prices", "list"], ["prices", "cheapest"], ["prices", "history", "H100"],
    ["prices", "history", "A100"], ["prices", "alerts"], ["prices", "stats"],
    ["cost-report", "--prices"],
]  # fmt: skip
COSTS = [
    ["cost", "summary"], ["cost", "model", "good"], ["cost", "compare"], ["cost", "roi", "good"],
    ["cost", "forecast", "good", "2"], ["cost", "budget", "status"],
    ["cost-report", "--model", "good"], ["cost", "allocate", "--by", "tag:x", "--month", "2023-11"],
]  # fmt: skip
OTHERS = [
    ["runs", "--all"], ["cost-report", "--budget"], ["cost-report", "--recommendations"],
    ["cost-report"],
]  # fmt: skip
# Of which row damaged copies are made, and what of a copy is its own, so that it is another row.
# A foreign key that leads nowhere cannot be told from a row that was never there.
COPIED = {
    "price_snapshots": ("source LIKE '%bad%'", "fetched_ns", "fetched_ns - {number}"),
    "price_series": ("provider = 'bad'", "provider", "'bad-{column}'"),
    "price_offers": ("provider = 'bad' AND price_micros = 2000000", "provider", "'bad-{column}'"),
    "price_points": ("micros = 2000000 AND {of_bad}", "fetched_ns", "fetched_ns - {number}"),
    "price_alerts": ("{of_bad}", "fetched_ns", "fetched_ns - {number}"),
    "cost_reports": ("run_id = 'bad-run'", "run_id", "'bad-{column}'"),
    "model_budgets": ("model = 'bad'", "model", "'bad-{column}'"),
    "recommendations": ("subject = 'bad'", "key", "'bad-{column}'"),
    "runs": ("name = 'bad'", "run_id", "'bad-{column}'"),
}
OF_BAD = "series_id IN (SELECT id FROM price_series WHERE provider = 'bad')"
IDS = {"id", "snapshot_id", "series_id", "position"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose store has a good row and a bad one of everything."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLAY_HOME", str(home))
        for provider, gpu in (("good", "A100-80GB"), ("bad", "H100")):
            for price in ("4 USD/h", "2 USD/h"):
                assert in_process("prices", "set", gpu, price, "--provider", provider).code == 0
        analyzer, optimizer = CostAnalyzer(), CostOptimizer()
        for name in ("good", "bad"):
            analyzer.analyze_training_run(metrics_of(name))
            analyzer.set_budget(name, 100)
            optimizer.keep([OptimizationRecommendation("epochs", name, "", 5.0, subject=name)])
            good_run(home / "runs" / name, name, tags={"x": name})
        assert in_process("collect", home / "runs").code == 0
        assert in_process("cost", "summary").code == 0
        yield home


def metrics_of(name: str) -> TrainingMetrics:
    return TrainingMetrics(
        run_id=f"{name}-run", model_name=name, num_samples=10, num_epochs=1, batch_size=1,
        learning_rate=0.1, total_duration_hours=1.0, gpu_name="H100", gpu_price_per_hour=2.0,
        test_accuracy=0.9,
    )  # fmt: skip


@pytest.fixture
def store(template: Path, private_home: Path) -> Path:
    shutil.copytree(template, private_home, dirs_exist_ok=True)
    return private_home / "outlay.db"


def damage(store: Path, table: str, cell: str) -> None:
    """Add a copy of the bad row for every column, with something else in that column."""
    names = [column.name for column in schema.metadata.tables[table].columns]
    where, own, another = COPIED[table]
    found = where.format(of_bad=OF_BAD)
    with closing(sqlite3.connect(store)) as connection:
        (row,) = connection.execute(f"SELECT max(rowid) FROM {table} WHERE {found}").fetchone()
        for number, column in enumerate(names, start=1):
            if column in IDS:
                continue
            copy = {name: f'"{name}"' for name in names}
            copy |= {"id": f"id + {10 * number}"} if "id" in names else {}
            copy |= {"position": str(10 * number)} if "position" in names else {}
            copy |= {own: another.format(column=column, number=number)}
            values = ", ".join((copy | {column: cell}).values())
            columns = ", ".join(f'"{name}"' for name in names)
            connection.execute(
                f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table} WHERE rowid = {row}"
            )
        connection.commit()


@pytest.mark.parametrize("cell", CELLS.values(), ids=[*CELLS])
def test_damaged_cells_affect_only_their_rows(store: Path, cell: str) -> None:
    for table in COPIED:
        damage(store, table, cell)
    for command in [*PRICES, *COSTS, *OTHERS]:
        ended = in_process(*command, "--json")
        assert ended.code == 0, f"{command}: {ended.err}"
        assert ('"bad"' if "H100" in command else "good") in ended.out, command
        if cell == CELLS["no UTF-8"]:
            assert in_process(*command).code == 0, command


READERS = {
    "price_offers": (["prices", "list"], "offer of bad-{}"),
    "cost_reports": (["cost", "summary"], "cost of run bad-{}"),
    "model_budgets": (["cost", "budget", "status"], "budget of bad-{}"),
}
UNREAD = {*IDS, "per_gpu_micros", "updated_ns"}
"""Numbers that are used for sorting only."""


@pytest.mark.parametrize("table", [*READERS])
@pytest.mark.parametrize("cell", ["words", "blob", "no UTF-8"])
def test_every_row_with_a_damaged_number_is_named(store: Path, table: str, cell: str) -> None:
    damage(store, table, CELLS[cell])
    command, name = READERS[table]
    messages = " ".join(
        f"{finding['source']}: {finding['message']}"
        for finding in in_process(*command, "--json").json["findings"]
    )
    columns = schema.metadata.tables[table].columns
    numbers = {c.name for c in columns if isinstance(c.type, Integer)} - UNREAD
    assert {column for column in numbers if name.format(column) not in messages} == set()
    assert "damaged" in messages


def test_invalid_utf8_damages_only_its_row(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE runs SET model = CAST(x'ff61' AS TEXT) WHERE name = 'bad'")
        connection.commit()
    listed = in_process("runs", "--all", "--json").json
    assert {row["name"] for row in listed["runs"]} == {"good", "bad"}


def test_the_next_offer_replaces_a_damaged_cheapest_one(store: Path) -> None:
    in_process("prices", "set", "H100", "3 USD/h", "--provider", "bad", "--id", "other")
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE price_offers SET gpu_count = 'x' WHERE price_micros = 2000000")
        connection.commit()
    shown = in_process("cost-report", "--prices", "--json").json
    assert {price["price_per_hour"] for price in shown["prices"]} == {3.0}
    assert len(shown["findings"]) == 2


def test_a_damaged_cost_of_a_run_is_derived_again(store: Path) -> None:
    before = in_process("cost", "summary", "--json").json
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE runs SET cost_micros = 'x', updated_ns = 'y', charges = 'z'")
        connection.commit()
    assert in_process("cost", "summary", "--json").json == before
