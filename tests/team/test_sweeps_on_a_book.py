"""Sweeps draw on a book that they share: its limits and their own hold, whoever is killed."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from command_line import in_process, outlay, start_outlay, start_python
from outlay import BudgetGuard
from outlay.clock import SYSTEM
from outlay.guard.balance import Books
from outlay.guard.entries import Captured, Extended, Held, Voided, micros_of
from outlay.ledger import read_identity
from outlay.runs.reading import read_figures
from outlay.sweep.run.detached import Detached
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import Result, resume
from outlay.sweep.state.manifest import read_events, read_manifest
from postgres import PostgresServer, TeamDatabase
from waiting import until

PRICED: dict[str, Any] = {"price": "3600 USD/h"}  # 1 USD a second
SECOND = {"mode": "iso_time", "limit": "1s"}


@pytest.fixture
def book(team: TeamDatabase, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a book with a ceiling of 5 USD; the password is in the environment."""
    return new_book(team, monkeypatch, "5 USD")


def new_book(
    team: TeamDatabase, monkeypatch: pytest.MonkeyPatch, ceiling: object, unit: str = "USD"
) -> str:
    monkeypatch.setenv("PGPASSWORD", team.password)
    url = team.new_book().replace(f":{team.password}@", "@")
    book = url.partition("book=")[2]
    team.execute(f"UPDATE outlay.book SET currency = '{unit}' WHERE name = '{book}'")
    BudgetGuard(ceiling, url, currency=unit, environ={}).note("opened")
    return url


def write_grid(directory: Path, script: str, ceiling: object, **more: Any) -> Path:
    grid = {
        "engine": "process", "arguments": "none", "entrypoint": ["sh", "-c", script],
        "output_dir": str(directory / "sweep"), "ceiling": ceiling, "budget": SECOND,
        "grid": [{"params": {"x": [1, 2, 3, 4, 5, 6]}}],
    }  # fmt: skip
    directory.mkdir(exist_ok=True)
    path = directory / "grid.json"
    path.write_text(json.dumps(grid | PRICED | more))
    return path


def guard_of(url: str) -> BudgetGuard:
    return BudgetGuard.of_log(url, environ={})


def most_committed(url: str, label: str = "") -> int:
    """Return the largest sum that was committed when money was held; of a sweep, or of all."""
    books, largest = Books(), 0
    for line in guard_of(url).log.lines():
        if line.op_label.startswith(label):
            books.apply(line)
            if isinstance(line, Held | Extended):
                largest = max(largest, books.committed(at_ns=0))
    return largest


def assert_settled_once(url: str, root: Path) -> None:
    """Check that no hold is open, each has one end, and that the journal has the same cost."""
    guard = guard_of(url)
    assert guard.verify().sound, guard.verify().findings
    assert guard.holds() == ()
    lines = guard.log.lines()
    ends = [line.hold for line in lines if isinstance(line, Captured | Voided)]
    assert sorted(ends) == sorted(line.hold for line in lines if isinstance(line, Held))
    spent = sum(state.cost_micros or 0 for state in read_manifest(root).states.values())
    captured = sum(micros_of(line.actual) for line in lines if isinstance(line, Captured))
    assert captured == spent > 0


def continued(root: Path) -> Result:
    return resume(root, SweepOptions(jobs=2), grid=None, retry_failed=False)


def test_two_sweeps_never_commit_more_than_their_book_has(tmp_path: Path, book: str) -> None:
    grids = [write_grid(tmp_path / name, "sleep 0.7", {"book": book}) for name in "ab"]
    running = [start_outlay("sweep", "run", grid, "--yes", "--jobs", "3") for grid in grids]
    assert {each.wait() for each in running} <= {1, 3}  # Twelve runs cost more than 8 USD.
    assert 4_000_000 < most_committed(book) <= 5_000_000
    assert guard_of(book).holds() == ()
    assert guard_of(book).verify().sound


