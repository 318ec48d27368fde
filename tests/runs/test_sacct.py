"""A cluster's accounts become runs: read line by line, priced by partition, imported once."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay as outlay_package
from command_line import in_process as outlay
from outlay.errors import InvalidValue
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    RunIdentity,
    SegmentId,
    claim_identity,
    derive_attempts,
    encode_line,
    ledger_dir,
    read_lives,
)
from outlay.ledger.price import typed_price
from outlay.runs.accounting.sacct import Accounts, read_accounts, read_gpus
from outlay.runs.inbox import leave_notice

HOUR_NS = 3600 * 10**9
COLUMNS = "JobID|JobIDRaw|JobName|User|Account|Partition|Cluster|State|Start|End|AllocTRES|NodeList"
ONE = "7|7|bert|ada|nlp|gpu|c|COMPLETED|2026-10-03T12:00:00|2026-10-03T14:00:00|gres/gpu=4|n1"
FIRST = "8_3|11|gpt|bob|nlp|gpu|c|PREEMPTED|2026-10-04T00:00:00|2026-10-04T01:00:00|gres/gpu=2|n2"
AGAIN = "8_3|11|gpt|bob|nlp|gpu|c|COMPLETED|2026-10-04T03:00:00|2026-10-04T04:00:00|gres/gpu=2|n3"


def accounts(*lines: str) -> Accounts:
    return read_accounts("\n".join([COLUMNS, *lines]), source="jobs.txt", zone=UTC)


def test_a_job_has_its_gpus_its_owner_and_its_hours() -> None:
    (job,) = accounts(ONE).jobs
    assert (job.name, job.user, job.account, job.partition) == ("bert", "ada", "nlp", "gpu")
    assert (job.gpus, job.gpu_ns) == (4, 8 * HOUR_NS)


def test_a_job_that_was_queued_again_is_one_job_and_its_waits_are_not_its_hours() -> None:
    (job,) = accounts(AGAIN, FIRST).jobs
    assert [start.status for start in job.starts] == ["preempted", "completed"]
    assert job.gpu_ns == 4 * HOUR_NS


def test_the_same_line_twice_is_one_start() -> None:
    (job,) = accounts(ONE, ONE).jobs
    assert len(job.starts) == 1


def test_steps_are_parts_of_jobs_and_those_that_never_ran_used_nothing() -> None:
    step = ONE.replace("7|7|", "7.batch|7.batch|")
    never = "9|9|x|ada|nlp|gpu|c|CANCELLED by 7|Unknown|2026-10-03T12:00:00||"
    found = accounts(step, never)
    assert (found.jobs, found.unfinished, found.findings) == ((), 0, ())


def test_a_job_that_still_runs_is_counted_and_not_imported() -> None:
    found = accounts(ONE.replace("2026-10-03T14:00:00", "Unknown"))
    assert (found.jobs, found.unfinished) == ((), 1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1|2", "expected 12 fields, found 2"),
        (ONE.replace("2026-10-03T12", "yesterday"), "is no time"),
        (ONE.replace("2026-10-03T12", "2026-10-03T15"), "ends before it starts"),
    ],
)
def test_a_bad_line_is_a_finding_with_its_number_and_stops_no_other(
    line: str, problem: str
) -> None:
    found = accounts(line, AGAIN)
    assert len(found.jobs) == 1
    (finding,) = found.findings
    assert finding.line == 2
    assert problem in finding.message


def test_missing_columns_are_refused_with_the_sacct_command() -> None:
    with pytest.raises(InvalidValue, match="sacct --parsable2"):
        read_accounts("JobID|State\n1|RUNNING\n", source="jobs.txt")


@pytest.mark.parametrize("text", ["", "Slurm accounting storage is disabled\n"])
def test_cluster_without_accounts_is_refused_with_advice(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"keeps no accounts.*slurmdbd"):
        read_accounts(text, source="jobs.txt")


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1", ("a100", 4)),
        ("gres/gpu:a100=2,gres/gpu:v100=1", ("a100+v100", 3)),
        ("cpu=8,gres/gpumem=4,node=1", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_gpus_are_read_from_what_was_allocated(resources: str, expected: tuple[str, int]) -> None:
    assert read_gpus(resources) == expected


def test_times_are_those_of_the_cluster_or_seconds_or_carry_their_zone() -> None:
    seconds = ONE.replace("2026-10-03T12:00:00", "1791028800")
    zoned = ONE.replace("2026-10-03T12:00:00", "2026-10-03T14:00:00+02:00")
    starts = {accounts(line).jobs[0].starts[0].start_ns for line in (ONE, seconds, zoned)}
    assert starts == {1_791_028_800 * 10**9}
    east = read_accounts(f"{COLUMNS}\n{ONE}", source="", zone=timezone(timedelta(hours=2)))
    assert east.jobs[0].starts[0].start_ns == (1_791_028_800 - 7200) * 10**9


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 16)), max_size=9
    )
)
def test_gpu_hours_are_the_sum_over_lines(drawn: list[tuple[int, int, int]]) -> None:
    lines = [
        f"{number}|{number}|m|u|a|p|c|COMPLETED|{start}|{start + length}|gres/gpu={gpus}|n"
        for number, (start, length, gpus) in enumerate(drawn, start=1)
    ]
    expected = sum(length * gpus for _, length, gpus in drawn) * 10**9
    assert sum(job.gpu_ns for job in accounts(*lines).jobs) == expected


# -- importing ------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.txt"
    path.write_text("\n".join([COLUMNS, ONE, FIRST, AGAIN]))
    return path


def import_file(file: Path) -> object:
    done = outlay("import", "sacct", file, "--timezone", "UTC", "--json")
    assert done.code == 0, done.err
    return done.json


def test_last_months_gpu_hours_have_an_owner_and_a_price(file: Path) -> None:
    outlay("rates", "set", "gpu", "1.20 USD/h")
    import_file(file)
    rows = outlay("cost", "allocate", "--by", "user", "--month", "2026-10", "--json").json["rows"]
    told = [(row["owner"], row["gpu_hours"], row["total"]) for row in rows]
    assert told == [("ada", 8.0, "9.6"), ("bob", 4.0, "4.8")]


def test_importing_twice_changes_nothing_and_a_price_once_given_stays(file: Path) -> None:
    outlay("rates", "set", "gpu", "1.20 USD/h")
    once = import_file(file)
    outlay("rates", "set", "gpu", "9 USD/h")
    assert import_file(file) == once
    assert len(outlay("runs", "--json").json["runs"]) == 2


def test_jobs_without_a_rate_are_registered_with_a_hint(file: Path) -> None:
    shown = outlay("import", "sacct", file, "--timezone", "UTC")
    assert 'outlay prices partition set gpu "1.20 USD/h"' in " ".join(shown.out.split())
    assert "no price" in shown.out
    outlay("rates", "set", "gpu", "1 USD/h")
    import_file(file)
    assert {run["cost_micros"] for run in outlay("runs", "--json").json["runs"]} == {
        8_000_000, 4_000_000,
    }  # fmt: skip


def test_waiting_to_start_again_is_recovery_and_costs_nothing(
    file: Path, private_home: Path
) -> None:
    outlay("rates", "set", "gpu", "1 USD/h")
    import_file(file)
    (run,) = (private_home / "sacct").glob("c-8_3-*")
    phases = {row["phase"]: row for row in outlay("goodput", run, "--json").json["phases"]}
    assert phases["recovery"]["ns"] == 2 * HOUR_NS
    assert phases["recovery"]["cost"]["micros"] == 0


def test_a_job_that_recorded_itself_is_not_counted_twice(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    outlay_package.run("gpt", dir=tmp_path / "own").close()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert outlay("runs").code == 0  # Registers what left a notice.
    done = outlay("import", "sacct", file, "--timezone", "UTC", "--json").json
    assert (done["registered"], done["recorded"]) == (1, 1)


def test_each_start_of_a_job_is_booked_to_the_nodes_that_it_had(
    file: Path, private_home: Path
) -> None:
    import_file(file)
    (run,) = (private_home / "sacct").glob("c-8_3-*")
    assert [a.header.host for a in derive_attempts(read_lives(run))] == ["n2", "n3"]


def test_a_crash_is_booked_to_the_node_that_crashed(
    file: Path, private_home: Path, tmp_path: Path
) -> None:
    import_file(file)
    (run,) = (private_home / "sacct").glob("c-8_3-*")
    (disruption,) = outlay("goodput", run, "--json").json["disruptions"]
    assert disruption["host"] == "n2"
    outlay("report", run, "--md", "--output", tmp_path)
    assert "| n2 | preempted PREEMPTED |" in (tmp_path / "report.md").read_text()


def test_each_start_of_a_job_has_the_gpus_that_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("\n".join([COLUMNS, FIRST, AGAIN.replace("gpu=2", "gpu=6")]))
    outlay("rates", "set", "gpu", "1 USD/h")
    import_file(file)
    assert [run["cost_micros"] for run in listed_runs()] == [8_000_000]


def test_nodes_that_an_earlier_import_named_otherwise_are_replaced(
    file: Path, private_home: Path
) -> None:
    outlay("rates", "set", "gpu", "1.20 USD/h")
    file.write_text("\n".join([COLUMNS, ONE.replace("|n1", "|n9")]))
    import_file(file)
    outlay("rates", "set", "gpu", "9 USD/h")
    file.write_text("\n".join([COLUMNS, ONE]))
    import_file(file)
    (run,) = (private_home / "sacct").iterdir()
    assert [a.header.host for a in derive_attempts(read_lives(run))] == ["n1"]
    assert [run["cost_micros"] for run in listed_runs()] == [9_600_000]


@pytest.mark.parametrize("order", [[[AGAIN], [FIRST, AGAIN], [FIRST]], [[FIRST], [AGAIN, FIRST]]])
def test_accounts_of_parts_of_a_job_count_no_start_twice(
    tmp_path: Path, order: list[list[str]]
) -> None:
    file = tmp_path / "jobs.txt"
    outlay("rates", "set", "gpu", "1 USD/h")
    for lines in order:
        file.write_text("\n".join([COLUMNS, *lines]))
        import_file(file)
    assert [(run["attempts"], run["cost_micros"]) for run in listed_runs()] == [(2, 4_000_000)]


def test_a_reused_job_number_is_another_job(file: Path) -> None:
    file.write_text("\n".join([COLUMNS, ONE]))
    import_file(file)
    file.write_text("\n".join([COLUMNS, ONE.replace("2026-10", "2026-11")]))
    import_file(file)
    assert len(listed_runs()) == 2


# -- jobs that recorded themselves ----------------------------------------------------------

NOON_NS = 1_791_028_800 * 10**9
"""2026-10-03T12:00:00 UTC."""


def own_log(
    directory: Path, *spans: tuple[float, float], job: str = "7", price: str = "", **about: Any
) -> Path:
    """Write the log of a run in a job: attempts of rank 0, by seconds after noon."""
    identity = claim_identity(
        directory, RunIdentity(run_id=directory.name, model="m", name="m", created_ns=NOON_NS)
    )
    stated = typed_price(price, name="price", source="test") if price else None
    for restart, (start_s, end_s) in enumerate(spans):
        start_ns = NOON_NS + round(start_s * 10**9)
        facts: dict[str, object] = {
            "slurm_job": job, "slurm_restart": str(restart), "host": "n1", "nodes": 1,
            "node_gpus": 4, "gpus": 4, "gpus_source": "slurm", "price": stated,
        }  # fmt: skip
        header = AttemptStarted(
            t_ns=start_ns,
            run_id=identity.run_id,
            model="m",
            name="m",
            pid=restart,
            **facts | about,  # type: ignore[arg-type]
        )
        end = AttemptEnded(t_ns=NOON_NS + round(end_s * 10**9), status="failed")
        segment = SegmentId(start_ns, 0, "n1", restart)
        path = ledger_dir(directory) / segment.file_name
        path.write_bytes(encode_line(header, 0) + encode_line(end, 1))
    return directory


def line(
    job: str, start_s: int, end_s: int, *, gpus: int = 4, raw: str = "", nodes: str = "n1"
) -> str:
    start, end = (NOON_NS // 10**9 + second for second in (start_s, end_s))
    state = "NODE_FAIL" if end_s < 100 else "COMPLETED"
    return f"{job}|{raw or job}|m|ada|nlp|gpu|c|{state}|{start}|{end}|gres/gpu={gpus}|{nodes}"


def import_lines(tmp_path: Path, *lines: str) -> Any:
    path = tmp_path / "accounts.txt"
    path.write_text("\n".join([COLUMNS, *lines]))
    return import_file(path)


def listed_runs() -> Any:
    return outlay("runs", "--json").json["runs"]


def test_a_job_in_the_inbox_is_known_before_accounts_are_read(tmp_path: Path) -> None:
    leave_notice("own", own_log(tmp_path / "own", (1, 99)), NOON_NS)
    done = import_lines(tmp_path, line("7", 0, 100))
    assert (done["registered"], done["recorded"]) == (0, 1)
    assert [run["run_id"] for run in listed_runs()] == ["own"]


@pytest.mark.parametrize("order", ["import", "import collect import", "collect import collect"])
def test_no_job_is_counted_twice_in_any_order_of_collecting_and_importing(
    tmp_path: Path, order: str
) -> None:
    own = own_log(tmp_path / "own", (1, 99), job="6_2")
    for command in order.split():
        if command == "collect":
            assert outlay("collect", own).code == 0
        else:
            import_lines(tmp_path, line("6_2", 0, 100, raw="8"))
    assert outlay("collect", own).code == 0
    assert [run["run_id"] for run in listed_runs()] == ["own"]


def test_the_import_of_a_job_that_recorded_itself_is_removed(
    tmp_path: Path, private_home: Path
) -> None:
    import_lines(tmp_path, line("7", 0, 100))
    assert len(list((private_home / "sacct").iterdir())) == 1
    leave_notice("own", own_log(tmp_path / "own", (1, 99)), NOON_NS)
    import_lines(tmp_path, line("7", 0, 100))
    assert [path for path in (private_home / "sacct").iterdir() if path.is_dir()] == []


def test_a_log_of_an_array_task_by_its_raw_number_is_known(tmp_path: Path) -> None:
    leave_notice("own", own_log(tmp_path / "own", (1, 99), job="8"), NOON_NS)
    assert import_lines(tmp_path, line("6_2", 0, 100, raw="8"))["recorded"] == 1


def test_a_job_is_settled_by_its_accounts_and_the_difference_is_named(tmp_path: Path) -> None:
    """Two starts: ten seconds before and after each that no process of the run was there for."""
    own = own_log(tmp_path / "own", (10, 40), (210, 290), price="3600 USD/h")
    leave_notice("own", own, NOON_NS)
    done = import_lines(tmp_path, line("7", 0, 50), line("7", 200, 300))
    assert done["settled"] == [
        {
            "job": "7", "dir": str(own), "log_ns": 110 * 10**9, "sacct_ns": 150 * 10**9,
            "settled_ns": 150 * 10**9,
        }
    ]  # fmt: skip
    (run,) = listed_runs()
    assert (run["attempts"], run["cost_micros"]) == (2, 4 * 150 * 10**6)


@pytest.mark.parametrize(
    ("log", "accounts", "settled"),
    [
        ((0.9, 14.1), (0, 14), (0.1, 14.1)),
        ((4.5, 14.3), (0, 14), (0.3, 14.3)),
        ((0.2, 9.0), (0, 14), (0, 14)),
        ((0.2, 18.0), (0, 14), (0, 14)),
        ((4.0, 18.0), (0, 14), (0, 14)),
        ((1.0, 14.999), (0, 14), (0.999, 14.999)),
        ((0.0, 15.0), (0, 14), (0, 14)),
        ((1.4, 1.8), (0, 1), (0.8, 1.8)),
        ((14.9, 15.3), (0, 14), (0.9, 14.9)),
        ((0.1, 14.8), (0, 14), (0.1, 14.8)),
    ],
    ids=[
        "shorter-within-the-seconds", "begins-late", "ends-early", "ends-late",
        "begins-and-ends-late", "a-second-late", "a-second-longer", "first-record-after-the-end",
        "first-record-in-the-last-second",
        "records-longer-within-the-seconds",
    ],
)  # fmt: skip
def test_a_settled_job_lasts_as_long_as_accounts_say_to_an_end_in_the_second_that_they_name(
    tmp_path: Path, log: tuple[float, float], accounts: tuple[int, int], settled: tuple[float, ...]
) -> None:
    """Only where its records alone take longer within those seconds does it last longer."""
    own = own_log(tmp_path / "own", log)
    leave_notice("own", own, NOON_NS)
    import_lines(tmp_path, line("7", *accounts))
    (attempt,) = derive_attempts(read_lives(own))
    found = [t_ns - NOON_NS for t_ns in (attempt.start_ns, attempt.last_sign_ns)]
    assert found == [round(second * 10**9) for second in settled]


def test_start_up_within_the_first_second_is_not_charged_beside_the_last(tmp_path: Path) -> None:
    """The process began 0.1 s into the first second, and ended 0.4 s into the last."""
    own = own_log(tmp_path / "own", (0.9, 14.4), process_start_ns=NOON_NS + 10**8)
    leave_notice("own", own, NOON_NS)
    import_lines(tmp_path, line("7", 0, 14))
    (attempt,) = derive_attempts(read_lives(own))
    assert attempt.last_sign_ns - attempt.start_ns == 14 * 10**9


def test_attempts_of_one_start_of_a_job_are_bounded_together(tmp_path: Path) -> None:
    """The job's script started its program twice; the machine was there in between."""
    own = own_log(tmp_path / "own", (10, 30), (40, 80), price="3600 USD/h", slurm_restart="0")
    leave_notice("own", own, NOON_NS)
    import_lines(tmp_path, line("7", 0, 100))
    assert [(run["attempts"], run["cost_micros"]) for run in listed_runs()] == [
        (2, 4 * 100 * 10**6)
    ]


