"""Rentals under a book: watched, ended and proven as under a file, with no secret shown."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import outlay
from command_line import in_process
from outlay.clock import SYSTEM, ManualClock
from outlay.errors import InvalidValue
from outlay.guard.balance import Hold
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import line_kind, timestamp
from outlay.guard.errors import RentalUnattended, SpendLogUnusable
from outlay.guard.gate import DEADLINE_VARIABLE, HOLD_VARIABLE, GuardGate, read_guarding
from outlay.guard.rental.rental import proof_path, rent, settle_by_hand
from outlay.guard.rental.watch import (
    Reaper,
    known_books,
    known_logs,
    living_rentals,
    poll_once,
    start_watcher,
)
from outlay.guard.spend_log import documents_dir
from outlay.ledger import Price
from outlay.proc.identity import ProcessName, this_process
from outlay.units import Duration, Money, Rate
from postgres import TeamDatabase
from process_trees import alive
from rented import PROGRAM, StandIn, finish, no_watcher, order, rented, watching
from waiting import until

AWAY = "postgresql://ada@127.0.0.1:1/spend?book=a"


@pytest.fixture
def url(team: TeamDatabase, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PGPASSWORD", team.password)
    return team.new_book().replace(f":{team.password}", "")


@pytest.fixture
def guard(url: str) -> BudgetGuard:
    return BudgetGuard(50, url, environ={})


@pytest.fixture
def vendor(tmp_path: Path) -> StandIn:
    directory = tmp_path / "vendor"
    directory.mkdir()
    return StandIn(directory)


def pid_of(hold: Hold) -> int:
    return int(hold.watcher.split(":")[1])


def watched(guard: BudgetGuard, vendor: StandIn) -> Hold:
    """Rent for half a second, with a watcher in a process of its own; return what the book says."""
    wanted = order(
        vendor, limit=Money.parse("6 USD"), rate=Rate.parse("3600 USD/h"),
        margin=Duration.parse("5500ms"),
    )  # fmt: skip
    poll = Duration.parse("100ms")
    rent(
        guard, wanted, os.environ,
        start_watcher=lambda hold: start_watcher(guard.log_name, hold, os.environ, poll),
    )  # fmt: skip
    (hold,) = guard.holds()
    return hold


def test_a_watcher_ends_a_rental_under_a_book_and_shows_no_secret(
    team: TeamDatabase, guard: BudgetGuard, vendor: StandIn
) -> None:
    vendor.behave("terminate", "ignore")
    hold = watched(guard, vendor)
    arguments = Path(f"/proc/{pid_of(hold)}/cmdline").read_bytes()
    assert b"postgresql://" in arguments
    assert team.password.encode() not in arguments
    vendor.behave("terminate", "ok")
    until(lambda: not guard.holds(), "the watcher did not settle")
    until(lambda: not alive(pid_of(hold)), "the watcher did not end")
    assert vendor.running() == []
    assert hold.rental is not None
    directory = documents_dir(guard.log_name)
    assert "verified gone" in proof_path(directory, hold.rental.name).read_text()
    assert "verified gone" in (directory / f"watch-{hold.id}.log").read_text()
    assert guard.verify().findings == ()


def test_outlay_watch_ends_a_rental_whose_watcher_was_killed(
    guard: BudgetGuard, vendor: StandIn
) -> None:
    """It knows the book, since this machine has rented under it."""
    vendor.behave("terminate", "ignore")
    hold = watched(guard, vendor)
    os.kill(pid_of(hold), signal.SIGKILL)
    until(lambda: not alive(pid_of(hold)), "the watcher did not end")
    checked = in_process("watch", "--check", "--json")
    assert (checked.code, [row["hold"]["id"] for row in checked.json["rented"]]) == (3, [hold.id])
    assert checked.json["rented"][0]["log_path"] == str(guard.log_name)
    vendor.behave("terminate", "ok")
    until(lambda: ended_by_watch(guard), "outlay watch did not settle it")
    assert vendor.running() == []


def ended_by_watch(guard: BudgetGuard) -> bool:
    assert in_process("watch", "--once").code == 0
    return not guard.holds()


def test_commands_on_rentals_take_the_url_of_a_book(
    team: TeamDatabase, url: str, guard: BudgetGuard, vendor: StandIn
) -> None:
    base = " ".join((*PROGRAM, str(vendor.directory)))
    words = (
        "--label", "lab02-tp", "--rate", "2 USD/h", "--limit", "20 USD", "--ceiling", "50",
        "--list", f"{base} list", "--terminate", f"{base} terminate {{id}}",
        "--create", f"{base} create {{name}}", "--poll", "100ms",
    )  # fmt: skip
    done = in_process("guard", "rent", *words, "--log", url, "--json")
    assert (done.code, vendor.running()) == (0, ["pod-1"]), done.err
    (hold,) = guard.holds()
    os.kill(pid_of(hold), signal.SIGKILL)
    until(lambda: not alive(pid_of(hold)), "the watcher did not end")
    adopted = in_process("guard", "adopt", "--log", url, "--poll", "100ms", "--json")
    assert [each["id"] for each in adopted.json] == [hold.id]
    (hold,) = guard.holds()
    shown = in_process("guard", "reap", "--log", url, "--json")
    assert [row["state"] for row in shown.json["rows"]] == ["running"]
    assert in_process("guard", "down", "lab02-tp", "--log", url, "--pause", "100ms").code == 0
    assert (vendor.running(), guard.holds()) == ([], ())
    until(lambda: not alive(pid_of(hold)), "the watcher did not end")
    assert team.password not in done.out + adopted.out + shown.out


def test_a_password_in_the_url_is_refused_before_anything_is_held(
    team: TeamDatabase, vendor: StandIn
) -> None:
    guard = BudgetGuard(50, team.new_book(), environ={})
    with pytest.raises(InvalidValue, match="with a password"):
        rent(guard, order(vendor), os.environ, start_watcher=no_watcher)
    assert (guard.held, vendor.running()) == (0.0, [])


def test_a_person_settles_a_rental_under_a_book(url: str, vendor: StandIn) -> None:
    clock = ManualClock()
    guard = BudgetGuard(50, url, clock=clock, environ={})
    hold = rented(guard, vendor, clock, run="a run of a price policy")
    vendor.reclaim()
    settle_by_hand(guard, hold.id, os.environ, reason="seen in the console", clock=clock)
    assert hold.rental is not None
    assert proof_path(documents_dir(guard.log_name), hold.rental.name).exists()


def test_a_book_is_remembered_without_its_password(
    team: TeamDatabase, url: str, guard: BudgetGuard, vendor: StandIn
) -> None:
    with_password = url.replace(f"{team.login}@", f"{team.login}:{team.password}@")
    assert in_process("watch", "--once", "--log", with_password).code == 0
    assert (known_logs(), list(known_books())) == ((), [url])
    clock = ManualClock(SYSTEM.wall_ns())
    guard = BudgetGuard(50, url, clock=clock, environ={})
    hold = rented(guard, vendor, clock)
    (living,), findings = living_rentals(known_books(), clock=clock)
    assert (living.hold.id, findings) == (hold.id, [])
    vendor.behave("terminate", "ok")
    clock.advance(24 * 3600 * 10**9)
    finish(watching(guard, hold, clock))


# -- a watcher of another machine ------------------------------------------------------------------

ELSEWHERE = "db-7:4711:99:4026531836-4f6b-9c1d"


def silence(team: TeamDatabase, minutes: int) -> None:
    """Set back the beats of all watchers."""
    team.execute(f"UPDATE outlay.beat SET at = clock_timestamp() - interval '{minutes} minutes'")


def test_a_watcher_beats_while_it_watches(
    team: TeamDatabase, guard: BudgetGuard, vendor: StandIn
) -> None:
    vendor.behave("terminate", "ignore")
    hold = watched(guard, vendor)
    beats = f"SELECT watcher FROM outlay.beat WHERE hold = '{hold.id}'"
    until(lambda: team.execute(beats) == [(hold.watcher,)], "the watcher never beat")
    silence(team, 6)
    until(lambda: not guard.log.abandoned([hold]), "the watcher was not heard of again")
    vendor.behave("terminate", "ok")
    until(lambda: not alive(pid_of(hold)), "the watcher did not end")


def test_a_dead_machines_watcher_is_replaced_by_another_machines(
    team: TeamDatabase, url: str, vendor: StandIn
) -> None:
    guard = BudgetGuard(50, url, environ={})
    hold = rent(guard, order(vendor), os.environ, start_watcher=no_watcher)
    assert guard.take_watch(hold, ELSEWHERE)
    guard.log.beat(hold.id, ELSEWHERE)
    silence(team, 4)
    assert Reaper(guard, os.environ).orphans() == ()
    guard.void(guard.authorize("lab02-b", 1), "that it may")
    silence(team, 6)
    with pytest.raises(RentalUnattended, match="is dead"):
        guard.authorize("lab02-c", 1)
    assert in_process("watch", "--once", "--log", url).code == 0
    (taken,) = [each for each in guard.holds() if each.rental]
    assert taken.watcher not in ("", ELSEWHERE)
    guard.void(guard.authorize("lab02-c", 1), "that it may again")
    assert in_process("guard", "down", "lab02-tp", "--log", url, "--pause", "100ms").code == 0
    os.kill(pid_of(taken), signal.SIGTERM)
    until(lambda: not alive(pid_of(taken)), "the watcher did not end")


def rented_elsewhere(guard: BudgetGuard, vendor: StandIn, stdin: str = "") -> Hold:
    """Return the hold of a rental that a process of another machine watches."""
    wanted = order(vendor, vendor=vendor.vendor(stdin=stdin))
    environ = {**os.environ, "POD_KEY": "secret"}
    hold = rent(guard, wanted, environ, start_watcher=no_watcher)
    guard.log.beat(hold.id, ELSEWHERE)
    assert guard.take_watch(hold, ELSEWHERE)
    return hold


def watcher_now(guard: BudgetGuard) -> str:
    (hold,) = guard.holds()
    return hold.watcher


def test_a_machine_without_the_vendors_key_says_so_and_takes_over_nothing(
    team: TeamDatabase, url: str, guard: BudgetGuard, vendor: StandIn
) -> None:
    hold = rented_elsewhere(guard, vendor, "key = $POD_KEY")
    silence(team, 6)
    done = in_process("watch", "--once", "--log", url)
    assert "has no watcher, and gets none from this machine: it has no credentials" in done.err
    assert "$POD_KEY" in done.err
    assert (watcher_now(guard), vendor.running()) == (ELSEWHERE, ["pod-1"])
    settle_elsewhere(guard, vendor, hold)


def settle_elsewhere(guard: BudgetGuard, vendor: StandIn, hold: Hold) -> None:
    vendor.reclaim()
    environ = {**os.environ, "POD_KEY": "secret"}
    settle_by_hand(guard, hold.id, environ, reason="the end of a test")


def test_a_machine_whose_list_never_showed_a_rental_neither_watches_nor_settles_it(
    team: TeamDatabase, url: str, guard: BudgetGuard, vendor: StandIn
) -> None:
    """Its keys may be those of another account: there the rental would never be listed."""
    hold = rented_elsewhere(guard, vendor)
    guard.note("listed", hold=hold)
    before = vendor.reclaim()
    silence(team, 6)
    done = in_process("watch", "--once", "--log", url)
    assert "no credentials with which stand-in lists this rental" in done.err
    assert [row.id for row in guard.holds()] == [hold.id]
    assert (watcher_now(guard), "not-listed" in events_of(guard)) == (ELSEWHERE, False)
    vendor.restore(before)
    settle_elsewhere(guard, vendor, hold)


def events_of(guard: BudgetGuard) -> list[str]:
    return [line_kind(line) for line in guard.log.lines()]


def test_a_watcher_that_was_replaced_writes_and_ends_nothing(
    guard: BudgetGuard, vendor: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off with a note to write, and is back after the rental's deadline."""
    clock = ManualClock()
    first = watching(guard, rented(guard, vendor, clock), clock)
    assert guard.take_watch(first.hold, "first")
    first.watcher = "first"
    assert poll_once(first)
    with monkeypatch.context() as patch:
        away = SpendLogUnusable("book", "cut off", "")
        patch.setattr(guard, "note", lambda *_, **__: (_ for _ in ()).throw(away))
        first.note_if_possible("not-listed")
    assert guard.take_watch(replace(first.hold, watcher="first"), ELSEWHERE)
    lines = guard.log.lines()
    clock.advance(24 * 3600 * 10**9)
    assert not poll_once(first)
    assert (guard.log.lines(), vendor.running()) == (lines, ["pod-1"])
    settle_elsewhere(guard, vendor, first.hold)


