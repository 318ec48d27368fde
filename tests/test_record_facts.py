"""Facts recorded about process, user and host, and what is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import outlay
import scripts
from command_line import in_process
from outlay.ledger import AttemptStarted, read_run
from outlay.record import facts


def header(run_dir: Path) -> AttemptStarted:
    first = read_run(run_dir).records[0]
    assert isinstance(first, AttemptStarted)
    return first


def gather(**environ: str) -> AttemptStarted:
    return facts.gather(environ)


@pytest.mark.parametrize(
    ("environ", "rank", "world_size"),
    [
        ({}, 0, 1),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 2, 4),
        # torchrun inside a Slurm job: the inner launcher knows best.
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 5, 8),
        ({"RANK": "", "WORLD_SIZE": ""}, 0, 1),
        ({"RANK": "first", "WORLD_SIZE": "many"}, 0, 1),
        ({"WORLD_SIZE": "0"}, 0, 1),
    ],
)
def test_rank_and_world_size_come_from_the_launcher(
    environ: dict[str, str], rank: int, world_size: int
) -> None:
    assert (facts.rank(environ), facts.world_size(environ)) == (rank, world_size)


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, ""),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2"}, "torchelastic-x-2"),
        ({"SLURM_JOB_ID": "17"}, "slurm-17-0"),
        ({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}, "slurm-17-1"),
    ],
)
def test_a_launch_is_named_by_its_launcher(environ: dict[str, str], launch: str) -> None:
    assert facts.launch_id(environ) == launch


@pytest.mark.parametrize(
    ("listed", "gpus"), [("0,2", 2), ("GPU-a, GPU-b,", 2), ("0,-1,1", 1), ("-1", 0)]
)
def test_visible_gpus_end_at_minus_one_as_in_cuda(listed: str, gpus: int) -> None:
    assert facts.visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == gpus


def test_slurm_and_instance_are_recorded() -> None:
    about = gather(
        SLURM_JOB_ID="17", SLURM_JOB_ACCOUNT="acc", SLURM_JOB_PARTITION="gpu", RUNPOD_POD_ID="pod"
    )
    recorded = (about.slurm_job, about.slurm_account, about.slurm_partition, about.instance_id)
    assert recorded == ("17", "acc", "gpu", "pod")


@pytest.mark.parametrize("off", ["0", "false", "off", "False", " no "])
def test_what_points_at_a_person_or_a_machine_can_be_switched_off(off: str) -> None:
    about = gather(OUTLAY_RECORD_IDENTITY=off, SLURM_JOB_ACCOUNT="acc", RUNPOD_POD_ID="pod")
    assert [name for name in facts.PERSONAL if getattr(about, name)] == []


def test_with_identity_off_no_byte_of_the_log_names_the_host_or_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAY_RECORD_IDENTITY", "0")
    monkeypatch.setenv("LOGNAME", "a-very-private-name")
    monkeypatch.setattr("platform.node", lambda: "a-very-private-host")
    with outlay.run("m", dir=tmp_path):
        pass
    for path in tmp_path.rglob("*"):
        assert "private" not in path.name
        assert path.is_dir() or b"private" not in path.read_bytes()


def test_by_default_host_and_user_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr("platform.node", lambda: "node-7")
    with outlay.run("m", dir=tmp_path):
        pass
    assert (header(tmp_path).user, header(tmp_path).host) == ("ada", "node-7")


def test_versions_are_those_of_libraries_already_loaded() -> None:
    import numpy as np

    assert gather().versions["numpy"] == np.__version__
    assert gather().versions["outlay"] == outlay.__version__


def test_the_commit_is_read_from_gits_files(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs" / "heads" / "main").write_text("abc123\n")
    assert facts.git_commit(tmp_path / "deep" / "inside") == "abc123"


def test_a_packed_commit_is_found(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "packed-refs").write_text("# pack-refs\nabc123 refs/heads/main\n")
    assert facts.git_commit(tmp_path) == "abc123"


def test_a_detached_head_is_its_own_commit(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("abc123\n")
    assert facts.git_commit(tmp_path) == "abc123"


def test_a_linked_worktree_has_a_commit_of_its_own(tmp_path: Path) -> None:
    main, linked = tmp_path / ".git", tmp_path / "worktrees" / "fix"
    (main / "worktrees" / "fix").mkdir(parents=True)
    (main / "refs" / "heads").mkdir(parents=True)
    (main / "HEAD").write_text("ref: refs/heads/main\n")
    (main / "refs" / "heads" / "main").write_text("abc123\n")
    (main / "refs" / "heads" / "fix").write_text("def456\n")
    (main / "worktrees" / "fix" / "HEAD").write_text("ref: refs/heads/fix\n")
    (main / "worktrees" / "fix" / "commondir").write_text("../..\n")
    linked.mkdir(parents=True)
    (linked / ".git").write_text(f"gitdir: {main / 'worktrees' / 'fix'}\n")
    assert facts.git_commit(linked) == "def456"


def test_bytes_that_are_no_text_do_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", os.fsdecode(b"caf\xe9"))
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", os.fsdecode(b"\xff"))
    with outlay.run("m", dir=tmp_path):
        pass
    assert header(tmp_path).user == "caf?"


def test_a_deleted_working_directory_does_not_stop_a_run(tmp_path: Path) -> None:
    program = """
        import os, sys
        import outlay
        os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])
        with outlay.run("m", dir=sys.argv[2]):
            pass
    """
    done = scripts.finish(program, tmp_path / "gone", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")


TRAINED = """
import multiprocessing
import sys