def test_two_starts_of_a_job_in_one_second_are_two_attempts(tmp_path: Path) -> None:
    own = own_log(tmp_path / "own", (0.5, 20.2), (20.6, 40.5))
    leave_notice("own", own, NOON_NS)
    import_lines(tmp_path, line("7", 0, 20), line("7", 20, 40))
    attempts = derive_attempts(read_lives(own))
    found = [(a.start_ns - NOON_NS, a.last_sign_ns - NOON_NS) for a in attempts]
    assert found == [(200_000_000, 20_200_000_000), (20_500_000_000, 40_500_000_000)]


def test_what_a_log_has_after_the_end_of_its_job_is_a_finding_and_not_charged(
    tmp_path: Path,
) -> None:
    own = own_log(tmp_path / "own", (0.5, 130), price="36 USD/h")
    leave_notice("own", own, NOON_NS)
    import_lines(tmp_path, line("7", 0, 100))
    shown = outlay("goodput", own, "--json").json
    assert [run["cost_micros"] for run in listed_runs()] == [4 * 10**6]
    assert any("after its job had ended" in each["message"] for each in shown["findings"])


def test_the_log_of_another_job_in_the_same_run_is_no_difference(tmp_path: Path) -> None:
    own = own_log(tmp_path / "own", (10, 90))
    own_log(own, (300, 400), job="9")
    leave_notice("own", own, NOON_NS)
    (settled,) = import_lines(tmp_path, line("7", 0, 100))["settled"]
    assert settled["log_ns"] == 80 * 10**9