def test_a_rental_whose_first_watcher_never_beat_is_abandoned_after_a_while(
    team: TeamDatabase, guard: BudgetGuard, vendor: StandIn
) -> None:
    """The machine died between the hold and the start of the watcher."""
    hold = rent(guard, order(vendor), os.environ, start_watcher=no_watcher)
    from_elsewhere = replace(hold, by=ELSEWHERE)
    assert guard.log.abandoned([from_elsewhere]) == frozenset()
    clock = ManualClock(SYSTEM.wall_ns() + 6 * 60 * 10**9)
    with team.at_time(clock):
        assert guard.log.abandoned([from_elsewhere]) == {hold.id}
    settle_elsewhere(guard, vendor, hold)


@pytest.mark.parametrize(
    "other",
    [{"boot": "00000000"}, {"machine": "ffffffff"}, {"namespace": "4026532001"}],
)
def test_a_living_watcher_of_a_machine_with_this_name_is_not_taken_for_a_dead_one(
    guard: BudgetGuard, vendor: StandIn, other: dict[str, str]
) -> None:
    """Even a clone with this machine's id, or a container with the same pid, is judged by beats."""
    mine = ProcessName.parse(this_process())
    assert mine is not None
    assert mine.scope is not None
    twin = str(replace(mine, pid=2**22 - 1, scope=mine.scope._replace(**other)))
    hold = rent(guard, order(vendor), os.environ, start_watcher=no_watcher)
    guard.log.beat(hold.id, twin)
    assert guard.take_watch(hold, twin)
    assert Reaper(guard, os.environ).orphans() == ()
    settle_elsewhere(guard, vendor, hold)


