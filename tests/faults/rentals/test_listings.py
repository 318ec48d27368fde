"""What a vendor's list proves: it pages, lags, lies, renames, reclaims, and brings back.

*Gone* is what was listed, then terminated, and is missing from two complete listings after that.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import NamesakeListed, RentalListed
from outlay.guard.rental.rental import (
    LATE_NS,
    CreationFailed,
    RentalUnknown,
    Sightings,
    disown_namesakes,
    next_action,
    proof_path,
    rent,
    settle_by_hand,
)
from outlay.guard.rental.watch import Reaper, may_be_listed, poll_once
from outlay.runs.money.spending_reader import rented_by
from outlay.units import Money
from rented import (
    ENVIRON,
    HOUR,
    MINUTE,
    StandIn,
    events,
    finish,
    order,
    rented,
    run_in_process,
    watching,
)

OTHERS = tuple(f"other-{n}" for n in range(100))


@pytest.fixture
def reaper(guard: BudgetGuard, clock: ManualClock) -> Reaper:
    return Reaper(guard, ENVIRON, clock=clock)


class TestTheRule:
    """The state machine, for all facts."""

    facts = st.builds(
        Sightings,
        ever=st.booleans(),
        tried=st.booleans(),
        missing_ns=st.integers(0, 2 * LATE_NS),
        absent=st.integers(0, 4),
    )

    @given(facts, st.booleans(), st.booleans(), st.integers(0, 2 * LATE_NS))
    def test_gone_is_what_was_listed_and_terminated_and_twice_not_listed(
        self, facts: Sightings, known_id: bool, overdue: bool, age_ns: int
    ) -> None:
        action = next_action(facts, known_id=known_id, overdue=overdue, age_ns=age_ns)
        proven = known_id and facts.ever and facts.tried and facts.absent >= 2
        assert (action == "gone") == proven

    @given(facts, st.integers(0, 2 * LATE_NS))
    def test_before_the_deadline_only_ten_minutes_without_it_end_anything(
        self, facts: Sightings, age_ns: int
    ) -> None:
        action = next_action(facts, known_id=True, overdue=False, age_ns=age_ns)
        if action == "terminate":
            assert facts.ever
            assert facts.missing_ns >= LATE_NS

    @given(facts)
    def test_at_the_deadline_it_is_terminated_unless_it_is_leaving(self, facts: Sightings) -> None:
        action = next_action(facts, known_id=True, overdue=True, age_ns=0)
        leaving = facts.ever and facts.tried and facts.absent > 0
        assert (action == "terminate") == (not leaving)


class TestNeverListed:
    @pytest.fixture
    def hidden(self, vendor: StandIn) -> StandIn:
        """A vendor whose list ends after 100 rows; what is rented next is the 101st."""
        vendor.add(*OTHERS)
        vendor.behave("list", "page:100")
        return vendor

    def test_it_is_unknown_and_its_hold_stays_and_every_status_says_so(
        self, guard: BudgetGuard, hidden: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        hold = rented(guard, hidden, clock, vendor=hidden.vendor(whole_below=0))
        watch = watching(guard, hold, clock)
        assert hold.resource == "pod-101"
        for _ in range(30):
            clock.advance(MINUTE)
            assert poll_once(watch)
        assert guard.held == 20.0
        assert events(guard) == ["hold", "created", "unknown"]
        assert guard.holds()[0].doubt == "never listed"
        (finding,) = guard.findings()
        assert finding.severity == "error"
        assert f"reconcile {hold.id} --gone --reason" in finding.message
        row = next(row for row in reaper.inventory().rows if row.hold)
        assert (row.state, row.is_wrong) == ("never listed", True)
        assert hold.rental is not None
        assert not proof_path(guard.log_path.parent, hold.rental.name).exists()

    def test_at_its_deadline_its_id_is_terminated_and_it_stays_unknown(
        self, guard: BudgetGuard, hidden: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, hidden, clock, vendor=hidden.vendor(whole_below=0))
        watch = watching(guard, hold, clock)
        clock.advance(HOUR)
        assert poll_once(watch)
        clock.advance(9 * HOUR)
        assert all(poll_once(watch) for _ in range(5))
        assert events(guard) == ["hold", "created", "unknown", "terminating"]
        assert set(hidden.arguments("terminate")) == {"pod-101"}
        assert "pod-101" not in hidden.running()
        assert guard.held == 20.0
        clock.advance(HOUR)
        assert not Reaper(guard, ENVIRON, clock=clock).settle(hold)
        assert any("never listed" in str(each) for each in guard.findings())

    def test_a_list_that_may_be_a_page_is_refused_before_money_is_held(
        self, guard: BudgetGuard, hidden: StandIn, clock: ManualClock
    ) -> None:
        with pytest.raises(InvalidValue, match=r"100 rows.*--list-is-complete"):
            rented(guard, hidden, clock)
        assert (guard.committed, hidden.calls("create")) == (0.0, 100)

    def test_a_list_shorter_than_ten_rows_is_whole(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.add(*OTHERS[:8])
        hold = rented(guard, vendor, clock)
        assert Reaper(guard, ENVIRON, clock=clock).end(hold)

    def test_a_list_that_grew_to_a_page_proves_nothing_until_a_person_says_that_it_is_whole(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        hold = rented(guard, vendor, clock)
        assert poll_once(watching(guard, hold, clock))
        vendor.add(*OTHERS[:10])
        assert not reaper.end(hold)
        assert guard.held == 20.0
        (finding,) = [each for each in reaper.inventory().findings if "one page" in each.message]
        assert "--list-is-complete" in finding.message
        assert Reaper(guard, ENVIRON, clock=clock, all_rows=True).end(hold)
        assert guard.held == 0.0

    def test_a_failed_creation_keeps_its_hold_if_the_list_became_a_page(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "fail")

        def others_rent(_: object) -> None:
            vendor.behave("create", "ok")
            vendor.add(*OTHERS[:10])
            vendor.behave("create", "fail")

        with pytest.raises(RentalUnknown):
            rent(guard, order(vendor), ENVIRON, start_watcher=others_rent, clock=clock)
        assert guard.held == 20.0

    def test_one_that_is_listed_late_is_known_again(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "late:20")
        watch = watching(guard, rented(guard, vendor, clock), clock)
        for _ in range(30):
            clock.advance(MINUTE)
            assert poll_once(watch)
        assert events(guard) == ["hold", "created", "unknown", "listed"]
        assert guard.findings() == ()


class TestADeletedLog:
    """The directory of the spend log is deleted while something is rented."""

    def test_what_runs_is_terminated_at_its_deadline_and_watched_until_it_is_gone(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        shutil.rmtree(guard.log_path.parent)
        for _ in range(5):
            clock.advance(HOUR)
            assert poll_once(watch)
        assert vendor.running() == ["pod-1"]
        clock.advance(10 * HOUR)
        vendor.behave("list", "fail")
        assert all(poll_once(watch) for _ in range(3))  # Terminated, and not verified.
        vendor.behave("list", "ok")
        assert poll_once(watch)
        assert not poll_once(watch)
        assert vendor.running() == []
        assert not guard.log_path.parent.exists()

    def test_what_was_never_listed_and_has_an_id_is_watched_on(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "unlisted")
        watch = watching(guard, rented(guard, vendor, clock), clock)
        shutil.rmtree(guard.log_path.parent)
        clock.advance(20 * HOUR)
        assert all(poll_once(watch) for _ in range(5))
        assert set(vendor.arguments("terminate")) == {"pod-1"}

    def test_what_was_never_created_is_watched_until_its_time_is_over(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        holds: list[Hold] = []
        vendor.behave("create", "fail")
        with pytest.raises(CreationFailed):
            rent(guard, order(vendor), ENVIRON, start_watcher=holds.append, clock=clock)
        watch = watching(guard, holds[0], clock)
        shutil.rmtree(guard.log_path.parent)
        assert all(poll_once(watch) for _ in range(5))
        clock.advance(20 * HOUR)
        assert not poll_once(watch)


class TestAPersonDecides:
    def unknown(self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock) -> str:
        vendor.behave("create", "unlisted")
        hold = rented(guard, vendor, clock)
        clock.advance(11 * MINUTE)
        assert poll_once(watching(guard, hold, clock))
        return hold.id

    def test_that_it_is_gone_and_what_it_cost_by_its_time(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = self.unknown(guard, vendor, clock)
        settle_by_hand(guard, hold, ENVIRON, reason="the console is empty", clock=clock)
        assert (guard.held, guard.total_spent) == (0.0, 0.366667)
        assert guard.findings() == ()
        (proof,) = guard.log_path.parent.glob("proof-terminated-*.txt")
        assert "the console is empty" in proof.read_text()
        assert "a person said so" in proof.read_text()

    def test_a_stated_cost_is_taken(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold, cost = self.unknown(guard, vendor, clock), Money.parse("0.10 USD")
        settle_by_hand(guard, hold, ENVIRON, reason="the bill", cost=cost, clock=clock)
        assert guard.total_spent == 0.1

    def test_the_watcher_then_stops(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        vendor.behave("list", "stale")
        settle_by_hand(guard, watch.hold.id, ENVIRON, reason="ended by hand", clock=clock)
        assert not poll_once(watch)

    def test_what_is_listed_is_not_gone_whoever_says_so(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        with pytest.raises(RentalListed, match="pod-1"):
            settle_by_hand(guard, hold.id, ENVIRON, reason="I think so", clock=clock)
        assert guard.held == 20.0

    def test_without_a_reason_nothing_is_settled(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = self.unknown(guard, vendor, clock)
        with pytest.raises(InvalidValue, match="reason"):
            settle_by_hand(guard, hold, ENVIRON, reason=" ", clock=clock)
        assert guard.held == 20.0


class TestAStaleListing:
    def test_stale_listings_settle_nothing_and_end_nothing(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        vendor.behave("list", "stale")
        for _ in range(10):
            assert poll_once(watch)
            clock.advance(MINUTE - 1)
        vendor.behave("list", "ok")
        assert poll_once(watch)
        assert vendor.running() == ["pod-1"]
        assert guard.held == 20.0
        assert events(guard) == ["hold", "created", "listed", "not-listed", "listed"]

    def test_meanwhile_every_status_says_since_when_it_is_not_listed(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        vendor.behave("list", "stale")
        assert poll_once(watch)
        clock.advance(MINUTE)
        assert guard.holds()[0].doubt == "not listed since 2023-11-14 22:13:20Z"
        (finding,) = guard.findings()
        assert (finding.severity, "not listed since" in finding.message) == ("warning", True)
        (row,) = reaper.inventory().rows
        assert (row.state, row.since[:19]) == ("not listed", "2023-11-14T22:13:20")

    def test_ten_minutes_count_across_a_restart_of_the_watcher(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        assert poll_once(watching(guard, hold, clock))
        vendor.reclaim()
        assert poll_once(watching(guard, hold, clock))
        clock.advance(10 * MINUTE)
        finish(watching(guard, hold, clock))
        assert vendor.calls("terminate") == 1
        assert guard.held == 0.0

    def test_two_more_listings_are_needed_after_its_termination(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        vendor.reclaim()
        assert all(poll_once(watch) for _ in range(3))
        clock.advance(10 * MINUTE)
        assert poll_once(watch)
        assert vendor.calls("terminate") == 1
        assert [poll_once(watch) for _ in range(2)] == [True, False]

    def test_the_reaper_settles_what_vanished_ten_minutes_ago(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        hold = rented(guard, vendor, clock)
        assert poll_once(watching(guard, hold, clock))
        vendor.reclaim()
        reaper.reap(reaper.inventory())
        assert guard.held == 20.0
        clock.advance(10 * MINUTE)
        for _ in range(2):  # Two listings, the termination; two listings.
            reaper.reap(reaper.inventory())
        assert guard.held == 0.0

    def test_an_outage_in_between_restarts_the_ten_minutes(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        vendor.behave("list", "stale")
        assert poll_once(watch)
        vendor.behave("list", "fail")
        clock.advance(9 * MINUTE)
        assert poll_once(watch)
        vendor.behave("list", "stale")
        clock.advance(9 * MINUTE)
        assert all(poll_once(watch) for _ in range(3))
        assert vendor.running() == ["pod-1"]

    def test_one_that_its_id_still_shows_is_not_missing(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock, vendor=vendor.vendor(show=True))
        watch = watching(guard, hold, clock)
        assert poll_once(watch)
        vendor.behave("list", "stale")
        for _ in range(20):
            clock.advance(MINUTE)
            assert poll_once(watch)
        assert vendor.calls("terminate") == 0
        assert events(guard) == ["hold", "created", "listed"]

    def test_one_beyond_the_page_is_known_by_its_id(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.add(*OTHERS)
        vendor.behave("list", "page:100")
        shown = vendor.vendor(show=True, whole_below=0)
        watch = watching(guard, rented(guard, vendor, clock, vendor=shown), clock)
        assert poll_once(watch)
        assert (vendor.arguments("show"), guard.findings()) == (["pod-101"], ())
        clock.advance(10 * HOUR)
        finish(watch)
        assert "pod-101" not in vendor.running()

    def test_a_termination_that_failed_is_no_proof_once_it_was_listed_again(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        vendor.behave("terminate", "ignore")
        assert not Reaper(guard, ENVIRON, clock=clock).end(hold, rounds=2)
        watch = watching(guard, hold, clock)
        assert poll_once(watch)
        vendor.behave("list", "stale")
        assert all(poll_once(watch) for _ in range(5))
        assert guard.held == 20.0


class TestPages:
    def paging(self, vendor: StandIn, total: str) -> dict[str, object]:
        return {"vendor": vendor.vendor("{offset}", items=".items", total=total)}

    @pytest.mark.parametrize("total", [".total", ""])
    def test_they_are_followed_to_the_end(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, total: str
    ) -> None:
        vendor.add(*OTHERS)
        vendor.behave("list", "page:30")
        hold = rented(guard, vendor, clock, **self.paging(vendor, total=total))
        assert Reaper(guard, ENVIRON, clock=clock).end(hold)
        assert hold.resource not in vendor.running()
        assert len(vendor.running()) == 100
        assert vendor.arguments("list")[:4] == ["0", "30", "60", "90"]

    def test_pages_that_do_not_add_up_prove_nothing(
        self,
        guard: BudgetGuard,
        vendor: StandIn,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        vendor.add(*OTHERS[:3])
        hold = rented(guard, vendor, clock, **self.paging(vendor, total=".total"))
        assert poll_once(watching(guard, hold, clock))

        def lies(*words: object, **options: object) -> object:
            reply = run_in_process(*words, **options)  # type: ignore[arg-type]
            return type(reply)(reply.output.replace('"total": 3', '"total": 4'), reply.problem)

        monkeypatch.setattr("outlay.guard.rental.rental.run_command", lies)
        assert not Reaper(guard, ENVIRON, clock=clock).end(hold)
        assert guard.held == 20.0

    def test_a_vendor_that_ignores_the_offset_does_not_page_for_ever(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.add(*OTHERS[:3])
        endless = vendor.vendor("0", "{offset}", items=".items")
        with pytest.raises(InvalidValue, match="3 rows"):
            rented(guard, vendor, clock, vendor=endless)
        assert vendor.calls("list") == 2


class TestNames:
    def test_a_machine_that_changed_its_id_is_ended_by_its_name(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        vendor.rename("pod-1", id="pod-7")
        assert poll_once(watch)
        assert guard.holds()[0].resource == "pod-7"
        assert guard.rental_here({"RUNPOD_POD_ID": "pod-1"}) == guard.holds()[0]
        vendor.behave("list", "fail")
        clock.advance(10 * HOUR)
        assert poll_once(watching(guard, guard.holds()[0], clock))
        assert vendor.running() == []
        assert vendor.arguments("terminate") == ["pod-1", "pod-7"]

    def test_every_machine_with_the_whole_name_is_ended(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        assert hold.rental is not None
        vendor.add(hold.rental.name, created="2023-11-14T22:20:00Z")
        watch = watching(guard, hold, clock)
        clock.advance(10 * HOUR)
        finish(watch)
        assert vendor.running() == []
        assert guard.findings() == ()

    @pytest.mark.parametrize(
        ("suffix", "created"),
        [
            ("", "2023-11-14T22:24:00Z"),
            ("", "2023-11-14 22:02:00 +0000 UTC"),
            ("-copy", ""),
            ("-copy", "2023-11-14T22:13:20Z"),
        ],
    )
    def test_another_namesake_is_reported_blocks_its_project_and_is_never_ended(
        self,
        guard: BudgetGuard,
        vendor: StandIn,
        clock: ManualClock,
        reaper: Reaper,
        suffix: str,
        created: str,
    ) -> None:
        hold = rented(guard, vendor, clock, vendor=vendor.vendor(created_key="created_at"))
        assert hold.rental is not None
        vendor.add(f"{hold.rental.name}{suffix}", created=created)
        watch = watching(guard, hold, clock)
        assert poll_once(watch)
        (finding,) = guard.findings()
        assert (finding.severity, "pod-2" in finding.message) == ("error", True)
        with pytest.raises(NamesakeListed, match="project 02 is blocked"):
            guard.authorize("lab02-more", 1)
        assert guard.authorize("lab03-other", 1).lab == "03"
        assert [row.state for row in reaper.inventory().rows] == ["running", "namesake"]
        clock.advance(10 * HOUR)
        finish(watch)
        reaper.reap(reaper.inventory())
        assert (vendor.running(), guard.total_spent) == (["pod-2"], 20.0)
        with pytest.raises(NamesakeListed):
            guard.authorize("lab02-more", 1)

    def blocked(self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock) -> str:
        hold = rented(guard, vendor, clock)
        assert hold.rental is not None
        vendor.add(f"{hold.rental.name}-copy")
        assert poll_once(watching(guard, hold, clock))
        return hold.id

    def test_the_project_is_unblocked_once_the_namesake_is_no_longer_listed(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        self.blocked(guard, vendor, clock)
        vendor.rename("pod-2", name="mine")
        reaper.reap(reaper.inventory())
        assert guard.authorize("lab02-more", 1).lab == "02"

    def test_a_page_without_the_namesake_unblocks_nothing(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = self.blocked(guard, vendor, clock)
        vendor.rename("pod-2", hidden=5)
        vendor.add(*OTHERS[:10])
        rental = guard.log.books().rental(hold)
        assert rental is not None
        assert poll_once(watching(guard, rental, clock))
        with pytest.raises(NamesakeListed):
            guard.authorize("lab02-more", 1)

    def test_a_person_may_say_that_it_is_somebody_elses(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        hold = self.blocked(guard, vendor, clock)
        disown_namesakes(guard, hold, "a colleague's copy")
        reaper.reap(reaper.inventory())
        assert guard.authorize("lab02-more", 1).lab == "02"
        assert [row.state for row in reaper.inventory().rows] == ["running", "stranger"]

    def test_a_lost_id_is_not_taken_from_a_namesake(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "fail")

        def copies(hold: Hold) -> None:
            assert hold.rental is not None
            vendor.behave("create", "ok")
            vendor.add(f"{hold.rental.name}-copy")
            vendor.behave("create", "fail")

        with pytest.raises(RentalUnknown):
            rent(guard, order(vendor), ENVIRON, start_watcher=copies, clock=clock)
        assert guard.held == 20.0
        assert guard.holds()[0].resource == ""


class TestComingBack:
    def test_a_rental_whose_hold_was_voided_is_listed_for_a_day(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        vendor.behave("create", "hang")
        with pytest.raises(RentalUnknown):
            rented(guard, vendor, clock)
        (hold,) = guard.holds()
        guard.void(hold, "the console shows nothing")
        assert hold.rental is not None
        vendor.behave("create", "ok")
        vendor.add(hold.rental.name)
        clock.advance(HOUR)
        assert may_be_listed(guard.log.books(), clock.wall_ns())
        reaper.reap(reaper.inventory())
        assert (vendor.running(), guard.held) == ([], 0.0)
        assert 2.0 < guard.total_spent < 2.1

    def ended(self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock) -> str:
        """Rent for ten hours and end it; return what the vendor had."""
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        before = (vendor.directory / "pods.json").read_text()
        clock.advance(10 * HOUR)
        finish(watch)
        assert guard.total_spent == 20.0
        return before

    def test_it_is_an_error_with_a_correction_and_a_new_hold_and_is_ended_again(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        before = self.ended(guard, vendor, clock)
        vendor.restore(before)
        vendor.behave("terminate", "ignore")
        clock.advance(HOUR)
        (row,) = reaper.inventory().rows
        assert (row.state, row.needs_ending) == ("ended but listed", True)
        reaper.reap(reaper.inventory())
        assert guard.total_spent == 22.0
        assert guard.held > 0
        assert any("came back" in each.message for each in guard.findings())
        assert events(guard)[-6:] == [
            "reappeared", "correct", "hold", "created", "listed", "terminating",
        ]  # fmt: skip
        vendor.behave("terminate", "ok")
        clock.advance(HOUR)
        reaper.reap(reaper.inventory())
        assert vendor.running() == []
        assert guard.held == 0.0
        assert 24.0 < guard.total_spent < 24.1
        assert guard.findings() == ()
        assert guard.verify().sound

    def test_its_cost_is_that_of_one_machine(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        before = self.ended(guard, vendor, clock)
        for _ in range(2):
            vendor.restore(before)
            clock.advance(HOUR)
            reaper.reap(reaper.inventory())
        (machine,) = rented_by(guard.log.lines(), clock.wall_ns())
        assert machine.micros == round(guard.total_spent * 10**6)

    def test_past_the_ceiling_it_is_recorded_and_the_log_is_sound(
        self, tmp_path: Path, vendor: StandIn, clock: ManualClock
    ) -> None:
        guard = BudgetGuard(20, tmp_path / "tight" / "spend.jsonl", clock=clock, environ={})
        before = self.ended(guard, vendor, clock)
        vendor.restore(before)
        clock.advance(HOUR)
        reaper = Reaper(guard, ENVIRON, clock=clock)
        reaper.reap(reaper.inventory())
        assert guard.total_spent > 22.0
        assert guard.verify().findings == ()

    def test_what_a_failed_creation_left_behind_is_found(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, reaper: Reaper
    ) -> None:
        vendor.behave("create", "fail")
        with pytest.raises(CreationFailed):
            rented(guard, vendor, clock)
        (hold,) = guard.log.books().rentals()
        assert hold.rental is not None
        vendor.behave("create", "ok")
        vendor.add(hold.rental.name)
        clock.advance(HOUR)
        reaper.reap(reaper.inventory())
        assert vendor.running() == []
        assert 2.0 < guard.total_spent < 2.1

    def test_ended_rentals_are_listed_for_a_day(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        self.ended(guard, vendor, clock)
        clock.advance(24 * HOUR - 1)
        assert may_be_listed(guard.log.books(), clock.wall_ns())
        clock.advance(1)
        assert not may_be_listed(guard.log.books(), clock.wall_ns())


def test_notes_are_written_only_when_something_changes(
    guard: BudgetGuard, vendor: StandIn, clock: ManualClock
) -> None:
    watch = watching(guard, rented(guard, vendor, clock), clock)
    for mode in ("ok", "stale", "ok"):
        vendor.behave("list", mode)
        assert all(poll_once(watch) for _ in range(10))
    vendor.behave("terminate", "ignore")
    clock.advance(10 * HOUR)
    assert all(poll_once(watch) for _ in range(10))
    assert events(guard) == [
        "hold", "created", "listed", "not-listed", "listed", "terminating",
    ]  # fmt: skip


def test_the_facts_are_in_the_log(guard: BudgetGuard, vendor: StandIn, clock: ManualClock) -> None:
    watch = watching(guard, rented(guard, vendor, clock), clock)
    assert poll_once(watch)
    lines = [json.loads(line) for line in guard.log_path.read_text().splitlines()]
    assert lines[-1]["detail"] == {"at": "2023-11-14T22:13:20.000000Z"}
