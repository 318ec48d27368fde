"""From attempts to a rate: the prices in force, and who had the machine between attempts."""

from __future__ import annotations

from typing import Any

import pytest

from ledgers import HOUR, START_NS, Segment, dollars, ns
from outlay.ledger import (
    SUPERVISOR,
    EndStatus,
    Price,
    PriceChanged,
    SlicesChanged,
    alive_until,
    derive_attempts,
)
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


def test_time_before_the_first_price_is_uncharged_with_a_finding() -> None:
    built = rates(Segment().price(3, after=H).heartbeat(after=H))
    assert built.function is not None
    assert pieces(built.function) == [(1, 2, 3.0, Basis.MEASURED)]
    assert [finding.message for finding in built.findings] == [
        "an attempt had no price in its first 1h00m, which are not charged"
    ]


def test_short_unpriced_start_is_no_finding() -> None:
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


def test_time_at_a_price_in_another_currency_is_charged_in_that_one() -> None:
    euros = PriceChanged(t_ns=START_NS + HOUR, price=Price(9_000_000, "EUR"), gpus=1)
    stopped = Price(1_000_000, "GBP")
    built = rates(attempt(0, 1, stopped_price=stopped).add(euros).heartbeat(after=H), attempt(5, 1))
    assert built.function is not None
    assert pieces(built.function) == [
        (0, 1, 2.0, Basis.MEASURED),
        (5, 6, 2.0, Basis.MEASURED),
    ]
    found = {function.currency: pieces(function) for function in built.beside}
    assert found == {
        "EUR": [(1, 2, 9.0, Basis.MEASURED)],
        "GBP": [(2, 5, 1.0, Basis.STATED)],
    }
    assert [finding.message for finding in built.findings] == [
        f"the run pays in {currency} too: that part is beside its cost in USD, since currencies "
        "are never added"
        for currency in ("EUR", "GBP")
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
        (JOB | {"launch": "slurm-17-0"}, JOB | {"launch": "slurm-17-1"}, 0, Basis.UNBILLED),
        (JOB | {"launch": "slurm-17-0"}, JOB | {"launch": "slurm-17-0"}, 2, Basis.ASSUMED),
        (JOB | ON_A | {"launch": "slurm-17-0"}, JOB | ON_A | {"launch": "slurm-17-0"}, 2,
         Basis.MEASURED),
        (JOB | ON_A | {"launch": "slurm-17-0"}, JOB | ON_A | {"launch": "slurm-17-1"}, 0,
         Basis.UNBILLED),
        (JOB | {"launch": "slurm-17-0"}, {"launch": "slurm-17-1"}, 2, Basis.ASSUMED),
    ],
)  # fmt: skip
def test_gap_between_attempts_is_charged_by_what_happened_to_the_machine(
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


# Between attempts, by logs that say on which machine they were

ON_NODES: dict[str, Any] = {"nodes": 1, "gpus_source": "stated"}
HOST: dict[str, Any] = {"boot_id": "a", "init_start": "24"}
IN_JOB: dict[str, Any] = {"slurm_job": "17", "slurm_restart": "0"}
POD: dict[str, Any] = {"instance_id": "pod"}
STOPPED: dict[str, Any] = {"stopped_machine_price": dollars(0.25)}


@pytest.mark.parametrize(
    ("before", "after", "per_hour", "basis"),
    [
        ({}, {}, 2, Basis.ASSUMED),
        (HOST, HOST, 2, Basis.MEASURED),
        (HOST, HOST | {"init_start": "900"}, 0, Basis.UNBILLED),
        (HOST, HOST | {"init_start": ""}, 2, Basis.ASSUMED),
        (HOST, HOST | {"boot_id": "b"}, 0, Basis.UNBILLED),
        (POD | HOST, POD | {"boot_id": "b"}, 2, Basis.MEASURED),
        (POD | HOST, HOST | {"instance_id": "other"}, 0, Basis.UNBILLED),
        (POD | HOST, HOST, 2, Basis.MEASURED),
        (IN_JOB | HOST, IN_JOB | {"boot_id": "b"}, 2, Basis.MEASURED),
        (IN_JOB | HOST, IN_JOB | HOST | {"slurm_restart": "1"}, 0, Basis.UNBILLED),
        (IN_JOB | HOST, IN_JOB | HOST | {"slurm_job": "18"}, 0, Basis.UNBILLED),
        (IN_JOB | HOST, HOST, 0, Basis.UNBILLED),
        (STOPPED, {}, 0.25, Basis.STATED),
        (STOPPED | HOST, HOST, 0.25, Basis.STATED),
        (STOPPED | HOST, HOST | {"boot_id": "b"}, 0.25, Basis.STATED),
        ({"stopped_price": dollars(9)} | HOST, HOST, 2, Basis.MEASURED),
    ],
)  # fmt: skip
def test_the_same_machine_is_paid_for_between_two_attempts_and_another_one_is_not(
    before: dict[str, Any], after: dict[str, Any], per_hour: float, basis: Basis
) -> None:
    built = function(attempt(0, 1, **ON_NODES | before), attempt(5, 1, **ON_NODES | after))
    assert pieces(built)[1] == (1, 5, per_hour, basis)


@pytest.mark.parametrize(
    ("end", "about", "gap"),
    [
        ("completed", HOST, []),
        ("preempted", HOST, [(1, 5, 0.0, Basis.UNBILLED)]),
        ("preempted", HOST | STOPPED, [(1, 5, 0.25, Basis.STATED)]),
        ("failed", HOST, [(1, 5, 2.0, Basis.MEASURED)]),
    ],
)
def test_reclaimed_machine_is_charged_only_a_stated_stopped_price(
    end: EndStatus, about: dict[str, Any], gap: list[tuple[float, float, float, Basis]]
) -> None:
    built = function(attempt(0, 1, end, **ON_NODES | about), attempt(5, 1, **ON_NODES | about))
    assert pieces(built) == [(0, 1, 2.0, Basis.MEASURED), *gap, (5, 6, 2.0, Basis.MEASURED)]


def test_finding_states_the_possible_cost_of_an_abandoned_machine() -> None:
    first = attempt(0, 1, "failed", **ON_NODES | POD)
    built = rates(first, attempt(5, 1, **ON_NODES | {"instance_id": "other"}))
    assert [finding.message for finding in built.findings] == [
        "4h00m between two attempts are not charged, since the next one ran on another machine or "
        "in another job: up to 8.00 USD if the earlier machine was kept"
    ]


def test_reclaimed_machine_is_no_finding() -> None:
    first = attempt(0, 1, **ON_NODES | IN_JOB)
    assert rates(first, attempt(5, 1, **ON_NODES | IN_JOB | {"slurm_restart": "1"})).findings == ()


def test_assumed_money_is_reported_separately() -> None:
    built = function(attempt(0, 1, **ON_NODES), attempt(5, 1, **ON_NODES))
    assert built.units_by_basis(0, 2**62) == {
        Basis.MEASURED: 4_000_000 * HOUR,
        Basis.UNBILLED: 0,
        Basis.STATED: 0,
        Basis.ASSUMED: 8_000_000 * HOUR,
    }


# Nodes and their GPUs


def on_node(host: str, start_h: float, hours: float, rank: int, **about: Any) -> Segment:
    """Return a process at 1 USD an hour for each GPU of a run on two nodes."""
    facts = {"price": dollars(1), "nodes": 2, "host": host, "pid": rank} | about
    return Segment(start=start_h * H, rank=rank, about=facts).heartbeat(after=hours * H).end()


FOUND: dict[str, Any] = {"gpus": 8, "node_gpus": 4, "gpus_source": "visible"}
STATED: dict[str, Any] = {"gpus": 6, "gpus_source": "stated"}
GUESSED: dict[str, Any] = {"gpus": 4, "gpus_source": "world_size"}
M = Basis.MEASURED


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (FOUND, [(0, 1, 4.0, M), (1, 3, 8.0, M)]),
        (STATED, [(0, 1, 3.0, M), (1, 3, 6.0, M)]),
        (GUESSED, [(0, 1, 2.0, M), (1, 3, 4.0, M)]),
    ],
)
def test_a_node_is_charged_from_its_own_start(
    about: dict[str, Any], expected: list[tuple[float, float, float, Basis]]
) -> None:
    early, late = on_node("a", 0, 3, 0, **about), on_node("b", 1, 2, 1, **about)
    assert pieces(function(early, late)) == expected