def test_settling_again_changes_nothing(tmp_path: Path) -> None:
    leave_notice("own", own_log(tmp_path / "own", (10, 90), price="1 USD/h"), NOON_NS)
    once = import_lines(tmp_path, line("7", 0, 100))
    first = listed_runs()
    assert import_lines(tmp_path, line("7", 0, 100)) == once
    assert [run["cost_micros"] for run in listed_runs()] == [run["cost_micros"] for run in first]


def test_a_log_without_price_or_gpus_takes_those_of_the_accounts(tmp_path: Path) -> None:
    outlay("rates", "set", "gpu", "36 USD/h")
    guessed: dict[str, Any] = {"gpus": 1, "gpus_source": "world_size", "node_gpus": 0}
    leave_notice("own", own_log(tmp_path / "own", (10, 90), **guessed), NOON_NS)
    import_lines(tmp_path, line("7", 0, 100, gpus=8, nodes="n[1-2]"))
    (run,) = listed_runs()
    assert (run["gpus"], run["cost_micros"]) == (8, 8 * 10**6)


def test_every_node_of_a_job_counts_from_its_start_to_its_end(tmp_path: Path) -> None:
    own = own_log(tmp_path / "own", (10, 90), price="36 USD/h", nodes=2)
    header = AttemptStarted(
        t_ns=NOON_NS + 30 * 10**9, run_id="own", rank=1, host="n2", nodes=2, node=1, node_gpus=4,
        gpus_source="slurm", slurm_job="7",
    )  # fmt: skip
    end = AttemptEnded(t_ns=NOON_NS + 50 * 10**9, status="failed")
    path = ledger_dir(own) / SegmentId(header.t_ns, 1, "n2").file_name
    path.write_bytes(encode_line(header, 0) + encode_line(end, 1))
    leave_notice("own", own, NOON_NS)
    import_lines(tmp_path, line("7", 0, 100, gpus=8, nodes="n[1-2]"))
    assert [run["cost_micros"] for run in listed_runs()] == [8 * 10**6]


