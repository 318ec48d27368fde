"""What a lease spent while its book was away is delivered once, whoever dies on the way."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import outlay
from command_line import in_process, start_python
from outlay.guard.away.waiting_settlements import (
    Delivery,
    all_waiting,
    deliver_all,
    deliver_to,
    waiting_for,
)
from outlay.guard.budget_guard import TEST_MODE, BudgetGuard
from outlay.guard.entries import Captured, Voided
from outlay.guard.errors import BudgetGuardExceeded
from outlay.guard.gate import Leaseholder
from outlay.guard.lease import Terms
from outlay.guard.supervise import Supervisor, settle_orphaned
from outlay.proc.identity import Process
from outlay.proc.orphaned_tree import OrphanedTree, TreeRecord
from outlay.team import PostgresUrl
from outlay.units import Duration, Money, Rate
from postgres import TeamDatabase

RATE = Rate.parse("3600 USD/h")  # one dollar a second
TERMS = Terms(rate=RATE, slice=Duration.parse("30s"), notice=Duration.parse("10s"))


@pytest.fixture(autouse=True)
def _password(team: TeamDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and other processes get the URL without it."""
    monkeypatch.setenv("PGPASSWORD", team.password)


@pytest.fixture
def url(team: TeamDatabase) -> str:
    return team.new_book()


@pytest.fixture
def guard(url: str) -> BudgetGuard:
    return BudgetGuard(1000, url, environ={})


@contextmanager
def stopped(team: TeamDatabase) -> Iterator[None]:
    team.server.stop_at_once()
    try:
        yield
    finally:
        team.server.start()


def leased(guard: BudgetGuard, label: str) -> Leaseholder:
    return Leaseholder.open(guard, label, TERMS, {}, now_ns=0)


def spend_while_away(team: TeamDatabase, guard: BudgetGuard, number: int) -> list[Path | None]:
    """End as many leases while the server is down; the first costs one dollar, the second two."""
    holders = [leased(guard, f"lab02-{each}") for each in range(number)]
    with stopped(team):
        return [
            holder.settle(Money.parse(f"{each + 1} USD")) for each, holder in enumerate(holders)
        ]


def deliver_everything() -> Delivery:
    return deliver_all(BudgetGuard.of_log)


def captures(guard: BudgetGuard) -> dict[str, int]:
    """Return the amounts by label; fails where a label was captured twice."""
    found = [line for line in guard.log.lines() if isinstance(line, Captured)]
    assert len(found) == len({line.op_label for line in found})
    return {line.op_label: int(line.actual or 0) for line in found}


def test_captures_of_20_leases_wait_and_are_delivered_once_each(
    team: TeamDatabase, guard: BudgetGuard
) -> None:
    files = spend_while_away(team, guard, 20)
    assert len({file for file in files if file is not None}) == 20
    assert len(guard.holds()) == 20
    done = deliver_everything()
    assert (len(done.delivered), done.waiting) == (20, ())
    assert captures(guard) == {f"lab02-{each}": each + 1 for each in range(20)}
    assert (guard.holds(), all_waiting()) == ((), ())
    assert deliver_everything().delivered == ()
    assert guard.verify().findings == ()


def test_a_file_is_private_and_has_no_password(
    team: TeamDatabase, guard: BudgetGuard, url: str
) -> None:
    (file,) = spend_while_away(team, guard, 1)
    assert file is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert team.password in url
    assert team.password not in file.read_text() + str(file)
    assert deliver_everything().waiting == ()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("postgresql://ada:se%40cret@db:6543/spend?book=b", "postgresql://ada@db:6543/spend?book=b"),
        ("postgres://db/spend?password=x&book=b&sslmode=require",
         "postgres://db/spend?book=b&sslmode=require"),
        ("postgresql://ada@db/spend?book=b", "postgresql://ada@db/spend?book=b"),
    ],
)  # fmt: skip
def test_a_url_without_its_password_names_the_same_book(given: str, kept: str) -> None:
    url = PostgresUrl.parse(given)
    assert url.without_password() == kept
    assert PostgresUrl.parse(kept).file_name == url.file_name
    assert not [part for part in ("ada", "cret", "6543") if part in url.file_name]


