"""The status of a run after an attempt."""

from __future__ import annotations

import pytest

from outlay.sweep.engines.base import Ended
from outlay.sweep.state.outcomes import RunVerdict, judge

STOPPED = RunVerdict("cancelled", "the sweep was cancelled")


@pytest.mark.parametrize(
    ("ended", "logged", "status"),
    [
        (Ended(how="exited", returncode=0), "completed", "completed"),
        (Ended(how="exited", returncode=0), None, "completed"),
        (Ended(how="exited", returncode=1), None, "error"),
        (Ended(how="exited", returncode=-9), "dead", "error"),
        (Ended(how="exited", returncode=0), "preempted", "preempted"),
        (Ended(how="exited", returncode=75), "preempted", "preempted"),
        (Ended(how="preempted"), None, "preempted"),
        (Ended(how="exited", returncode=0, asked=True), "terminated", "cancelled"),
        (Ended(how="exited", returncode=0, asked=True), "completed", "completed"),
        (Ended(how="exited", returncode=0, asked=True), "preempted", "cancelled"),
        (Ended(how="lost"), None, "cancelled"),
        (Ended(how="not_started"), None, "error"),
    ],
)
def test_the_verdict_combines_exit_status_and_log(
    ended: Ended, logged: str | None, status: str
) -> None:
    assert judge(ended, None, logged).status == status


def test_a_run_that_the_harness_stopped_keeps_that_reason() -> None:
    assert judge(Ended(how="exited", returncode=-15, asked=True), STOPPED, None) == STOPPED
    assert judge(Ended(how="exited", returncode=0, asked=True), STOPPED, "preempted") == STOPPED


def test_a_signal_is_named() -> None:
    assert judge(Ended(how="exited", returncode=-9), None, None).reason == "killed by SIGKILL"


TIMEOUT = RunVerdict("error", "timeout: not done after 1h")


@pytest.mark.parametrize(
    ("ended", "stopped", "logged", "status"),
    [
        (Ended(how="exited", returncode=0, asked=True), STOPPED, "preempted", "completed"),
        (Ended(how="exited", returncode=-15, asked=True), STOPPED, "terminated", "completed"),
        (Ended(how="exited", returncode=-9, asked=True), STOPPED, None, "completed"),
        (Ended(how="exited", returncode=-15, asked=True), None, None, "completed"),
        (Ended(how="exited", returncode=0, reason="overdue"), None, "preempted", "completed"),
        (Ended(how="exited", returncode=-15, asked=True), TIMEOUT, "terminated", "error"),
        (Ended(how="exited", returncode=1), None, "failed", "error"),
        (Ended(how="lost"), None, None, "cancelled"),
    ],
)
def test_a_run_that_reached_its_budget_is_completed_if_it_was_told_to_end_afterwards(
    ended: Ended, stopped: RunVerdict | None, logged: str | None, status: str
) -> None:
    assert judge(ended, stopped, logged, reached_budget=True).status == status
    assert judge(ended, stopped, logged).status != "completed"
