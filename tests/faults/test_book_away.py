"""While a book can't be reached nothing new is authorised, and what runs keeps to what it holds."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlay
from command_line import in_process
from outlay.clock import ManualClock
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.errors import SpendLogUnusable
from outlay.guard.gate import GuardGate, Guarding, Leaseholder
from outlay.guard.lease import End, GiveNotice, Terms
from outlay.guard.supervise import Supervisor
from outlay.team.session import Patience
from outlay.units import Duration, Rate
from postgres import TeamDatabase
from process_trees import alive
from relay import Relay
from waiting import until

SECOND = 10**9
RATE = Rate.parse("3600 USD/h")  # one dollar a second


@pytest.fixture
def relay(team: TeamDatabase) -> Iterator[Relay]:
    with Relay(team.server.port) as relay:
        yield relay


@pytest.fixture(autouse=True)
def _password(team: TeamDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes get the URL without it."""
    monkeypatch.setenv("PGPASSWORD", team.password)


def new_book(team: TeamDatabase) -> str:
    return team.new_book().replace(f":{team.password}", "")


def seconds(number: float) -> Duration:
    return Duration(int(number * SECOND))


# -- nothing new -----------------------------------------------------------------------------------


@pytest.fixture
def away(team: TeamDatabase) -> Iterator[str]:
    """The URL of a book that has a ceiling, and whose server is down."""
    url = new_book(team)
    guard = BudgetGuard(500, url, environ={})
    guard.void(guard.authorize("lab02-before", 1), "to state the ceiling")
    team.server.stop_at_once()
    yield url
    team.server.start()


def test_no_command_starts(away: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    words = ("--label", "lab02-a", "--rate", "1 USD/h", "--log", away)
    for ceiling in ([], ["--ceiling", "5"]):
        refused = in_process("guard", "run", *words, *ceiling, "--", "touch", touched)
        assert (refused.code, "Nothing is authorised" in refused.err) == (3, True)
    assert not touched.exists()


def test_no_run_starts(away: str, tmp_path: Path) -> None:
    with pytest.raises(SpendLogUnusable, match="Make sure that the server runs"):
        outlay.run("a", guard=away, price="1 USD/h", gpus=1, dir=tmp_path / "run")


# -- the allowance ---------------------------------------------------------------------------------


def test_a_lease_runs_for_its_allowance_without_the_book_then_stops(team: TeamDatabase) -> None:
    guard = BudgetGuard(1000, new_book(team), environ={})
    terms = Terms(rate=RATE, slice=seconds(100), notice=seconds(20), allowance=seconds(600))
    holder = Leaseholder.open(guard, "lab02-a", terms, {}, now_ns=0)
    assert guard.held == 720.0
    holder.renew(50 * SECOND)
    assert guard.held == 770.0
    team.server.stop_at_once()
    try:
        for now_s in (100, 300, 500, 749):
            assert not isinstance(holder.renew(now_s * SECOND), GiveNotice | End)
            assert now_s < 750 <= (holder.lease.stop_ns or 0) / SECOND
        noticed = holder.renew(750 * SECOND)
        assert isinstance(noticed, GiveNotice)
        assert "Make sure that the server runs" in noticed.reason
        holder.give_notice(750 * SECOND)
        assert isinstance(holder.renew(770 * SECOND), End)
    finally:
        team.server.start()


def test_a_lease_goes_on_when_the_book_is_back_within_the_allowance(team: TeamDatabase) -> None:
    guard = BudgetGuard(2000, new_book(team), environ={})
    terms = Terms(rate=RATE, slice=seconds(100), notice=seconds(20), allowance=seconds(600))
    holder = Leaseholder.open(guard, "lab02-a", terms, {}, now_ns=0)
    team.server.stop_at_once()
    try:
        holder.renew(100 * SECOND)
        assert holder.lease.refusal
    finally:
        team.server.start()
    holder.renew(690 * SECOND)
    assert (holder.lease.refusal, guard.held) == ("", 690.0 + 720.0)


def test_the_gate_of_a_run_holds_the_allowance_of_its_book(
    team: TeamDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = BudgetGuard(2000, new_book(team), clock=clock, environ={})
    monkeypatch.setattr(guard.log, "offline_allowance", lambda: seconds(600))
    guarding = Guarding(guard=guard, slice=seconds(100), grace=seconds(20))
    GuardGate(guarding, RATE, "lab02-a", {}, clock=clock).abandon("that is all")
    assert guard.log.lines()[0].estimated == 720


# -- a book that does not answer -------------------------------------------------------------------


def guard_behind(relay: Relay, team: TeamDatabase, *, answer_s: int) -> BudgetGuard:
    url = relay.url(new_book(team), connect_timeout=answer_s)
    log = team.log(url, patience=Patience(answer=answer_s))
    return BudgetGuard(1000, url, environ={}, log=log)


def test_a_server_that_is_silent_is_a_refusal(team: TeamDatabase, relay: Relay) -> None:
    guard = guard_behind(relay, team, answer_s=2)
    guard.authorize("lab02-a", 1)
    relay.silence()
    with pytest.raises(SpendLogUnusable, match="Make sure that the server runs"):
        guard.authorize("lab02-b", 1)
    relay.answer()
    guard.authorize("lab02-c", 1)
    assert [hold.op_label for hold in guard.holds()] == ["lab02-a", "lab02-c"]


SAVES = """
import os, pathlib, signal, sys, time

def save(*_):
    saving = pathlib.Path(sys.argv[1] + ".new")
    saving.write_text(str(os.getpid()))
    saving.rename(sys.argv[1])
    time.sleep(600)

signal.signal(signal.SIGTERM, save)
time.sleep(600)
"""


def test_signals_are_on_time_while_the_book_does_not_answer(
    team: TeamDatabase, relay: Relay, tmp_path: Path
) -> None:
    """SIGTERM and SIGKILL do not wait for the request for more money, which hangs throughout."""
    guard = guard_behind(relay, team, answer_s=600)
    saved = tmp_path / "saved"

    def answer_once_it_is_gone() -> None:
        until(saved.exists, "SIGTERM never came")
        until(lambda: not alive(int(saved.read_text())), "SIGKILL never came")
        relay.answer()

    terms = Terms(rate=RATE, slice=seconds(2), notice=seconds(2))
    said = iter([relay.silence])  # Once money is held.
    supervisor = Supervisor(guard, "lab02-x", terms, say=lambda _: next(said, lambda: None)())
    answering = threading.Thread(target=answer_once_it_is_gone)
    answering.start()
    outcome = supervisor.run([sys.executable, "-c", SAVES, str(saved)], os.environ)
    answering.join()
    # The keeper, which acts a second later, would leave the reason of the lease.
    assert outcome.stopped_because == "the spend log does not answer"
    assert (outcome.exit_code, outcome.recorded, guard.holds()) == (3, True, ())


def test_a_changed_price_does_not_wait_for_a_book_that_does_not_answer(
    team: TeamDatabase, relay: Relay
) -> None:
    clock = ManualClock()
    guard = guard_behind(relay, team, answer_s=600)
    guarding = Guarding(guard=guard, slice=seconds(100), grace=seconds(20))
    gate = GuardGate(guarding, RATE, "lab02-a", {}, clock=clock)
    relay.silence()
    gate.change_rate(Rate.parse("25200 USD/h"))
    assert gate.stop_reason() == "guard: the money that is held is used up"
    relay.answer()
    gate.settle()
    assert guard.holds() == ()
