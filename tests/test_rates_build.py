"""From attempts to a rate: prices in force, and what is owed between attempts."""

from __future__ import annotations

from typing import Any

import pytest

from ledgers import HOUR, START_NS, Segment, dollars, ns
from outlay.ledger import EndStatus, Price, PriceChanged, derive_attempts
from outlay.rates import Basis, RateFunction, RunRates, run_rates
from outlay.units import Money

H = 3600


def rates(*segments: Segment, until: float | None = None) -> RunRates:
    attempts = derive_attempts(segment.life() for segment in segments)
    until_ns = attempts[-1].last_sign_ns if until is None else START_NS + ns(until)
    return run_rates(attempts, until_ns)


def function(*segments: Segment, until: float | None = None) -> RateFunction:
    built = rates(*segments, until=until).function
    assert built is not None
    return built


def pieces(built: RateFunction) -> list[tuple[float, float, float, Basis]]:
    """Return the pieces as hours from the start and dollars per hour."""
    return [
        (
            (p.start_ns - START_NS) / HOUR,
            (p.end_ns - START_NS) / HOUR,
            p.micros_per_hour / 1e6,
            p.basis,
        )
        for p in built.pieces
    ]


def attempt(start_h: float, hours: float, end: EndStatus | None = None, **about: Any) -> Segment:
    """Return an attempt at 1 USD an hour for each of 2 GPUs."""
    facts = {"price": dollars(1), "gpus": 2, "pid": round(start_h)} | about
    story = Segment(start=start_h * H, about=facts).heartbeat(after=hours * H)
    return story if end is None else story.end(end)


def test_without_a_price_there_is_no_rate() -> None:
    assert rates(Segment().step(1)).function is None


def test_an_attempt_costs_its_price_for_each_gpu() -> None:
    assert pieces(function(attempt(0, 3))) == [(0, 3, 2.0, Basis.MEASURED)]


def test_other_ranks_are_not_charged_again() -> None:
    leader, follower = attempt(0, 3), attempt(0, 3, rank=1)
    assert function(leader, follower).cost_between(0, 2**62) == Money(6_000_000)


def test_a_price_change_holds_from_its_instant() -> None:
    story = Segment(about={"price": dollars(1), "gpus": 1})
    story.price(3, gpus=4, after=H).heartbeat(after=2 * H)
    assert pieces(function(story)) == [
        (0, 1, 1.0, Basis.MEASURED),
        (1, 3, 12.0, Basis.MEASURED),
    ]


def test_a_price_that_came_later_charges_nothing_before_and_says_so() -> None:
    built = rates(Segment().price(3, after=H).heartbeat(after=H))
    assert built.function is not None
    assert pieces(built.function) == [(1, 2, 3.0, Basis.MEASURED)]
    assert [finding.message for finding in built.findings] == [
        "an attempt had no price in its first 1h00m, which are not charged"
    ]


def test_a_program_may_look_its_price_up_first() -> None:
    assert rates(Segment().price(3, after=0.5).heartbeat(after=H)).findings == ()


def test_a_slurm_requeue_is_not_billed() -> None:
    first = attempt(0, 1, slurm_job="17", launch="slurm-17-0")
    second = attempt(5, 1, slurm_job="17", launch="slurm-17-1")
    assert pieces(function(first, second))[1] == (1, 5, 0.0, Basis.UNBILLED)


def test_a_restart_inside_a_slurm_job_is_billed() -> None:
    job: dict[str, Any] = {"slurm_job": "17", "launch": "slurm-17-0", "boot_id": "a"}
    assert pieces(function(attempt(0, 1, **job), attempt(5, 1, **job)))[1][2:] == (
        2.0,
        Basis.MEASURED,
    )


def test_a_stated_reclaim_is_not_billed() -> None:
    first, second = attempt(0, 1, "preempted", boot_id="a"), attempt(5, 1, boot_id="a")
    assert pieces(function(first, second))[1] == (1, 5, 0.0, Basis.UNBILLED)


