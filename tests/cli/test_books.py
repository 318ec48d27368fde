"""``outlay``, ``outlay runs``, ``outlay log`` and ``outlay import runs``."""

from __future__ import annotations

from pathlib import Path

import pytest

import command_line
import scripts
from command_line import in_process as outlay
from hostile import good_run
from ledgers import dollars
from outlay import run


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    with run("bert", dir=tmp_path / "runs" / "a", price="1.50 USD/h", gpus=8) as training:
        for _ in training.steps(range(3), tokens=5):
            pass
    return tmp_path / "runs" / "a"


def test_an_empty_overview_shows_how_to_start_a_run() -> None:
    assert "outlay exec -- python train.py" in outlay().out


def test_the_overview_shows_what_runs_and_what_it_burns(tmp_path: Path) -> None:
    with run("bert", dir=tmp_path / "live", price="1.50 USD/h", gpus=8):
        shown = outlay("--json").json
    assert [running["name"] for running in shown["running"]] == ["bert"]
    assert shown["burn_per_hour"] == [{"micros": 12_000_000, "currency": "USD"}]


def test_the_overview_reports_a_dead_run(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, outlay
        run = outlay.run("bert", dir=sys.argv[1])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    scripts.finish(program, tmp_path / "dead")
    shown = outlay("--json").json
    assert shown["running"] == []
    assert "recorded no end" in shown["findings"][0]["message"]


def test_a_spend_log_that_is_used_by_hand_and_exceeded_is_said_first(tmp_path: Path) -> None:
    log = ("--log", tmp_path / "spend.jsonl")
    outlay("guard", "authorize", "lab02", "5 USD", "--ceiling", "5", *log)
    assert "exceeded" not in outlay().out
    outlay("guard", "record", "lab02", "547 USD", *log)
    first, second, *_ = outlay().out.splitlines()
    assert first == "What is wrong: 1 limit exceeded"
    assert "over its limit by 542.00 USD: 547.00 USD of 5.00 USD" in second


def test_runs_lists_what_a_directory_holds(finished: Path) -> None:
    (row,) = outlay("runs", finished.parent, "--json").json["runs"]
    assert (row["status"], row["attempts"], row["steps"], row["tokens"]) == ("completed", 1, 3, 15)


def test_a_run_that_cannot_be_read_does_not_hide_the_others(finished: Path) -> None:
    log = finished.parent / "b" / "ledger" / "1-host-7-r0.jsonl"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"\x00" * 4096)
    listed = outlay("runs", finished.parent, "--json")
    assert [row["dir"] for row in listed.json["runs"]] == [str(finished)]
    assert [finding["source"] for finding in listed.json["findings"]] == [str(log.parent.parent)]


def test_a_run_registers_itself(finished: Path) -> None:
    (row,) = outlay("runs", "--json").json["runs"]
    assert row["dir"] == str(finished)


@pytest.mark.parametrize("columns", [80, 200])
def test_the_table_of_runs_fits_the_terminal(finished: Path, columns: int) -> None:
    shown = outlay("runs", finished, columns=columns)
    assert "completed" in shown.out
    assert all(len(line) <= columns for line in shown.out.splitlines())


def test_the_runs_of_a_sweep_are_a_table_in_eighty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("001_size_00", "002_size_01"):
        directory = good_run(Path("sweep") / name, name, price=dollars(15_000))
        outlay("collect", directory)
    rows = outlay("runs", columns=80).out.splitlines()
    assert sorted(row.split()[:2] for row in rows if row[:1].isdigit()) == [
        ["001_size_00", "completed"],
        ["002_size_01", "completed"],
    ]


def test_collecting_twice_changes_nothing(finished: Path) -> None:
    assert outlay("collect", finished.parent, "--json").json["registered"] == 1
    before = outlay("runs", "--json").json["runs"]
    outlay("collect", finished.parent)
    after = outlay("runs", "--json").json["runs"]
    for row in (*before, *after):
        row.pop("updated_ns")
    assert before == after


def test_cat_prints_every_record_with_its_kind(finished: Path) -> None:
    kinds = [line["kind"] for line in outlay("ledger", "cat", finished, "--json").json_lines]
    assert kinds == ["attempt_started", "step", "step", "step", "attempt_ended"]


def test_cat_prints_findings_beside_its_json(finished: Path) -> None:
    (segment,) = (finished / "ledger").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes() + b"no record\n")
    shown = outlay("ledger", "cat", finished, "--json")
    assert len(shown.json_lines) == 5
    assert segment.name in shown.err


def test_verify_passes_a_good_log(finished: Path) -> None:
    assert outlay("ledger", "verify", finished).code == 0


def damage(run_dir: Path) -> None:
    """Change a digit of a run's second step."""
    (segment,) = (run_dir / "ledger").glob("*.jsonl")
    data = bytearray(segment.read_bytes())
    data[data.index(b'"step":1') + 7] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize("command", [(), ("runs",), ("runs", "."), ("collect", ".")])
def test_lists_of_runs_report_a_damaged_log(
    command: tuple[str, ...], finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(finished)
    monkeypatch.chdir(finished.parent)
    (finding,) = outlay(*command, "--json").json["findings"]
    assert finding["source"].startswith(f"{finished}: ")


def test_verify_names_the_damaged_line_and_exits_1(finished: Path) -> None:
    damage(finished)
    verified = outlay("ledger", "verify", finished, "--json")
    assert verified.code == 1
    assert [finding["line"] for finding in verified.json["findings"]] == [3]


@pytest.mark.parametrize("command", [("ledger", "cat"), ("ledger", "verify"), ("goodput",)])
def test_a_path_without_a_run_is_one_clear_line(command: tuple[str, ...], tmp_path: Path) -> None:
    for path, said in ((tmp_path, "no run log here"), (tmp_path / "none", "no such directory")):
        failed = outlay(*command, path)
        assert failed.code == 2
        assert failed.err.startswith(f"error: {path}: {said}")
        assert "Traceback" not in failed.err


def test_the_version_is_printed() -> None:
    assert command_line.outlay("--version").out.startswith("outlay 0.")
