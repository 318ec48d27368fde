"""Something rented: held before it exists, ended at its deadline, settled only when gone.

The vendor accepts termination and ignores it, fails, hangs, answers late or prints garbage. Where
the clock is a manual one its program is called in this process, and is started where it is real.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

import vendor_stand_in
from outlay.clock import ManualClock
from outlay.errors import InvalidValue
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Captured, Decision, Vendor
from outlay.guard.errors import BudgetGuardExceeded, RentalAlive, RentalUnattended
from outlay.guard.rental.rental import (
    ControlledRental,
    CreationFailed,
    RentalUnknown,
    VendorUnusable,
    proof_path,
    rent,
)
from outlay.guard.rental.watch import Reaper, poll_once, start_watcher
from outlay.proc.identity import ProcessName, this_process
from outlay.units import Duration, Money, Rate
from rented import (
    ENVIRON,
    HOUR,
    MINUTE,
    PROGRAM,
    StandIn,
    events,
    finish,
    no_watcher,
    order,
    rented,
    watching,
)
from waiting import until


class TestOrdering:
    def test_the_hold_is_written_before_creation_and_the_id_after(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        held_at_creation: list[float] = []
        hold = rent(
            guard, order(vendor), ENVIRON, clock=clock,
            start_watcher=lambda _: held_at_creation.append(guard.held),
        )  # fmt: skip
        assert held_at_creation == [20.0]
        assert events(guard) == ["hold", "created"]
        assert (hold.resource, vendor.running()) == ("pod-1", ["pod-1"])

    def test_the_deadline_leaves_time_for_ending_it(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        controlled = ControlledRental(guard=guard, hold=hold, environ=ENVIRON, clock=clock)
        assert controlled.left_ns == 10 * HOUR - 120 * 10**9

    def test_without_room_nothing_is_created(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        with pytest.raises(BudgetGuardExceeded):
            rented(guard, vendor, clock, limit=Money.parse("51 USD"))
        assert vendor.running() == []

    @pytest.mark.parametrize("mode", ["fail", "garbage", "empty"])
    def test_a_vendor_that_cannot_list_gets_no_order(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, mode: str
    ) -> None:
        vendor.behave("list", mode)
        with pytest.raises(VendorUnusable):
            rented(guard, vendor, clock)
        assert (guard.committed, vendor.running()) == (0.0, [])

    def test_a_creation_that_failed_and_is_not_listed_releases_its_hold(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "fail")
        with pytest.raises(CreationFailed):
            rented(guard, vendor, clock)
        assert guard.committed == 0.0

    @pytest.mark.parametrize("mode", ["garbage", "fail-but-did", "empty"])
    def test_an_id_that_creation_did_not_print_is_found_by_name(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, mode: str
    ) -> None:
        vendor.behave("create", mode)
        hold = rented(guard, vendor, clock)
        assert hold.resource == "pod-1"
        assert guard.held == 20.0

    def test_a_failed_creation_keeps_its_hold_while_the_list_cannot_be_read(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        def list_breaks(_: Hold) -> None:
            vendor.behave("list", "fail")

        vendor.behave("create", "fail-but-did")
        with pytest.raises(RentalUnknown, match="IT MAY BE RUNNING"):
            rent(guard, order(vendor), ENVIRON, start_watcher=list_breaks, clock=clock)
        assert guard.held == 20.0

    def test_an_id_that_cannot_be_recorded_is_returned_and_reported(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        def log_breaks(_: Hold) -> None:
            corrupt_log(guard)

        said: list[str] = []
        hold = rent(
            guard, order(vendor), ENVIRON, start_watcher=log_breaks, clock=clock, say=said.append
        )
        assert hold.resource == "pod-1"
        assert "could not be recorded" in said[-1]

    @pytest.mark.parametrize("id_from", ["xml:/id", "json:id", "regex:("])
    def test_an_id_that_could_not_be_read_is_refused_before_money_is_held(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, id_from: str
    ) -> None:
        wanted = order(vendor, vendor=vendor_with_id_from(vendor, id_from))
        with pytest.raises(InvalidValue):
            rent(guard, wanted, ENVIRON, start_watcher=no_watcher, clock=clock)
        assert (guard.committed, vendor.running()) == (0.0, [])

    def test_a_creation_that_hangs_is_reported_as_unknown_and_its_hold_counts(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "hang")
        with pytest.raises(RentalUnknown, match="IT MAY BE RUNNING"):
            rented(guard, vendor, clock)
        assert guard.held == 20.0
        assert "id is unknown" in str(guard.findings()[0])

    def test_an_unparsed_id_that_is_listed_late_is_unknown_and_then_found(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "late:20")
        wanted = order(vendor, vendor=vendor_with_id_from(vendor, "json:.uuid"))
        with pytest.raises(RentalUnknown):
            rent(guard, wanted, ENVIRON, start_watcher=no_watcher, clock=clock)
        assert guard.held == 20.0
        (hold,) = guard.holds()
        watch = watching(guard, hold, clock)
        while not guard.holds()[0].resource:
            assert poll_once(watch)
        assert guard.holds()[0].resource == "pod-1"
        assert guard.findings() == ()

    @pytest.mark.parametrize(
        "changes",
        [
            {"create": ("make", "a-pod")},
            {"rate": Rate.parse("0 USD/h")},
            {"limit": Money.parse("0.05 USD")},
            {"most": Duration(0)},
            {"create": ("make", "{name}", "$NOT_SET_ANYWHERE")},
        ],
    )
    def test_an_order_that_could_not_be_ended_is_refused_before_money_is_held(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, changes: dict[str, object]
    ) -> None:
        with pytest.raises(InvalidValue):
            rented(guard, vendor, clock, **changes)
        assert guard.committed == 0.0


def append_simple(guard: BudgetGuard, label: str) -> None:
    """Append a line as another program does."""
    line = {"ts": "2023-11-14T23:00:00Z", "op_label": label, "actual": 0, "currency": "USD"}
    with guard.log_path.open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.write(json.dumps(line) + "\n")


def capture_of(hold: Hold) -> Captured:
    """What an earlier version wrote when a person settled something that still ran."""
    return Captured(
        v=1, ts=hold.ts, op_label=hold.op_label, actual=Decimal(0), currency="USD", hold=hold.id,
        lab=hold.lab, day=hold.day,
    )  # fmt: skip


def corrupt_log(guard: BudgetGuard) -> bytes:
    """Make the log unusable; return what it was."""
    sound = guard.log_path.read_bytes()
    guard.log_path.write_bytes(sound + b"nonsense\n")
    return sound


def vendor_with_id_from(vendor: StandIn, id_from: str) -> Vendor:
    known = vendor.vendor()
    return Vendor(name=known.name, list=known.list, terminate=known.terminate, id_from=id_from)


class TestTheDeadline:
    def test_before_it_nothing_is_ended(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        clock.advance(9 * HOUR)
        assert poll_once(watch)
        assert vendor.running() == ["pod-1"]

    def test_at_it_the_rental_is_ended_and_settled_once_it_is_gone(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        watch = watching(guard, hold, clock)
        clock.advance(10 * HOUR - 120 * 10**9)
        finish(watch)
        assert vendor.running() == []
        assert events(guard) == ["hold", "created", "listed", "terminating", "gone", "capture"]
        assert (guard.held, guard.total_spent) == (0.0, 19.933334)
        assert hold.rental is not None
        proof = proof_path(guard.log_path.parent, hold.rental.name).read_text()
        assert proof.startswith("verified gone 2023-11-15 08:11:20Z\n")
        assert "verified gone 2023-11-15 08:11:20Z" in guard.log_path.read_text()

    def test_a_clock_set_back_does_not_postpone_the_deadline(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        clock.advance(10 * HOUR)
        clock.step_wall(-8 * HOUR)
        finish(watch)
        assert vendor.running() == []
        assert guard.total_spent == 20.0

    @pytest.mark.parametrize("mode", ["ignore", "fail", "hang"])
    def test_a_failed_termination_is_retried_and_the_hold_stays(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, mode: str
    ) -> None:
        vendor.behave("terminate", mode)
        watch = watching(guard, rented(guard, vendor, clock), clock)
        clock.advance(10 * HOUR)
        assert all(poll_once(watch) for _ in range(3))
        assert vendor.calls("terminate") == 3
        assert guard.held == 20.0
        vendor.behave("terminate", "ok")
        finish(watch)
        assert guard.held == 0.0

    def test_a_rental_is_terminated_although_the_log_cannot_be_used(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        clock.advance(10 * HOUR)
        sound = corrupt_log(guard)
        assert poll_once(watch)
        assert vendor.running() == []
        guard.log_path.write_bytes(sound)
        finish(watch)
        assert guard.total_spent == 20.0

    def test_a_rental_that_is_not_listed_yet_and_not_ended_is_not_gone(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "late:50")
        hold = rented(guard, vendor, clock)
        vendor.behave("terminate", "fail")
        assert not Reaper(guard, ENVIRON, clock=clock).end(hold, rounds=4)
        assert guard.held == 20.0

    def test_a_clock_before_the_order_charges_what_is_held(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        clock.advance(HOUR)
        clock.step_wall(-2 * HOUR)
        assert Reaper(guard, ENVIRON, clock=clock).end(hold)
        assert guard.total_spent == 20.0

    def test_a_rental_that_ends_late_is_settled_late(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("terminate", "late:4")
        watch = watching(guard, rented(guard, vendor, clock), clock)
        clock.advance(10 * HOUR)
        rounds = 0
        while poll_once(watch):
            rounds += 1
            clock.advance(HOUR)
        assert rounds > 4
        assert guard.total_spent == 2.0 * (10 + rounds)

    @pytest.mark.parametrize("mode", ["fail", "hang", "garbage", "empty"])
    def test_an_unreadable_list_proves_nothing_and_the_rental_is_still_terminated(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock, mode: str
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        clock.advance(10 * HOUR)
        vendor.behave("list", mode)
        assert all(poll_once(watch) for _ in range(3))
        assert vendor.running() == []
        assert guard.held == 20.0
        vendor.behave("list", "ok")
        finish(watch)
        assert guard.held == 0.0

    def test_one_empty_listing_settles_nothing(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        pods = (vendor.directory / "pods.json").read_text()
        (vendor.directory / "pods.json").write_text("[]")
        assert poll_once(watch)
        (vendor.directory / "pods.json").write_text(pods)
        assert poll_once(watch)
        assert guard.held == 20.0

    def test_a_new_rental_that_is_not_listed_yet_is_not_gone(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "late:4")
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert all(poll_once(watch) for _ in range(6))
        assert guard.held == 20.0

    def test_a_rental_that_vanished_early_is_settled_for_its_lifetime(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        watch = watching(guard, rented(guard, vendor, clock), clock)
        assert poll_once(watch)
        clock.advance(HOUR)
        vendor.reclaim()
        assert all(poll_once(watch) for _ in range(3))
        clock.advance(10 * MINUTE)
        finish(watch)
        assert events(guard)[2:] == ["listed", "not-listed", "terminating", "gone", "capture"]
        assert guard.total_spent == 2.333334


class TestSettling:
    """Nothing settles the hold of a rental that lives."""

    @pytest.mark.parametrize(
        "settle",
        [
            lambda guard, hold: guard.record_actual("lab02-tp", 0, hold=hold),
            lambda guard, hold: guard.record_actual("lab02-tp", 0, hold=hold.id),
            lambda guard, hold: guard.void(hold, "it never was"),
        ],
        ids=["capture", "capture by id", "void"],
    )
    def test_a_live_rental_is_not_settled(
        self,
        guard: BudgetGuard,
        vendor: StandIn,
        clock: ManualClock,
        settle: Callable[[BudgetGuard, Hold], None],
    ) -> None:
        hold = rented(guard, vendor, clock)
        with pytest.raises(RentalAlive, match="guard down lab02-tp"):
            settle(guard, hold)
        assert guard.held == 20.0

    def test_spend_of_the_same_label_counts_beside_it(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        rented(guard, vendor, clock)
        assert guard.record_actual("lab02-tp", 1).hold == ""
        assert (guard.held, guard.total_spent) == (20.0, 1.0)

    def test_a_rental_that_was_never_listed_may_be_voided(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        vendor.behave("create", "hang")
        with pytest.raises(RentalUnknown):
            rented(guard, vendor, clock)
        guard.void(guard.holds()[0], "the console shows nothing")
        assert guard.committed == 0.0

    def test_a_hold_that_an_earlier_version_settled_too_early_is_corrected(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        watch = watching(guard, hold, clock)
        guard.log.transact(lambda _: Decision((capture_of(hold),), None))
        clock.advance(10 * HOUR)
        finish(watch)
        assert vendor.running() == []
        assert guard.total_spent == 20.0


class TestUnattended:
    """Overdue, or without a watcher: an error wherever money is shown."""

    def test_one_past_its_deadline_counts_what_it_costs_in_every_scope(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        rented(guard, vendor, clock)
        clock.advance(12 * HOUR)
        assert (guard.held, guard.remaining) == (24.0, 26.0)
        held = {row.scope.of: row.held for row in guard.standings()}
        assert held == {"whole": Money.parse("24 USD")}
        (finding,) = guard.findings()
        assert finding.severity == "error"
        assert "past its deadline" in finding.message

    def test_one_past_its_deadline_blocks_its_own_lab_alone(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        running = guard.authorize("lab02-train", 1)
        rented(guard, vendor, clock)
        clock.advance(12 * HOUR)
        with pytest.raises(RentalUnattended, match="project 02"):
            guard.authorize("lab02-more", 1)
        assert guard.extend(running, 1).amount == Money.parse("2 USD")
        assert guard.authorize("lab03-other", 1).lab == "03"

    def test_a_key_granted_before_still_returns_its_hold(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        before = guard.authorize("lab02-train", 1, key="once")
        rented(guard, vendor, clock)
        clock.advance(12 * HOUR)
        assert guard.authorize("lab02-train", 1, key="once").id == before.id

    def test_what_it_costs_beyond_its_hold_leaves_no_room_elsewhere(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        rented(guard, vendor, clock)
        clock.advance(24 * HOUR)
        with pytest.raises(BudgetGuardExceeded, match="whole"):
            guard.authorize("lab03-other", 3)

    def test_a_dead_watcher_blocks_its_lab_before_the_deadline(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        mine = ProcessName.parse(this_process())
        assert mine is not None
        earlier = str(replace(mine, start=1))  # Another process that had our pid.
        guard.note("watched", hold=hold, detail={"watcher": earlier})
        with pytest.raises(RentalUnattended, match="is dead"):
            guard.authorize("lab02-more", 1)
        guard.note("watched", hold=hold, detail={"watcher": this_process()})
        assert guard.authorize("lab02-more", 1).lab == "02"

    def test_its_lab_is_unblocked_once_it_is_gone(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        clock.advance(12 * HOUR)
        assert Reaper(guard, ENVIRON, clock=clock).end(hold)
        assert guard.findings() == ()
        assert guard.authorize("lab02-more", 1).lab == "02"


class TestReaping:
    def test_strangers_are_shown_and_never_ended(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        rented(guard, vendor, clock)
        vendor_stand_in.answer(vendor.directory, "create", "somebody-elses")
        inventory = Reaper(guard, ENVIRON, clock=clock).inventory()
        assert [(row.id, row.state) for row in inventory.rows] == [
            ("pod-1", "running"),
            ("pod-2", "stranger"),
        ]
        assert not any(row.needs_ending for row in inventory.rows)

    def test_an_overdue_rental_is_terminated_and_settled(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        clock.advance(11 * HOUR)
        reaper = Reaper(guard, ENVIRON, clock=clock)
        (row,) = reaper.inventory().rows
        assert (row.state, row.needs_ending) == ("overdue", True)
        assert reaper.end(hold)
        assert vendor.running() == []
        assert guard.held == 0.0
        assert reaper.inventory().rows == ()

    def test_a_settled_rental_that_still_runs_is_found(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        guard.settle_rental(hold, Money.parse("1 USD"), "two listings were wrong")
        reaper = Reaper(guard, ENVIRON, clock=clock)
        (row,) = reaper.inventory().rows
        assert (row.state, row.needs_ending) == ("ended but listed", True)
        assert reaper.end(hold)
        assert vendor.running() == []

    def test_a_rental_that_cannot_be_terminated_is_reported(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        vendor.behave("terminate", "ignore")
        said: list[str] = []
        assert not Reaper(guard, ENVIRON, clock=clock, say=said.append).end(hold, rounds=2)
        assert "IS STILL THERE" in said[-1]
        assert guard.held == 20.0

    def test_a_rental_that_its_watcher_settled_is_reported_gone(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = rented(guard, vendor, clock)
        clock.advance(10 * HOUR)
        finish(watching(guard, hold, clock))
        said: list[str] = []
        assert Reaper(guard, ENVIRON, clock=clock, say=said.append).end(hold)
        assert "settled already" in said[-1]
        assert guard.total_spent == 20.0

    def test_a_list_that_fails_is_a_finding_and_ends_nothing(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        rented(guard, vendor, clock)
        vendor.behave("list", "garbage")
        inventory = Reaper(guard, ENVIRON, clock=clock).inventory()
        assert inventory.rows == ()
        assert "its list can't be read" in str(inventory.findings[0])

    def test_a_vendor_whose_key_is_not_set_hides_no_other(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        rented(guard, vendor, clock)
        other = Vendor(name="other", list=("list", "$NOT_SET_ANYWHERE"), terminate=())
        inventory = Reaper(guard, ENVIRON, extra=(other,), clock=clock).inventory()
        assert [row.id for row in inventory.rows] == ["pod-1"]
        (finding,) = inventory.findings
        assert (finding.source, "$NOT_SET_ANYWHERE" in finding.message) == ("other", True)

    def test_a_rental_that_was_extended_is_shown_with_what_it_holds_now(
        self, guard: BudgetGuard, vendor: StandIn, clock: ManualClock
    ) -> None:
        hold = guard.extend(rented(guard, vendor, clock), 1)
        assert guard.log.books().rental(hold.id) == hold


class TestTheWatcher:
    """Real processes and real time; the deadline is half a second after the order.

    The vendor ignores termination until the test has done what it is about.
    """

    ORDER = """
