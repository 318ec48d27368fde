"""The gate at a scheduler, with Slurm's commands replaced by what they print."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import in_process
from outlay.errors import InvalidValue
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import OLD_NS, BudgetGuard, why_stale
from outlay.guard.entries import ACCOUNTED, Captured
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import Terms
from outlay.prices.current import read_rate, set_rate
from outlay.runs.accounting.job_gate import (
    AskedJob,
    asked_gpus,
    keep_unheld,
    record_unheld_jobs,
    settle_ended_jobs,
    time_of,
)
from outlay.slurm import JobStartName, JobStatus, parse_allocated, parse_sacct
from outlay.units import Rate

START = JobStartName(cluster="fake", job="12", start_ns=1_000 * 10**9)
SECOND = 10**9
RATE = Rate.parse("3600 USD/h")


@pytest.fixture
def guard(tmp_path: Path) -> BudgetGuard:
    return BudgetGuard(500, tmp_path / "spend.jsonl", environ={})


def held(guard: BudgetGuard, start: JobStartName = START) -> Hold:
    return guard.authorize("slurm-12", 60, key=str(start), by=str(start), rate=RATE)


def row(start: int, end: int | None, job: str = "12", state: str = "COMPLETED") -> JobStatus:
    end_ns = None if end is None else end * SECOND
    return JobStatus(job=job, state=state, start_ns=start * SECOND, end_ns=end_ns)


# -- names -----------------------------------------------------------------------------------------


@given(
    cluster=st.text(st.characters(exclude_characters="/"), min_size=1).filter(
        lambda text: not any(map(str.isspace, text))
    ),
    job=st.from_regex(r"[0-9]{1,9}(_[0-9]{1,6})?", fullmatch=True),
    seconds=st.integers(0, 2**33),
)
def test_a_start_reads_as_it_was_written(cluster: str, job: str, seconds: int) -> None:
    start = JobStartName(cluster=cluster, job=job, start_ns=seconds * SECOND)
    assert JobStartName.parse(str(start)) == start


@pytest.mark.parametrize("text", ["", "a person", "host:12:34", "slurm fake/12", "slurm a b/1@2"])
def test_what_names_no_job_is_none(text: str) -> None:
    assert JobStartName.parse(text) is None


# -- what a job asks for ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"per_node": "gres:gpu:2"}, 6), ({"per_node": "gres:gpu"}, 3),
        ({"per_node": "gres/gpu:a100:4,gres:shard:9"}, 12), ({"per_job": "gpu:8"}, 8),
        ({"per_task": "gres:gpu:1"}, 5), ({"per_node": "gres:gpu=2"}, 6),
        ({"per_node": "gres:craynetwork:1"}, 0), ({}, 0),
    ],
)  # fmt: skip
def test_the_gpus_of_a_submission(asked: dict[str, str], gpus: int) -> None:
    texts = {"per_node": "", "per_job": "", "per_task": ""} | asked
    assert asked_gpus(**texts, nodes=3, tasks=5) == gpus


def test_a_task_of_an_array_is_found_by_its_own_number() -> None:
    text = (
        "7 5 1 ana vision gpu 1000 1060 cpu=1,node=1,gres/gpu=2\n"
        "5 5 2 ana (null) gpu 1000 N/A cpu=1,node=1,gres/gpu=4\n"
    )
    job = parse_allocated(text, "5")
    assert job is not None
    assert (job.job, job.account, job.end_ns) == ("5_2", "", None)
    assert parse_allocated(text, "6") is None


# -- settlement ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "lasted_s"),
    [
        ([row(1000, 1042)], 42),
        ([row(1000, 1000)], 0),
        ([row(1000, None, state="RUNNING")], None),
        ([row(900, 950, state="REQUEUED"), row(1000, 1042)], 42),
        ([row(1000, 1010, state="REQUEUED"), row(1100, 1300)], 10),
        ([row(1003, 1042)], 39),  # Its nodes were switched on first.
        ([row(1000, 1042, job="13")], None),
        ([], None),
    ],
)
def test_a_start_lasts_as_long_as_its_own_row(rows: list[JobStatus], lasted_s: int | None) -> None:
    expected = None if lasted_s is None else lasted_s * SECOND
    assert time_of(START, rows) == expected


def test_a_hold_of_a_job_is_captured_from_accounts_once_it_has_ended(guard: BudgetGuard) -> None:
    hold = held(guard)
    assert list(settle_ended_jobs(guard, accounts=lambda *_: [row(1000, None)])) == []
    assert list(settle_ended_jobs(guard, accounts=lambda *_: None)) == []
    (captured,) = settle_ended_jobs(guard, accounts=lambda *_: [row(1000, 1042)])
    assert (captured.hold, captured.actual, captured.basis) == (hold.id, Decimal(42), ACCOUNTED)
    assert list(settle_ended_jobs(guard, accounts=lambda *_: [row(1000, 1042)])) == []
    assert guard.log.books().captured_by_basis() == {ACCOUNTED: 42_000_000}


def test_more_than_was_held_is_captured(guard: BudgetGuard) -> None:
    held(guard)
    (captured,) = settle_ended_jobs(guard, accounts=lambda *_: [row(1000, 1090)])
    assert captured.actual == 90


def test_accounts_are_asked_by_cluster_and_not_without_a_job(guard: BudgetGuard) -> None:
    asked: list[tuple[str, list[str]]] = []

    def accounts(cluster: str, jobs: object) -> list[JobStatus]:
        asked.append((cluster, list(jobs)))  # type: ignore[call-overload]
        return [row(1000, 1042)]

    guard.authorize("another", 1)
    assert list(settle_ended_jobs(guard, accounts=accounts)) == []
    assert asked == []
    held(guard)
    held(guard, JobStartName(cluster="other", job="99", start_ns=START.start_ns))
    settled = list(settle_ended_jobs(guard, accounts=accounts))
    assert asked == [("fake", ["12"]), ("other", ["99"])]
    assert len(settled) == 1


def test_outlay_watch_settles_what_the_hooks_left(
    guard: BudgetGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(guard)
    programs = tmp_path / "bin"
    programs.mkdir()
    sacct = programs / "sacct"
    sacct.write_text('#!/bin/sh\necho "$@" > "$0.asked"\necho "12|COMPLETED|1000|1042"\n')
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    done = in_process("watch", "--once", "--log", guard.log_path)
    assert "42.00 USD for slurm-12 by its accounts" in done.err
    assert "--clusters=fake --jobs=12" in (programs / "sacct.asked").read_text()
    assert [line.basis for line in guard.log.lines() if isinstance(line, Captured)] == [ACCOUNTED]


def test_a_job_that_started_without_a_hold_is_recorded_once(guard: BudgetGuard) -> None:
    """Its price is that of its start; one that can't be recorded does not stop the others."""
    guard.note("a first line")
    set_rate("gpu", read_rate("3600 USD/h cash", "gpu"))
    log = str(guard.log_path)
    for job, partition in (("11", "unpriced"), ("12", "gpu")):
        asked = AskedJob(
            name=job, user="ana", account="", partition=partition, gpus=2, lasts_ns=None
        )
        keep_unheld(log, asked, JobStartName(cluster="fake", job=job, start_ns=START.start_ns))
    set_rate("gpu", None)
    ended = [row(1000, 1042), row(1000, 1042, job="11")]
    found: list[Captured] = []
    with pytest.raises(InvalidValue, match="unpriced"):
        found.extend(record_unheld_jobs(log, {}, accounts=lambda *_: ended))
    assert guard.total_spent == 84.0
    with pytest.raises(InvalidValue, match="unpriced"):
        list(record_unheld_jobs(log, {}, accounts=lambda *_: ended))
    assert guard.total_spent == 84.0