def test_two_runs_of_one_job_keep_their_logs_and_the_rest_is_named(tmp_path: Path) -> None:
    for name, span in (("a", (10, 40)), ("b", (50, 90))):
        leave_notice(name, own_log(tmp_path / name, span), NOON_NS)
    done = import_lines(tmp_path, line("7", 0, 100))
    assert done["settled"] == []
    (finding,) = done["findings"]
    assert "2 runs shared the job" in finding["message"]
    assert "100 s, and its log knows of 70.0 s" in finding["message"]


def share_a_job(tmp_path: Path, *, gpus: int = 4) -> None:
    """Let two runs of job 7 train one after the other, at ten dollars a GPU and second."""
    about: dict[str, Any] = {"price": "36000 USD/h", "node_gpus": gpus, "gpus": gpus}
    for name, span in (("a", (10, 40)), ("b", (50, 90))):
        leave_notice(name, own_log(tmp_path / name, span, **about), NOON_NS)


def test_the_rest_of_a_shared_job_is_a_row_of_its_own(tmp_path: Path) -> None:
    share_a_job(tmp_path)
    import_lines(tmp_path, line("7", 0, 100))
    costs = {run["model"]: 0 for run in listed_runs()}
    for run in listed_runs():
        costs[run["model"]] += run["cost_micros"] // 10**6
    assert costs == {"m": 10 * 4 * 70, "in no run": 10 * 4 * 30}


