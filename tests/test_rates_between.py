"""What the time between two attempts costs: who had the machine?"""

from __future__ import annotations

from typing import Any

import pytest

from ledgers import HOUR, START_NS, Segment, dollars
from outlay.ledger import EndStatus, Price, PriceChanged, derive_attempts
from outlay.rates import Basis, RateFunction, RatePiece, RunRates, run_rates


def rates_of(*segments: Segment, hours: float = 0) -> RunRates:
    attempts = derive_attempts(segment.life() for segment in segments)
    return run_rates(attempts, max(attempts[-1].last_sign_ns, START_NS + round(hours * HOUR)))


def function_of(*segments: Segment, hours: float = 0) -> RateFunction:
    function = rates_of(*segments, hours=hours).function
    assert function is not None
    return function


def gap_between(
    before: dict[str, Any], after: dict[str, Any], status: EndStatus = "failed"
) -> RatePiece:
    """Return how the second of three hours is charged: the machine cost 2 dollars before it."""
    first = Segment(about={"price": dollars(2), **before}).heartbeat(after=3600).end(status)
    second = Segment(start=7200, about={"price": dollars(5), "pid": 8, **after}).heartbeat(3600)
    function = function_of(first, second)
    at_ns = START_NS + HOUR
    return next(piece for piece in function.pieces if piece.start_ns == at_ns)


JOB = {"slurm_job": "42"}


@pytest.mark.parametrize(
    ("before", "after", "dollars_per_hour", "basis"),
    [
        ({}, {}, 2, Basis.ASSUMED),
        ({"boot_id": "b"}, {"boot_id": "b"}, 2, Basis.MEASURED),
        ({"boot_id": "b"}, {"boot_id": "c"}, 2, Basis.ASSUMED),
        ({"boot_id": "b", "gpus": 8}, {"boot_id": "b"}, 16, Basis.MEASURED),
        ({"stopped_price": dollars(0.5)}, {}, 0.5, Basis.STATED),
        ({"stopped_price": dollars(0)}, {}, 0, Basis.STATED),
        ({"stopped_price": dollars(0.5), "boot_id": "b"}, {"boot_id": "b"}, 2, Basis.MEASURED),
        ({"stopped_price": Price(7, "EUR")}, {}, 2, Basis.ASSUMED),
        (JOB | {"launch": "slurm-42-0"}, JOB | {"launch": "slurm-42-1"}, 0, Basis.UNBILLED),
        (JOB | {"launch": "slurm-42-0"}, JOB | {"launch": "slurm-42-0"}, 2, Basis.ASSUMED),
        (JOB | {"launch": "slurm-42-0"}, {"launch": "slurm-42-1"}, 2, Basis.ASSUMED),
    ],
)
def test_who_had_the_machine_decides(
    before: dict[str, Any], after: dict[str, Any], dollars_per_hour: float, basis: Basis
) -> None:
    gap = gap_between(before, after)
    assert (gap.micros_per_hour, gap.basis) == (dollars_per_hour * 10**6, basis)


def test_a_requeue_on_the_same_machine_is_not_billed_either() -> None:
    same = JOB | {"boot_id": "b"}
    gap = gap_between(same | {"launch": "slurm-42-0"}, same | {"launch": "slurm-42-1"})
    assert gap.basis is Basis.UNBILLED


def test_a_stated_reclaim_is_not_billed() -> None:
    assert gap_between({"boot_id": "b"}, {"boot_id": "b"}, "preempted").basis is Basis.UNBILLED


@pytest.mark.parametrize(
    ("launches", "basis"),
    [
        (("torchelastic-j-0", "torchelastic-j-1"), Basis.MEASURED),
        (("torchelastic-j-2", "torchelastic-j-0"), Basis.UNBILLED),
        (("torchelastic-j-0", "torchelastic-k-1"), Basis.UNBILLED),
        (("torchelastic-j-0", "slurm-42-1"), Basis.UNBILLED),
        (("torchelastic-j-", "torchelastic-j-1"), Basis.UNBILLED),
    ],
)
def test_torchrun_restarting_its_workers_inside_a_job_keeps_the_machine(
    launches: tuple[str, str], basis: Basis
) -> None:
    before, after = (JOB | {"boot_id": "b", "launch": launch} for launch in launches)
    assert gap_between(before, after).basis is basis


def test_an_assumption_says_for_how_long_it_was_made() -> None:
    first = Segment(about={"price": dollars(2)}).heartbeat(after=3600)
    function = function_of(first, hours=3)
    (assumption,) = function.assumptions
    assert (assumption.start_ns, assumption.end_ns) == (START_NS + HOUR, START_NS + 3 * HOUR)


def test_nothing_is_charged_after_a_run_that_completed() -> None:
    function = function_of(Segment(about={"price": dollars(2)}).heartbeat(3600).end(), hours=9)
    assert function.cost_between(START_NS, START_NS + 9 * HOUR).micros == 2_000_000


def test_a_run_without_a_price_has_no_rate() -> None:
    assert rates_of(Segment().heartbeat(3600)).function is None


def test_outside_its_pieces_a_run_costs_nothing() -> None:
    function = function_of(Segment(about={"price": dollars(2)}).heartbeat(3600).end())
    assert [function.rate_at(START_NS + t) for t in (-1, 0, HOUR)] == [0, 2_000_000, 0]


def test_the_run_pays_in_the_first_currency_and_says_what_it_left_out() -> None:
    euro = PriceChanged(t_ns=START_NS + HOUR, price=Price(9_000_000, "EUR"), gpus=1)
    about = {"price": dollars(2), "stopped_price": Price(1, "GBP")}
    rates = rates_of(Segment(about=about).add(euro).heartbeat(7200).end())
    assert rates.function is not None
    assert rates.function.cost_between(START_NS, START_NS + 2 * HOUR).micros == 4_000_000
    assert [finding.message.split(" is ")[0] for finding in rates.findings] == [
        "a price in EUR",
        "a price in GBP",
    ]


def test_of_two_prices_at_the_same_instant_the_later_line_counts() -> None:
    changes = [
        PriceChanged(t_ns=START_NS, price=dollars(dollars_per_hour), gpus=1, seq=seq)
        for seq, dollars_per_hour in ((1, 3), (2, 4))
    ]
    for order in (changes, changes[::-1]):
        life = Segment().heartbeat(3600).life()
        life.fold(order)
        function = run_rates(derive_attempts([life]), START_NS).function
        assert function is not None
        assert function.rate_at(START_NS) == 4_000_000


def test_a_price_that_begins_late_charges_nothing_before_it() -> None:
    function = function_of(Segment().price(6, after=1800).heartbeat(after=1800).end())
    assert function.cost_between(START_NS, START_NS + HOUR).micros == 3_000_000