def test_a_node_that_is_gone_is_no_longer_charged() -> None:
    built = function(on_node("a", 0, 3, 0, **FOUND), on_node("b", 0, 1, 1, **FOUND))
    assert pieces(built) == [(0, 1, 8.0, M), (1, 3, 4.0, M)]


def test_the_run_begins_with_whichever_node_begins_first() -> None:
    built = function(on_node("a", 1, 2, 0, **FOUND), on_node("b", 0, 3, 1, **FOUND))
    assert pieces(built) == [(0, 1, 4.0, M), (1, 3, 8.0, M)]


@pytest.mark.parametrize(("about", "per_hour"), [(FOUND, 8.0), (STATED, 6.0), (GUESSED, 4.0)])
def test_single_recording_node_is_charged_for_all_gpus(
    about: dict[str, Any], per_hour: float
) -> None:
    assert pieces(function(on_node("a", 0, 3, 0, **about))) == [(0, 3, per_hour, M)]


def test_nodes_with_different_gpus_are_each_charged_for_their_own() -> None:
    small = on_node("b", 1, 2, 1, **FOUND | {"node_gpus": 2})
    assert pieces(function(on_node("a", 0, 3, 0, **FOUND), small)) == [
        (0, 1, 4.0, M),
        (1, 3, 6.0, M),
    ]


def test_nodes_without_hosts_are_distinguished_by_number() -> None:
    early, late = on_node("", 0, 3, 0, **FOUND), on_node("", 1, 2, 1, **FOUND | {"node": 1})
    assert pieces(function(early, late)) == [(0, 1, 4.0, M), (1, 3, 8.0, M)]