import os, sys
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor
from outlay.guard.rental.rental import RentalOrder, rent
from outlay.guard.rental.watch import start_watcher
from outlay.units import Duration, Money, Rate
log, *base = sys.argv[1:]
guard = BudgetGuard(50, log)
vendor = Vendor(name="stand-in", list=(*base, "list"), terminate=(*base, "terminate", "{id}"))
poll = Duration.parse("100ms")
order = RentalOrder(label="lab02-tp", limit=Money.parse("6 USD"), rate=Rate.parse("3600 USD/h"),
              vendor=vendor, create=(*base, "create", "{name}"), margin=Duration.parse("5500ms"),
              settle=Duration.parse("100ms"))
rent(guard, order, os.environ,
     start_watcher=lambda hold: start_watcher(guard.log_path, hold, os.environ, poll))
"""

    @pytest.fixture
    def guard(self, tmp_path: Path) -> BudgetGuard:
        return BudgetGuard(50, tmp_path / "books" / "spend.jsonl", environ={})

    @pytest.fixture
    def vendor(self, vendor: StandIn) -> StandIn:
        vendor.behave("terminate", "ignore")
        return vendor

    def start_order(self, guard: BudgetGuard, vendor: StandIn) -> subprocess.Popen[bytes]:
        words = [str(guard.log_path), *PROGRAM, str(vendor.directory)]
        return subprocess.Popen([sys.executable, "-c", self.ORDER, *words])

    def rent(self, guard: BudgetGuard, vendor: StandIn, *, output: str = "") -> Hold:
        """Rent in this process, with a watcher in its own that writes to ``output``."""

        def start(hold: Hold) -> None:
            if output:
                (guard.log_path.parent / f"watch-{hold.id}.log").symlink_to(output)
            start_watcher(guard.log_path, hold, ENVIRON, Duration.parse("100ms"))

        wanted = order(
            vendor, limit=Money.parse("6 USD"), rate=Rate.parse("3600 USD/h"),
            margin=Duration.parse("5500ms"),
        )  # fmt: skip
        return rent(guard, wanted, ENVIRON, start_watcher=start)

    def signal_watcher(self, guard: BudgetGuard, number: int) -> None:
        (hold,) = guard.holds()
        os.kill(int(hold.watcher.split(":")[1]), number)

    def await_settlement(self, guard: BudgetGuard) -> None:
        until(lambda: not guard.holds(), what="the watcher to settle")

    def test_it_survives_the_ordering_process_and_a_hangup_and_ends_the_rental(
        self, guard: BudgetGuard, vendor: StandIn
    ) -> None:
        assert self.start_order(guard, vendor).wait() == 0
        self.signal_watcher(guard, signal.SIGHUP)
        assert vendor.running() == ["pod-1"]
        vendor.behave("terminate", "ok")
        self.await_settlement(guard)
        assert vendor.running() == []

    def test_it_ends_a_rental_whose_hold_other_lines_settle(
        self, guard: BudgetGuard, vendor: StandIn
    ) -> None:
        hold = self.rent(guard, vendor)
        append_simple(guard, "lab02-tp")
        guard.log.transact(lambda _: Decision((capture_of(hold),), None))
        vendor.behave("terminate", "ok")
        output = guard.log_path.parent / f"watch-{hold.id}.log"
        until(lambda: "verified gone" in output.read_text(), what="the watcher to settle")
        assert vendor.running() == []
        assert guard.total_spent > 0.5

    def test_it_continues_while_its_output_cannot_be_written(
        self, guard: BudgetGuard, vendor: StandIn
    ) -> None:
        vendor.behave("terminate", "fail")  # which is reported every time
        self.rent(guard, vendor, output="/dev/full")
        until(lambda: vendor.calls("terminate") > 1, what="another termination")
        vendor.behave("terminate", "ok")
        self.await_settlement(guard)

    def test_a_rental_killed_between_creation_and_id_is_found_by_name_and_ended(
        self, guard: BudgetGuard, vendor: StandIn
    ) -> None:
        vendor.behave("create", "hang")
        vendor.behave("terminate", "ok")
        ordering = self.start_order(guard, vendor)
        calls = vendor.directory / "calls"
        until(lambda: calls.exists() and "create" in calls.read_text(), what="creation to begin")
        ordering.send_signal(signal.SIGKILL)
        ordering.wait()
        name = next(x.split()[1] for x in calls.read_text().splitlines() if "create" in x)
        pod = {"id": "pod-1", "name": name, "hidden": 0, "dying": None}
        (vendor.directory / "pods.json").write_text(json.dumps([pod]))
        self.await_settlement(guard)
        assert vendor.running() == []
        assert guard.total_spent > 0

    def test_the_reaper_ends_a_rental_whose_watcher_was_killed(
        self, guard: BudgetGuard, vendor: StandIn
    ) -> None:
        self.rent(guard, vendor)
        self.signal_watcher(guard, signal.SIGKILL)
        vendor.behave("terminate", "ok")
        reaper = Reaper(guard, ENVIRON)
        until(lambda: reaper.inventory().rows[0].state == "overdue", what="the deadline")
        assert reaper.end(guard.holds()[0], pause_s=0.05)
        assert vendor.running() == []
        assert guard.held == 0.0


def test_a_watcher_that_cannot_start_orders_nothing(
    guard: BudgetGuard, vendor: StandIn, clock: ManualClock
) -> None:
    def broken(_: Hold) -> None:
        raise OSError(11, "no more processes")

    with pytest.raises(VendorUnusable, match="watcher"):
        rent(guard, order(vendor), ENVIRON, start_watcher=broken, clock=clock)
    assert (guard.committed, vendor.running()) == (0.0, [])


def test_a_watcher_that_fails_to_start_raises(
    guard: BudgetGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = guard.authorize("a", 1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="watcher failed"):
        start_watcher(guard.log_path, hold, ENVIRON, Duration.parse("1s"))


def test_a_watcher_that_finds_no_rental_fails_to_start(guard: BudgetGuard) -> None:
    hold = guard.authorize("pays for nothing rented", 1)
    with pytest.raises(OSError, match="watcher failed"):
        start_watcher(guard.log_path, hold, ENVIRON, Duration.parse("1s"))


@pytest.mark.parametrize(("run", "ends"), [("", False), ("a run of a policy", True)])
def test_a_rental_of_a_policy_is_ended_soon_after_its_process_died(
    guard: BudgetGuard,
    vendor: StandIn,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    run: str,
    *,
    ends: bool,
) -> None:
    watch = watching(guard, rented(guard, vendor, clock, run=run), clock)
    monkeypatch.setattr("outlay.guard.rental.watch.has_ended", lambda _: True)
    for _ in range(2):
        assert poll_once(watch)
        clock.advance(30 * 10**9)
        assert vendor.running() == ["pod-1"]
    poll_once(watch)
    assert (vendor.running() == []) is ends