def test_the_next_use_of_the_book_delivers_before_it_decides(
    team: TeamDatabase, guard: BudgetGuard, url: str
) -> None:
    """What a lease held and did not spend is free for the next."""
    spend_while_away(team, guard, 2)
    assert guard.held == 80.0
    BudgetGuard(1000, url, environ={}).authorize("lab02-next", 997)
    assert (guard.total_spent, all_waiting()) == (3.0, ())
    with pytest.raises(BudgetGuardExceeded):
        guard.authorize("lab02-more", 1)


def test_a_lease_that_settles_delivers_what_others_could_not(
    team: TeamDatabase, guard: BudgetGuard
) -> None:
    late = leased(guard, "lab02-late")
    spend_while_away(team, guard, 1)
    assert late.settle(Money.parse("5 USD")) is None
    assert captures(guard) == {"lab02-0": 1, "lab02-late": 5}


# -- a delivery that dies --------------------------------------------------------------------------

DELIVERS = """
import os, signal, sys
from outlay import BudgetGuard
from outlay.guard.away import waiting_settlements

if "killed" in sys.argv:
    waiting_settlements._forget = lambda path: os.kill(os.getpid(), signal.SIGKILL)
waiting_settlements.deliver_all(BudgetGuard.of_log)
"""


def test_a_delivery_killed_between_commit_and_deletion_is_made_once(
    team: TeamDatabase, guard: BudgetGuard
) -> None:
    spend_while_away(team, guard, 2)
    child = start_python(DELIVERS, "killed")
    assert child.wait() == -signal.SIGKILL
    assert (len(captures(guard)), len(all_waiting())) == (1, 2)
    assert len(deliver_everything().delivered) == 2
    assert (captures(guard), all_waiting()) == ({"lab02-0": 1, "lab02-1": 2}, ())


