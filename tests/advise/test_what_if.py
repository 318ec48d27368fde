"""``outlay what-if``: hand-computed replays, chance with intervals, and offers ranked."""

from __future__ import annotations

import math
import random
import re
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import pytest

from command_line import outlay
from ledgers import START_NS, Segment, dollars, ns
from offer_builder import offer
from outlay.advise.spot import (
    CheckpointedWork,
    ReclaimRate,
    SpotHistory,
    SpotOffer,
    outlook,
    ranked_outlooks,
)
from outlay.advise.tiers import Option
from outlay.advise.what_if import OtherTerms, recorded_reclaims, replay
from outlay.errors import InvalidValue
from outlay.goodput.follower import RunView, read_view
from outlay.ledger import EndStatus, Price, RunIdentity, claim_identity
from outlay.policy.pauses import pause_cost_of
from outlay.prices.offer import Snapshot, Tier
from outlay.prices.price_book import PriceBook
from outlay.runs.inbox import leave_notice
from outlay.store import open_store
from outlay.units import Rate

HOUR_S = 3600


def interrupted_run(run_dir: Path, status: EndStatus = "failed") -> RunView:
    """3 h of training at 1 USD/h, a save of 60 s after 1 h, a failure 30 min later, 10 min down.

    Steps take a minute; the first attempt fails with 30 of them unsaved. A restart takes 120 s.
    """
    about = {"price": dollars(1.0), "gpus": 1}
    first = Segment(about=about)
    for _ in range(60):
        first.step(60)
    first.span("checkpoint_save", 60).checkpoint()
    for _ in range(30):
        first.step(60)
    first.end(status)
    first.write(run_dir)
    start = 90 * 60 + 60 + 600
    again = Segment(start=start, about=about | {"pid": 8}).span("checkpoint_restore", 120)
    again.step(60, number=60)
    for _ in range(119):
        again.step(60)
    again.end()
    again.write(run_dir)
    return read_view(run_dir, START_NS + ns(start + 4 * HOUR_S))


def test_the_parts_of_a_run(tmp_path: Path) -> None:
    found = replay(interrupted_run(tmp_path))
    assert found.time.work == ns(3 * HOUR_S)
    assert found.time.repeated == ns(1800)
    assert (found.time.save, found.time.start, found.time.between) == (ns(60), ns(120), ns(600))
    assert found.failures == 1