def test_a_clock_that_is_wrong_neither_moves_a_deadline_nor_a_cost(
    url: str, vendor: StandIn
) -> None:
    """The book states the time."""
    ahead = ManualClock(SYSTEM.wall_ns() + 365 * 24 * 3600 * 10**9)
    guard = BudgetGuard(50, url, clock=ahead, environ={})
    hold = rented(guard, vendor, ahead)
    assert hold.rental is not None
    assert abs(hold.rental.started_ns - SYSTEM.wall_ns()) < 3600 * 10**9
    controlled = watching(guard, hold, ManualClock(0))
    assert 9 * 3600 * 10**9 < controlled.left_ns < 10 * 3600 * 10**9
    settle_elsewhere(guard, vendor, hold)


def test_only_who_may_settle_a_hold_beats_for_it(
    team: TeamDatabase, guard: BudgetGuard, vendor: StandIn
) -> None:
    hold = rent(guard, order(vendor), os.environ, start_watcher=no_watcher)
    another = team.log(team.another_login(guard.log.name.book))  # type: ignore[attr-defined]
    another.beat(hold.id, ELSEWHERE)
    assert team.execute(f"SELECT FROM outlay.beat WHERE hold = '{hold.id}'") == []
    settle_elsewhere(guard, vendor, hold)