import outlay


def train(directory):
    with outlay.run("m", dir=directory):
        pass


if __name__ == "__main__":
    directory, *methods = sys.argv[1:3]
    if methods[0] == "here":
        train(directory)
    else:
        child = multiprocessing.get_context(methods[0]).Process(target=train, args=(directory,))
        child.start()
        child.join()
"""


def trained(tmp_path: Path, *words: str, flags: tuple[str, ...] = (), **environ: str) -> list[str]:
    """Return the command that a script's run has recorded, from the script's name on."""
    (tmp_path / "train.py").write_text(TRAINED)
    command = [sys.executable, *flags, "train.py", str(tmp_path / "run"), *words]
    subprocess.run(
        command, cwd=tmp_path, env=os.environ | environ, check=True, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    recorded = list(header(tmp_path / "run").command)
    return recorded[recorded.index("train.py") + 2 :] if recorded else []


def test_the_command_of_a_training_is_recorded_without_secrets(tmp_path: Path) -> None:
    words = ("here", "--lr", "0.1", "--token", "S3CRET", "--tag=hidden word")
    shown = trained(tmp_path, *words, MY_PASSWORD="hidden word")
    assert shown == ["here", "--lr", "0.1", "--token", "<redacted>", "--tag=<redacted>"]
    log = b"".join(path.read_bytes() for path in tmp_path.rglob("*.jsonl"))
    assert b"S3CRET" not in log
    assert b"hidden" not in log


def test_a_report_shows_the_command_of_a_script_without_its_secret(tmp_path: Path) -> None:
    trained(tmp_path, "here", "--lr", "0.1", "--token", "S3CRET")
    assert in_process("report", str(tmp_path / "run"), "--html").code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"train.py {tmp_path / 'run'} here --lr 0.1 --token" in page
    assert "S3CRET" not in page


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_of_multiprocessing_has_the_command_of_its_parent(
    tmp_path: Path, method: str
) -> None:
    assert trained(tmp_path, method, "--lr", "0.1") == [method, "--lr", "0.1"]


def test_with_identity_off_no_command_is_recorded(tmp_path: Path) -> None:
    assert trained(tmp_path, "here", "--lr", "0.1", OUTLAY_RECORD_IDENTITY="0") == []


def test_a_process_that_was_not_started_to_train_has_no_command(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path):  # It was started to test.
        pass
    assert header(tmp_path).command == ()


def test_at_a_prompt_there_is_no_command(tmp_path: Path) -> None:
    assert trained(tmp_path, "here", flags=("-i",)) == []


def test_a_command_without_end_is_cut_and_says_so(tmp_path: Path) -> None:
    shown = trained(tmp_path, "here", "x" * 3_000, *["data"] * 1_000)
    assert (shown[1], shown[-2:]) == ("x" * 2_000 + "…", ["data", "…"])
    assert len(header(tmp_path / "run").command) == 201


def test_bytes_of_a_command_that_are_no_text_do_not_stop_a_run(tmp_path: Path) -> None:
    assert trained(tmp_path, "here", os.fsdecode(b"caf\xe9")) == ["here", "caf\\udce9"]


LOADED = """
    import sys
    {allowed}
    before = set(sys.modules)
    {imported}
    names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
    print(sorted(names - set(sys.stdlib_module_names)))
"""


def test_recording_loads_the_standard_library_and_msgspec_only() -> None:
    imports = LOADED.format(
        allowed="import msgspec", imported="import outlay.record, outlay.ledger"
    )
    assert scripts.finish(imports).stdout == "['outlay']\n"


def test_importing_outlay_loads_nothing_but_itself() -> None:
    imports = LOADED.format(allowed="", imported="import outlay")
    assert scripts.finish(imports).stdout == "['outlay']\n"


def test_a_whole_run_loads_no_heavy_library(tmp_path: Path) -> None:
    program = """
        import sys
        import outlay
        with outlay.run("m", dir=sys.argv[1], price="1 USD/h") as run:
            for _ in run.steps("abc"):
                run.metric("loss", 1.0)
            heavy = {"numpy", "sqlalchemy", "httpx2", "rich", "typer", "omegaconf", "torch"}
            print(sorted(heavy & set(sys.modules)))
            run.summary()
        print(sorted(heavy & set(sys.modules)))
    """
    assert scripts.finish(program, tmp_path).stdout == "[]\n['numpy']\n"