def test_saving_every_ten_minutes_loses_less(tmp_path: Path) -> None:
    """The failure comes 5,460 s into training, of which each 660 s save 600: eight are saved."""
    found = replay(interrupted_run(tmp_path), OtherTerms(checkpoint_every_ns=ns(600)))
    lost = 5460 - 8 * 660
    assert found.time.repeated == ns(lost)
    left = 3 * HOUR_S - 8 * 600
    assert found.time.work == ns(3 * HOUR_S)
    assert found.time.save == ns(60 * (8 + (left - 1) // 600))
    assert found.time.between == ns(600)


def test_a_faster_gpu_at_another_price(tmp_path: Path) -> None:
    """Steps take half as long; saves, starts and the gap, which was charged, as long as before."""
    terms = OtherTerms(speed=Fraction(2), price=Rate.parse("3 USD/h"))
    found = replay(interrupted_run(tmp_path), terms)
    machine_s = (3 * HOUR_S + 1800) / 2 + 60 + 120
    assert found.time.total_ns == ns(machine_s + 600)
    assert found.cost is not None
    assert float(found.cost.amount) == pytest.approx((3 * machine_s + 600) / HOUR_S, abs=1e-5)


def test_more_gpus_at_a_stated_scaling(tmp_path: Path) -> None:
    found = replay(interrupted_run(tmp_path), OtherTerms(gpus=4, scaling=Fraction("0.5")))
    machine_s = (3 * HOUR_S + 1800) / 2 + 60 + 120
    assert found.cost is not None
    assert float(found.cost.amount) == pytest.approx((4 * machine_s + 600) / HOUR_S, abs=1e-5)


def test_a_stated_restart_time_replaces_gap_and_start(tmp_path: Path) -> None:
    found = replay(interrupted_run(tmp_path), OtherTerms(restart_ns=ns(30)))
    assert (found.time.start, found.time.between) == (ns(30), 0)


def test_a_trace_of_failures_is_replayed(tmp_path: Path) -> None:
    """Fails after 1,000 s and 3,000 s; 600 s of training and 60 s of save make a cycle."""
    terms = OtherTerms(
        checkpoint_every_ns=ns(600), failures_ns=(ns(1000), ns(3000)), restart_ns=ns(140)
    )
    view = interrupted_run(tmp_path)
    start_s = pause_cost_of(view.timeline).start_ns // ns(1)
    found = replay(view, terms)
    first, second = 1000 - start_s, 2000 - 140
    assert found.failures == 2
    assert found.time.repeated == ns(first - 660 + second - 2 * 660)
    assert found.time.start == ns(start_s + 2 * 140)


def test_terms_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidValue, match="checkpoint_every"):
        OtherTerms(checkpoint_every_ns=0)
    with pytest.raises(InvalidValue, match="scaling"):
        OtherTerms(scaling=Fraction(0))
    with pytest.raises(InvalidValue, match="trace"):
        OtherTerms(reclaim=ReclaimRate(mttf_hours=1), failures_ns=())
    with pytest.raises(InvalidValue, match="mttf"):
        ReclaimRate(mttf_hours=0)


# Machines that are taken back


def simulated_hours(work: CheckpointedWork, mttf: float, rng: random.Random) -> float:
    """Train hour by hour's worth of cycles, against exponential failures: an independent oracle."""
    assert work.interval is not None
    now, done, fails_at = work.restart, 0.0, rng.expovariate(1 / mttf) + work.restart
    while done < work.hours:
        cycle = min(work.interval, work.hours - done)
        is_last = done + cycle >= work.hours
        ends_at = now + cycle + (0.0 if is_last else work.save)
        if ends_at <= fails_at:
            now, done = ends_at, done + cycle
            continue
        now = fails_at
        while (fails_at := now + rng.expovariate(1 / mttf)) < now + work.restart:
            now = fails_at
        now += work.restart
    return now


@pytest.mark.parametrize(("mttf", "restart"), [(6.0, 0.1), (2.0, 0.5), (50.0, 0.0)])
def test_time_on_spot_is_that_of_a_simulation(mttf: float, restart: float) -> None:
    work = CheckpointedWork(hours=20, interval=0.5, save=0.05, restart=restart)
    option = Option(name="spot", price_per_hour=2.0, speed=1.0)
    found = outlook(option, work, ReclaimRate(mttf_hours=mttf))
    rng = random.Random(5)
    hours = sorted(simulated_hours(work, mttf, rng) for _ in range(2000))
    assert found.hours == pytest.approx(fmean(hours), rel=0.03)
    assert found.hours_low == pytest.approx(hours[100], rel=0.05)
    assert found.hours_high == pytest.approx(hours[1899], rel=0.05)
    assert found.cost == pytest.approx(2 * found.hours)


def test_a_deadline_has_a_chance() -> None:
    option = Option(name="spot", price_per_hour=1.0, speed=1.0)
    work = CheckpointedWork(hours=20, interval=1, restart=0.2, deadline=24)
    found = outlook(option, work, ReclaimRate(mttf_hours=6))
    assert 0.05 < found.chance < 0.95


def test_a_recorded_rate_is_less_certain_than_a_stated_one() -> None:
    option = Option(name="spot", price_per_hour=1.0, speed=1.0)
    work = CheckpointedWork(hours=20, interval=1, restart=0.2)
    stated = outlook(option, work, ReclaimRate(mttf_hours=6))
    recorded = outlook(option, work, ReclaimRate(mttf_hours=6, reclaims=2, uptime_hours=12))
    assert recorded.hours_high - recorded.hours_low > stated.hours_high - stated.hours_low


def test_without_checkpoints_a_long_run_never_finishes_on_spot() -> None:
    """60 h without a break on machines that are taken back every 6 h: e^10 tries."""
    spot = Option(name="spot", price_per_hour=1.0, speed=1.0, mttf_hours=6)
    steady = Option(name="on-demand", price_per_hour=3.0, speed=1.0)
    work = CheckpointedWork(hours=60, interval=None)
    first, last = ranked_outlooks([(spot, ReclaimRate(mttf_hours=6)), (steady, None)], work)
    assert (first.name, first.chance, first.hours) == ("on-demand", 1.0, 60.0)
    assert (last.name, last.finishes, last.chance) == ("spot", False, 0.0)
    assert math.isinf(last.cost)


def test_reclaims_are_counted_from_the_log(tmp_path: Path) -> None:
    found = recorded_reclaims(interrupted_run(tmp_path, "preempted"))
    assert found is not None
    assert found.reclaims == 1
    assert found.mttf_hours == pytest.approx(found.uptime_hours)


def spot_price(offer: str) -> Price:
    return Price(10**6, source="test", offer=offer, fetched_ns=1)


def on_spot(run_dir: Path, offer: str, hours: int, *, reclaimed: int = 0) -> RunView:
    """Attempts of ``hours`` in all on an offer, some taken back, with an hour between."""
    named = RunIdentity(run_id=run_dir.name, model="", name="", created_ns=START_NS)
    claim_identity(run_dir, named)
    each_h, start = hours // (reclaimed + 1), 0
    for attempt in range(reclaimed + 1):
        about = {"price": spot_price(offer), "gpus": 1, "gpu": "H100", "pid": 10 + attempt}
        segment = Segment(start=start, about=about)
        for step in range(each_h):
            segment.step(HOUR_S, number=attempt * each_h if step == 0 else None)
        segment.end("completed" if attempt == reclaimed else "preempted").write(run_dir)
        start += (each_h + 1) * HOUR_S
    return read_view(run_dir, START_NS + ns(start))


def test_reclaims_are_pooled_by_vendor_gpu_and_tier(tmp_path: Path) -> None:
    history = SpotHistory()
    spot = ["acme:1xH100:spot", "acme:8xH100:spot:eu (i-1)", "other:1xH100:spot"]
    for number, name in enumerate([*spot, "acme:1xH100:on-demand"]):
        view = on_spot(tmp_path / str(number), name, 30, reclaimed=2 - number % 2)
        history.add(view.timeline.attempts)
    acme = SpotOffer(provider="acme", gpu="H100")
    found = history.rate(acme)
    assert (found.reclaims, found.uptime_hours) == (3, 60)
    assert found.mttf_hours == 20
    assert found.source == "recorded: 3 reclaims in 60 h of 2 runs on acme H100 spot"
    anywhere = history.rate_of_gpu("H100")
    assert anywhere is not None
    assert (anywhere.reclaims, anywhere.uptime_hours) == (5, 90)


@pytest.mark.parametrize(
    ("hours", "mttf", "why"),
    [
        (20, 6, "a guess: 0 reclaims in 20 h of 1 run on"),
        (30, 60, "recorded: 0 reclaims in 30 h"),
    ],
)
def test_no_reclaim_in_a_short_time_says_nothing(
    hours: int, mttf: float, why: str, tmp_path: Path
) -> None:
    history = SpotHistory()
    history.add(on_spot(tmp_path, "acme:1xH100:spot", hours).timeline.attempts)
    found = history.rate(SpotOffer(provider="acme", gpu="H100"))
    assert (found.mttf_hours, why in found.source) == (mttf, True)


# The command


def test_the_command_rests_on_all_runs_on_the_same_machines(tmp_path: Path) -> None:
    for number, reclaimed in enumerate((1, 2)):
        run_dir = tmp_path / f"run{number}"
        view = on_spot(run_dir, "acme:1xH100:spot", 30, reclaimed=reclaimed)
        leave_notice(view.identity.run_id, run_dir)
    spot, dear = offer("0.50", tier=Tier.SPOT), offer("0.60", tier=Tier.SPOT, provider="other")
    PriceBook(open_store()).record([Snapshot(source="test", fetched_ns=1, offers=(spot, dear))])
    shown = " ".join(outlay("what-if", tmp_path / "run0", "--offers", columns=200).out.split())
    assert (
        "every 20 h on average, at random (recorded: 3 reclaims in 60 h of 2 runs on acme" in shown
    )
    assert (
        "every 6 h on average, at random (a guess: no run was on other H100 spot; --mttf" in shown
    )
    replayed = " ".join(outlay("what-if", tmp_path / "run0", "--spot", columns=200).out.split())
    assert "every 20 h on average (recorded: 3 reclaims in 60 h of 2 runs" in replayed
    stated = outlay("what-if", tmp_path / "run0", "--offers", "--mttf", "9h", "--json").json
    assert {each["reclaim"]["mttf_hours"] for each in stated["machines"]} == {9}


def test_auto_saves_as_often_as_costs_least(tmp_path: Path) -> None:
    """Young and Daly, for a save of a minute and one failure in the 3.55 h of attempts."""
    interrupted_run(tmp_path / "run")
    words = " ".join(
        outlay("what-if", tmp_path / "run", "--checkpoint-every", "auto", columns=200).out.split()
    )
    assert "costs least if it fails every 3.55 h on average (1 failure in 4 h of this run)" in words
    stated = outlay(
        "what-if", tmp_path / "run", "--checkpoint-every", "auto", "--mttf", "2h", columns=200
    ).out
    assert "saving every 14m" in " ".join(stated.split())
    segment = Segment()
    segment.step(HOUR_S).end().write(tmp_path / "other")
    refused = outlay("what-if", tmp_path / "other", "--checkpoint-every", "auto")
    assert (refused.code, "no save is in the run's log" in refused.err) == (2, True)


def test_the_command_replays_and_states_what_it_assumes(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    arguments = ("--checkpoint-every", "10m", "--spot", "--mttf", "6h", "--deadline", "5h")
    text = outlay("what-if", tmp_path, *arguments, columns=200).out
    assert "as it was" in text
    assert "probability it takes" in text
    assert re.search(
        r"costs \d+\.\d\d to \d+\.\d\d USD; it is done by the deadline with \d+%", text
    )
    assert "every 6 h on average (stated)" in " ".join(text.split())


def test_the_command_gives_the_run_back_as_json(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    found = outlay("what-if", tmp_path, "--json").json
    assert found["own"] == found["other"]
    assert found["own"]["time"]["work"] == ns(3 * HOUR_S)


MACHINE_S = 3 * HOUR_S + 1800 + 60 + 120
"""Time on the machine of ``interrupted_run``: work, what was lost of it, a save, a restart."""


@pytest.mark.parametrize(
    ("options", "machine_s", "between_s", "usd_per_hour"),
    [
        (["--price", "3 USD/h"], MACHINE_S, 600, 3),
        (["--speed", "2", "--price", "3 USD/h"], (3 * HOUR_S + 1800) / 2 + 180, 600, 3),
        (["--gpu", "B200", "--speed", "2"], (3 * HOUR_S + 1800) / 2 + 180, 600, 5),
        (["--gpus", "4", "--scaling", "0.5"], (3 * HOUR_S + 1800) / 2 + 180, 600, 4),
        (["--gpus", "4"], (3 * HOUR_S + 1800) / 4 + 180, 600, 4),
        (["--restart-time", "30s"], MACHINE_S - 120 + 30, 0, 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_takes_other_terms(
    options: list[str], machine_s: float, between_s: int, usd_per_hour: int, tmp_path: Path
) -> None:
    """The run itself paid 1 USD/h, also for the ten minutes between its attempts."""
    book = PriceBook(open_store())
    offers = (offer("5.00", gpu="B200"), offer("2.00", gpu="B200", tier=Tier.SPOT), offer("9.00"))
    book.record([Snapshot(source="test", fetched_ns=1, offers=offers)])
    interrupted_run(tmp_path)
    found = outlay("what-if", tmp_path, *options, "--json").json
    other, own = found["other"], found["own"]
    assert sum(other["time"].values()) == ns(machine_s + between_s)
    assert other["time"]["between"] == ns(between_s)
    cost = (usd_per_hour * machine_s + between_s) / HOUR_S
    assert other["cost"]["micros"] == pytest.approx(cost * 1e6, abs=1)
    assert own["cost"]["micros"] == round((MACHINE_S + 600) / HOUR_S * 1e6)


def test_the_command_replays_a_trace(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "run")
    (tmp_path / "trace.csv").write_text("failed_h\n0.25\n1.5\n")
    arguments = ("--trace", tmp_path / "trace.csv", "--json")
    found = outlay("what-if", tmp_path / "run", *arguments).json
    assert found["other"]["failures"] == 2


def test_a_bad_trace_or_number_is_wrong_usage(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "run")
    (tmp_path / "trace.csv").write_text("failed_h\nsoon\n")
    bad = outlay("what-if", tmp_path / "run", "--trace", tmp_path / "trace.csv")
    assert bad.code == 2
    assert "line 2" in bad.err
    assert outlay("what-if", tmp_path / "run", "--speed", "fast").code == 2


def test_offers_are_ranked_and_what_never_finishes_is_said(tmp_path: Path) -> None:
    """60 h without a checkpoint: spot is cheaper per hour and never gets done."""
    segment = Segment(about={"price": dollars(2.0), "gpus": 1, "gpu": "H100"})
    for _ in range(60):
        segment.step(HOUR_S)
    segment.end().write(tmp_path)
    found = Snapshot(
        source="test",
        fetched_ns=1,
        offers=(offer("2.00"), offer("0.50", tier=Tier.SPOT), offer("1.90", provider="other")),
    )
    PriceBook(open_store()).record([found])
    ranked = outlay("what-if", tmp_path, "--offers", "--mttf", "6h", "--json").json["machines"]
    assert [each["name"].split()[0] for each in ranked] == ["other", "acme", "acme"]
    shown = outlay("what-if", tmp_path, "--offers", "--mttf", "6h", columns=160).out
    assert "On spot without checkpoints this run will not finish: acme 1x H100 spot" in shown
