"""Where the library that outlay replaces is wrong: each row of the how-to's table, computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from goodput_log import START_S, Job, at
from outlay.compat.ml_goodput_measurement.calculator import GoodputCalculator
from outlay.compat.ml_goodput_measurement.goodput_utils import BadputType

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "ml-goodput-measurement.md"
RESTART = Job().start(0).steps(0, 100, at=0).start(3700).steps(100, 100, at=3700).end(3800)


def percent(found: float) -> str:
    return f"{found:.1f} %"


def goodput(job: Job, now: float) -> str:
    return percent(job.calculator(now=now).get_job_goodput()[0])


def seconds(job: Job, now: float, kind: BadputType) -> str:
    calculator = job.calculator(now=now)
    calculator.get_job_goodput(include_badput_breakdown=True)
    found = calculator.get_job_goodput_details()["badput_time"][kind]
    return f"{sum(found.values()) if isinstance(found, dict) else found:g} s"


def window(calculator: GoodputCalculator, begin: float, end: float) -> str:
    return percent(calculator.get_job_goodput_interval(at(begin), at(end))[0])


def disruptions(job: Job, now: float) -> str:
    return str(job.calculator(now=now).get_job_goodput_interval(at(0), at(now))[4])


def loading() -> Job:
    job = Job()
    for number in range(4):
        begin = 13 * number
        job.start(begin).span("data_loading", begin, begin + 2)
        job.steps(10 * number, 11, at=begin + 2)
    return job.end(52)


def delivered_twice() -> Job:
    job = Job().start(0).steps(0, 50, at=0)
    job.payloads.append(dict(job.payloads[30]))
    return job.end(50)


def overlapping() -> Job:
    job = Job().start(0).steps(0, 10, at=0).custom("a", 10, 18).custom("b", 11, 17)
    return job.steps(10, 10, at=19).end(29)


def killed_while_saving() -> Job:
    save = {"event_type": "save", "step": 49, "directory": "gs://b"}
    job = Job().start(0).steps(0, 50, at=0)
    return job.add(checkpoint_start_time=START_S + 49, **save).end(50)


def short_steps() -> str:
    job = Job().start(0).steps(0, 50, at=0, each=0.5).end(25)
    return f"{len(job.calculator(now=25).get_step_deviation())} deviations"


def ending_late() -> Job:
    return Job().start(0).span("tpu_init", 0, 1).steps(0, 5, at=6, each=3).end(26)


def restarted() -> Job:
    job = Job().start(0).steps(0, 5, at=10, each=3)
    return job.start(30).steps(2, 3, at=35, each=3).end(44)


def excluded() -> str:
    job = Job().start(0).span("training_prep", 0, 10).step(0, 20).end(25)
    found = job.calculator(now=25).get_job_goodput_with_exclusions([(at(5), at(15))])
    return f"{found[3]:g} s"


def saved_before_the_job() -> str:
    timing = {
        "checkpoint_manager_blocking_start_time": START_S - 100,
        "checkpoint_manager_blocking_duration_secs": 6.0,
    }
    job = Job().start(0).steps(0, 50, at=0).add(event_type="save", step=1, **timing).end(50)
    return seconds(job, 50, BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME)


ANSWERS: dict[str, Callable[[], str]] = {
    "a restart at the next step after an hour down, 200 s of steps": lambda: goodput(RESTART, 3800),
    "the disruptions of that job": lambda: disruptions(RESTART, 3800),
    "a window of an hour, dead after ten minutes": lambda: window(
        Job().start(0).steps(0, 601, at=0).calculator(now=3600), 0, 3600
    ),
    "a window inside an outage": lambda: window(RESTART.calculator(now=3800), 1000, 2000),
    "one step of 1000 s in a job of 1200 s": lambda: goodput(
        Job().start(0).steps(0, 101, at=0).steps(101, 100, at=1100).end(1200), 1200
    ),
    "blocking loads of 2 s at four starts": lambda: seconds(
        loading(), 52, BadputType.DATA_LOADING_SYNC
    ),
    "custom events of 8 s and, within, of 6 s": lambda: seconds(
        overlapping(), 29, BadputType.CUSTOM_BADPUT_EVENTS
    ),
    "the disruptions of a job, one entry delivered twice": lambda: disruptions(
        delivered_twice(), 50
    ),
    "a job that was killed while it saved": lambda: goodput(killed_while_saving(), 50),
    "the deviation of 50 steps of 0.5 s": short_steps,
    "five steps of 3 s, 5 s before and 5 s after them, and a second of initialisation": lambda: (
        goodput(ending_late(), 26)
    ),
    "the length of a window of 25 s that ends with the last step of an attempt": lambda: (
        f"{restarted().calculator(now=44).get_job_goodput_interval(at(0), at(25))[3]:g} s"
    ),
    "an exclusion of 10 s, half of it in the training's preparation": excluded,
    "a save of 6 s that is dated before the job": saved_before_the_job,
}


def table() -> dict[str, str]:
    """Return outlay's column of the how-to's table, by what each row is about."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+? \|$", PAGE.read_text(), flags=re.MULTILINE)
    return {about: said for about, said in rows if about in ANSWERS}


@pytest.mark.parametrize("about", ANSWERS)
def test_a_row_of_the_differences_is_what_outlay_answers(about: str) -> None:
    assert table().get(about) == ANSWERS[about]()
