"""Leases beat in their book, by the database's clock; a silent one ends nothing and is listed."""

from __future__ import annotations

from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import Terms
from outlay.team import PostgresUrl
from outlay.team.team_schema import prune_book
from outlay.units import Rate
from postgres import TeamDatabase
from waiting import until

MINUTE = 60 * 10**9
TERMS = Terms(rate=Rate.parse("1 USD/h"))


def beats(team: TeamDatabase, holder: Leaseholder) -> list[tuple[object, ...]]:
    return team.execute(f"SELECT watcher FROM outlay.beat WHERE hold = '{holder.hold.id}'")


def silence(team: TeamDatabase, holder: Leaseholder) -> None:
    before = "SET at = clock_timestamp() - interval '6 minutes'"
    team.execute(f"UPDATE outlay.beat {before} WHERE hold = '{holder.hold.id}'")


def lease(team: TeamDatabase) -> tuple[BudgetGuard, Leaseholder]:
    guard = BudgetGuard(50, team.new_book(), environ={})
    return guard, Leaseholder.open(guard, "lab02-a", TERMS, {}, now_ns=0)


def test_a_lease_beats_once_a_minute(team: TeamDatabase) -> None:
    guard, holder = lease(team)
    holder.renew(0)
    assert beats(team, holder) == [(holder.hold.by,)]
    silence(team, holder)
    holder.renew(MINUTE - 1)
    assert guard.log.abandoned([holder.hold]) == {holder.hold.id}
    holder.renew(MINUTE)
    assert guard.log.abandoned([holder.hold]) == frozenset()


def test_a_supervisor_beats_without_waiting_for_the_book(team: TeamDatabase) -> None:
    _, holder = lease(team)
    holder.renew_in_background(0)
    until(lambda: beats(team, holder), "the lease never beat")
    holder.void("that is all")


def test_a_silent_lease_is_listed_and_stays_held(team: TeamDatabase) -> None:
    guard, holder = lease(team)
    holder.renew(0)
    assert guard.stale_holds() == ()
    silence(team, holder)
    ((hold, why),) = guard.stale_holds()
    assert (hold.id, "has ended or is silent" in why) == (holder.hold.id, True)
    assert guard.held > 0


def test_a_hold_whose_opener_never_beats_is_not_taken_for_silent(team: TeamDatabase) -> None:
    guard = BudgetGuard(50, team.new_book(), environ={})
    hold = guard.authorize("lab02-a", 1, by="a person")
    assert guard.log.abandoned([hold]) == frozenset()


def test_beats_of_settled_holds_are_pruned(team: TeamDatabase) -> None:
    url = team.new_book(owner=True)
    guard = BudgetGuard(50, url, environ={})
    settled, running = (
        Leaseholder.open(guard, f"lab02-{name}", TERMS, {}, now_ns=0) for name in "ab"
    )
    settled.renew(0)
    running.renew(0)
    settled.void("that is all")
    prune_book(PostgresUrl.parse(url))
    assert (beats(team, settled), len(beats(team, running))) == ([], 1)
