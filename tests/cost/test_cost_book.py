"""The costs of runs in the store: of registered runs, and of stated trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert, make_url

from ledgers import HOUR, Segment, dollars
from outlay.cost.cost_book import CostBook
from outlay.runs.collect import collect
from outlay.runs.money.spending_reader import refresh_books
from outlay.store import open_store
from outlay.store import opening as migrations
from outlay.store.connection import connect
from outlay.store.runs import delete_runs
from outlay.store.schema import cost_reports

LATER_NS = 1_800_000_000 * 10**9


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of an hour at 3 USD/h."""
    about = {"price": dollars(3), "run_id": "r", "model": "m", "nodes": 1}
    Segment(about=about).step(3600).end().write(tmp_path / "r")
    return tmp_path / "r"


@pytest.fixture
def store(run_dir: Path) -> Engine:
    store = open_store()
    collect(store, [run_dir], LATER_NS)
    return store


def state(store: Engine, micros: int, updated_ns: int, **changes: Any) -> None:
    """Add a row as versions before schema version 10 wrote it for run logs, too."""
    row = {
        "run_id": "r", "model": "m", "source": "ledger", "cost_micros": micros, "currency": "USD",
        "gpu_us": 1, "wall_us": 1, "samples": 0, "epochs": 0.0, "at_ns": 1, "metrics": None,
        "updated_ns": updated_ns,
    }  # fmt: skip
    with store.begin() as connection:
        connection.execute(insert(cost_reports).values(row | changes))


def costs(store: Engine, model: str | None = None) -> list[int]:
    return [row.paid.micros for row in CostBook(store).reports(model)]


def test_the_cost_of_a_registered_run_is_that_of_its_row(store: Engine) -> None:
    (row,) = CostBook(store).reports(with_charges=True)
    assert (row.paid.micros, row.wall_ns, row.at_ns) == (3_000_000, HOUR, row.last_seen_ns)
    assert row.charges is not None
    assert sum(charge.micros for charge in row.charges) == 3_000_000
    with store.begin() as connection:
        assert connection.execute(cost_reports.select()).all() == []


@pytest.mark.parametrize("model", [None, "m"])
def test_of_a_run_in_both_tables_the_later_row_counts(store: Engine, model: str | None) -> None:
    state(store, 7, updated_ns=LATER_NS - 1)
    assert costs(store, model) == [3_000_000]
    with store.begin() as connection:
        connection.execute(cost_reports.update().values(updated_ns=LATER_NS))
    assert costs(store, model) == [7]


def test_a_later_row_under_another_model_replaces_the_run(store: Engine) -> None:
    state(store, 7, updated_ns=LATER_NS, model="other")
    assert costs(store, "m") == []
    assert costs(store, "other") == [7]


def test_a_report_of_an_older_store_counts_until_its_log_is_read_again(
    run_dir: Path, tmp_path: Path
) -> None:
    old = connect(make_url(f"sqlite:///{tmp_path}/old.db"))
    migrations.migrate(old, to=9)
    state(old, 7, updated_ns=LATER_NS)
    migrations.migrate(old)
    assert refresh_books(old, LATER_NS + 1) == []
    assert costs(old) == [7]
    collect(old, [run_dir], LATER_NS + 2)
    assert costs(old) == [3_000_000]


def test_a_run_that_is_removed_from_the_store_has_no_cost_in_it(store: Engine) -> None:
    delete_runs(store, ["r"])
    assert costs(store) == []
