"""From attempts to a rate: the prices in force, and who had the machine between attempts."""

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


# Prices in force


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


def test_of_two_prices_at_the_same_instant_the_later_line_counts() -> None:
    changes = [
        PriceChanged(t_ns=START_NS, price=dollars(per_hour), gpus=1, seq=seq)
        for seq, per_hour in ((1, 3), (2, 4))
    ]
    for order in (changes, changes[::-1]):
        life = Segment().heartbeat(H).life()
        life.fold(order)
        built = run_rates(derive_attempts([life]), START_NS).function
        assert built is not None
        assert built.rate_at(START_NS) == 4_000_000


def test_an_unpriced_attempt_costs_nothing_beside_a_priced_one() -> None:
    built = rates(attempt(0, 1, price=None, boot_id="a"), attempt(5, 1, boot_id="a"))
    assert built.function is not None
    assert pieces(built.function) == [(5, 6, 2.0, Basis.MEASURED)]
    assert [finding.message for finding in built.findings] == [
        "1 of 2 attempts have no price and are not charged"
    ]


def test_the_run_pays_in_the_first_currency_and_says_what_it_left_out() -> None:
    euros = PriceChanged(t_ns=START_NS + HOUR, price=Price(9_000_000, "EUR"), gpus=1)
    built = rates(attempt(0, 1, stopped_price=Price(1, "GBP")).add(euros).heartbeat(after=H))
    assert built.function is not None
    assert pieces(built.function) == [(0, 2, 2.0, Basis.MEASURED)]
    assert [finding.message for finding in built.findings] == [
        "a price in EUR is not counted: the run pays in USD",
        "a price in GBP is not counted: the run pays in USD",
    ]


def test_outside_its_pieces_the_rate_is_nothing() -> None:
    built = function(attempt(1, 1))
    assert [built.rate_at(START_NS + ns(h * H)) for h in (0, 1, 1.5, 2)] == [0, 2e6, 2e6, 0]


# Between attempts

JOB: dict[str, Any] = {"slurm_job": "17"}
ON_A: dict[str, Any] = {"boot_id": "a"}


@pytest.mark.parametrize(
    ("before", "after", "per_hour", "basis"),
    [
        ({}, {}, 2, Basis.ASSUMED),
        (ON_A, ON_A, 2, Basis.MEASURED),
        (ON_A, {"boot_id": "b"}, 2, Basis.ASSUMED),
        (ON_A | {"gpus": 8}, ON_A, 8, Basis.MEASURED),
        ({"stopped_price": dollars(0.25)}, {}, 0.5, Basis.STATED),
        ({"stopped_price": dollars(0)}, {}, 0, Basis.STATED),
        ({"stopped_price": dollars(0.25)} | ON_A, ON_A, 2, Basis.MEASURED),
        ({"stopped_price": Price(7, "EUR")}, {}, 2, Basis.ASSUMED),
        (JOB | {"launch": "slurm-17-0"}, JOB | {"launch": "slurm-17-1"}, 0, Basis.UNBILLED),
        (JOB | {"launch": "slurm-17-0"}, JOB | {"launch": "slurm-17-0"}, 2, Basis.ASSUMED),
        (JOB | ON_A | {"launch": "slurm-17-0"}, JOB | ON_A | {"launch": "slurm-17-0"}, 2,
         Basis.MEASURED),
        (JOB | ON_A | {"launch": "slurm-17-0"}, JOB | ON_A | {"launch": "slurm-17-1"}, 0,
         Basis.UNBILLED),
        (JOB | {"launch": "slurm-17-0"}, {"launch": "slurm-17-1"}, 2, Basis.ASSUMED),
    ],
)  # fmt: skip
def test_who_had_the_machine_between_two_attempts_decides(
    before: dict[str, Any], after: dict[str, Any], per_hour: float, basis: Basis
) -> None:
    built = function(attempt(0, 1, **before), attempt(5, 1, **after))
    assert pieces(built)[1] == (1, 5, per_hour, basis)


@pytest.mark.parametrize(
    ("launches", "basis"),
    [
        (("torchelastic-j-0", "torchelastic-j-1"), Basis.MEASURED),
        (("torchelastic-j-2", "torchelastic-j-0"), Basis.UNBILLED),
        (("torchelastic-j-0", "torchelastic-k-1"), Basis.UNBILLED),
        (("torchelastic-j-0", "slurm-17-1"), Basis.UNBILLED),
        (("torchelastic-j-", "torchelastic-j-1"), Basis.UNBILLED),
    ],
)
def test_torchrun_restarting_its_workers_inside_a_job_keeps_the_machine(
    launches: tuple[str, str], basis: Basis
) -> None:
    before, after = (JOB | ON_A | {"launch": launch} for launch in launches)
    assert pieces(function(attempt(0, 1, **before), attempt(5, 1, **after)))[1][3] is basis


@pytest.mark.parametrize(
    ("end", "gap"),
    [
        ("completed", []),
        ("preempted", [(1, 5, 0.0, Basis.UNBILLED)]),
        ("failed", [(1, 5, 2.0, Basis.MEASURED)]),
        ("interrupted", [(1, 5, 2.0, Basis.MEASURED)]),
        ("terminated", [(1, 5, 2.0, Basis.MEASURED)]),
    ],
)
def test_how_an_attempt_ended_decides_whether_its_machine_is_kept(
    end: EndStatus, gap: list[tuple[float, float, float, Basis]]
) -> None:
    built = function(attempt(0, 1, end, **ON_A), attempt(5, 1, **ON_A))
    assert pieces(built) == [(0, 1, 2.0, Basis.MEASURED), *gap, (5, 6, 2.0, Basis.MEASURED)]


def test_the_gap_costs_what_the_attempt_cost_last() -> None:
    first = attempt(0, 1, **ON_A).price(5, gpus=3).heartbeat(after=H)
    built = function(first, attempt(5, 1, **ON_A))
    assert pieces(built)[2] == (2, 5, 15.0, Basis.MEASURED)


def test_a_stopped_price_is_paid_for_as_many_gpus_as_there_were_last() -> None:
    first = attempt(0, 1, stopped_price=dollars(0.25)).price(5, gpus=3).heartbeat(after=H)
    assert pieces(function(first, attempt(5, 1)))[2] == (2, 5, 0.75, Basis.STATED)


def test_an_assumption_says_what_was_assumed_and_for_how_long() -> None:
    built = function(attempt(0, 1), attempt(5, 1))
    (assumption,) = built.assumptions
    assert (assumption.start_ns, assumption.end_ns) == (START_NS + HOUR, START_NS + 5 * HOUR)
    assert "assumed" in assumption.text


@pytest.mark.parametrize("known", [ON_A, {"stopped_price": dollars(0.25)}])
def test_what_is_known_is_no_assumption(known: dict[str, Any]) -> None:
    assert function(attempt(0, 1, **known), attempt(5, 1, **known)).assumptions == ()


def test_beyond_the_last_sign_the_price_is_carried_on_as_an_assumption() -> None:
    assert pieces(function(attempt(0, 1), until=3 * H))[1] == (1, 3, 2.0, Basis.ASSUMED)


def test_nothing_is_charged_after_a_run_that_completed() -> None:
    assert pieces(function(attempt(0, 1, "completed"), until=9 * H)) == [
        (0, 1, 2.0, Basis.MEASURED)
    ]
