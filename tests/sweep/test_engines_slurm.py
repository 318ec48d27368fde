"""The Slurm engine without a cluster: options, squeue and sacct, ends, times, secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay
from ledgers import START_NS, Segment
from outlay.clock import ManualClock
from outlay.decoding import read_document
from outlay.errors import InvalidValue, MissingExtra
from outlay.proc.exit_record import ExitRecord, exit_path
from outlay.slurm import JobStatus, parse_sacct, parse_squeue
from outlay.sweep.engines.base import Ended, Task
from outlay.sweep.engines.remote.job_run import rendezvous_port
from outlay.sweep.engines.remote.job_spec import (
    EventKind,
    JobEvent,
    JobSpec,
    JobTimes,
    append_event,
    command_with_secrets,
    ran_so_far_ns,
    read_times,
)
from outlay.sweep.engines.remote.poller import (
    Poller,
    RemoteStatus,
    Submitted,
    conclude,
    may_be_late,
)
from outlay.sweep.engines.remote.spec_writer import spec_of, without_secrets, write_spec
from outlay.sweep.engines.slurm.engine import SlurmEngine
from outlay.sweep.engines.slurm.job import SlurmAllocation
from outlay.sweep.engines.slurm.job_options import (
    SlurmOptions,
    SlurmRequest,
    slurm_options,
    submitit_parameters,
)
from outlay.sweep.engines.slurm.queue import (
    Batch,
    match_batches,
    new_batch,
    read_batches,
    remote_status,
)
from outlay.sweep.engines.slurm.submission import NoSlurm, NotAccepted
from outlay.sweep.errors import InvalidGrid
from outlay.sweep.grid.files import plan_file
from outlay.sweep.plan.launch import Place, environment_of
from outlay.sweep.plan.plan import SweepPlan
from outlay.sweep.run.attempt_log import starts_without_progress
from outlay.units import Duration
from slurm_cluster import squeue_line

NS = 10**9
TICKET = "slurm/run/t"
HOUR = Duration(3600 * NS)


# -- options --------------------------------------------------------------------------------


def plan(tmp_path: Path, **more: Any) -> SweepPlan:
    path = tmp_path / "grid.json"
    grid = {"engine": "slurm", "grid": [{"params": {"x": 1}}], **more}
    path.write_text(json.dumps(grid, indent=0))
    return plan_file(path)


def test_an_entrys_options_override_the_grids(tmp_path: Path) -> None:
    shared = {"partition": "gpu", "time": "4h", "extra": {"qos": "low"}}
    own = {"partition": "big", "extra": {"mem": "16G", "exclusive": True}}
    (run,) = plan(tmp_path, slurm=shared, grid=[{"params": {}, "slurm": own}]).runs
    options = slurm_options(run.entry.engine_options["slurm"])
    assert (options.partition, options.time) == ("big", Duration(4 * HOUR.ns))
    assert options.extra == {"qos": "low", "mem": "16G", "exclusive": True}


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"partitoin": "gpu"}, "unknown key 'partitoin'"),
        ({"time": "30s"}, "a minute or more"),
        ({"extra": {"array": "0-3"}}, "that outlay does not set"),
        ({"extra": {"two words": 1}}, "a long option of sbatch"),
        ({"requeues": -1}, "0 or more"),
        ({"max_submit": 0}, "1 or more"),
        ({"gres": 4}, "a non-empty text"),
        ({"time": "2m", "notice": "90s"}, "leaves a job of time: 2m00s nothing to train in"),
        ({"time": "2m", "notice": "10m"}, "notice: 10m"),
    ],
)
def test_a_wrong_option_is_named_with_its_line(
    tmp_path: Path, slurm: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidGrid, match=message) as raised:
        plan(tmp_path, slurm=slurm)
    assert raised.value.findings[0].line is not None


def test_the_grids_notice_is_checked_against_an_entrys_time(tmp_path: Path) -> None:
    entries = [{"params": {"x": 1}}, {"params": {"x": 2}, "slurm": {"time": "2m"}}]
    with pytest.raises(InvalidGrid, match="nothing to train in") as raised:
        plan(tmp_path, slurm={"time": "1h", "notice": "90s"}, grid=entries)
    assert len(raised.value.findings) == 1


@pytest.mark.parametrize(("time", "notice_s"), [("1m", 0), ("2m", 30), ("3m", 60), ("1h", 90)])
def test_the_default_notice_fits_the_time(tmp_path: Path, time: str, notice_s: int) -> None:
    (run,) = plan(tmp_path, slurm={"time": time}).runs
    assert slurm_options(run.entry.engine_options["slurm"]).notice_ns == notice_s * NS


def asked(nodes: int = 1, processes: int = 1, most_ns: int | None = None, **options: Any) -> Any:
    request = SlurmRequest(
        options=SlurmOptions(**options), nodes=nodes, processes=processes, most_ns=most_ns
    )
    return submitit_parameters(request, name="b", jobs=None, after=None)


def test_one_task_per_node_and_a_gpu_for_each_process() -> None:
    told = asked(nodes=2, processes=4, gres="gpu:a100")
    assert (told["nodes"], told["ntasks_per_node"], told["gres"]) == (2, 1, "gpu:a100:4")


@pytest.mark.parametrize(("gres", "expected"), [("gpu:2", "gpu:2"), ("", None), ("gpu", "gpu:8")])
def test_a_stated_gpu_count_is_kept(gres: str, expected: str | None) -> None:
    assert asked(processes=8, gres=gres)["gres"] == expected


def test_without_a_stated_time_a_job_gets_its_timeout_and_the_notice() -> None:
    assert asked(most_ns=HOUR.ns)["time"] == 60 + 2 + 1
    assert asked(most_ns=HOUR.ns, time=Duration(2 * HOUR.ns))["time"] == 120
    assert asked()["time"] is None


def test_the_number_of_jobs_holds_across_arrays() -> None:
    request = SlurmRequest(options=SlurmOptions(), nodes=1, processes=1, most_ns=None)
    told = submitit_parameters(request, name="b", jobs=3, after="17")
    assert (told["array_parallelism"], told["dependency"]) == (3, "afterany:17")


def test_several_processes_are_started_by_torchrun_and_one_is_not(tmp_path: Path) -> None:
    alone, several = plan(tmp_path, grid=[{"params": {"world_size": [1, 2]}}]).runs
    assert (alone.by_torchrun, several.by_torchrun) == (False, True)
    (stated,) = plan(tmp_path, launcher="torchrun").runs
    assert stated.by_torchrun


def test_a_grid_without_a_price_takes_its_partitions_rate(
    tmp_path: Path, private_home: Path
) -> None:
    (private_home / "rates.json").write_text('{"gpu": "1.20 USD/h"}')
    (run,) = plan(tmp_path, slurm={"partition": "gpu"}).runs
    assert run.entry.price is not None
    assert str(run.entry.price.rate) == "1.20 USD/h showback"
    (stated,) = plan(tmp_path, slurm={"partition": "gpu"}, price="2 USD/h").runs
    assert stated.entry.price is not None
    assert str(stated.entry.price.rate) == "2.00 USD/h"
    (elsewhere,) = plan(tmp_path, slurm={"partition": "other"}).runs
    assert elsewhere.entry.price is None


# -- squeue and sacct --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gres", "more", "gpus"),
    [
        ("gpu:2", {"nnodes": 2}, 4),
        ("gpu:a100:4", {}, 4),
        ("gpu:a100:2(S:0-1)", {"nnodes": 3}, 6),
        ("gpu", {"nnodes": 2}, 2),
        ("tmpdisk:100", {"nnodes": 2}, 2),
        ("gpu:4", {"gpus": 1}, 1),
    ],
)
def test_a_run_is_charged_for_the_gpus_that_it_asks_a_cluster_for(
    tmp_path: Path, gres: str, more: dict[str, Any], gpus: int
) -> None:
    (run,) = plan(tmp_path, slurm={"gres": gres}, price="1 USD/h", timeout="1h", **more).runs
    assert run.charged_gpus == gpus
    assert run.prediction.cost is None or run.prediction.cost.amount == gpus
    place = Place(directory="/s/r")
    assert environment_of(run, place)["OUTLAY_GPUS"] == str(gpus)


def test_a_job_is_named_after_its_sweep_and_its_run() -> None:
    assert new_batch(["slurm/001_lr/abc"], sweep="lr sweep, again").title == "lrsweepagain-001_lr"
    tickets = ["slurm/001_lr/abc", "slurm/002_lr/def"]
    several, again = (new_batch(tickets, sweep="lr") for _ in range(2))
    assert several.title == again.title == "lr-2-runs"
    assert several.name != again.name


def batch(name: str, job: str = "", tasks: int = 4) -> Batch:
    return Batch(name=name, tickets=tuple(f"{name}{index}" for index in range(tasks)), job=job)


def test_squeue_output_is_parsed_by_batch_and_array_index() -> None:
    lines = [
        squeue_line("4", "2", nodes="n1", script="/s/slurm/b/x.sh"),
        squeue_line("4", "3", state="PENDING", reason="Priority", script="/s/slurm/b/x.sh"),
        squeue_line("9", state="FAILED", nodes="n2", script="/a|b/slurm/c/x.sh"),
        "?",
    ]
    found = parse_squeue("\n".join(lines))
    statuses = match_batches(found, [batch("b", "4"), batch("c", "9")])
    running = statuses["b2"]
    assert (running.job, running.state, running.nodes) == ("4_2", "RUNNING", "n1")
    assert statuses["b3"].reason == "Priority"
    assert statuses["c0"].job == "9"
    assert len(statuses) == 3


def test_a_batch_without_a_number_is_found_by_its_script() -> None:
    ours = squeue_line("4", state="PENDING", script="/s/slurm/b/x.sh")
    found = parse_squeue(f"{ours}\n{squeue_line('5', script='/s/slurm/other/x.sh')}\n")
    statuses = match_batches(found, [batch("b")])
    assert {key: status.job for key, status in statuses.items()} == {"b0": "4"}


def test_another_job_with_the_same_number_is_recognised_by_its_script() -> None:
    found = parse_squeue(squeue_line("4", script="/elsewhere/job.sh"))
    assert match_batches(found, [batch("b", "4")]) == {}


def test_sacct_is_parsed_for_whole_jobs_with_the_last_state_of_requeued_ones() -> None:
    text = "4_2|PREEMPTED\n4_2|COMPLETED\n4_[3-9]|PENDING\n9|CANCELLED by 1000\n9.batch|Z\n"
    statuses = match_batches(parse_sacct(text), [batch("b", "4"), batch("c", "9")])
    assert {key: one.state for key, one in statuses.items()} == {
        "b2": "COMPLETED", "c0": "CANCELLED",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "later"),
    [
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time)", True),
        ("Batch job submission failed: Socket timed out on send/recv operation", True),
        ("Batch job submission failed: Invalid partition name specified", False),
        ("Batch job submission failed: Invalid account or account/partition combination", False),
    ],
)
def test_retryable_refusals_are_distinguished_from_permanent_ones(said: str, later: bool) -> None:
    assert NotAccepted(f"sbatch: error: {said}").retryable is later


# -- how a job ended ------------------------------------------------------------------------


def times(*marks: tuple[EventKind, int], sign: int = 0) -> JobTimes:
    events, restart = [], -1
    for what, second in marks:
        restart += what == "started"
        events.append(JobEvent(ticket="t", restart=restart, what=what, t_ns=second * NS))
    return JobTimes(events=events, sign_ns=sign * NS)


RAN = times(("started", 10), ("ended", 15))


def record(code: int = 0, **more: Any) -> ExitRecord:
    return ExitRecord(ticket="t", returncode=code, **more)


def status(state: str) -> RemoteStatus:
    return remote_status(JobStatus(job="1", state=state))


@pytest.mark.parametrize(
    ("state", "exits", "expected"),
    [
        ("RUNNING", [], None),
        ("PENDING", [record(-15, asked=True)], None),
        ("RUNNING", [record(0)], ("exited", 0, False, "")),
        ("COMPLETED", [record(0)], ("exited", 0, False, "")),
        ("FAILED", [record(3)], ("exited", 3, False, "")),
        (None, [record(-9)], ("exited", -9, False, "")),
        ("CANCELLED", [record(-15, asked=True)], ("exited", -15, True, "cancelled in Slurm")),
        (None, [record(-15, asked=True)], ("exited", -15, True, "")),
        ("CANCELLED", [], ("exited", None, True, "cancelled in Slurm")),
        ("PREEMPTED", [record(-15, asked=True)], ("preempted", None, False, "preempted")),
        ("PREEMPTED", [], ("preempted", None, False, "preempted")),
        ("NODE_FAIL", [], ("preempted", None, False, "a node failed")),
        ("TIMEOUT", [record(-15, asked=True)], ("exited", -15, False, "time limit")),
        ("OUT_OF_MEMORY", [], ("exited", None, False, "out of memory")),
        (None, [], ("lost", None, False, "recorded no end")),
        ("FAILED", [record(127, reason="could not be started: No such file")],
         ("not_started", None, False, "No such file")),
        # A node that failed on its own decides; the first was told to end because of it.
        ("FAILED", [record(-15, asked=True), record(1)], ("exited", 1, False, "")),
    ],
)  # fmt: skip
def test_an_end_combines_slurms_state_and_the_exit_record(
    state: str | None, exits: list[ExitRecord], expected: tuple[str, int | None, bool, str] | None
) -> None:
    ended = conclude(None if state is None else status(state), exits, RAN)
    if expected is None:
        assert ended is None
        return
    assert ended is not None
    assert (ended.how, ended.returncode, ended.asked) == expected[:3]
    assert expected[3] in ended.reason
    assert ended.elapsed_ns == 5 * NS


def test_the_end_of_an_earlier_start_is_not_the_end() -> None:
    twice = times(("started", 10), ("ended", 15), ("started", 20), sign=22)
    ended = conclude(status("NODE_FAIL"), [record(-15, asked=True, restart=0)], twice)
    assert ended == Ended(
        how="preempted", elapsed_ns=7 * NS,
        reason="a node failed, and this cluster does not requeue it",
    )  # fmt: skip


def test_a_late_exit_record_is_waited_for() -> None:
    ended, taken = Ended(how="exited"), Ended(how="preempted")
    assert may_be_late(status("COMPLETED"), [], ended)
    assert may_be_late(None, [], ended)
    assert may_be_late(status("PREEMPTED"), [record()], taken)
    assert not may_be_late(status("COMPLETED"), [record()], ended)
    assert not may_be_late(status("CANCELLED"), [], ended)


def test_a_job_of_several_nodes_ends_when_all_succeed_or_one_fails() -> None:
    assert conclude(status("RUNNING"), [record(0)], RAN, nodes=2) is None
    failed = conclude(status("RUNNING"), [record(1)], RAN, nodes=2)
    assert failed is not None
    assert failed.returncode == 1
    both = conclude(status("RUNNING"), [record(0), record(0)], RAN, nodes=2)
    assert both is not None
    assert both.returncode == 0


def test_one_query_for_all_jobs_with_back_off_while_nothing_changes(
    tmp_path: Path, clock: ManualClock
) -> None:
    asked = []

    def unchanged(tickets: Collection[str]) -> dict[str, RemoteStatus]:
        asked.append(len(tickets))
        return dict.fromkeys(tickets, status("RUNNING"))

    poller = Poller(clock, unchanged)
    for number in range(100):
        poller.submitted[f"slurm/run/t{number}"] = Submitted(tmp_path, 1, str(number))
    for _ in range(3000):  # Ten minutes.
        poller.poll_if_due()
        clock.sleep(0.2)
    assert 20 <= len(asked) <= 35
    assert set(asked) == {100}


# -- when a job ran -------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1000), max_size=20), st.booleans())
def test_run_time_excludes_queue_waits(gaps: list[int], closed: bool) -> None:
    """Waits and runs alternate; the oracle sums every second one."""
    second, ran_s, marks = 0, 0, list[tuple[EventKind, int]]()
    for place, gap in enumerate(gaps):
        second += gap
        if place % 2:
            ran_s += gap
        marks.append(("ended" if place % 2 else "started", second))
    found = times(*marks, sign=second if closed else second + 7)
    running = len(gaps) % 2 == 1
    assert found.ran_ns() == (ran_s + (7 if running and not closed else 0)) * NS
    assert (found.running_since_ns is not None) == running


def test_a_start_that_left_no_end_lasted_until_its_last_sign_of_life(tmp_path: Path) -> None:
    append_event(tmp_path, JobEvent(ticket=TICKET, restart=0, what="started", t_ns=10 * NS))
    append_event(tmp_path, JobEvent(ticket=TICKET, restart=0, what="alive", t_ns=14 * NS))
    assert read_times(tmp_path, TICKET).ran_ns() == 4 * NS
    assert read_times(tmp_path, TICKET).ran_ns(now_ns=20 * NS) == 10 * NS
    assert read_times(tmp_path, "slurm/run/another").ran_ns() == 0


def test_a_job_that_waits_in_the_queue_has_not_run_nor_cost(tmp_path: Path) -> None:
    assert ran_so_far_ns(tmp_path, TICKET, 99 * NS) == 0
    append_event(tmp_path, JobEvent(ticket=TICKET, restart=0, what="started", t_ns=10 * NS))
    assert ran_so_far_ns(tmp_path, TICKET, 30 * NS) == 20 * NS
    assert ran_so_far_ns(tmp_path, TICKET, 99 * NS) == 0  # Without a sign of life since its start.
    append_event(tmp_path, JobEvent(ticket=TICKET, restart=0, what="requeued", t_ns=40 * NS))
    assert ran_so_far_ns(tmp_path, TICKET, 50 * NS) == 30 * NS


# -- progress of a start ---------------------------------------------------------------------


def trained(start: float, *steps: int, committed: int | None = None) -> Segment:
    segment = Segment(start=start)
    for number in steps:
        segment.step(1, number=number)
    return segment if committed is None else segment.checkpoint(committed)


@pytest.mark.parametrize(
    ("story", "fruitless"),
    [
        ([None, None, None], 3),
        ([trained(0, 1, 2), trained(100, 3)], 0),
        ([trained(0, 1, 2), None, None], 2),
        ([None, None, trained(200, 1)], 0),
        # Restarted from the beginning: repeated steps are no progress.
        ([trained(0, 1, 2), trained(100, 1, 2), trained(200, 1)], 2),
        # Fewer steps than an earlier start, but a later checkpoint.
        ([trained(0, 1, 2, 3, committed=1), trained(100, 2, committed=2)], 0),
        ([trained(0, 1, 2, committed=2), trained(100, 3), trained(200, 3)], 1),
    ],
)
def test_starts_without_progress_are_counted(
    tmp_path: Path, story: list[Segment | None], fruitless: int
) -> None:
    for segment in filter(None, story):
        segment.write(tmp_path)
    starts_ns = [START_NS + 100 * NS * index for index in range(len(story))]
    assert starts_without_progress(tmp_path, starts_ns) == fruitless


def test_steps_of_earlier_attempts_are_no_progress(tmp_path: Path) -> None:
    trained(0, 1, 2, 3).write(tmp_path)
    trained(100, 1, 2).write(tmp_path)
    assert starts_without_progress(tmp_path, [START_NS + 100 * NS]) == 1


def test_a_torn_line_is_skipped_and_later_lines_are_read(tmp_path: Path) -> None:
    append_event(tmp_path, JobEvent(ticket=TICKET, restart=0, what="started", t_ns=10 * NS))
    with (tmp_path / "slurm_times.jsonl").open("ab") as stream:
        stream.write(b'{"ticket": "slurm/run/t", "resta')
    assert [event.what for event in read_times(tmp_path, TICKET).events] == ["started"]
    append_event(tmp_path, JobEvent(ticket=TICKET, restart=0, what="ended", t_ns=20 * NS))
    assert [event.what for event in read_times(tmp_path, TICKET).events] == ["started", "ended"]


# -- job specs -------------------------------------------------------------------------------


def test_a_spec_holds_no_secret_and_the_node_puts_it_back(tmp_path: Path) -> None:
    here = {"HOME": "/h", "LEFT_OUT": "1"}
    env = {"HOME": "/h", "HF_TOKEN": "t0k3n-secret", "PLAIN": "x", "DB": "pg://u:hunter22@host"}
    task = Task(
        name="run", ticket="slurm/run/abc", command=("train", "--token=t0k3n-secret"), env=env,
        cwd=tmp_path, directory=tmp_path, log=tmp_path / "log",
    )  # fmt: skip
    spec, secret = without_secrets(task, spec_of(task, notice_ns=0), here)
    path = write_spec(spec)
    assert secret == {"HF_TOKEN": "t0k3n-secret", "DB": "pg://u:hunter22@host"}
    assert b"t0k3n" not in path.read_bytes()
    assert b"hunter22" not in path.read_bytes()
    spec = read_document(path, JobSpec)
    assert (spec.env, spec.dropped) == ({"PLAIN": "x"}, ["LEFT_OUT"])
    assert command_with_secrets(spec, env) == ["train", "--token=t0k3n-secret"]


def test_a_word_that_looks_like_a_secret_is_in_no_file_without_a_variable(
    tmp_path: Path,
) -> None:
    word = "--url=pg://u:hunter22@host"
    task = Task(
        name="run", ticket="slurm/run/abc", command=("train", word), env={}, cwd=tmp_path,
        directory=tmp_path, log=tmp_path / "log",
    )  # fmt: skip
    spec, secret = without_secrets(task, spec_of(task, notice_ns=0), {})
    path = write_spec(spec)
    assert b"hunter22" not in path.read_bytes()
    assert command_with_secrets(read_document(path, JobSpec), secret) == ["train", word]


# -- allocation ------------------------------------------------------------------------------


@given(st.integers(1, 10**9), st.integers(1, 11_000))
def test_concurrent_jobs_get_different_rendezvous_ports(job: int, apart: int) -> None:
    assert rendezvous_port(job, 0) != rendezvous_port(job + apart, 0)
    assert rendezvous_port(job, 0) != rendezvous_port(job, 1)
    assert 20_000 <= rendezvous_port(job, 3) < 32_000


def allocation(*, rank: int, nodes: int) -> SlurmAllocation:
    return SlurmAllocation(
        job="3_1", number=5, restart=0, rank=rank, nodes=nodes, node="n1", address="n1"
    )


def test_node_rank_and_rendezvous_are_set_for_torchrun() -> None:
    place = SlurmAllocation(
        job="3_1", number=5, restart=0, rank=1, nodes=2, node="n2", address="n1"
    )
    told = place.variables()
    assert (told["PET_NNODES"], told["PET_NODE_RANK"]) == ("2", "1")
    assert (told["PET_MASTER_ADDR"], told["PET_MASTER_PORT"]) == ("n1", "20005")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("n1", "20005")


@pytest.mark.parametrize(
    ("error", "calls", "running"),
    [("Unable to contact slurm controller", 3, True), ("Invalid job id specified", 1, False)],
)
def test_a_controller_that_restarts_is_asked_again_whether_a_job_runs(
    commands: Path, monkeypatch: pytest.MonkeyPatch, error: str, calls: int, *, running: bool
) -> None:
    """The first two answers are an error; a job that Slurm does not know is not running."""
    monkeypatch.setattr("outlay.sweep.engines.slurm.job._BETWEEN_TRIES_S", 0)
    answer = f"echo '{squeue_line('3', '1')}'; exit 0"
    third = f"echo >> {commands}/calls; if [ $(wc -l < {commands}/calls) -gt 2 ]; then {answer}; fi"
    write_script(commands / "squeue", f"{third}; echo {error} >&2; exit 1")
    place = SlurmAllocation(
        job="3_1", number=5, restart=0, rank=0, nodes=1, node="n1", address="n1"
    )
    assert place.is_running() == running
    assert len((commands / "calls").read_text().splitlines()) == calls


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("outlay.sweep.engines.slurm.job",
         {"numpy", "sqlalchemy", "rich", "typer", "submitit", "omegaconf", "outlay.ledger.reader",
          "outlay.guard", "outlay.rates", "outlay.record.redaction"}),
        ("outlay.cli.sweep.commands",
         {"numpy", "sqlalchemy", "submitit", "omegaconf", "outlay.report"}),
    ],
)  # fmt: skip
def test_jobs_and_commands_import_no_unneeded_modules(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert unwanted & set(loaded.stdout.split()) == set()


# -- without a cluster ----------------------------------------------------------------------


def test_without_slurm_the_error_names_the_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSlurm, match="login node"):
        SlurmEngine(tmp_path)


def test_without_submitit_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match="slurm"):
        SlurmEngine(tmp_path)


# -- refused submissions --------------------------------------------------------------------


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands as scripts: squeue prints nothing; tests write sbatch."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("squeue", "scancel", "scontrol", "srun", "sacct"):
        write_script(directory / name, "exit 0")
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


def write_script(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def has_it(tmp_path: Path) -> str:
    """Return a squeue script that lists every batch, with the path of its job script."""
    line = squeue_line("77", state="PENDING", script="${one}x.sh")
    return f'for one in {tmp_path}/slurm/*/; do echo "{line}"; done'


def task_of(engine: SlurmEngine, tmp_path: Path, name: str) -> Task:
    directory = tmp_path / name
    directory.mkdir()
    return Task(
        name=name, ticket=engine.new_ticket(name), command=("true",), env=dict(os.environ),
        cwd=tmp_path, directory=directory, log=directory / "log",
    )  # fmt: skip


@pytest.mark.usefixtures("commands")
def test_a_program_that_gets_slurms_signal_before_its_job_counts_as_asked_to_end(
    tmp_path: Path,
) -> None:
    script = "(sleep 0.3; kill -TERM $PPID) & kill -TERM $$"
    task = Task(
        name="run", ticket="slurm/run/abc", command=("sh", "-c", script), env=dict(os.environ),
        cwd=tmp_path, directory=tmp_path, log=tmp_path / "log",
    )  # fmt: skip
    path = write_spec(spec_of(task, notice_ns=0))
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([str(path)]))
    command = [sys.executable, "-m", "outlay.sweep.engines.slurm.job", str(listed)]
    slurm = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
    subprocess.run(command, env=os.environ | slurm, check=False)
    assert read_document(exit_path(tmp_path, 0), ExitRecord).asked


def submit_one(engine: SlurmEngine, tmp_path: Path) -> str:
    task = task_of(engine, tmp_path, "run")
    engine.submit(task)
    engine.wait(0)
    return task.ticket


def test_a_permanent_refusal_is_a_task_that_did_not_start(commands: Path, tmp_path: Path) -> None:
    write_script(commands / "sbatch", "echo 'Invalid partition name specified' >&2; exit 1")
    engine = SlurmEngine(tmp_path)
    ended = engine.poll(submit_one(engine, tmp_path))
    assert ended is not None
    assert ended.how == "not_started"
    assert "Invalid partition name" in ended.reason


def test_a_retryable_refusal_keeps_the_task_pending(commands: Path, tmp_path: Path) -> None:
    write_script(commands / "sbatch", "echo 'Unable to contact slurm controller' >&2; exit 1")
    engine = SlurmEngine(tmp_path)
    ticket = submit_one(engine, tmp_path)
    assert engine.poll(ticket) is None
    assert not engine.all_submitted()
    engine.cancel(ticket)
    assert engine.poll(ticket) == Ended(how="exited", asked=True, reason="never reached Slurm")


def test_a_job_accepted_despite_an_error_is_found_by_its_script(
    commands: Path, tmp_path: Path
) -> None:
    """sbatch's answer was lost, but the queue has the job."""
    write_script(commands / "sbatch", "echo 'Socket timed out' >&2; exit 1")
    write_script(commands / "squeue", has_it(tmp_path))
    engine = SlurmEngine(tmp_path)
    ticket = submit_one(engine, tmp_path)
    assert engine.all_submitted()
    assert engine.poll(ticket) is None


