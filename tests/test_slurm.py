"""Slurm's commands: how they are run, and the job of a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlay import slurm
from outlay.slurm import SlurmJob, instant_of, parse_array_size, queued_jobs
from slurm_cluster import squeue_line

LAST_TASK = {"SLURM_JOB_ID": "40", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "4"}


@pytest.mark.parametrize(
    ("environ", "identity"),
    [
        (LAST_TASK, "40_4"),
        (LAST_TASK | {"SLURM_JOB_ID": "41", "SLURM_ARRAY_TASK_ID": "0"}, "40_0"),
        (LAST_TASK | {"SLURM_RESTART_COUNT": "3"}, "40_4"),
        ({"SLURM_JOB_ID": "17"}, "17"),
        ({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "40"}, "17"),
    ],
)
def test_a_task_of_an_array_has_an_identity_of_its_own_over_restarts(
    environ: dict[str, str], identity: str
) -> None:
    job = SlurmJob.of(environ)
    assert job is not None
    assert job.id == identity


def test_outside_of_slurm_there_is_no_job() -> None:
    assert SlurmJob.of({"SLURM_CONF": "/etc/slurm.conf"}) is None


@pytest.mark.parametrize("text", ["", "0", "Unknown", "-5", "N/A", str(2**40)])
def test_a_job_without_a_time_limit_has_no_end(text: str) -> None:
    assert instant_of(text) is None


def test_the_largest_array_is_read_from_the_configuration() -> None:
    assert parse_array_size("MaxArraySize            = 21\nMaxJobCount = 10000\n") == 21
    assert parse_array_size("") == 1001


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a ``squeue`` that tests write."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "squeue").touch(mode=0o755)
    return tmp_path / "squeue"


def test_the_users_own_defaults_of_squeue_do_not_select_other_jobs(
    squeue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SLURM_CLUSTERS", "c1")
    line = squeue_line(name="$SQUEUE_PARTITION", script="$SLURM_CLUSTERS")
    squeue.write_text(f'#!/bin/sh\necho "{line}"\n')
    jobs = queued_jobs()
    assert jobs is not None
    (job,) = jobs
    assert (job.name, job.script) == ("", "c1")


def test_a_name_that_is_no_text_hides_no_job(squeue: Path) -> None:
    line = squeue_line(name=r"caf\351", start="1700000000", end="1700003600")
    squeue.write_text(f"#!/bin/sh\nprintf '{line}\\n'\n")
    jobs = queued_jobs("17")
    assert jobs is not None
    (job,) = jobs
    assert (job.job, job.name) == ("17", "caf\N{REPLACEMENT CHARACTER}")
    assert (job.start_ns, job.end_ns) == (1_700_000_000 * 10**9, 1_700_003_600 * 10**9)


@pytest.mark.parametrize(
    ("script", "answer"),
    [("exit 1", None), ("echo Invalid job id specified >&2; exit 1", []), ("exec sleep 60", None)],
)
def test_no_answer_is_not_an_empty_queue(
    squeue: Path, monkeypatch: pytest.MonkeyPatch, script: str, answer: list[object] | None
) -> None:
    monkeypatch.setattr(slurm, "_TIMEOUT_S", 0.5)
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    assert queued_jobs("17") == answer


def test_without_slurm_there_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert queued_jobs() is None
    assert not slurm.cancel_job("17")
