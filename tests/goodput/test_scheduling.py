"""Time in a cluster's queue: known by start, summed exactly, never billed, blank where unknown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import in_process
from ledgers import SECOND, START_NS, Segment, dollars, ns, scratch_dir
from outlay.goodput.scheduling import Scheduling, scheduling_of
from outlay.ledger import SUPERVISOR, derive_attempts
from outlay.runs.figures import BY_NAME
from outlay.runs.reading import read_figures
from outlay.store.run_row import RunRow

NOW_NS = START_NS + 10**6 * SECOND


@dataclass(frozen=True)
class Job:
    """A job of a run, in seconds.

    Attributes:
        before: Time before it is submitted, in which the run has no job.
        starts: For each start the wait for it, and its attempts, a second apart.
    """

    before: int
    starts: list[tuple[int, list[int]]]


seconds = st.integers(0, 50)
lengths = st.lists(st.integers(1, 30), min_size=1, max_size=3)
jobs = st.builds(
    Job, before=st.integers(1, 9), starts=st.lists(st.tuples(seconds, lengths), min_size=1,
                                                   max_size=3)
)  # fmt: skip


def labels_of(history: list[Job]) -> str:
    """Return what every second of a history is: Queued, Allocated, or none of both."""
    shown = ""
    for job in history:
        shown += "-" * job.before
        for wait, attempts in job.starts:
            shown += "Q" * wait + "-".join("A" * length for length in attempts).replace("-", "A")
    return shown


def write(run_dir: Path, history: list[Job], *, by_rank: bool, queued: bool = True) -> None:
    """Write the log of a history; what begins a job is known by a rank or by a supervisor."""
    now = 0
    for number, job in enumerate(history):
        now += job.before
        queued_ns = START_NS + ns(now) if queued else 0
        for restart, (wait, attempts) in enumerate(job.starts):
            now += wait
            about: dict[str, Any] = {
                "slurm_job": str(number), "slurm_restart": str(restart), "nodes": 1,
                "price": dollars(3600), "boot_id": f"{number}-{restart}",
            }  # fmt: skip
            known = {"queued_ns": 0 if restart else queued_ns}
            whole = sum(attempts) + len(attempts) - 1
            if not by_rank:
                watcher = Segment(start=now, rank=SUPERVISOR, about=about | known)
                watcher.after(whole).end("failed").write(run_dir)
            for length in attempts:
                rank = Segment(start=now, about=about | (known if by_rank else {}))
                rank.step(length).end("failed").write(run_dir)
                now += length + 1
            now -= 1


def figures(history: list[Job], **how: bool) -> RunRow:
    with scratch_dir() as where:
        write(Path(where), history, **how)
        return read_figures(Path(where), NOW_NS)


@given(st.lists(jobs, min_size=1, max_size=3), st.booleans())
def test_every_second_is_queued_allocated_or_neither(history: list[Job], by_rank: bool) -> None:
    row, labels = figures(history, by_rank=by_rank), labels_of(history)
    assert row.queue_ns == labels.count("Q") * SECOND
    assert row.allocated_ns == labels.count("A") * SECOND
    share = labels.count("A") / (len(labels) - labels.count("-"))
    assert BY_NAME["scheduling_goodput"].of(row) == pytest.approx(share, abs=1e-12)


@given(st.lists(jobs, min_size=1, max_size=3), st.booleans())
def test_waiting_changes_neither_cost_nor_wall_time(history: list[Job], by_rank: bool) -> None:
    row = figures(history, by_rank=by_rank)
    unknown = figures(history, by_rank=by_rank, queued=False)
    assert (unknown.queue_ns, unknown.allocated_ns) == (None, None)
    assert BY_NAME["scheduling_goodput"].of(unknown) is None
    names = ("cost", "assumed", "wasted", "wall_ns", "gpu_ns", "attempts", "goodput", "findings")
    assert [getattr(row, name) for name in names] == [getattr(unknown, name) for name in names]


def of(*segments: Segment) -> Scheduling | None:
    return scheduling_of(derive_attempts(segment.life() for segment in segments))


def attempt(start: float, end: float, job: str = "7", restart: int = 0, **about: Any) -> Segment:
    facts = {"slurm_job": job, "slurm_restart": str(restart), "nodes": 1} | about
    return Segment(start=start, about=facts).after(end - start).end("failed")


def queued_at(start: float) -> dict[str, Any]:
    return {"queued_ns": START_NS + ns(start)}


def test_a_run_outside_of_a_cluster_has_no_queue() -> None:
    assert of(attempt(10, 20, job="")) is None


def test_a_queue_of_no_time_is_known_to_be_none() -> None:
    assert of(attempt(10, 20, **queued_at(10))) == Scheduling(queue_ns=0, allocated_ns=10 * SECOND)


def test_a_start_without_a_log_makes_the_wait_after_it_unknown() -> None:
    first = attempt(10, 20, **queued_at(5))
    assert of(first, attempt(50, 60, restart=2)) is None
    assert of(first, attempt(50, 60, restart=1)) == Scheduling(
        queue_ns=35 * SECOND, allocated_ns=20 * SECOND
    )


def test_one_job_of_which_nothing_is_known_makes_the_whole_unknown() -> None:
    assert of(attempt(10, 20, **queued_at(5)), attempt(50, 60, job="8")) is None


def test_another_cluster_than_slurm_has_a_queue_too() -> None:
    waited = of(attempt(10, 20, job="", **queued_at(5)), attempt(22, 30, job="", **queued_at(5)))
    assert waited == Scheduling(queue_ns=5 * SECOND, allocated_ns=20 * SECOND)


def test_a_job_that_began_before_it_was_queued_is_a_finding_and_no_time(tmp_path: Path) -> None:
    attempt(10, 20, **queued_at(11)).write(tmp_path)
    row = read_figures(tmp_path, NOW_NS)
    assert (row.queue_ns, row.allocated_ns) == (None, None)
    (finding,) = row.findings
    assert "queued after it began" in finding.message


def test_the_accounts_decide_since_when_a_job_waited() -> None:
    own = attempt(10.2, 20.1, **queued_at(5))
    accounts = Segment(
        start=10, rank=SUPERVISOR,
        about={"launch": "sacct-7-0", "slurm_job": "7", "nodes": 1, **queued_at(2)},
    ).after(10).end()  # fmt: skip
    waited = of(own, accounts)
    assert waited is not None
    assert waited.queue_ns + waited.allocated_ns == ns(18.1)


def test_queue_time_is_a_column_and_a_line_of_the_report(tmp_path: Path) -> None:
    attempt(100, 200, run_id="a", **queued_at(70)).write(tmp_path / "known")
    attempt(100, 200, run_id="b").write(tmp_path / "unknown")
    for name in ("known", "unknown"):
        assert in_process("collect", tmp_path / name).code == 0
    listed = in_process("runs", "--all", "--columns", "dir,queue_s,scheduling_goodput", "--json")
    found = {Path(row["dir"]).name: row for row in listed.json["runs"]}
    assert (found["known"]["queue_s"], found["unknown"]["queue_s"]) == (30, None)
    assert found["known"]["scheduling_goodput"] == pytest.approx(100 / 130)
    shown = in_process("goodput", tmp_path / "known").out
    text = "queue time 30.0s in the cluster's queue, not billed; scheduling goodput 76.9%"
    assert text in " ".join(shown.split())
    assert "queue" not in in_process("goodput", tmp_path / "unknown").out
