"""``outlay guard run --offers``: the dry run, and what is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Outcome, in_process
from offer_builder import offer, store_without_prices
from outlay.clock import SYSTEM, utc_datetime
from outlay.guard.gate import HOLD_VARIABLE
from outlay.pausing.price_readings import stored_history
from outlay.policy.price_history import double_threshold_for
from outlay.policy.situation import JobTerms
from outlay.prices.offer import Snapshot
from outlay.prices.price_book import PriceBook
from outlay.store import open_store
from outlay.units import Unit
from paused_training import PausedTraining
from rented_training import RentedTraining, all_ended

HOUR_NS = 3600 * 10**9


def guard_run(root: Path, *more: str, deadline_h: int = 48) -> Outcome:
    deadline = utc_datetime(SYSTEM.wall_ns() + deadline_h * HOUR_NS).isoformat()
    return in_process(
        "guard", "run", "--label", "lab02-train", "--log", root / "spend.jsonl",
        "--ceiling", "100", "--offers", "acme:1xH100", "--deadline", deadline, "--work", "20h",
        *more, "--", "touch", root / "started",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default directory of a run is named by the second: other tests have theirs elsewhere."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def week() -> None:
    """A week of stored prices: 3 USD by day, 1.50 USD by night."""
    book, now_ns = PriceBook(store_without_prices()), SYSTEM.wall_ns()
    hours = range(168)
    prices = ["3.00" if (hour // 12) % 2 else "1.50" for hour in hours]
    at = [now_ns - (167 - hour) * HOUR_NS for hour in hours]
    book.record(
        Snapshot(source="test", fetched_ns=ns, offers=(offer(price, fetched_ns=ns),))
        for ns, price in zip(at, prices, strict=True)
    )
    book.publish()


@pytest.mark.usefixtures("week")
def test_without_act_it_only_says_what_it_would_do(tmp_path: Path) -> None:
    ran = guard_run(tmp_path, "--pay-per-use", "--json")
    assert ran.code == 0
    shown = ran.json
    assert (shown["policy"], shown["price"], shown["action"]) == (
        "double threshold", "3.00 USD/h", "wait",
    )  # fmt: skip
    assert shown["replay"]["starts"] == 30
    assert shown["replay"]["cost"]["micros"] < shown["replay"]["always_on"]["micros"]
    assert shown["replay"]["late"] == 0
    assert 1 < shown["worst_case_ratio"] < 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("week")
def test_the_policy_is_made_for_the_prices_of_the_last_thirty_days(tmp_path: Path) -> None:
    """A price of 40 days ago is replayed, and is no bound; between noon and midnight one held."""
    old_ns = SYSTEM.wall_ns() - 40 * 24 * HOUR_NS
    old = Snapshot(source="test", fetched_ns=old_ns, offers=(offer("0.50", fetched_ns=old_ns),))
    PriceBook(open_store()).record([old])
    shown = guard_run(tmp_path, "--pay-per-use", "--json").json
    holds = "for prices from 1.50 USD/h to 3.00 USD/h that hold for 12h00m"
    assert shown["worst_case_holds"] == holds
    assert shown["replay"]["days"] == pytest.approx(40, abs=0.1)
    terms = JobTerms(work_ns=20 * HOUR_NS, time_ns=48 * HOUR_NS)
    policy = double_threshold_for(
        stored_history("acme:1xH100", Unit(), {}, since_ns=0), SYSTEM.wall_ns()
    )
    assert policy is not None
    assert shown["worst_case_ratio"] == policy.worst_case_ratio(terms)
    assert f"x the best possible, {holds}" in guard_run(tmp_path, "--pay-per-use").out


@pytest.mark.usefixtures("week")
def test_the_plan_is_said_in_words(tmp_path: Path) -> None:
    said = guard_run(tmp_path, "--stopped-price", "0.10 USD/h").out
    assert "acme:1xH100: 3.00 USD/h" in said
    assert "it would wait now, since 3.00 USD/h is above the threshold" in said
    assert "while paused it costs 0.10 USD/h" in said
    assert "would have cost" in said
    assert "x the best possible" in said


@pytest.mark.usefixtures("week")
def test_a_plan_without_a_price_of_pauses_says_that_they_free_nothing(tmp_path: Path) -> None:
    said = guard_run(tmp_path, "--below", "2 USD/h").out
    assert "its full price: paused, machine kept; a pause frees nothing" in said


@pytest.mark.usefixtures("week")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--act"], "--dir"),
        (["--act", "--dir", "run"], "a machine that is kept costs its full price"),
        (["--rate", "2 USD/h"], "--rate"),
        (["--below", "2 USD/h", "--policy", "always-on"], "either --policy or --below"),
        (["--policy", "cheapest"], "double-threshold"),
        (["--pay-per-use", "--stopped-price", "1 USD/h"], "either --stopped-price or"),
        (["--deadline", "soon"], "an instant such as"),
        (["--deadline", "2026-01-01T00:00"], "an instant in the future"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = guard_run(tmp_path, *options)
    assert ran.code == 2
    assert why in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("week")
def test_under_a_hold_of_a_rental_nothing_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOLD_VARIABLE, f"1f0a2b3c4d5e@{tmp_path / 'spend.jsonl'}")
    acts = ["--act", "--dir", str(tmp_path / "run"), "--below", "9 USD/h", "--pay-per-use"]
    ran = guard_run(tmp_path, *acts)
    assert ran.code == 2
    assert "this one is rented, and paid for while it is paused" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_on_a_rented_machine_nothing_is_paused(tmp_path: Path) -> None:
    rented = RentedTraining(tmp_path, slow_starts=0)
    here = PausedTraining(tmp_path, slow_starts=0)
    here.price("36 USD/h")
    with all_ended(rented):
        machine = rented.rent_by_hand()
        ran = in_process(*here.arguments("--act"), INSTANCE_ID=machine)
    assert ran.code == 2
    assert "this one is rented, and paid for while it is paused" in ran.err
    assert here.starts() == 0
    assert len(here.of_kind("hold")) == 1  # That of the rental.


def test_options_of_pausing_need_an_offer(tmp_path: Path) -> None:
    ran = in_process(
        "guard", "run", "--label", "x", "--rate", "1 USD/h", "--ceiling", "9",
        "--log", tmp_path / "spend.jsonl", "--pay-per-use", "--", "true",
    )  # fmt: skip
    assert (ran.code, "--offers SOURCE:GPU" in ran.err) == (2, True)


def test_an_offer_of_which_nothing_is_known_is_refused(tmp_path: Path) -> None:
    store_without_prices()
    ran = guard_run(tmp_path, "--below", "2 USD/h")
    assert ran.code == 1
    assert "no price can be read" in ran.err
    assert "no prices of the offer are stored" in guard_run(tmp_path).err
