"""Facts recorded about process, user and host, and what is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import outlay
import scripts
from command_line import in_process, python
from outlay import machine
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
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == gpus


def test_slurm_and_instance_are_recorded() -> None:
    about = gather(
        SLURM_JOB_ID="17", SLURM_JOB_ACCOUNT="acc", SLURM_JOB_PARTITION="gpu", RUNPOD_POD_ID="pod"
    )
    recorded = (about.slurm_job, about.slurm_account, about.slurm_partition, about.instance_id)
    assert recorded == ("17", "acc", "gpu", "pod")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOSTNAME": "laptop"}, ""),
        ({"HOSTNAME": "job-x7z", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "job-x7z"),
        ({"HOSTNAME": "h", "POD_NAME": "p", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "p"),
        ({"RUNPOD_POD_ID": "v", "POD_NAME": "p", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "v"),
    ],
)
def test_a_pod_is_recorded_where_no_vendor_names_the_machine(
    variables: dict[str, str], expected: str
) -> None:
    assert gather(**variables).instance_id == expected


@pytest.mark.parametrize("off", ["0", "false", "off", "False", " no "])
def test_identifying_facts_can_be_switched_off(off: str) -> None:
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
    code = (
        "import os, sys, outlay\n"
        "os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "with outlay.run('m', dir=sys.argv[2]): pass\n"
    )
    done = python(code, tmp_path / "gone", tmp_path / "run")
    assert (done.code, done.err) == (0, "")


TRAINING_SCRIPT = """
import multiprocessing
import sys

import outlay


def train(directory):
    with outlay.run("m", dir=directory):
        pass


if __name__ == "__main__":
    directory, method, *_ = sys.argv[1:]
    if method == "here":
        train(directory)
    else:
        for method in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context(method)
            child = context.Process(target=train, args=(f"{directory}/{method}",))
            child.start()
            child.join()
"""


def run_script(tmp_path: Path, *words: str, flags: tuple[str, ...] = (), **environ: str) -> Path:
    """Run a training script with these arguments; return the directory that it is given."""
    (tmp_path / "train.py").write_text(TRAINING_SCRIPT)
    command = [sys.executable, *flags, "train.py", str(tmp_path / "run"), *words]
    subprocess.run(
        command, cwd=tmp_path, env=os.environ | environ, check=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return tmp_path / "run"


def arguments_of(command: Sequence[str]) -> list[str]:
    """Return a recorded command from the argument after the directory on."""
    return list(command[command.index("train.py") + 2 :])


def test_the_command_of_a_script_is_recorded_and_reported_without_secrets(tmp_path: Path) -> None:
    words = ("here", "--lr", "0.1", "--token", "S3CRET", "--tag=hush word")
    run_dir = run_script(tmp_path, *words, MY_PASSWORD="hush word")
    shown = ["here", "--lr", "0.1", "--token", "<redacted>", "--tag=<redacted>"]
    assert arguments_of(header(run_dir).command) == shown
    assert in_process("report", run_dir, "--html").code == 0
    page = (run_dir / "report.html").read_text()
    assert f"train.py {run_dir} here --lr 0.1 --token" in page
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.jsonl")) + page.encode()
    assert b"S3CRET" not in written
    assert b"hush word" not in written


def test_a_process_of_multiprocessing_has_the_command_of_its_parent(tmp_path: Path) -> None:
    run_dir = run_script(tmp_path, "children", "--lr", "0.1")
    recorded = {path.name: arguments_of(header(path).command) for path in run_dir.iterdir()}
    methods = ["fork", "spawn", "forkserver"]
    assert recorded == {method: ["children", "--lr", "0.1"] for method in methods}


def test_at_a_prompt_there_is_no_command(tmp_path: Path) -> None:
    assert header(run_script(tmp_path, "here", flags=("-i",))).command == ()


def test_with_identity_off_no_command_is_recorded() -> None:
    environ = {"OUTLAY_RECORD_IDENTITY": "0"}
    assert facts.gather(environ, ["python", "train.py", "--lr", "0.1"]).command == ()


def test_a_process_that_was_not_started_to_train_has_no_command(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path):  # It was started to test.
        pass
    assert header(tmp_path).command == ()


def test_a_long_command_is_cut_and_marked() -> None:
    command = facts.gather({}, ["python", "train.py", "x" * 3_000, *["data"] * 1_000]).command
    assert (command[2], command[-2:]) == ("x" * 2_000 + "…", ("data", "…"))
    assert len(command) == 201


def test_bytes_of_a_command_that_are_no_text_are_escaped() -> None:
    assert facts.gather({}, ["train.py", os.fsdecode(b"caf\xe9")]).command[1] == "caf\\udce9"


def test_imports_load_only_the_standard_library_and_msgspec() -> None:
    program = """
        import sys
        before = set(sys.modules)

        def print_loaded():
            names = {name.partition(".")[0] for name in set(sys.modules) - before}
            print(sorted(names - set(sys.stdlib_module_names)))

        import outlay
        print_loaded()
        import msgspec
        before |= set(sys.modules)
        import outlay.record, outlay.ledger
        print_loaded()
    """
    assert scripts.finish(program).stdout == "['outlay']\n['outlay']\n"


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


@pytest.mark.parametrize(
    ("text", "queued_ns"),
    [
        ("1700000000", 1_700_000_000 * 10**9),
        ("1700000000.5", 1_700_000_000_500_000_000),
        ("1700000000.000000001", 1_700_000_000_000_000_001),
        ("1700000000.0000000019", 1_700_000_000_000_000_001),
        *(
            (text, 0)
            for text in ("", "now", "-1", "1e9", "9" * 30, "1.", "\N{ARABIC-INDIC DIGIT ONE}")
        ),
    ],
)
def test_since_when_a_job_was_queued_is_what_its_submitter_stated(
    text: str, queued_ns: int
) -> None:
    assert gather(OUTLAY_QUEUED_AT=text).queued_ns == queued_ns
    if queued_ns:
        assert gather(**facts.queued_at(queued_ns)).queued_ns == queued_ns


def test_a_requeued_job_did_not_wait_since_it_was_submitted() -> None:
    job = {"SLURM_JOB_ID": "7", **facts.queued_at(5)}
    assert gather(**job).queued_ns == 5
    assert gather(**job, SLURM_RESTART_COUNT="0").queued_ns == 5
    assert gather(**job, SLURM_RESTART_COUNT="1").queued_ns == 0
