"""Opening the store: its location, concurrent processes, and other schema versions."""

from __future__ import annotations

import re
import sqlite3
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import Engine, MetaData, func, insert, make_url, select, text

import scripts
from command_line import in_process
from outlay import run
from outlay.errors import InvalidValue, MissingExtra
from outlay.store import StoreTooNew, StoreUnavailable, open_store, outlay_home, runs, schema
from outlay.store import opening as migrations
from outlay.store.connection import connect, writing
from outlay.store.opening import store_url


def columns_of(store: Engine) -> dict[str, list[str]]:
    reflected = MetaData()
    reflected.reflect(store)
    return {
        name: sorted(
            f"{column.name} {column.type} {column.nullable} {column.primary_key}"
            for column in table.columns
        )
        for name, table in reflected.tables.items()
    }


def pragma(store: Engine, name: str) -> object:
    with store.begin() as connection:
        return connection.scalar(text(f"PRAGMA {name}"))


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_store_in_postgresql_without_its_driver_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("OUTLAY_STORE", f"{scheme}://me:hunter2@127.0.0.1:9/outlay")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"outlay\[postgres\]") as caught:
        open_store()
    assert "hunter2" not in str(caught.value)


def test_the_store_is_in_the_home_by_default(private_home: Path) -> None:
    open_store()
    assert (private_home / "outlay.db").is_file()


def test_settings_are_the_first_file_of_home_and_the_users_configuration(
    private_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outlay.toml").write_text('store = "sqlite:////checkout.db"')
    in_config = tmp_path / "config" / "outlay" / "outlay.toml"
    in_config.parent.mkdir(parents=True)
    in_config.write_text('store = "sqlite:////users.db"')
    assert store_url().database == "/users.db"
    (private_home / "outlay.toml").write_text('store = "sqlite:////homes.db"')
    assert store_url().database == "/homes.db"
    named = tmp_path / "named.toml"
    named.write_text('store = "sqlite:////named.db"')
    monkeypatch.setenv("OUTLAY_CONFIG", str(named))
    assert store_url().database == "/named.db"
    named.write_text("alerts = 7")
    assert str(named) in in_process("watch", "--check").err


def test_a_data_dir_puts_the_store_elsewhere(tmp_path: Path, private_home: Path) -> None:
    open_store(tmp_path / "made" / "on demand")
    assert (tmp_path / "made" / "on demand" / "outlay.db").is_file()
    assert not (private_home / "outlay.db").exists()


def test_the_environment_names_another_database(
    tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_STORE", f"sqlite:///{tmp_path}/team.db")
    open_store()
    assert (tmp_path / "team.db").is_file()
    assert not (private_home / "outlay.db").exists()


def test_default_home_is_the_platforms_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAY_HOME")
    assert outlay_home().name == "outlay"


@pytest.mark.parametrize(
    ("name", "expected"), [("journal_mode", "wal"), ("busy_timeout", 30_000), ("foreign_keys", 1)]
)
def test_sqlite_is_set_up_for_many_processes(name: str, expected: object) -> None:
    assert pragma(open_store(), name) == expected


def test_opening_again_changes_nothing() -> None:
    before = columns_of(open_store())
    assert columns_of(open_store()) == before


def test_a_store_of_a_newer_outlay_is_refused() -> None:
    with writing(open_store()) as connection:
        connection.execute(insert(schema.versions).values(version=999, applied_ns=0))
    with pytest.raises(StoreTooNew, match=r"999.*Upgrade outlay"):
        open_store()


@pytest.mark.parametrize("version", range(1, migrations.NEWEST))
def test_an_older_store_is_migrated_to_the_current_schema(version: int, tmp_path: Path) -> None:
    old = connect(store_url(tmp_path))
    migrations.migrate(old, to=version)
    migrations.migrate(old)
    assert columns_of(old) == columns_of(open_store(tmp_path / "fresh"))


def test_a_database_with_a_table_of_another_program_is_refused_and_not_changed(
    private_home: Path,
) -> None:
    database = private_home / "outlay.db"
    with sqlite3.connect(database) as other:
        other.execute("CREATE TABLE runs (run_uuid TEXT PRIMARY KEY)")
    with pytest.raises(StoreUnavailable, match="runs already exists"):
        open_store()
    assert list(columns_of(connect(store_url(private_home)))) == ["runs"]


def test_a_file_that_is_not_a_database_is_unavailable(private_home: Path) -> None:
    (private_home / "outlay.db").write_text("these are not the books" * 100)
    with pytest.raises(StoreUnavailable, match=r"not a database.*OUTLAY_HOME"):
        open_store()


def test_a_store_damaged_while_open_is_unavailable(private_home: Path) -> None:
    store = open_store()
    for file in private_home.glob("outlay.db*"):
        file.write_text("these are not the books" * 100)
    with pytest.raises(StoreUnavailable, match=r"not a database.*OUTLAY_HOME"):
        runs.list_runs(store)


def test_a_home_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="OUTLAY_HOME"):
        open_store(tmp_path / "file")


SERVER = "postgresql+psycopg://me:hunter2@127.0.0.1:9/outlay"
URLS = [
    SERVER,
    "nosuchdb://me:hunter2@127.0.0.1/outlay",
    "postgresql://me:p@hunter2@127.0.0.1:9/outlay",
    "postgresql://me:p/hunter2@127.0.0.1:9/outlay",
    "postgresql://me:p@hunter2/x@127.0.0.1:9/outlay",
    "postgresql://me:p%40hunter2@127.0.0.1:9/outlay",
    "postgresql://hunter2@127.0.0.1:9/outlay",
    "postgresql://127.0.0.1:9/outlay?user=me&password=hunter2",
    "postgresql://127.0.0.1:9/outlay?sslmode=require&sslpassword=hunter2",
    "postgresql://127.0.0.1:9/outlay?options=-c%20app.token%3Dhunter2",
    "postgresql://127.0.0.1:9/outlay?passfile=/etc/hunter2/pgpass",
    "postgresql://127.0.0.1:9/outlay?nosuchoption=hunter2",
    "postgresql://me:hunter2@/outlay?host=127.0.0.1&port=9",
    "postgresql://me:hunter2@127.0.0.1:99999999/outlay",
    "postgresql://me:hunter2@127.0.0.1:9/out lay@hunter2",
    "postgresql://hunter2:9/outlay",
    "sqlite:////nowhere/at/all/outlay.db?nosuchoption=hunter2",
]
UNREADABLE = [
    "hunter2",
    "postgresql://me:hunter2@127.0.0.1:port/outlay",
    "postgresql://me:hunter2@[::1/outlay",
    "postgresql:me:hunter2@127.0.0.1",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "quoting",
    [
        "{url}",
        'connection to server at "{host}", port {port} failed: FATAL: wrong password "{password}"',
        'invalid value for parameter "app.token": "hunter2"',
        "failed to resolve host '{host}': [Errno -2] Name or service not known",
    ],
)
def test_an_error_has_the_backend_and_the_name_of_the_database_alone(
    url: str, quoting: str
) -> None:
    parsed = make_url(url)
    parts = {"host": parsed.host, "port": parsed.port, "password": parsed.password}
    shown = str(StoreUnavailable(parsed, OSError(quoting.format(url=url, **parts))))
    assert f"the store in {parsed.get_backend_name()} database" in shown
    assert not re.search("hunter2|127.0.0.1|pgpass", shown)


def test_the_name_of_the_database_is_shown_and_no_cause_that_quotes_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUTLAY_STORE", "nosuchdb://me:hunter2@127.0.0.1/outlay")
    failed = in_process("runs")
    assert failed.code == 1
    assert "the store in nosuchdb database outlay: " in " ".join(failed.err.split())
    with pytest.raises(StoreUnavailable) as caught:
        open_store()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("url", UNREADABLE)
def test_an_unreadable_url_is_one_line_that_does_not_repeat_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_STORE", url)
    with pytest.raises(InvalidValue, match="OUTLAY_STORE") as caught:
        open_store()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_opening_waits_for_a_locked_new_file(private_home: Path) -> None:
    with sqlite3.connect(private_home / "outlay.db", check_same_thread=False) as other:
        other.execute("CREATE TABLE anything (value)")
        other.commit()
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.2, other.execute, ["ROLLBACK"])
        release.start()
        open_store()
        release.join()
    other.close()


