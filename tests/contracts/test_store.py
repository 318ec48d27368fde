"""The contract of every database behind the store; a database is added by its URL."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import URL, Engine, select

from homes import move_host
from outlay.store import RunRow, StoreUnavailable, open_store, runs, schema
from outlay.store.connection import database_ns, writing
from outlay.store.runs import RunFilter
from outlay.units import Money
from postgres import PostgresServer

DATABASES = ["sqlite", "postgresql"]


@pytest.fixture(params=DATABASES)
def store_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without a store, of each kind."""
    if request.param == "sqlite":
        yield URL.create("sqlite", database=str(tmp_path / "store.db")).render_as_string()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"store_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE {name}")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def store(store_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An empty store in each database."""
    monkeypatch.setenv("OUTLAY_STORE", store_address)
    engine = open_store()
    yield engine
    engine.dispose()


def test_first_openings_at_once_all_succeed(
    store_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_STORE", store_address)
    together = threading.Barrier(24)

    def open_one(_: int) -> None:
        together.wait()
        open_store().dispose()

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(open_one, range(24)))


def run_row(run_id: str = "r1", *, started_ns: int = 100, updated_ns: int = 200) -> RunRow:
    return RunRow(
        run_id=run_id,
        dir=f"/runs/{run_id}",
        model="bert-base",
        name=run_id,
        status="running",
        attempts=1,
        steps=10,
        tokens=5_000,
        started_ns=started_ns,
        last_seen_ns=started_ns + 50,
        tags={"team": "nlp"},
        updated_ns=updated_ns,
    )


def test_a_registered_run_survives_a_round_trip(store: Engine) -> None:
    row = replace(run_row(), cost=Money(1_500_000), assumed=Money(5), gpus="1/7", ended_ns=2**62)
    runs.register(store, [row])
    assert runs.get(store, "r1") == row


def test_a_cost_has_its_currency(store: Engine) -> None:
    runs.register(store, [replace(run_row(), cost=Money(7, "EUR"))])
    found = runs.get(store, "r1")
    assert found is not None
    assert found.cost == Money(7, "EUR")


def test_a_run_without_a_price_has_no_cost(store: Engine) -> None:
    runs.register(store, [run_row()])
    found = runs.get(store, "r1")
    assert found is not None
    assert found.cost is None


def test_an_unregistered_run_is_none(store: Engine) -> None:
    assert runs.get(store, "nobody") is None


def test_registering_twice_changes_nothing(store: Engine) -> None:
    for _ in range(2):
        runs.register(store, [run_row("a"), run_row("b")])
    assert [row.run_id for row in runs.list_runs(store)] == ["a", "b"]


def test_a_newer_row_replaces_an_older_one(store: Engine) -> None:
    later = replace(run_row(updated_ns=300), status="completed")
    runs.register(store, [run_row(updated_ns=200)])
    runs.register(store, [later])
    assert runs.get(store, "r1") == later


def test_an_older_row_does_not_replace_a_newer_one(store: Engine) -> None:
    later = replace(run_row(updated_ns=300), status="completed")
    runs.register(store, [later])
    runs.register(store, [run_row(updated_ns=200)])
    assert runs.get(store, "r1") == later


def test_registering_no_runs_does_nothing(store: Engine) -> None:
    runs.register(store, [])
    assert runs.list_runs(store) == []


def test_runs_are_listed_newest_first(store: Engine) -> None:
    runs.register(store, [run_row("old", started_ns=1), run_row("new", started_ns=9)])
    assert [row.run_id for row in runs.list_runs(store)] == ["new", "old"]


def test_runs_are_filtered_by_status_model_and_life(store: Engine) -> None:
    done = replace(run_row("done"), status="completed")
    other = replace(run_row("other"), model="gpt")
    late = run_row("late", started_ns=10_000)
    runs.register(store, [done, other, late])
    assert [row.run_id for row in runs.list_runs(store, RunFilter(status="completed"))] == ["done"]
    assert [row.run_id for row in runs.list_runs(store, RunFilter(model="gpt"))] == ["other"]
    assert [row.run_id for row in runs.list_runs(store, RunFilter(since_ns=10_050))] == ["late"]
    assert [row.run_id for row in runs.list_runs(store, limit=1)] == ["late"]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None
)
@given(
    st.lists(
        st.builds(
            run_row,
            st.sampled_from(["a", "b", "c"]),
            started_ns=st.integers(0, 5),
            updated_ns=st.integers(0, 5),
        ),
        max_size=8,
    )
)
def test_any_order_of_registering_keeps_the_newest_row(store: Engine, rows: list[RunRow]) -> None:
    with writing(store) as connection:
        connection.execute(schema.runs.delete())
    for row in rows:
        runs.register(store, [row])
    latest = {row.run_id: row for row in sorted(rows, key=lambda row: row.updated_ns)}
    assert {row.run_id: row for row in runs.list_runs(store)} == latest


# The same run, seen from several hosts


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let this process be on a host of another name from now on."""

    return lambda name: move_host(name, monkeypatch)


def test_a_run_that_two_hosts_see_is_one_run(store: Engine, on_host: Callable[[str], None]) -> None:
    for host in ("gpu1", "login"):
        on_host(host)
        runs.register(store, [replace(run_row(), dir=f"/{host}/r1")])
    assert [row.run_id for row in runs.list_runs(store)] == ["r1"]
    assert runs.count_runs(store) == 1


def test_each_host_has_its_own_path_of_a_run(store: Engine, on_host: Callable[[str], None]) -> None:
    for host in ("gpu1", "login"):
        on_host(host)
        runs.register(store, [replace(run_row(), dir=f"/{host}/r1")])
    on_host("gpu1")
    (row,) = runs.list_runs(store)
    assert (row.dir, row.log_host) == ("/gpu1/r1", "")


def test_a_row_is_from_the_longest_log_whichever_clock_is_ahead(
    store: Engine, on_host: Callable[[str], None]
) -> None:
    on_host("gpu1")
    runs.register(store, [replace(run_row(updated_ns=200), steps=20, log_bytes=2_000)])
    on_host("login")  # An hour ahead, with a part of the log.
    runs.register(store, [replace(run_row(updated_ns=3_600_000), steps=10, log_bytes=1_000)])
    assert runs.list_runs(store)[0].steps == 20
    on_host("login")
    runs.register(store, [replace(run_row(updated_ns=3_600_001), steps=30, log_bytes=3_000)])
    on_host("gpu1")
    runs.register(store, [replace(run_row(updated_ns=300), steps=21, log_bytes=2_100)])
    assert runs.list_runs(store)[0].steps == 30


def test_a_log_that_shrank_on_its_host_is_taken(
    store: Engine, on_host: Callable[[str], None]
) -> None:
    on_host("gpu1")
    runs.register(store, [replace(run_row(updated_ns=200), steps=20, log_bytes=2_000)])
    runs.register(store, [replace(run_row(updated_ns=201), steps=19, log_bytes=1_900)])
    assert runs.list_runs(store)[0].steps == 19


def test_a_run_replaced_on_one_host_stays_alive_at_the_same_path_of_another(
    store: Engine, on_host: Callable[[str], None]
) -> None:
    for host in ("gpu1", "gpu2"):
        on_host(host)
        runs.register(store, [replace(run_row(host), dir="/runs/train")])
    runs.end_replaced(store, {"/runs/train": "a later run of gpu2"})
    assert {row.run_id: row.status for row in runs.list_runs(store)} == {
        "gpu1": "running", "gpu2": "dead",
    }  # fmt: skip


def test_a_log_on_another_host_is_not_looked_for_here(
    store: Engine, on_host: Callable[[str], None]
) -> None:
    on_host("gpu1")
    before_ns = server_ns(store)
    runs.register(store, [run_row()])
    on_host("login")
    row = runs.get(store, "r1")
    assert row is not None
    if store.dialect.name == "sqlite":  # A file that both hosts see is beside the logs.
        assert (row.dir, row.log_host, row.as_of_ns) == ("/runs/r1", "", 0)
        return
    assert (row.dir, row.own_dir, row.log_host) == ("gpu1:/runs/r1", "/runs/r1", "gpu1")
    assert before_ns <= row.as_of_ns <= server_ns(store)


def server_ns(store: Engine) -> int:
    with store.begin() as connection:
        return database_ns(connection)


def test_hosts_of_one_name_are_two_hosts(
    store: Engine, on_host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine in ("one", "two"):
        on_host("localhost")
        monkeypatch.setattr("outlay.machine.machine_digest", lambda machine=machine: machine)
        runs.register(store, [replace(run_row(), dir=f"/{machine}")])
    with store.begin() as connection:
        found = connection.execute(select(schema.sightings.c.host, schema.sightings.c.dir))
        assert sorted(map(tuple, found)) == [("localhost@one", "/one"), ("localhost@two", "/two")]


def test_many_that_register_the_same_runs_at_once_all_succeed(store: Engine) -> None:
    together = threading.Barrier(8)

    def register_all(place: int) -> None:
        rows = [run_row(f"r{number}", updated_ns=place) for number in range(60)]
        random.Random(place).shuffle(rows)
        together.wait()
        for _ in range(3):
            runs.register(store, rows)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(register_all, range(8)))
    assert runs.count_runs(store) == 60
    assert {row.updated_ns for row in runs.list_runs(store)} == {7}


def test_a_deleted_run_is_seen_nowhere(store: Engine) -> None:
    runs.register(store, [run_row()])
    runs.delete_runs(store, ["r1"])
    with store.begin() as connection:
        assert connection.execute(select(schema.sightings)).all() == []


def test_a_failed_transaction_leaves_nothing(store: Engine) -> None:
    def fail() -> None:
        with writing(store) as connection:
            connection.execute(schema.runs.insert(), [vars_of(run_row())])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert runs.list_runs(store) == []


def test_an_unwritable_store_is_unavailable(store: Engine) -> None:
    store.dispose()
    with writing(store) as connection:
        connection.exec_driver_sql("DROP TABLE runs")
    with pytest.raises(StoreUnavailable, match="cannot use the store"):
        runs.register(store, [run_row()])


def test_what_a_login_may_not_do_is_unavailable(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = f"reader_{secrets.token_hex(4)}"
    postgres_server.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'right'")
    monkeypatch.setenv("OUTLAY_STORE", postgres_server.url("postgres", login, "right"))
    try:
        with pytest.raises(StoreUnavailable, match="permission denied"):
            open_store()
    finally:
        postgres_server.execute(f"DROP ROLE {login}")


def test_an_unreadable_store_is_unavailable(store: Engine) -> None:
    with writing(store) as connection:
        connection.exec_driver_sql("DROP TABLE runs")
    with pytest.raises(StoreUnavailable, match="cannot use the store"):
        runs.list_runs(store)


def vars_of(row: RunRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in RunRow.__struct_fields__}