# -- on the rented machine -------------------------------------------------------------------------


def test_a_machine_that_cannot_reach_the_book_trains_until_its_deadline(
    clock: ManualClock,
) -> None:
    deadline = timestamp(clock.wall_ns() + 3600 * 10**9)
    environ = {HOLD_VARIABLE: f"1f0a2b3c4d5e@{AWAY}", DEADLINE_VARIABLE: deadline}
    guarding = read_guarding(None, environ, price=Price(1_000_000), clock=clock)
    assert guarding is not None
    notes: list[str] = []
    gate = GuardGate(guarding, Rate.parse("2 USD/h"), "bert", environ, clock=clock)
    gate.begin(notes.append)
    assert "hold 1f0a2b3c4d5e joined, 2.00 USD" in notes[0]
    clock.advance(3500 * 10**9)
    assert gate.stop_reason() is None
    clock.advance(40 * 10**9)
    gate.renew()
    assert "is terminated at" in (gate.stop_reason() or "")
    gate.settle()
    assert "could not be recorded" not in "".join(notes)


def test_a_run_there_records_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOLD_VARIABLE, f"1f0a2b3c4d5e@{AWAY}")
    monkeypatch.setenv(DEADLINE_VARIABLE, timestamp(SYSTEM.wall_ns() + 3600 * 10**9))
    with outlay.run("bert", dir=tmp_path / "run", price="2 USD/h") as run:
        assert len(list(run.steps(range(3)))) == 3


