"""A cluster's accounts become runs: read line by line, priced by partition, imported once."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlay as outlay_package
from command_line import outlay
from outlay.errors import InvalidValue
from outlay.runs.sacct import Accounts, read_accounts, read_gpus

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
    assert [stay.status for stay in job.stays] == ["preempted", "completed"]
    assert job.gpu_ns == 4 * HOUR_NS


def test_the_same_line_twice_is_one_start() -> None:
    (job,) = accounts(ONE, ONE).jobs
    assert len(job.stays) == 1


def test_steps_are_parts_of_jobs_and_those_that_never_ran_used_nothing() -> None:
    step = ONE.replace("7|7|", "7.batch|7.batch|")
    never = "9|9|x|ada|nlp|gpu|c|CANCELLED by 7|Unknown|2026-10-03T12:00:00||"
    found = accounts(step, never)
    assert (found.jobs, found.unfinished, found.findings) == ((), 0, ())


def test_one_that_still_runs_is_counted_and_left_for_later() -> None:
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


def test_a_file_of_another_kind_says_with_which_command_to_write_one() -> None:
    with pytest.raises(InvalidValue, match="sacct --parsable2"):
        read_accounts("JobID|State\n1|RUNNING\n", source="jobs.txt")


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
    starts = {accounts(line).jobs[0].stays[0].start_ns for line in (ONE, seconds, zoned)}
    assert starts == {1_791_028_800 * 10**9}
    east = read_accounts(f"{COLUMNS}\n{ONE}", source="", zone=timezone(timedelta(hours=2)))
    assert east.jobs[0].stays[0].start_ns == (1_791_028_800 - 7200) * 10**9


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


def test_jobs_without_a_rate_are_registered_and_say_what_to_set(file: Path) -> None:
    shown = outlay("import", "sacct", file, "--timezone", "UTC")
    assert 'outlay rates set gpu "1.20 USD/h"' in " ".join(shown.out.split())
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
def test_what_cannot_be_used_is_refused(file: Path, arguments: list[str], advice: str) -> None:
    shown = outlay(*(str(file) if word == "FILE" else word for word in arguments))
    assert shown.code == 2
    assert advice in shown.err


def test_rates_are_set_shown_and_forgotten() -> None:
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


def test_a_rates_file_that_was_damaged_says_so(private_home: Path) -> None:
    (private_home / "rates.json").write_text("{")
    shown = outlay("rates", "show")
    assert shown.code == 2
    assert "rates.json" in shown.err
