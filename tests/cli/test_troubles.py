"""Missing, damaged or read-only input, Ctrl-C, closed pipes: a clear message and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Outcome, in_process, outlay
from ledgers import Segment, dollars
from outlay.cli.app import _was_caused_by, main
from outlay.cli.output import with_shown_paths

REFUSES_FILES = Path("/sys/outlay")  # A file system on which nobody can make a directory.

A_RUN = [
    ["goodput"], ["budget", "show"], ["cost"], ["advise"], ["report"], ["ledger", "cat"],
    ["ledger", "verify"], ["export", "csv"],
]  # fmt: skip
A_SWEEP = [["sweep", command] for command in ("status", "resume", "cancel", "aggregate")]
A_FILE = [["sweep", "plan"], ["sweep", "run", "--yes"], ["goodput", "import", "out"]]
A_DIRECTORY = [["runs"], ["collect"]]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLAY_HOME", str(tmp_path / "home"))
    return tmp_path


def assert_no_traceback(done: Outcome, *codes: int) -> None:
    assert done.code in codes, done.err
    assert "Traceback" not in done.err + done.out
    assert done.code == 0 or "error" in done.err + done.out


@pytest.mark.parametrize("command", [[], ["runs"], ["cost", "summary"]])
def test_commands_without_data_show_what_to_do(empty: Path, command: list[str]) -> None:
    del empty
    done = in_process(*command)
    assert_no_traceback(done, 0)
    assert done.out


@pytest.mark.parametrize("command", [*A_RUN, *A_SWEEP, *A_FILE, *A_DIRECTORY], ids=" ".join)
def test_a_wrong_path_is_named(empty: Path, command: list[str]) -> None:
    done = in_process(*command[:2], "nowhere", *command[2:])
    assert_no_traceback(done, 2)
    assert "nowhere" in done.err
    assert not (empty / "nowhere").exists()


@pytest.mark.parametrize("command", A_RUN, ids=" ".join)
def test_a_corrupt_ledger_is_read_as_far_as_possible_or_refused(
    empty: Path, command: list[str]
) -> None:
    segment = Segment(about={"price": dollars(3.6)})
    for _ in range(5):
        segment.step(1.0)
    path = segment.end().write(empty / "run")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\x00\xff garbage\n" + b"".join(lines[1:]))
    done = in_process(*command, empty / "run")
    assert_no_traceback(done, 0, 1, 2)
    if command == ["ledger", "verify"]:
        assert done.code == 1


@pytest.mark.parametrize("command", A_RUN, ids=" ".join)
def test_a_ledger_of_garbage_alone_is_an_error_without_a_traceback(
    empty: Path, command: list[str]
) -> None:
    (empty / "run" / "ledger").mkdir(parents=True)
    (empty / "run" / "ledger" / "1-host-7-r0.jsonl").write_bytes(b"\x00" * 4096)
    done = in_process(*command, empty / "run")
    assert_no_traceback(done, 0, 1, 2)


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="only Linux has /sys")
@pytest.mark.parametrize(
    "command",
    [
        ["report", "run", "--output", str(REFUSES_FILES)],
        ["export", "csv", "run", "--output", str(REFUSES_FILES)],
        ["demo", "--dir", str(REFUSES_FILES)],
        ["guard", "init", str(REFUSES_FILES), "--ceiling", "5"],
        ["guard", "authorize", "a", "1", "--ceiling", "5", "--log", "/sys/spend.jsonl"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_read_only_place_is_named(empty: Path, command: list[str]) -> None:
    Segment().step(1.0).end().write(empty / "run")
    done = outlay(*command)
    assert_no_traceback(done, 1, 3)
    assert "/sys/" in done.err


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="only Linux has /sys")
def test_a_program_is_run_even_where_nothing_can_be_recorded(empty: Path) -> None:
    del empty
    done = outlay("exec", "--dir", REFUSES_FILES, "--", "true")
    assert done.code == 0
    assert "cannot record" in done.err


def test_ctrl_c_prints_a_message(empty: Path) -> None:
    """Right after its first line the demo is still planning, or already running; both must say."""
    showing = subprocess.Popen(
        [sys.executable, "-u", "-m", "outlay", "demo", "--dir", str(empty / "demo")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert showing.stdout is not None
    assert showing.stdout.readline().startswith("1. The plan")
    showing.send_signal(signal.SIGINT)
    said, _ = showing.communicate()
    assert showing.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said


def test_an_interrupt_while_a_class_is_made_has_the_same_exit_code(tmp_path: Path) -> None:
    """``python -m`` ends by SIGINT if one came in an ``exec`` of a text, even if it was handled."""
    command = "exec('raise KeyboardInterrupt')"
    main = f"from outlay.cli import app; app.build = lambda: lambda: {command}; app.main()"
    (tmp_path / "interrupted.py").write_text(main)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130
    assert "interrupted" in done.stderr


def test_an_interrupt_is_found_in_the_exception_chain() -> None:
    ended = SystemExit(130)
    assert not _was_caused_by(KeyboardInterrupt, ended)
    ended.__context__ = RuntimeError()
    ended.__context__.__cause__ = KeyboardInterrupt()
    assert _was_caused_by(KeyboardInterrupt, ended)


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["runs"], ["runs", "--json"]], ids=str
)
def test_a_closed_pipe_ends_a_command_quietly(words: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "outlay", *words], env=os.environ | {"PYTHONUNBUFFERED": ""},
        stdout=write_end, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.usefixtures("empty")
def test_an_error_shows_a_path_below_this_directory_as_relative() -> None:
    done = outlay("sweep", "resume", "no/such")
    assert done.code == 2
    assert done.err.startswith("error: no/such: no sweep_manifest.json here.")


def test_only_paths_below_this_directory_are_made_relative(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for kept in (f"/data{tmp_path}/x", f"{tmp_path}/", f"{tmp_path}-2/x", f"~{tmp_path}/x"):
        assert with_shown_paths(kept) == kept
    assert with_shown_paths(f"a: {tmp_path}/x `{tmp_path}/y`") == "a: x `y`"
    monkeypatch.chdir("/")
    assert with_shown_paths("a: /x") == "a: /x"


def test_ctrl_c_while_commands_are_loaded_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("outlay.cli.app.build", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["8 EUR", "0 USD", "0.2 USD", "some"])
def test_a_demo_with_too_small_a_budget_or_another_currency_is_refused(
    empty: Path, limit: str
) -> None:
    done = in_process("demo", "--limit", limit)
    assert_no_traceback(done, 2)
    assert "--limit" in done.err
    assert not (empty / "demo-runs").exists()
