"""Listing runs: what is answered from the store, and when a log is opened again."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert, update

import outlay
from command_line import in_process
from ledgers import HOUR, START_NS, Segment, dollars
from outlay.clock import SYSTEM, ManualClock
from outlay.errors import InvalidValue
from outlay.ledger import SegmentId, ledger_dir
from outlay.runs import collect as collecting
from outlay.runs.collect import collect, refresh_registered
from outlay.runs.inbox import leave_notice, notices
from outlay.store import open_store, schema
from outlay.store import opening as migrations
from outlay.store.connection import connect, writing
from outlay.store.opening import store_url

LATER = ManualClock(START_NS + 30 * 24 * HOUR)
DAY_NS = 24 * HOUR


def write_ended_run(run_dir: Path, *, start: float = 0, **about: object) -> Path:
    facts = {"run_id": run_dir.name, "name": run_dir.name, "model": "bert", "price": dollars(3)}
    Segment(start=start, about=facts | about).step(10).step(10).end().write(run_dir)
    return run_dir


def register(*run_dirs: Path) -> None:
    collect(open_store(), run_dirs, LATER.wall_ns())


def overwrite_log(run_dir: Path) -> None:
    """Make a log unreadable without a change of its size and time."""
    for path in ledger_dir(run_dir).glob("*.jsonl"):
        found = path.stat()
        path.write_bytes(b"\0" * found.st_size)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def listed() -> dict[str, tuple[str, int]]:
    return {row.name: (row.status, row.steps) for row in outlay.list_runs(clock=LATER)}


def test_the_log_of_an_ended_run_is_not_opened_again(tmp_path: Path) -> None:
    register(write_ended_run(tmp_path / "a"))
    overwrite_log(tmp_path / "a")
    assert listed() == {"a": ("completed", 2)}
    assert outlay.list_runs(clock=LATER).findings == ()


def test_a_log_that_grew_after_the_end_is_read_again(tmp_path: Path) -> None:
    register(write_ended_run(tmp_path / "a"))
    Segment(start=100, about={"run_id": "a"}).step(1).end("failed").write(tmp_path / "a")
    assert listed()["a"][0] == "failed"


def test_an_older_log_that_grew_is_read_when_its_directory_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(write_ended_run(tmp_path / "old"), write_ended_run(tmp_path / "new", start=9_999))
    monkeypatch.setattr(collecting, "CHECKED", 1)
    Segment(start=100, about={"run_id": "old"}).step(1).end("failed").write(tmp_path / "old")
    assert listed()["old"][0] == "completed"
    register(tmp_path / "old")
    assert listed()["old"][0] == "failed"


def test_a_run_that_is_started_again_is_read_again(tmp_path: Path) -> None:
    for _ in range(2):
        with outlay.run("bert", dir=tmp_path / "a"):
            pass
        (row,) = outlay.list_runs()
    assert row.attempts == 2


def test_the_notice_of_a_new_attempt_stays_until_its_log_is_there(tmp_path: Path) -> None:
    register(write_ended_run(tmp_path / "a"))
    again_ns = LATER.wall_ns()
    leave_notice("a", tmp_path / "a", again_ns)
    refresh_registered(open_store(), again_ns)
    assert len(notices()[0]) == 1
    segment = ledger_dir(tmp_path / "a") / SegmentId(again_ns, host="node", pid=8).file_name
    segment.write_bytes(next(ledger_dir(tmp_path / "a").glob("*.jsonl")).read_bytes())
    refresh_registered(open_store(), again_ns)
    assert notices() == ([], [])


def test_the_notice_of_an_attempt_that_never_wrote_is_dropped_after_a_day(tmp_path: Path) -> None:
    register(write_ended_run(tmp_path / "a"))
    leave_notice("a", tmp_path / "a", LATER.wall_ns())
    refresh_registered(open_store(), LATER.wall_ns() + DAY_NS + 1)
    assert notices() == ([], [])


def test_dead_run_is_reported_without_reopening_its_log(tmp_path: Path) -> None:
    """For a week after its last sign of life."""
    now_ns = SYSTEM.wall_ns()
    start = (now_ns - START_NS) / 1e9 - 3600
    path = Segment(start=start, about={"run_id": "d", "name": "d"}).step(1).write(tmp_path / "d")
    path.write_bytes(path.read_bytes() + b"no record\n")
    os.utime(path, ns=(START_NS, START_NS))
    collect(open_store(), [tmp_path / "d"], now_ns)
    before = in_process("--json").json["findings"]
    overwrite_log(tmp_path / "d")
    assert in_process("--json").json["findings"] == before
    assert {finding["severity"] for finding in before} == {"error", "warning"}


def test_a_row_with_an_older_figures_version_is_derived_again(tmp_path: Path) -> None:
    register(write_ended_run(tmp_path / "a"))
    with writing(open_store()) as connection:
        connection.execute(update(schema.runs).values(steps=77, figures_version=0))
    assert listed() == {"a": ("completed", 2)}


def test_a_row_without_a_log_stamp_is_derived_again(tmp_path: Path) -> None:
    write_ended_run(tmp_path / "a")
    old = connect(store_url())
    migrations.migrate(old, to=3)
    about = {
        "run_id": "a",
        "dir": str(tmp_path / "a"),
        "model": "",
        "name": "a",
        "status": "failed",
    }
    counts = {"attempts": 1, "steps": 77, "tokens": 0, "started_ns": 0, "last_seen_ns": 1}
    rest = {
        "user": "",
        "host": "",
        "gpu": "",
        "gpus": 1,
        "tags": {},
        "ended_ns": 1,
        "updated_ns": 1,
    }
    (first,) = migrations.MIGRATIONS[0].creates
    with writing(old) as connection:
        connection.execute(insert(first).values(about | counts | rest))
    assert listed() == {"a": ("completed", 2)}


def test_a_row_stays_when_the_directory_of_its_run_is_gone(tmp_path: Path) -> None:
    register(write_ended_run(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    assert listed() == {"a": ("completed", 2)}


@pytest.mark.parametrize("price", [None, dollars(3)])
def test_a_summary_of_cost_opens_no_log_again(tmp_path: Path, price: object) -> None:
    register(write_ended_run(tmp_path / "a", price=price))
    before = in_process("cost", "summary", "--json").json
    overwrite_log(tmp_path / "a")
    assert in_process("cost", "summary", "--json").json == before


def test_runs_without_a_price_are_counted_in_one_line(tmp_path: Path) -> None:
    register(*(write_ended_run(tmp_path / f"{i:02d}", price=None) for i in range(12)))
    (finding,) = in_process("cost", "summary", "--json").json["findings"]
    assert "12 have no price" in finding["message"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"status": "failed"}, ["late"]),
        ({"model": "bert"}, ["early"]),
        ({"user": "ada"}, ["early"]),
        ({"tag": "team"}, ["late", "early"]),
        ({"tag": "team=nlp"}, ["early"]),
        ({"tag": "project"}, []),
        ({"since": "1h"}, ["late"]),
        ({"since": datetime(2000, 1, 1, tzinfo=UTC)}, ["late", "early"]),
        ({"limit": 1}, ["late"]),
    ],
)
def test_list_runs_filters(tmp_path: Path, wanted: dict[str, object], names: list[str]) -> None:
    write_ended_run(tmp_path / "early", user="ada", tags={"team": "nlp"})
    about = {"run_id": "late", "name": "late", "model": "gpt", "user": "bob"}
    late = Segment(start=7_200, about=about | {"tags": {"team": "vision"}})
    late.step(1).end("failed").write(tmp_path / "late")
    register(tmp_path / "early", tmp_path / "late")
    clock = ManualClock(START_NS + 2 * HOUR)
    rows = outlay.list_runs(**wanted, clock=clock)  # type: ignore[arg-type]
    assert [row.name for row in rows] == names


def test_list_runs_counts_what_the_limit_left_out(tmp_path: Path) -> None:
    register(*(write_ended_run(tmp_path / str(i), start=i) for i in range(3)))
    some = outlay.list_runs(limit=2, clock=LATER)
    assert ([row.name for row in some], some.left_out) == (["2", "1"], 1)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"tag": "=nlp"}, {"since": "yesterday"}])
def test_list_runs_refuses_invalid_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        outlay.list_runs(**wrong)  # type: ignore[arg-type]


@pytest.fixture
def sixty_runs(tmp_path: Path) -> Path:
    for i in range(60):
        write_ended_run(tmp_path / "runs" / f"{i:03d}", start=i)
    register(*(tmp_path / "runs").iterdir())
    return tmp_path / "runs"


@pytest.mark.parametrize("below", [False, True])
def test_runs_lists_the_newest_fifty(sixty_runs: Path, *, below: bool) -> None:
    words = ["runs", *([sixty_runs] if below else [])]
    some = in_process(*words, "--json").json
    assert [row["name"] for row in some["runs"]] == [f"{i:03d}" for i in range(59, 9, -1)]
    assert some["left_out"] == 10
    assert "10 earlier runs: outlay runs --all" in in_process(*words).out


@pytest.mark.parametrize("below", [False, True])
def test_runs_lists_everything_when_asked(sixty_runs: Path, *, below: bool) -> None:
    every = in_process("runs", *([sixty_runs] if below else []), "--all", "--json").json
    assert len(every["runs"]) == 60
    assert every["left_out"] == 0


def test_a_long_table_has_a_line_for_each_run(tmp_path: Path) -> None:
    register(*(write_ended_run(tmp_path / f"run é {i:03d}", start=i) for i in range(120)))
    head, *lines = in_process("runs", "--all").out.splitlines()
    assert len(lines) == 120
    place = head.index("directory")
    assert {line[place:] for line in lines} == {
        str(tmp_path / f"run é {i:03d}") for i in range(120)
    }


def test_a_run_whose_log_another_run_replaced_is_no_longer_running(tmp_path: Path) -> None:
    store, run_dir = open_store(), tmp_path / "run"
    for run_id in ("first", "second"):
        Segment(about={"run_id": run_id, "price": dollars(3)}).step(10).write(run_dir)
        collect(store, [run_dir], START_NS + HOUR // 60)
        for path in ledger_dir(run_dir).glob("*.jsonl"):
            path.unlink()
    assert {row.run_id: row.status for row in outlay.list_runs()} == {
        "first": "dead", "second": "running"
    }  # fmt: skip