def test_a_command_there_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOLD_VARIABLE, f"1f0a2b3c4d5e@{AWAY}")
    words = ("--label", "lab02-a", "--rate", "2 USD/h", "--log", AWAY, "--dir", tmp_path / "run")
    assert in_process("guard", "run", *words, "--", "true").code == 3
    monkeypatch.setenv(DEADLINE_VARIABLE, timestamp(SYSTEM.wall_ns() + 3600 * 10**9))
    done = in_process("guard", "run", *words, "--json", "--", "true")
    assert (done.code, done.json["hold"], done.json["recorded"]) == (0, "1f0a2b3c4d5e", True)


@pytest.mark.parametrize(
    ("options", "unit"),
    [
        (("--rate", "2 EUR/h"), "EUR"),
        (("--rate", "2 USD/h showback"), "USD showback"),
        (("--gpus", "2"), "GPU-h"),
    ],
)
def test_a_command_there_counts_in_the_unit_of_its_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str], unit: str
) -> None:
    monkeypatch.setenv(HOLD_VARIABLE, f"1f0a2b3c4d5e@{AWAY}")
    monkeypatch.setenv(DEADLINE_VARIABLE, timestamp(SYSTEM.wall_ns() + 3600 * 10**9))
    words = ("--label", "lab02-a", *options, "--log", AWAY, "--dir", tmp_path / "run", "--json")
    done = in_process("guard", "run", *words, "--", "true")
    assert done.code == 0
    assert f"{unit} (slice" in done.err


@pytest.mark.parametrize("options", [(), ("--rate", "2"), ("--rate", "2/h")])
def test_a_command_there_without_a_currency_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv(HOLD_VARIABLE, f"1f0a2b3c4d5e@{AWAY}")
    monkeypatch.setenv(DEADLINE_VARIABLE, timestamp(SYSTEM.wall_ns() + 3600 * 10**9))
    done = in_process("guard", "run", "--label", "lab02-a", *options, "--log", AWAY, "--", "true")
    assert (done.code, "--rate" in done.err) == (2, True)


def test_without_a_deadline_a_book_that_cannot_be_reached_refuses() -> None:
    with pytest.raises(SpendLogUnusable):
        read_guarding(None, {HOLD_VARIABLE: f"1f0a2b3c4d5e@{AWAY}"}, price=Price(1_000_000))


def test_a_deadline_that_is_no_time_is_refused() -> None:
    environ = {HOLD_VARIABLE: f"1f0a2b3c4d5e@{AWAY}", DEADLINE_VARIABLE: "soon"}
    with pytest.raises(InvalidValue, match="soon"):
        read_guarding(None, environ, price=Price(1_000_000))


def test_the_creation_command_gets_hold_and_deadline(url: str, vendor: StandIn) -> None:
    clock = ManualClock()
    guard = BudgetGuard(50, url, clock=clock, environ={})
    create = (*vendor.create_command(), "", "{hold} {deadline}")
    hold = rented(guard, vendor, clock, create=create)
    assert hold.rental is not None
    (given,) = vendor.arguments("create")
    assert given.split()[-2:] == [hold.id, hold.rental.deadline]
    vendor.behave("terminate", "ok")
    clock.advance(24 * 3600 * 10**9)
    finish(watching(guard, hold, clock))