def test_the_gpus_that_no_run_of_a_job_had_are_in_no_run(tmp_path: Path) -> None:
    share_a_job(tmp_path, gpus=3)
    import_lines(tmp_path, line("7", 0, 100))
    assert sum(run["cost_micros"] for run in listed_runs()) == 10 * 4 * 100 * 10**6


def test_runs_that_claim_more_gpus_than_their_job_are_a_finding(tmp_path: Path) -> None:
    share_a_job(tmp_path, gpus=5)
    done = import_lines(tmp_path, line("7", 0, 100))
    assert any("0.02 GPU-hours more" in each["message"] for each in done["findings"])


def test_a_settled_job_that_turns_out_to_be_shared_is_not_counted_twice(tmp_path: Path) -> None:
    leave_notice("a", own_log(tmp_path / "a", (10, 40), price="36 USD/h"), NOON_NS)
    import_lines(tmp_path, line("7", 0, 100))
    own_log(tmp_path / "b", (50, 90), price="36 USD/h")
    assert outlay("collect", tmp_path / "b").code == 0
    assert sorted(run["cost_micros"] for run in listed_runs()) == [1_200_000, 1_600_000]


@pytest.mark.parametrize("order", ["import", "import collect import", "collect import collect"])
def test_a_shared_job_costs_what_it_had_in_any_order(tmp_path: Path, order: str) -> None:
    """The second run is known from the first import on or later, as the order has it."""
    leave_notice("a", own_log(tmp_path / "a", (10, 40), price="36 USD/h"), NOON_NS)
    import_lines(tmp_path, line("7", 0, 100))
    leave_notice("b", own_log(tmp_path / "b", (50, 90), price="36 USD/h"), NOON_NS)
    for command in order.split():
        if command == "collect":
            assert outlay("collect", tmp_path).code == 0
        else:
            import_lines(tmp_path, line("7", 0, 100))
    assert sum(run["cost_micros"] for run in listed_runs()) == 4 * 10**6


