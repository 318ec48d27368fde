"""A FIFO, a socket, a device or a directory where a file of outlay should be: no command waits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command_line import in_process
from hostile import SPECIAL, good_run
from ledgers import Segment, dollars
from outlay import run
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import SpendLogUnusable
from sweep_on_disk import Sweep

pytestmark = pytest.mark.timeout(20)  # A command that waits for a writer ends as a failure.
every_kind = pytest.mark.parametrize("kind", [*SPECIAL])
READING = ["status", "verify", "history"]
SPENDING = [["authorize", "a", "1"], ["record", "a", "1"], ["accept", "--reason", "because"]]


@pytest.fixture
def books(tmp_path: Path, private_home: Path) -> Path:
    """A spend log with its head and manifest, of which this machine has seen a line."""
    del private_home
    folder = tmp_path / "books"
    folder.mkdir()
    manifest = {"currency": "USD", "ceiling_usd": 5}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    BudgetGuard(5, folder / "spend.jsonl", environ={}).authorize("a", 1)
    return folder


def put(path: Path, kind: str) -> None:
    path.unlink()
    SPECIAL[kind](path)


def lines_of(books: Path) -> bytes:
    log = books / "spend.jsonl"
    return log.read_bytes() if log.is_file() else b""


def test_the_guard_refuses_to_spend_by_a_directory(books: Path) -> None:
    put(books / "spend.jsonl", "directory")
    with pytest.raises(SpendLogUnusable, match="not a regular file"):
        BudgetGuard(5, books / "spend.jsonl", environ={}).authorize("b", 1)


@every_kind
@pytest.mark.parametrize("name", ["spend.jsonl", "spend.head", "manifest.json"])
def test_guard_commands_refuse_special_files_and_write_nothing(
    books: Path, name: str, kind: str
) -> None:
    put(books / name, kind)
    if (name, kind) == ("spend.jsonl", "directory"):
        return  # The log is then sought inside, as documented.
    before = lines_of(books)
    # If the log is a link, the error names its target.
    shown = (books / name).resolve().name if name == "spend.jsonl" else name
    for words in [*([word] for word in READING), *SPENDING]:
        ended = in_process("guard", *words, "--log", books / "spend.jsonl")
        assert ended.code == 3, words
        assert re.search(rf"{shown}\b.*not a regular file", ended.out + ended.err, re.DOTALL), words
    assert lines_of(books) == before


@every_kind
def test_special_file_as_remembered_head_does_not_stop_the_guard(
    books: Path, private_home: Path, kind: str
) -> None:
    (remembered,) = (private_home / "heads").iterdir()
    put(remembered, kind)
    assert in_process("guard", "authorize", "b", "1", "--log", books).code == 0


@every_kind
def test_special_file_among_rentals_is_skipped(books: Path, private_home: Path, kind: str) -> None:
    (private_home / "rentals").mkdir()
    SPECIAL[kind](private_home / "rentals" / "x.path")
    assert in_process("runs").code == 0
    assert in_process("guard", "status", "--log", books).code == 0


@every_kind
def test_special_file_among_process_records_is_skipped(private_home: Path, kind: str) -> None:
    (private_home / "kept").mkdir(exist_ok=True)
    SPECIAL[kind](private_home / "kept" / "x.json")
    assert in_process("runs").code == 0


@pytest.fixture
def open_run(tmp_path: Path) -> Path:
    """A run whose attempt has no end, so that its lock is asked about."""
    segment = Segment(about={"model": "m", "name": "n", "price": dollars(1)})
    segment.step(1, tokens=5)
    segment.write(tmp_path / "runs" / "open")
    good_run(tmp_path / "runs" / "good", "good")
    return tmp_path / "runs" / "open"


@every_kind
def test_runs_are_listed_if_a_lock_file_is_special(open_run: Path, kind: str) -> None:
    SPECIAL[kind](open_run / "ledger" / "rank-0.lock")
    listed = in_process("runs", open_run.parent, "--all", "--json").json["runs"]
    assert {row["name"] for row in listed} == {"n", "good"}


@every_kind
def test_training_continues_if_its_lock_file_is_special(open_run: Path, kind: str) -> None:
    SPECIAL[kind](open_run / "ledger" / "rank-0.lock")
    done: list[int] = []
    with run("m", dir=open_run) as training:
        done += training.steps([1, 2], tokens=3)
    assert done == [1, 2]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    made = Sweep(tmp_path / "sweep")
    made.add("001_a", status="failed")
    return made.root


@every_kind
@pytest.mark.parametrize("name", [".sweep.lock", "sweep_journal.jsonl", "sweep_manifest.json"])
@pytest.mark.parametrize("command", ["status", "resume", "aggregate", "cancel"])
def test_sweep_commands_report_special_files(
    sweep: Path, name: str, kind: str, command: str
) -> None:
    (sweep / name).unlink(missing_ok=True)
    SPECIAL[kind](sweep / name)
    confirmed = ["--yes"] if command in ("resume", "cancel") else []
    assert in_process("sweep", command, sweep, *confirmed).code in (0, 1, 2, 3)