def test_processes_that_open_a_new_store_at_once_all_succeed(private_home: Path) -> None:
    program = """
        import os, sys
        from outlay.store import RunRow, open_store, runs

        def register(me):
            os.read(start, 1)
            row = dict(dir="/", model="m", name=me, status="running", attempts=1, steps=0, tokens=0)
            times = dict(started_ns=0, last_seen_ns=0, updated_ns=0)
            runs.register(open_store(), [RunRow(run_id=me, **row, **times)])

        start, ready = os.pipe()
        children = []
        for number in range(8):
            child = os.fork()
            if child == 0:
                os.close(ready)
                register(str(number))
                os._exit(0)
            children.append(child)
        os.close(start)
        os.close(ready)  # Ends the read in every child at once.
        sys.exit(any(os.waitpid(child, 0)[1] for child in children))
    """
    done = scripts.finish(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert (private_home / "outlay.db").is_file()
    with open_store().begin() as connection:
        assert connection.scalar(select(func.count()).select_from(schema.runs)) == 8
        assert connection.scalars(select(schema.versions.c.version)).all() == [migrations.NEWEST]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("tags", "{not json"),
        ("steps", "many"),
        ("tags", "[1]"),
        ("started_ns", "x"),
        ("gpus", "1.5"),
    ],
)
def test_a_damaged_row_is_derived_again(tmp_path: Path, column: str, cell: str) -> None:
    for name in ("good", "bad"):
        with run("m", dir=tmp_path / name, name=name):
            pass
    assert in_process("runs").code == 0
    store = sqlite3.connect(str(store_url().database))
    store.execute(f"UPDATE runs SET {column} = ? WHERE name = 'bad'", [cell])
    store.commit()
    store.close()
    found = {row.name: row.status for row in runs.list_runs(open_store())}
    assert found == {"good": "completed", "bad": "damaged"}
    shown = in_process("runs", "--json").json
    assert {row["name"]: row["status"] for row in shown["runs"]} == dict.fromkeys(
        ["good", "bad"], "completed"
    )


def test_the_store_may_be_named_in_the_settings(private_home: Path, tmp_path: Path) -> None:
    stated = f"sqlite:///{tmp_path / 'named.db'}"
    (private_home / "outlay.toml").write_text(f'store = "{stated}"\n')
    assert store_url().render_as_string() == stated


def test_the_environment_goes_before_the_settings(
    private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (private_home / "outlay.toml").write_text('store = "sqlite:////nowhere/a.db"\n')
    monkeypatch.setenv("OUTLAY_STORE", "sqlite:////elsewhere/b.db")
    assert store_url().database == "/elsewhere/b.db"


@pytest.mark.parametrize("url", ["postgresql://u:secret@db/x", "postgresql://db/x?password=secret"])
def test_a_password_in_the_settings_is_refused_and_not_shown(private_home: Path, url: str) -> None:
    (private_home / "outlay.toml").write_text(f'store = "{url}"\n')
    with pytest.raises(InvalidValue, match=r"\.pgpass") as refused:
        open_store()
    assert "secret" not in str(refused.value)