@pytest.mark.parametrize(
    ("name", "text"), [("spend.jsonl", ""), ("sweep_manifest.json", '{"book": "team.jsonl"}')]
)
def test_what_a_guard_captured_by_its_log_stays(tmp_path: Path, name: str, text: str) -> None:
    """The spend log of a sweep is its own, or a book that its manifest names."""
    own = own_log(tmp_path / "sweep" / "own", (10, 90))
    (tmp_path / "sweep" / name).write_text(text)
    leave_notice("own", own, NOON_NS)
    done = import_lines(tmp_path, line("7", 0, 100))
    assert (done["settled"], len(done["findings"])) == ([], 1)


@pytest.mark.parametrize(
    ("listed", "nodes"),
    [("n1", 1), ("n1,n2", 2), ("n[1-3,7]", 4), ("a[01-10],gpu4", 11), ("r[1-2]n[1-3]", 6), ("", 1)],
)
def test_nodes_are_counted_as_slurm_lists_them(listed: str, nodes: int) -> None:
    (job,) = accounts(line("7", 0, 100, nodes=listed)).jobs
    assert job.starts[0].node_count == nodes


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["import", "sacct", "nowhere.txt"], "No such file"),
        (["import", "sacct", "FILE", "--timezone", "Mars/Base"], "Europe/Paris"),
        (["rates", "set", "a,b", "1 USD/h"], "one partition"),
        (["rates", "set", "gpu", "cheap"], "RATE"),
        (["rates", "remove", "gpu"], "none has a rate"),
    ],
)
def test_invalid_arguments_are_refused_with_advice(
    file: Path, arguments: list[str], advice: str
) -> None:
    shown = outlay(*(str(file) if word == "FILE" else word for word in arguments))
    assert shown.code == 2
    assert advice in shown.err