def test_stated_gpus_are_split_by_the_processes_of_each_node() -> None:
    ranks = [on_node("a", 0, 3, n, **STATED) for n in (0, 1)]
    assert pieces(function(*ranks, on_node("b", 1, 2, 2, **STATED)))[0] == (0, 1, 4.0, M)


def test_a_live_node_without_an_end_is_charged_until_now() -> None:
    leader = Segment(about={"price": dollars(1), "nodes": 2, "host": "a"} | FOUND).heartbeat(2 * H)
    other = Segment(
        rank=1, about={"price": dollars(1), "nodes": 2, "host": "b", "pid": 8} | FOUND
    ).heartbeat(H)
    live = alive_until(derive_attempts([leader.life(), other.life()]), START_NS + 3 * HOUR)
    built = run_rates(live, START_NS + 3 * HOUR).function
    assert built is not None
    assert pieces(built) == [(0, 3, 8.0, M)]


def test_a_price_change_with_the_same_gpus_keeps_what_the_nodes_have() -> None:
    early, late = on_node("a", 0, 3, 0, **FOUND), on_node("b", 1, 2, 1, **FOUND)
    early.add(PriceChanged(t_ns=START_NS + 2 * HOUR, price=dollars(3), gpus=8))
    assert pieces(function(early, late)) == [(0, 1, 4.0, M), (1, 2, 8.0, M), (2, 3, 24.0, M)]


@pytest.mark.parametrize(
    ("gpus", "per_hour"), [("1/2", 0.5), ("1/7", 0.142857), ("3/2", 1.5), (1, 1.0)]
)
def test_a_share_of_a_gpu_costs_its_share_rounded_once(gpus: int | str, per_hour: float) -> None:
    assert pieces(function(attempt(0, 1, gpus=gpus, **ON_NODES))) == [(0, 1, per_hour, M)]


@pytest.mark.parametrize(
    ("counts", "per_hour"), [((2, 4, 2), 1.0), ((2, 4, 4), 2.0), ((1, 4, 3), 1.5), ((0, 4, 0), 0.0)]
)
def test_slices_that_were_given_back_are_not_charged(
    counts: tuple[int, int, int], per_hour: float
) -> None:
    active, total, available = counts
    change = SlicesChanged(t_ns=START_NS + HOUR, active=active, total=total, available=available)
    built = function(attempt(0, 3, **ON_NODES).add(change))
    assert built.rate_at(START_NS) == 2_000_000
    assert built.rate_at(START_NS + HOUR) == per_hour * 1e6


def test_one_gpu_per_process_is_an_assumption() -> None:
    (assumption,) = function(attempt(0, 1, **ON_NODES | {"gpus_source": "world_size"})).assumptions
    assert "one per process is assumed" in assumption.text


def test_attempt_without_a_recorded_end_is_an_assumption() -> None:
    built = function(attempt(0, 1, **ON_NODES | HOST), attempt(5, 1, **ON_NODES | HOST))
    assert [a.text for a in built.assumptions] == [
        "an attempt without a recorded end is charged up to its last sign of life"
    ]


def test_slices_do_not_change_the_price_in_logs_without_nodes() -> None:
    change = SlicesChanged(t_ns=START_NS + HOUR, active=1, total=4, available=1)
    assert pieces(function(attempt(0, 3).add(change))) == [(0, 3, 2.0, M)]


def test_logs_without_nodes_charge_all_ranks_from_the_attempts_begin() -> None:
    old = {"price": dollars(1), "gpus": 2}
    early = Segment(about=old | {"host": "a"}).heartbeat(3 * H)
    late = Segment(start=H, rank=1, about=old | {"host": "b"}).heartbeat(H)
    assert pieces(function(early, late)) == [(0, 3, 2.0, M)]


# After a pause


def test_a_pause_costs_what_the_supervisor_that_paused_it_stated() -> None:
    supervisor = attempt(0, 1, "paused", rank=SUPERVISOR, stopped_machine_price=dollars(0.25))
    told_to_end, again = attempt(0, 1, "preempted", pid=1), attempt(3, 1, "completed")
    assert pieces(function(supervisor, told_to_end, again)) == [
        (0, 1, 2.0, Basis.MEASURED),
        (1, 3, 0.25, Basis.STATED),
        (3, 4, 2.0, Basis.MEASURED),
    ]


def test_a_pause_that_the_program_records_itself_costs_nothing() -> None:
    paused = attempt(0, 1, "paused", stopped_machine_price=dollars(0.25))
    assert pieces(function(paused, attempt(3, 1))) == [
        (0, 1, 2.0, Basis.MEASURED),
        (3, 4, 2.0, Basis.MEASURED),
    ]


def test_a_program_that_completed_in_its_notice_was_not_paused() -> None:
    supervisor = attempt(0, 1, "paused", rank=SUPERVISOR, stopped_machine_price=dollars(0.25))
    (ended,) = derive_attempts([supervisor.life(), attempt(0, 1, "completed", pid=1).life()])
    assert ended.completed