def test_processes_that_deliver_at_the_same_time_deliver_once(
    team: TeamDatabase, guard: BudgetGuard
) -> None:
    spend_while_away(team, guard, 6)
    children = [start_python(DELIVERS) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert (len(captures(guard)), guard.holds(), all_waiting()) == (6, (), ())


def test_a_book_that_is_away_again_keeps_what_waits(team: TeamDatabase, guard: BudgetGuard) -> None:
    spend_while_away(team, guard, 2)
    with stopped(team):
        done = deliver_everything()
        assert (done.delivered, len(done.waiting)) == ((), 2)
        assert "Make sure that the server runs" in done.waiting[0].why
    assert len(deliver_to(guard).delivered) == 2


def test_a_hold_that_another_settled_waits_for_a_person(
    team: TeamDatabase, guard: BudgetGuard
) -> None:
    holder = leased(guard, "lab02-a")
    with stopped(team):
        holder.settle(Money.parse("3 USD"))
    guard.record_actual("lab02-a", "2 USD", hold=holder.hold)
    (left,) = deliver_everything().waiting
    assert "resolved already" in left.why
    left.path.unlink()


def test_a_capture_whose_commit_was_unknown_is_delivered_once(
    team: TeamDatabase, guard: BudgetGuard
) -> None:
    """It was written, and the client never heard of it."""
    holder = leased(guard, "lab02-a")
    with stopped(team):
        file = holder.settle(Money.parse("3 USD"))
    assert file is not None
    guard.record_actual("lab02-a", "3 USD", hold=holder.hold, key=f"settle-{holder.hold.id}")
    assert len(deliver_everything().delivered) == 1
    assert captures(guard) == {"lab02-a": 3}


def test_a_void_is_delivered_once(team: TeamDatabase, guard: BudgetGuard) -> None:
    holders = [leased(guard, f"lab02-{each}") for each in range(2)]
    with stopped(team):
        for holder in holders:
            holder.void("not started")
    guard.void(holders[1].hold, "not started")
    assert len(deliver_everything().delivered) == 2
    voided = [line.hold for line in guard.log.lines() if isinstance(line, Voided)]
    assert sorted(voided) == sorted(holder.hold.id for holder in holders)


def test_test_mode_delivers_nothing(
    team: TeamDatabase, guard: BudgetGuard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spend_while_away(team, guard, 1)
    rehearsal = BudgetGuard(5, url, environ={TEST_MODE: "1"})
    rehearsal.authorize("lab02-a", 1)
    assert len(waiting_for(rehearsal.log_name)) == 1
    with monkeypatch.context() as patch:
        patch.setenv(TEST_MODE, "1")
        assert [each.why for each in deliver_everything().waiting] == ["the guard is in test mode"]
    assert len(deliver_everything().delivered) == 1


def test_a_file_that_is_no_settlement_is_reported_and_kept(
    team: TeamDatabase, guard: BudgetGuard
) -> None:
    (file,) = spend_while_away(team, guard, 1)
    assert file is not None
    other = file.with_name("other.json")
    other.write_text('{"hold": 5}')
    done = deliver_everything()
    assert (len(done.delivered), [each.path for each in done.waiting]) == (1, [other])
    other.unlink()


# -- runs and commands -----------------------------------------------------------------------------


def test_a_command_whose_book_goes_away_succeeds_and_its_capture_waits(
    team: TeamDatabase, url: str
) -> None:
    named, said = url.replace(f":{team.password}", ""), list[str]()
    guard = BudgetGuard(1000, named, environ={})

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            team.server.stop_at_once()

    try:
        outcome = Supervisor(guard, "lab02-a", TERMS, say=say).run(
            [sys.executable, "-c", ""], os.environ
        )
    finally:
        team.server.start()
    assert (outcome.exit_code, outcome.recorded, outcome.waits) == (0, False, True)
    assert "outlay guard deliver" in said[-1]
    shown = in_process("guard", "status", "--log", url, columns=200)
    assert f"1 settlement, {outcome.actual} on this machine not delivered yet" in shown.out
    delivered = in_process("guard", "deliver", "--json")
    assert (delivered.code, delivered.json["waiting"]) == (0, [])
    assert delivered.json["delivered"][0]["hold"] == outcome.hold
    assert float(outcome.actual.amount) == guard.total_spent
    assert "nothing waits" in in_process("guard", "deliver").out


def test_a_run_whose_book_goes_away_ends_well_and_its_capture_waits(
    team: TeamDatabase, guard: BudgetGuard, url: str, tmp_path: Path
) -> None:
    with outlay.run("bert", dir=tmp_path / "run", price="1 USD/h", guard=guard) as run:
        with run.step():
            pass
        team.server.stop_at_once()
    try:
        status = in_process("guard", "status", "--log", url)
        assert (status.code, "1 settlement" in status.err) == (3, True)
        tried = in_process("guard", "deliver", columns=200)
        assert (tried.code, "waits: " in tried.out) == (1, True)
    finally:
        team.server.start()
    assert in_process("watch", "--once").code == 0
    (line,) = [line for line in guard.log.lines() if isinstance(line, Captured)]
    assert line.part is not None
    assert guard.verify(runs={line.part.run: tmp_path / "run"}).findings == ()


def test_an_orphaned_commands_capture_waits(
    team: TeamDatabase, guard: BudgetGuard, url: str, tmp_path: Path
) -> None:
    """Its supervisor and its keeper were killed, and the book is away when that is noticed."""
    holder = leased(guard, "lab02-a")
    named = PostgresUrl.parse(url).without_password()
    about = {
        "since_ns": 0, "owned": True, "rate": "1 USD/h", "log": named, "hold": holder.hold.id,
        "label": "lab02-a",
    }  # fmt: skip
    ended = Process(2**22 + 1, 1)
    record = TreeRecord(
        machine=(), session=secrets.token_hex(8), supervisor=ended, keeper=ended, about=about
    )
    with stopped(team):
        cost = settle_orphaned(OrphanedTree(tmp_path / "kept.json", record, ()))
    assert cost is not None
    assert len(deliver_everything().delivered) == 1
    assert guard.total_spent == float(cost.amount)