def test_rates_are_set_shown_and_removed() -> None:
    outlay("rates", "set", "gpu", "1.20 USD/h")
    assert outlay("rates", "set", "cpu", "0.05 EUR/h", "--json").json == {
        "cpu": "0.05 EUR/h", "gpu": "1.20 USD/h",
    }  # fmt: skip
    assert outlay("rates", "remove", "cpu", "--json").json == {"gpu": "1.20 USD/h"}
    assert outlay("rates", "show").out.split() == [
        "partition",
        "per",
        "GPU-hour",
        "kind",
        "gpu",
        "1.20",
        "USD/h",
        "showback",
    ]


def test_damaged_rates_file_is_named_in_the_error(private_home: Path) -> None:
    (private_home / "rates.json").write_text("{")
    shown = outlay("rates", "show")
    assert shown.code == 2
    assert "rates.json" in shown.err


# Time in the queue

QUEUE = COLUMNS + "|Submit|Eligible"


def queued(line_of_job: str, submit: object, eligible: object) -> str:
    return f"{line_of_job}|{submit}|{eligible}"


def import_queued(tmp_path: Path, *lines: str) -> None:
    (tmp_path / "accounts.txt").write_text("\n".join([QUEUE, *lines]))
    import_file(tmp_path / "accounts.txt")