def test_the_same_machine_still_up_is_billed() -> None:
    built = function(attempt(0, 1, boot_id="a"), attempt(5, 1, boot_id="a"))
    assert pieces(built)[1] == (1, 5, 2.0, Basis.MEASURED)
    assert built.assumptions == ()


def test_another_machine_is_assumed_billed_and_said_so() -> None:
    built = function(attempt(0, 1, boot_id="a"), attempt(5, 1, boot_id="b"))
    assert pieces(built)[1] == (1, 5, 2.0, Basis.ASSUMED)
    (assumption,) = built.assumptions
    assert (assumption.start_ns, assumption.end_ns) == (START_NS + HOUR, START_NS + 5 * HOUR)
    assert "assumed" in assumption.text


def test_machines_without_a_boot_id_are_not_the_same() -> None:
    assert pieces(function(attempt(0, 1), attempt(5, 1)))[1][3] is Basis.ASSUMED


def test_a_stopped_price_settles_it() -> None:
    built = function(attempt(0, 1, stopped_price=dollars(0.25)), attempt(5, 1))
    assert pieces(built)[1] == (1, 5, 0.5, Basis.STATED)
    assert built.assumptions == ()


def test_a_stopped_price_of_nothing_is_a_price() -> None:
    built = function(attempt(0, 1, stopped_price=Price(0)), attempt(5, 1))
    assert pieces(built)[1] == (1, 5, 0.0, Basis.STATED)


def test_after_a_completed_attempt_nothing_is_owed() -> None:
    built = function(attempt(0, 1, "completed", boot_id="a"), attempt(5, 1, boot_id="a"))
    assert pieces(built) == [(0, 1, 2.0, Basis.MEASURED), (5, 6, 2.0, Basis.MEASURED)]


@pytest.mark.parametrize("end", ["failed", "interrupted", "terminated"])
def test_after_any_other_end_the_machine_is_kept(end: EndStatus) -> None:
    built = function(attempt(0, 1, end, boot_id="a"), attempt(5, 1, boot_id="a"))
    assert pieces(built)[1] == (1, 5, 2.0, Basis.MEASURED)


def test_the_gap_costs_what_the_attempt_cost_last() -> None:
    first = attempt(0, 1, boot_id="a").price(5, gpus=3).heartbeat(after=H)
    built = function(first, attempt(5, 1, boot_id="a"))
    assert pieces(built)[2] == (2, 5, 15.0, Basis.MEASURED)


def test_an_unpriced_attempt_costs_nothing_beside_a_priced_one() -> None:
    built = rates(attempt(0, 1, price=None, boot_id="a"), attempt(5, 1, boot_id="a"))
    assert built.function is not None
    assert pieces(built.function) == [(5, 6, 2.0, Basis.MEASURED)]
    assert [finding.message for finding in built.findings] == [
        "1 of 2 attempts have no price and are not charged"
    ]


def test_a_price_in_another_currency_is_a_finding_and_not_counted() -> None:
    euros = PriceChanged(t_ns=START_NS + HOUR, price=Price(9_000_000, "EUR"), gpus=1)
    built = rates(attempt(0, 1).add(euros).heartbeat(after=H))
    assert built.function is not None
    assert pieces(built.function) == [(0, 2, 2.0, Basis.MEASURED)]
    assert [finding.message for finding in built.findings] == [
        "a price in EUR is not counted: the run pays in USD"
    ]


def test_beyond_the_last_sign_the_price_is_carried_on_as_an_assumption() -> None:
    assert pieces(function(attempt(0, 1), until=3 * H))[1] == (1, 3, 2.0, Basis.ASSUMED)


def test_outside_its_pieces_the_rate_is_nothing() -> None:
    built = function(attempt(1, 1))
    assert [built.rate_at(START_NS + ns(h * H)) for h in (0, 1, 1.5, 2)] == [0, 2e6, 2e6, 0]