def test_a_sweep_keeps_to_its_own_limit_within_a_larger_book(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = new_book(team, monkeypatch, "50 USD")
    BudgetGuard.of_log(book, environ={}).authorize("lab02-other", "10 USD")
    ceiling = {"book": book, "limit": "3 USD"}
    shown = outlay("sweep", "run", write_grid(tmp_path, "sleep 0.7", ceiling), "--yes", "-j", "6")
    assert shown.code in (1, 3)
    about = read_manifest(tmp_path / "sweep").about
    assert (about["ceiling"], about["book"]) == ("3.00 USD", book)
    assert 1_500_000 < most_committed(book, about["label"]) <= 3_000_000
    assert most_committed(book) > 10_000_000
    reasons = {state.reason for state in read_manifest(tmp_path / "sweep").states.values()}
    assert any(f"sweep {about['label']}: " in reason for reason in reasons)
    again = continued(tmp_path / "sweep")  # What its earlier runs cost still counts.
    assert most_committed(book, about["label"]) <= 3_000_000
    assert again.of_status("skipped")


def test_a_ceiling_that_is_lowered_while_a_sweep_runs_stays_lowered(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, go = new_book(team, monkeypatch, "500 USD"), tmp_path / "go"
    script = f"until test -e {go}; do sleep 0.05; done"
    longer = {"mode": "iso_time", "limit": "100s"}
    grid = write_grid(tmp_path, script, {"book": book}, budget=longer)
    harness = start_outlay("sweep", "run", grid, "--yes")
    root = tmp_path / "sweep"
    until(lambda: root.exists() and len(read_events(root)) == 1, "a run")
    guard_of(book).set_ceiling("2 USD", "less")
    go.touch()
    assert harness.wait() == 3
    assert str(guard_of(book).ceilings.whole) == "2.00 USD"
    assert guard_of(book).findings() == ()  # Nothing was raised.
    assert [line.op_label for line in guard_of(book).log.lines() if isinstance(line, Held)] == [
        f"{read_manifest(root).about['label']}/001_group00_00"
    ]


def test_a_path_is_that_of_a_log_beside_the_grid(tmp_path: Path) -> None:
    BudgetGuard("5 USD", tmp_path / "spend.jsonl", environ={}).note("opened")
    grid = write_grid(tmp_path / "grids", "exit 0", {"book": "../spend.jsonl", "limit": "4 USD"})
    assert outlay("sweep", "run", grid, "--yes").code == 0
    assert not (tmp_path / "grids" / "sweep" / "spend.jsonl").exists()
    captured = [
        line
        for line in BudgetGuard.of_log(tmp_path / "spend.jsonl").log.lines()
        if isinstance(line, Captured)
    ]
    assert len(captured) == 6


DIE = """
import os, signal, sys
from pathlib import Path
from outlay.sweep.grid.files import plan_file
from outlay.sweep.run.harness import SweepOptions
from outlay.sweep.run.sweeps import start
from outlay.sweep.state.manifest import Journal

def append(journal, event, *, keep=True):
    if event.status == sys.argv[2] and event.run.startswith("003"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(journal, event, keep=keep)

real, Journal.append = Journal.append, append
start(plan_file(Path(sys.argv[1])), None, SweepOptions(jobs=1))
"""


@pytest.mark.parametrize("status", ["running", "completed"])
def test_a_harness_killed_before_it_records_settles_once(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """The hold is in the book and not in the journal; or the capture is."""
    book = new_book(team, monkeypatch, "50 USD")
    grid = write_grid(tmp_path, "exit 0", {"book": book, "limit": "40 USD"})
    assert start_python(DIE, grid, status).wait() == -signal.SIGKILL
    root = tmp_path / "sweep"
    events = [event.status for event in read_events(root) if event.run.startswith("003")]
    lines = [type(line) for line in guard_of(book).log.lines() if "/003" in line.op_label]
    if status == "running":
        assert (events, lines) == ([], [Held])
    else:
        assert (events, lines) == (["running"], [Held, Captured])
        shutil.rmtree(root / "003_group00_02")  # Of its end and its cost only the book knows.
    assert continued(root).counts == {"completed": 6}
    assert_settled_once(book, root)


def test_a_killed_harness_resumes_with_its_holds(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, again = new_book(team, monkeypatch, "500 USD"), tmp_path / "again"
    script = f"test -e {again} || exec sleep 60"
    grid = write_grid(tmp_path, script, {"book": book, "limit": "400 USD"})
    harness = start_outlay("sweep", "run", grid, "--yes", "--jobs", "2")
    root = tmp_path / "sweep"
    until(lambda: len(guard_of(book).holds()) == 2 == len(read_events(root)), "two runs")
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    again.touch()
    assert continued(root).counts == {"completed": 6}
    assert_settled_once(book, root)


def test_another_book_is_refused_while_holds_are_open_in_the_first(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = new_book(team, monkeypatch, "50 USD")
    grid = write_grid(tmp_path, "exit 0", {"book": book})
    assert start_python(DIE, grid, "running").wait() == -signal.SIGKILL
    write_grid(tmp_path, "exit 0", {"book": new_book(team, monkeypatch, "50 USD")})
    root = tmp_path / "sweep"
    refused = in_process("sweep", "resume", root)
    assert (refused.code, "1 open hold" in refused.err) == (2, True)
    assert read_manifest(root).about["book"] == book
    write_grid(tmp_path, "exit 0", {"book": book})
    assert continued(root).counts == {"completed": 6}


# -- a database that is away -----------------------------------------------------------------------


@pytest.fixture
def own_database(postgres_server: PostgresServer) -> Iterator[TeamDatabase]:
    database = TeamDatabase(postgres_server)
    database.create()
    yield database
    database.remove()


def shut(database: TeamDatabase) -> None:
    """Let nobody connect to a database, and end all connections."""
    database.server.execute(f"ALTER DATABASE {database.name} ALLOW_CONNECTIONS false")
    database.server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{database.name}' AND pid <> pg_backend_pid()"
    )


def test_a_run_that_ends_while_the_database_is_away_is_settled_later(
    tmp_path: Path, own_database: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, go = new_book(own_database, monkeypatch, "500 USD"), tmp_path / "go"
    script = f"until test -e {go}; do sleep 0.05; done"
    grid = write_grid(
        tmp_path, script, {"book": book}, grid=[{}], budget={"mode": "iso_time", "limit": "100s"}
    )
    harness = start_outlay("sweep", "run", grid, "--yes")
    root = tmp_path / "sweep"
    until(lambda: root.exists() and len(read_events(root)) == 1, "a run")
    shut(own_database)
    go.touch()
    refused = f'database "{own_database.name}" is not currently accepting connections'
    log = own_database.server.directory / "log"
    until(lambda: refused in log.read_text(), "a refused connection")
    assert [event.status for event in read_events(root)] == ["running"]
    own_database.server.execute(f"ALTER DATABASE {own_database.name} ALLOW_CONNECTIONS true")
    assert harness.wait() == 0
    assert_settled_once(book, root)


def test_a_status_is_shown_while_the_database_is_away(
    tmp_path: Path, own_database: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = new_book(own_database, monkeypatch, "500 USD")
    grid = write_grid(tmp_path, "exit 0", {"book": book})
    assert start_python(DIE, grid, "completed").wait() == -signal.SIGKILL
    root, run = tmp_path / "sweep", "003_group00_02"
    shut(own_database)
    looked = Detached(read_manifest(root), SYSTEM)
    looked.poll([run])
    looked.close()
    assert "its cost is not recorded yet" in str(looked.findings[0])
    assert read_manifest(root).state(run).status == "running"
    shown = in_process("sweep", "status", root, "--json").json
    assert (shown["head"], shown["counts"]["running"]) == ("", 1)
    own_database.server.execute(f"ALTER DATABASE {own_database.name} ALLOW_CONNECTIONS true")
    assert continued(root).counts == {"completed": 6}
    assert_settled_once(book, root)


# -- forms and screens -----------------------------------------------------------------------------

AWAY = "postgresql://ada@127.0.0.1:9/spend?book=vision"
SECRET = "postgresql://ada:hunter2@127.0.0.1:9/spend?book=vision"


@pytest.mark.parametrize(
    ("ceiling", "more", "said"),
    [
        ({"book": SECRET}, {}, "~/.pgpass"),
        ({"book": AWAY + "&password=hunter2"}, {}, "~/.pgpass"),
        (SECRET, {}, "{book: URL, limit: 50 USD}"),
        ({"book": AWAY, "limit": SECRET}, {}, "{book: URL, limit: 50 USD}"),
        ({"limit": "5 USD"}, {}, "expected `book`"),
        ({"book": ""}, {}, "a non-empty text"),
        ({"book": AWAY, "most": "5 USD"}, {}, "unknown key 'most'"),
        ({"book": AWAY, "limit": "lots"}, {}, "lots"),
        ({"book": "postgresql://ada@db/spend"}, {}, "book=NAME"),
        ({"book": "mysql://ada:hunter2@db/spend"}, {}, "postgresql://"),
        ({"book": AWAY}, {}, "Nothing is authorised"),
        ({"book": "no/such/spend.jsonl"}, {}, "a ceiling"),
        ({"book": "{book}", "limit": "5 EUR"}, {"price": "3600 EUR/h"}, "a limit in USD"),
        ({"book": "{book}"}, {"price": "3600 EUR/h"}, "a price in USD"),
        ({"book": "{book}"}, {"price": "3600 USD/h showback"}, "a price in USD"),
        ({"book": "{book}"}, {"price": None}, "no price to predict its cost from"),
    ],
)
def test_a_bad_form_is_refused_before_anything_is_written(
    tmp_path: Path, book: str, ceiling: Any, more: dict[str, Any], said: str
) -> None:
    stated = json.loads(json.dumps(ceiling).replace("{book}", book))
    grid = write_grid(tmp_path, "exit 0", stated, **more)
    shown = outlay("sweep", "run", grid, "--yes", columns=300)
    assert (shown.code != 0, said in shown.err) == (True, True), shown.err
    assert "hunter2" not in shown.err + shown.out
    assert [path.name for path in tmp_path.iterdir()] == ["grid.json"]
    assert len(guard_of(book).log.lines()) == 1


def test_plan_and_status_name_the_book_and_what_it_has_left(
    tmp_path: Path, team: TeamDatabase, book: str
) -> None:
    grid = write_grid(tmp_path, "exit 0", {"book": book, "limit": "9 USD"})
    name = f"postgresql database {team.name}, book {book.partition('book=')[2]}"
    planned = in_process("sweep", "plan", grid, "--json").json
    assert (planned["book"], planned["ceiling"], planned["room"]) == (name, "9.00 USD", "5.00 USD")
    text = in_process("sweep", "plan", grid, columns=300).out
    assert f"Draws on {name}, which has 5.00 USD free now: not enough for all" in text
    in_process("sweep", "run", grid, "--yes")
    root = tmp_path / "sweep"
    shown = in_process("sweep", "status", root, "--json").json
    assert (shown["book"], shown["head"]) == (name, guard_of(book).head)
    line = in_process("sweep", "status", root, columns=300).out
    assert f"ceiling 9.00 USD, drawn on {name}" in line
    assert f"head {guard_of(book).head[:12]}" in line
    away = write_grid(tmp_path, "exit 0", {"book": AWAY})
    said = in_process("sweep", "plan", away, columns=300).out
    assert "No run can be started: postgresql database spend, book vision" in said


# Books that count showback or GPU-hours.


def test_a_sweep_at_showback_prices_draws_on_a_showback_book(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = new_book(team, monkeypatch, 50, "USD showback")
    ceiling, price = {"book": book, "limit": "2.5 USD"}, "3600 USD/h showback"
    grid = write_grid(tmp_path, "sleep 0.2", ceiling, price=price)
    text = in_process("sweep", "plan", grid, columns=300).out
    assert "which has 2.50 USD showback free now: not enough for all" in text
    in_process("sweep", "run", grid, "--yes", "-j", "3")
    root = tmp_path / "sweep"
    assert 0 < most_committed(book) <= 2_500_000
    assert {line.currency for line in guard_of(book).log.lines()} == {"USD showback"}
    assert_settled_once(book, root)
    manifest = read_manifest(root)
    # Where runs take longer than the ceiling lasts, the last ones are skipped and cost nothing.
    paid = [state for state in manifest.states.values() if state.status != "skipped"]
    assert {state.kind for state in paid} == {"showback"}
    runs = {read_id(root / run): root / run for run in manifest.runs}
    assert guard_of(book).verify(runs=runs).findings == ()


def read_id(directory: Path) -> str:
    identity = read_identity(directory)
    return "" if identity is None else identity.run_id


@pytest.mark.parametrize("price", [None, "3600 USD/h"])
def test_a_sweep_on_a_book_of_gpu_hours_holds_and_captures_the_time_of_its_gpus(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch, price: str | None
) -> None:
    book = new_book(team, monkeypatch, 50, "GPU-h")
    ceiling = {"book": book, "limit": "20 GPU-h"}
    grid = write_grid(tmp_path, "sleep 0.2", ceiling, price=price, gpus=3600)
    text = in_process("sweep", "plan", grid, columns=300).out
    assert "which has 20.00 GPU-h free now: whether it is enough for all is unknown" in text
    assert in_process("sweep", "run", grid, "--yes", "-j", "2").code == 0
    root, guard = tmp_path / "sweep", guard_of(book)
    manifest, captured = read_manifest(root), dict[str, int]()
    for line in guard.log.lines():
        assert line.currency == "GPU-h"
        if isinstance(line, Held):
            assert micros_of(line.estimated) >= 1_000_000  # a second of 3600 GPUs
        if isinstance(line, Captured):
            captured[line.op_label.rpartition("/")[2]] = micros_of(line.actual)
    for run, state in manifest.states.items():
        row = read_figures(root / run, SYSTEM.wall_ns())
        exact = Fraction(row.gpu_ns, 3600 * 10**9) * 10**6  # in millionths of a GPU-hour
        assert 200_000 < captured[run] == state.gpu_micros == math.ceil(exact)
        assert (state.cost_micros is None) == (price is None)
    assert len(captured) == 6
    assert guard.holds() == ()
    runs = {read_id(root / run): root / run for run in manifest.runs}
    assert guard.verify(runs=runs).findings == ()


@pytest.mark.parametrize("unit", ["USD showback", "GPU-h"])
def test_what_a_killed_harness_left_is_settled_in_the_unit_of_the_book(
    tmp_path: Path, team: TeamDatabase, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    book = new_book(team, monkeypatch, 500, unit)
    more = {"price": "3600 USD/h showback"} if unit != "GPU-h" else {"price": None, "gpus": 3600}
    one = [{"params": {"x": [1]}}]
    grid = write_grid(tmp_path, "sleep 0.3", {"book": book}, grid=one, **more)
    root = tmp_path / "sweep"
    harness = start_outlay("sweep", "run", grid, "--yes")
    until(lambda: root.exists() and len(read_events(root)) >= 1, "a run")
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    assert continued(root).counts == {"completed": 1}
    guard = guard_of(book)
    assert guard.holds() == ()
    captured = sum(micros_of(x.actual) for x in guard.log.lines() if isinstance(x, Captured))
    (state,) = read_manifest(root).states.values()
    assert captured == (state.gpu_micros if unit == "GPU-h" else state.cost_micros)
    assert captured > 0
    assert guard.verify().sound


@pytest.mark.parametrize(
    ("unit", "ceiling", "more", "said"),
    [
        ("USD showback", {}, {}, "a price in USD showback"),
        ("GPU-h", {}, {}, "no GPUs are stated"),
        ("GPU-h", {}, {"gpus": 8, "budget": None}, "the duration is unknown"),
        ("GPU-h", {"limit": "5 USD"}, {"gpus": 8}, "a limit in GPU-h"),
        ("USD", {"limit": "5 GPU-h"}, {}, "a limit in USD"),
    ],
)
def test_what_the_book_does_not_count_is_refused_before_anything_is_written(
    tmp_path: Path,
    team: TeamDatabase,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    ceiling: dict[str, str],
    more: dict[str, Any],
    said: str,
) -> None:
    book = new_book(team, monkeypatch, 50, unit)
    grid = write_grid(tmp_path, "exit 0", {"book": book, **ceiling}, **more)
    shown = in_process("sweep", "run", grid, "--yes", columns=300)
    assert (shown.code != 0, said in shown.err) == (True, True), shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["grid.json"]
    assert len(guard_of(book).log.lines()) == 1