def test_the_hold_of_a_job_is_not_stale_while_the_job_may_run(guard: BudgetGuard) -> None:
    hold = held(guard)
    opened_ns = int(guard.log_time_ns())
    assert why_stale(hold, opened_ns + OLD_NS, ()) == ""
    assert "no accounts have settled it" in why_stale(hold, opened_ns + 2 * OLD_NS, ())


def test_a_run_in_a_job_that_is_paid_for_holds_nothing_more(guard: BudgetGuard) -> None:
    hold = held(guard)
    environ = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "fake"}
    joined = Leaseholder.open(guard, "lab02-a", Terms(rate=RATE), environ, now_ns=0)
    assert (joined.hold.id, joined.owned, guard.held) == (hold.id, False, 60.0)
    other = Leaseholder.open(
        guard, "lab02-a", Terms(rate=RATE), environ | {"SLURM_JOB_ID": "13"}, now_ns=0
    )
    assert other.owned


def test_times_of_accounts_are_read_where_they_are_printed() -> None:
    (job,) = parse_sacct("12_3|CANCELLED by 0|1000|Unknown")
    assert (job.job, job.state, job.start_ns, job.end_ns) == ("12_3", "CANCELLED", 10**12, None)


# -- installation ----------------------------------------------------------------------------------


def test_files_are_written_without_a_secret_and_not_over_another_script(tmp_path: Path) -> None:
    url = "postgresql://slurm@db.example/spend?book=lab"
    written = in_process("slurm", "files", tmp_path, "--log", url, "--json")
    gate, lua = map(Path, written.json["files"])
    assert f"OUTLAY_SPEND_LOG='{url}'" in gate.read_text()
    assert str(gate) in lua.read_text()
    assert in_process("slurm", "files", tmp_path, "--log", url).code == 0
    secret = url.replace("slurm@", "slurm:word@")
    assert in_process("slurm", "files", tmp_path, "--log", secret).code == 2
    lua.write_text("-- mine")
    refused = in_process("slurm", "files", tmp_path, "--log", url)
    assert (refused.code, lua.read_text()) == (2, "-- mine")


def test_a_hook_outside_of_a_job_is_refused(tmp_path: Path) -> None:
    done = in_process("slurm", "hook", "prolog", "--log", tmp_path)
    assert (done.code, "SLURM_JOB_ID" in done.err) == (2, True)
