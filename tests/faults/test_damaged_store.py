"""Damaged cells in the store: every command shows the rest and names what it left out."""

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
from outlay.advise.optimizer import CostOptimizer
from outlay.advise.recommendation import OptimizationRecommendation
from outlay.cost.analyzer import CostAnalyzer
from outlay.cost.training import TrainingMetrics
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
    ["cost-report", "--model", "good"], ["cost", "allocate"],
]  # fmt: skip
TABLES = {
    "price_snapshots": PRICES, "price_offers": PRICES, "price_series": PRICES,
    "price_points": PRICES, "price_alerts": PRICES, "cost_reports": COSTS,
    "model_budgets": [["cost", "budget", "status"], ["cost-report", "--budget"]],
    "recommendations": [["cost-report", "--recommendations"]],
    "runs": [["runs", "--all"], ["cost", "summary"], ["cost", "allocate"]],
}  # fmt: skip
# Whose row it is; another series, snapshot or run has another number. A foreign key that leads
# nowhere cannot be told from a row that was never there.
BAD = {
    "price_snapshots": "source LIKE '%bad%'", "price_offers": "provider = 'bad'",
    "price_series": "provider = 'bad'",
    "price_points": "series_id IN (SELECT id FROM price_series WHERE provider = 'bad')",
    "price_alerts": "series_id IN (SELECT id FROM price_series WHERE provider = 'bad')",
    "cost_reports": "run_id = 'bad-run'", "model_budgets": "model = 'bad'",
    "recommendations": "subject = 'bad'", "runs": "name = 'bad'",
}  # fmt: skip
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
            good_run(home / "runs" / name, name)
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


def damage(store: Path, table: str, column: str, cell: str) -> bool:
    """Overwrite cells of the bad row; returns whether the database took it."""
    with closing(sqlite3.connect(store)) as connection:
        try:
            changed = connection.execute(
                f'UPDATE {table} SET "{column}" = {cell} WHERE {BAD[table]}'
            ).rowcount
            connection.commit()
        except sqlite3.IntegrityError:  # Two rows would have the same key.
            return False
    assert changed > 0
    return True


CASES = [
    (table, column.name)
    for table in TABLES
    for column in schema.metadata.tables[table].columns
    if column.name not in IDS
]


@pytest.mark.parametrize(("table", "column"), CASES, ids=[".".join(case) for case in CASES])
def test_a_damaged_cell_takes_nothing_else_down(
    store: Path, template: Path, table: str, column: str
) -> None:
    for cell in CELLS.values():
        shutil.copy(template / "outlay.db", store)
        if not damage(store, table, column, cell):
            continue
        for command in TABLES[table]:
            ended = in_process(*command, "--json")
            what = f"{command} with {cell}"
            if "A100" in str(command) or "H100" not in str(command):
                assert ended.code == 0, f"{what}: {ended.err}"
                assert "good" in ended.out, what
            assert in_process(*command).code in (0, ended.code), what


NUMBERS = [
    (table, column.name)
    for table in ("price_offers", "cost_reports", "model_budgets")
    for column in schema.metadata.tables[table].columns
    if isinstance(column.type, Integer)
    and column.name not in {*IDS, "per_gpu_micros", "updated_ns", "applied_ns"}
]
READERS = {
    "price_offers": (["prices", "list"], "bad, H100"),
    "cost_reports": (["cost", "summary"], "bad-run"),
    "model_budgets": (["cost", "budget", "status"], "budget of bad"),
}


@pytest.mark.parametrize(("table", "column"), NUMBERS, ids=[".".join(case) for case in NUMBERS])
@pytest.mark.parametrize("cell", ["words", "blob", "no UTF-8"])
def test_a_row_with_a_damaged_number_is_named(
    store: Path, table: str, column: str, cell: str
) -> None:
    assert damage(store, table, column, CELLS[cell])
    command, name = READERS[table]
    found = in_process(*command, "--json").json
    (finding,) = found["findings"]
    assert name in finding["source"]
    assert "damaged" in finding["message"]


def test_a_text_that_is_no_utf8_is_damage_of_its_row_alone(store: Path) -> None:
    assert damage(store, "runs", "model", CELLS["no UTF-8"])
    listed = in_process("runs", "--all", "--json").json
    assert {row["name"] for row in listed["runs"]} == {"good", "bad"}


def test_the_next_best_offer_counts_where_the_cheapest_is_damaged(store: Path) -> None:
    in_process("prices", "set", "H100", "3 USD/h", "--provider", "bad", "--id", "other")
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE price_offers SET gpu_count = 'x' WHERE price_micros = 2000000")
        connection.commit()
    shown = in_process("cost-report", "--prices", "--json").json
    assert {price["price_per_hour"] for price in shown["prices"]} == {3.0}
    assert len(shown["findings"]) == 2


def test_a_report_of_a_run_that_is_damaged_is_derived_anew(store: Path) -> None:
    before = in_process("cost", "summary", "--json").json
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE cost_reports SET cost_micros = 'x', updated_ns = 'y'"
                           " WHERE source = 'ledger'")  # fmt: skip
        connection.commit()
    assert in_process("cost", "summary", "--json").json == before