@pytest.mark.parametrize(
    ("submit", "eligible", "queue_s"),
    [
        (-70, -10, 10),  # It waited for another job before.
        (-70, "Unknown", 70),
        (-70, "", 70),
        (-70, 20, 70),
        (0, 0, 0),
        ("Unknown", "Unknown", None),
        ("no time", "9" * 40, None),
        (20, "None", None),
    ],
)
def test_a_job_waited_since_slurm_could_have_started_it(
    tmp_path: Path, submit: object, eligible: object, queue_s: float | None
) -> None:
    noon = NOON_NS // 10**9
    times = (noon + each if isinstance(each, int) else each for each in (submit, eligible))
    import_queued(tmp_path, queued(line("7", 0, 100), *times))
    (run,) = listed_runs()
    assert run["queue_s"] == queue_s
    assert run["scheduling_goodput"] == (None if queue_s is None else 100 / (100 + queue_s))
    assert run["gpu_hours"] == 400 / 3600


def test_waits_of_every_start_are_added_and_are_in_no_cost(tmp_path: Path) -> None:
    noon = NOON_NS // 10**9
    outlay("rates", "set", "gpu", "3600 USD/h")
    starts = line("7", 0, 60), line("7", 90, 160)
    import_queued(
        tmp_path,
        queued(starts[0], noon - 40, noon - 40),
        queued(starts[1], noon + 60, noon + 65),
    )
    (run,) = listed_runs()
    assert (run["queue_s"], run["allocated_ns"]) == (40 + 25, 130 * 10**9)
    assert run["cost_micros"] == 130 * 4 * 10**6


def test_accounts_without_their_columns_leave_the_queue_unknown_until_they_have_them(
    tmp_path: Path,
) -> None:
    import_lines(tmp_path, line("7", 0, 100))
    assert [run["queue_s"] for run in listed_runs()] == [None]
    import_queued(tmp_path, queued(line("7", 0, 100), NOON_NS // 10**9 - 7, ""))
    assert [run["queue_s"] for run in listed_runs()] == [7]


def test_a_run_in_a_job_has_the_wait_of_the_job_and_its_rest_in_no_run_has_none(
    tmp_path: Path,
) -> None:
    for name, span in (("a", (10, 40)), ("b", (50, 90))):
        leave_notice(name, own_log(tmp_path / name, span), NOON_NS)
    import_queued(tmp_path, queued(line("7", 0, 100), NOON_NS // 10**9 - 7, ""))
    assert {run["name"]: run["queue_s"] for run in listed_runs()} == {
        "m": None,
        "m in no run": None,
    }
    leave_notice("c", own_log(tmp_path / "c", (10, 40), job="9"), NOON_NS)
    import_queued(tmp_path, queued(line("9", 0, 100), NOON_NS // 10**9 - 7, ""))
    (run,) = (run for run in listed_runs() if run["run_id"] == "c")
    assert run["queue_s"] == 7
