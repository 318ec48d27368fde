"""``outlay exec``: an unmodified command keeps its exit code and signals, and is on the books."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import in_process, outlay
from ledgers import Segment, dollars
from outlay import read_run as outlay_read
from outlay.cli.execute import last_line
from outlay.ledger import AttemptEnded, Heartbeat, read_run
from outlay.proc.supervisor import CommandNotStarted
from outlay.runs.exec import FORWARDED, execute
from outlay.runs.options import Arguments, resolve

INNER = """
import outlay
with outlay.run("bert") as run:
    for _ in run.steps(range(4), tokens=7):
        pass
"""
WAITING = """
import time
import outlay
def batches():
    for number in range(30):
        time.sleep(0.02)
        yield number
with outlay.run("bert") as run:
    for _ in run.steps(batches()):
        time.sleep(0.005)
"""


def test_output_and_exit_code_pass_through(tmp_path: Path) -> None:
    done = outlay("exec", "--dir", tmp_path / "r", "--", "sh", "-c", "echo hello; exit 3")
    assert (done.out, done.code) == ("hello\n", 3)


def test_without_steps_the_last_line_has_the_cost_and_claims_no_goodput(tmp_path: Path) -> None:
    shown = in_process("exec", "--dir", tmp_path / "r", "--price", "$3/h", "--", "true").err
    assert "GPUs" in shown
    shares = r"goodput unknown \(no steps were recorded\), avoidable unknown"
    assert re.fullmatch(rf"outlay: cost \S+ USD, {shares}", shown.splitlines()[-1])


def test_with_steps_the_last_line_has_cost_goodput_and_what_was_avoidable(tmp_path: Path) -> None:
    command = (sys.executable, "-c", WAITING)
    shown = in_process("exec", "--dir", tmp_path / "r", "--price", "$3000/h", "--", *command).err
    line = r"outlay: cost (\S+) USD, goodput [\d.]+%, avoidable (\S+) USD: outlay advise .*/r"
    found = re.fullmatch(line, shown.splitlines()[-1])
    assert found
    assert 0 < float(found[2]) < float(found[1])


def test_without_advice_the_last_line_names_the_smallest_saving_considered(tmp_path: Path) -> None:
    Segment(about={"price": dollars(36)}).step(100).end().write(tmp_path)
    line = last_line(outlay_read(tmp_path), str(tmp_path))
    assert line == "outlay: cost 1.00 USD, goodput 100.0%, nothing avoidable above 0.010 USD found"


def test_without_a_price_the_last_line_says_how_to_state_one(tmp_path: Path) -> None:
    shown = in_process("exec", "--dir", tmp_path / "r", "--", "true").err
    assert "no price (set --price)" in shown.splitlines()[-1]


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("./not-executable", 126)])
@pytest.mark.parametrize("words", [["exec"], ["guard", "run", "--label", "a", "--rate", "1"]])
def test_a_command_that_cannot_start_exits_as_in_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], program: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "not-executable").touch(mode=0o600)
    ceiling = ["--ceiling", "5"] if words[0] == "guard" else []
    done = in_process(*words, *ceiling, "--", program)
    assert done.code == code
    assert f"cannot start '{program}'" in done.err


@pytest.mark.parametrize("words", [["exec"], ["guard", "run", "--label", "a", "--rate", "1"]])
def test_options_behind_a_command_without_dashes_are_refused_with_a_hint(words: list[str]) -> None:
    done = in_process(*words, "python", "train.py", "--out", "x")
    assert done.code == 2
    hint = f"outlay {' '.join(words)} -- python train.py --out x"
    assert hint in " ".join(done.err.replace("│", "").split())


def test_a_second_exec_in_the_same_directory_is_another_attempt(tmp_path: Path) -> None:
    in_process("exec", "--dir", tmp_path / "r", "--", "false")
    shown = in_process("exec", "--dir", tmp_path / "r", "--json", "--", "true")
    assert shown.json["run"]["attempts"] == 2


def test_a_command_that_records_itself_joins_the_run(tmp_path: Path) -> None:
    command = (sys.executable, "-c", INNER)
    shown = in_process("exec", "--dir", tmp_path / "r", "--price", "$3/h", "--json", "--", *command)
    assert shown.json["run"]["attempts"] == 1
    assert shown.json["run"]["steps"] == 4
    assert shown.json["run"]["model"] == "bert"
    assert shown.json["run"]["cost"]["micros"] > 0


@pytest.mark.parametrize(("words", "name"), [((), "bert"), (("--name", "mine"), "mine")])
def test_a_run_has_the_users_name_else_the_one_that_its_program_gives_it(
    tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    command = (sys.executable, "-c", INNER)
    shown = in_process("exec", *words, "--dir", tmp_path / "r", "--", *command).err
    assert f"outlay: {name} completed" in shown
    (row,) = in_process("runs", "--json").json["runs"]
    assert (row["name"], row["model"]) == (name, "bert")


def test_the_wrapped_command_is_shown_without_secrets(tmp_path: Path) -> None:
    wrapped = ("sh", "-c", '"$0" -c "$1"', sys.executable, INNER, "--lr", "0.1", "--token", "S3CR")
    in_process("exec", "--dir", tmp_path / "r", "--", *wrapped)
    figures = in_process("report", tmp_path / "r", "--json").json["figures"]
    (command,) = (each["value"] for each in figures if each["label"] == "command")
    assert command == shlex.join([*wrapped[:-1], "<redacted>"])
    in_process("report", tmp_path / "r")
    assert "S3CR" not in (tmp_path / "r" / "report.html").read_text()


def test_with_identity_off_the_wrapped_command_is_left_out(tmp_path: Path) -> None:
    in_process("exec", "--dir", tmp_path / "r", "--", "true", OUTLAY_RECORD_IDENTITY="0")
    figures = in_process("report", tmp_path / "r", "--json").json["figures"]
    assert "command" not in {each["label"] for each in figures}


def test_every_start_of_a_command_that_is_restarted_is_an_attempt(tmp_path: Path) -> None:
    crashing = INNER + "        import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    restarted = '"$0" -c "$1" || "$0" -c "$2"'
    command = ("sh", "-c", restarted, sys.executable, crashing, INNER)
    shown = in_process("exec", "--dir", tmp_path / "r", "--json", "--", *command)
    assert shown.json["run"]["attempts"] == 2
    assert shown.json["run"]["status"] == "completed"


def test_a_command_that_cannot_start_leaves_the_signals_as_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in FORWARDED]
    options = resolve(Arguments(model=None, dir=tmp_path), {}, 0)
    with pytest.raises(CommandNotStarted):
        execute([str(tmp_path / "missing")], options)
    assert [signal.getsignal(number) for number in FORWARDED] == before


def test_a_signal_reaches_the_command_and_decides_the_status(tmp_path: Path) -> None:
    script = "import signal, sys; print('up', flush=True); signal.pause()"
    watched = subprocess.Popen(
        [sys.executable, "-m", "outlay", "exec", "--dir", str(tmp_path / "r"), "--",
         sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert watched.stdout is not None
    assert watched.stdout.readline() == "up\n"
    watched.send_signal(signal.SIGTERM)
    assert watched.wait() == 128 + signal.SIGTERM
    watched.stdout.close()
    (end,) = [r for r in read_run(tmp_path / "r").records if isinstance(r, AttemptEnded)]
    assert (end.status, end.reason, end.exit_code) == ("terminated", "SIGTERM", 143)


def test_a_command_that_another_process_terminates_is_terminated(tmp_path: Path) -> None:
    """As a scheduler does that signals every process of a job, the command before outlay."""
    in_process("exec", "--dir", tmp_path / "r", "--", "sh", "-c", "kill -TERM $$")
    (end,) = [r for r in read_run(tmp_path / "r").records if isinstance(r, AttemptEnded)]
    assert (end.status, end.reason, end.exit_code) == ("terminated", "SIGTERM", 143)


def test_no_command_is_wrong_usage() -> None:
    assert in_process("exec").code == 2


def test_disabled_exec_only_runs_the_command(tmp_path: Path) -> None:
    command = ("sh", "-c", "exit 5")
    done = in_process("exec", "--dir", tmp_path / "r", "--", *command, OUTLAY_DISABLED="1")
    assert done.code == 5
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("option", [("--gpus", "0"), ("--gpus", "-1"), ("--price", "nan")])
def test_a_bad_option_is_refused_before_anything_starts(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    command = ("touch", tmp_path / "started")
    failed = in_process("exec", "--dir", tmp_path / "r", *option, "--", *command)
    assert failed.code == 2
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "r").exists()


FAKE_NVML = (
    "class NVMLError(Exception): pass\n"
    "class Busy: gpu = 50\n"
    "energy = 0\n"
    "def nvmlInit(): pass\n"
    "def nvmlDeviceGetCount(): return 1\n"
    "def nvmlDeviceGetHandleByIndex(i): return i\n"
    "def nvmlDeviceGetHandleByUUID(u): return u\n"
    "def nvmlDeviceGetUtilizationRates(h): return Busy\n"
    "def nvmlDeviceGetPowerUsage(h): return 1000\n"
    "def nvmlDeviceGetTotalEnergyConsumption(h):\n"
    "    global energy\n"
    "    energy = min(energy + 1000, 3000)\n"  # However often a busy machine lets it be asked.
    "    return energy\n"
)


def with_nvml(tmp_path: Path, content: str) -> str:
    """Return a search path on which a stand-in for NVML comes first."""
    fake = tmp_path / "fakes" / "pynvml.py"
    fake.parent.mkdir()
    fake.write_text(content)
    return os.pathsep.join([str(fake.parent), os.environ.get("PYTHONPATH", "")])


def test_sampled_energy_is_labelled_estimated(tmp_path: Path) -> None:
    without_counter = FAKE_NVML.replace("    global energy\n", "    raise NVMLError\n")
    path = with_nvml(tmp_path, without_counter)
    shown = outlay("exec", "--dir", tmp_path / "r", "--", "true", PYTHONPATH=path)
    assert "(estimated)" in shown.err
    assert "(measured)" not in shown.err


def test_gpu_load_is_recorded_in_heartbeats(tmp_path: Path) -> None:
    path = with_nvml(tmp_path, FAKE_NVML)
    shown = outlay("exec", "--dir", tmp_path / "r", "--json", "--", "sleep", "1.3", PYTHONPATH=path)
    beats = [r for r in read_run(tmp_path / "r").records if isinstance(r, Heartbeat)]
    assert sum(beat.energy_mj for beat in beats) == 2000  # After a second, and at the end.
    busy = json.loads(shown.out)["run"]["gpu_busy_ns"]
    assert 0.4e9 < busy <= shown.json["run"]["wall_ns"] / 2


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["true"], "true"),
        ([sys.executable, "-m", "this"], "this"),
        ([sys.executable, "train.py", "--lr", "1"], "train"),
        ([sys.executable, "-c", "pass"], Path(sys.executable).name),
    ],
)
def test_a_run_is_named_after_its_command(
    command: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    done = in_process("exec", "--dir", "r", "--json", "--", *command)
    assert (done.code, done.json["run"]["name"]) == (0, name)