def test_nothing_is_submitted_twice_while_slurm_does_not_answer(
    commands: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """sbatch's answer is lost and squeue fails; a minute later the queue has the job."""
    write_script(commands / "sbatch", f"echo >> {tmp_path}/calls; echo 'timed out' >&2; exit 1")
    write_script(commands / "squeue", "exit 1")
    engine = SlurmEngine(tmp_path, clock)
    submit_one(engine, tmp_path)
    for _ in range(60):
        clock.sleep(1)
        engine.wait(0)
    write_script(commands / "squeue", has_it(tmp_path))
    for _ in range(6):
        clock.sleep(1)
        engine.wait(0)
    assert engine.all_submitted()
    assert (tmp_path / "calls").read_text() == "\n"
    assert [batch.job for batch in read_batches(tmp_path)] == ["77"]


def test_a_batch_that_slurm_does_not_have_is_submitted_again(
    commands: Path, tmp_path: Path, clock: ManualClock
) -> None:
    write_script(commands / "sbatch", "echo 'Unable to contact slurm controller' >&2; exit 1")
    engine = SlurmEngine(tmp_path, clock)
    submit_one(engine, tmp_path)
    write_script(commands / "sbatch", "echo Submitted batch job 78")
    clock.sleep(60)
    engine.wait(0)
    assert engine.all_submitted()
    assert [batch.job for batch in read_batches(tmp_path)] == ["78"]


def test_a_cancel_before_slurm_confirms_a_batch_is_sent_afterwards(
    commands: Path, tmp_path: Path, clock: ManualClock
) -> None:
    write_script(commands / "sbatch", "echo 'timed out' >&2; exit 1")
    write_script(commands / "squeue", "exit 1")
    write_script(commands / "scancel", f'echo "$@" >> {tmp_path}/told')
    engine = SlurmEngine(tmp_path, clock)
    ticket = submit_one(engine, tmp_path)
    engine.cancel(ticket)
    assert engine.poll(ticket) is None
    write_script(commands / "squeue", has_it(tmp_path))
    clock.sleep(60)
    engine.wait(0)
    assert (tmp_path / "told").read_text() == "77\n"


def test_a_cancel_that_slurm_did_not_accept_is_repeated(commands: Path, tmp_path: Path) -> None:
    write_script(commands / "sbatch", "echo Submitted batch job 77")
    write_script(commands / "squeue", has_it(tmp_path))
    write_script(commands / "scancel", f"echo >> {tmp_path}/told; exit 1")
    engine = SlurmEngine(tmp_path)
    ticket = submit_one(engine, tmp_path)
    engine.cancel(ticket)
    write_script(commands / "scancel", f"echo >> {tmp_path}/told")
    for _ in range(3):
        engine.cancel(ticket)
    assert (tmp_path / "told").read_text() == "\n\n"


def test_jobs_of_an_earlier_process_count_towards_the_number_at_once(
    commands: Path, tmp_path: Path
) -> None:
    write_script(commands / "sbatch", "echo Submitted batch job 77")
    write_script(commands / "squeue", has_it(tmp_path))
    earlier = SlurmEngine(tmp_path)
    earlier.allow(1)
    task = task_of(earlier, tmp_path, "run")
    earlier.submit(task)
    earlier.wait(0)
    write_script(commands / "sbatch", f'grep dependency "$1" > {tmp_path}/asked; echo job 78')
    later = SlurmEngine(tmp_path)
    later.allow(1)
    assert later.reattach(task) is None
    later.submit(task_of(later, tmp_path, "next"))
    later.wait(0)
    assert "afterany:77" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("name", ["teleport", 3])
def test_an_unknown_engine_is_refused_with_the_known_names(tmp_path: Path, name: object) -> None:
    with pytest.raises(InvalidGrid, match="process, ray, slurm, torchrun"):
        plan(tmp_path, engine=name)


def test_an_impossible_notice_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTLAY_NOTICE", "SIGNOTHING")
    with pytest.raises(InvalidValue, match="OUTLAY_NOTICE"):
        outlay.run("m", dir=tmp_path / "run")
