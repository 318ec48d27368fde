"""Whether a named process runs: known on this machine, unknown elsewhere, never guessed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from outlay.proc import identity
from outlay.proc.identity import PidScope, ProcessName, state_of_process, this_process
from outlay.proc.orphaned_tree import TreeRecord, find_orphaned_trees, write_record
from outlay.sweep.state.setup import holder_of, lock_sweep
from system_parts import in_pid_namespace

JUDGE = (
    "import sys; from outlay.proc.identity import state_of_process; "
    "print(state_of_process(sys.argv[1]))"
)
NAME = "from outlay.proc.identity import this_process; print(this_process())"


@pytest.fixture
def ours() -> ProcessName:
    named = ProcessName.parse(this_process())
    assert named is not None
    assert named.scope is not None
    return named


def ended_process() -> str:
    done = subprocess.run([sys.executable, "-c", NAME], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_process_here_is_alive_until_it_has_ended() -> None:
    assert state_of_process(this_process()) == "alive"
    assert state_of_process(ended_process()) == "ended"


def test_a_process_outside_its_namespace_is_unknown_to_a_container() -> None:
    judged = in_pid_namespace("-c", JUDGE, this_process())
    assert judged.stdout == "unknown\n", judged.stderr


def test_a_process_of_a_container_is_unknown_outside_even_after_its_end() -> None:
    named = in_pid_namespace("-c", NAME)
    assert state_of_process(named.stdout.strip()) == "unknown", named.stderr


@pytest.mark.parametrize("old", ["{host}:{pid}:{start}", "{host}:{pid}"])
def test_names_of_earlier_versions_are_read(old: str, ours: ProcessName) -> None:
    text = old.format(host=ours.host, pid=ours.pid, start=ours.start)
    assert state_of_process(text) == "alive"
    judged = in_pid_namespace("-c", JUDGE, text)
    assert judged.stdout == "unknown\n", judged.stderr


@pytest.mark.parametrize("text", ["", "host", "host:", "elsewhere:1:2", "a person"])
def test_what_names_no_process_here_is_unknown(text: str) -> None:
    assert state_of_process(text) == "unknown"


def test_another_process_with_the_same_pid_does_not_count(ours: ProcessName) -> None:
    assert state_of_process(str(replace(ours, start=1))) == "ended"


def test_a_reboot_ends_all_processes_of_a_machine(
    ours: ProcessName, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = identity.pid_scope()._replace(machine="0a1b2c3d")
    monkeypatch.setattr("outlay.proc.identity.pid_scope", lambda: here)
    assert ours.scope is not None
    scope = ours.scope._replace(boot="00000000", machine="0a1b2c3d")
    assert state_of_process(str(replace(ours, scope=scope))) == "ended"
    another = scope._replace(machine="ffffffff")  # A host of the same name.
    assert state_of_process(str(replace(ours, scope=another))) == "unknown"


def test_containers_of_one_image_on_two_hosts_are_not_one_machine_that_rebooted(
    ours: ProcessName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one name, one pid and the machine id of their image, and other boots."""
    assert ours.scope is not None
    here = identity.pid_scope()._replace(machine="0a1b2c3d", namespace="pid:[4026532001]")
    monkeypatch.setattr("outlay.proc.identity.pid_scope", lambda: here)
    there = ours.scope._replace(boot="00000000", machine="0a1b2c3d", namespace="4026532001")
    assert state_of_process(str(replace(ours, scope=there))) == "unknown"


def test_two_containers_with_one_pid_and_one_start_are_two_processes(ours: ProcessName) -> None:
    assert ours.scope is not None
    other = replace(ours, scope=ours.scope._replace(namespace="4026532001"))
    assert state_of_process(str(other)) == "unknown"
    assert str(other) != str(ours)


def test_a_name_reads_as_it_was_written(ours: ProcessName) -> None:
    for named in (ours, replace(ours, scope=None), ProcessName("a.b-c", 7)):
        assert ProcessName.parse(str(named)) == named


def test_the_harness_of_a_sweep_in_another_namespace_is_not_here(tmp_path: Path) -> None:
    """Its pid would be that of another process, which ``outlay sweep cancel`` must not signal."""
    look = "import sys; from pathlib import Path; from outlay.sweep.state.setup import holder_of; "
    look += "print(holder_of(Path(sys.argv[1])).is_here)"
    with lock_sweep(tmp_path):
        holder = holder_of(tmp_path)
        assert holder is not None
        assert holder.is_here
        seen = in_pid_namespace("-c", look, str(tmp_path))
    assert seen.stdout == "False\n", seen.stderr


@pytest.mark.parametrize(
    ("changed", "is_kept"),
    [
        ({"boot": "b"}, False),
        ({"boot": "b", "machine": "m"}, True),
        ({"namespace": "n"}, True),
        ({"boot": "b", "namespace": "n"}, True),
    ],
)
def test_the_record_of_a_process_tree_is_removed_only_after_a_reboot_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], is_kept: bool
) -> None:
    here = PidScope("host", "boot", "pid:[4026531836]", "machine")
    monkeypatch.setattr("outlay.proc.orphaned_tree.pid_scope", lambda: here)
    gone = identity.Process(os.getpid(), 1)
    machine = tuple(here._replace(**changed))
    path = tmp_path / "tree.json"
    write_record(path, TreeRecord(machine=machine, session="", supervisor=gone, keeper=gone))
    assert list(find_orphaned_trees(tmp_path)) == []
    assert path.exists() is is_kept
