"""What is said before it starts."""

from __future__ import annotations

from outlay.pausing.expectation import job_of, replay
from outlay.pausing.pause_plan import PausePlan, RunProgress
from outlay.policy.policies import FixedThreshold
from outlay.policy.simulation import PriceChange
from outlay.units import Money, Rate

HOUR_NS = 3600 * 10**9
CHEAP, DEAR = Rate.parse("1 USD/h"), Rate.parse("2 USD/h")


def plan(stopped: str) -> PausePlan:
    return PausePlan(
        policy=FixedThreshold(below=CHEAP),
        deadline_ns=8 * HOUR_NS,
        work_ns=4 * HOUR_NS,
        stopped=Rate.parse(stopped),
    )


def history(hours: int) -> list[PriceChange]:
    """Two dear hours, two cheap ones, and so on."""
    return [PriceChange(n * HOUR_NS, (DEAR, DEAR, CHEAP, CHEAP)[n % 4]) for n in range(hours)]


def test_a_replay_pays_for_running_and_for_pauses() -> None:
    mine = plan("0.25 USD/h")
    job = job_of(mine, RunProgress(begun_ns=0, left_ns=4 * HOUR_NS), 0)
    assert job is not None
    found = replay(mine, history(8), job)
    assert found is not None
    # It waits 2 h, runs 2, pauses 2, runs 2: 4 h at 1 USD, and 4 h at the stopped price.
    assert (found.starts, found.cost, found.later_ns) == (1, Money.parse("5"), 4 * HOUR_NS)
    assert found.always_on == Money.parse("6")
    assert (found.pauses, found.late) == (1, 0)


def test_starts_are_spread_over_a_longer_history() -> None:
    mine = plan("0 USD/h")
    job = job_of(mine, RunProgress(begun_ns=0, left_ns=4 * HOUR_NS), 0)
    assert job is not None
    found = replay(mine, history(200), job)
    assert found is not None
    assert found.starts == 30
    assert found.cost < found.always_on


def test_one_stored_price_is_nothing_to_replay() -> None:
    mine = plan("0 USD/h")
    job = job_of(mine, RunProgress(begun_ns=0, left_ns=4 * HOUR_NS), 0)
    assert job is not None
    assert replay(mine, history(1), job) is None
