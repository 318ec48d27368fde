"""A host with a rental is cut off: another one watches on, once, and the first changes nothing."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from network import Host, hosts, require_hosts
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import AnyLine, Captured, Noted
from postgres import PostgresServer, TeamDatabase
from process_trees import alive
from rented import PROGRAM, StandIn
from waiting import until

pytestmark = pytest.mark.xdist_group("postgres")
REACH = """\
#!/bin/bash
# A vendor that is reached over the network: $1 is host:port, the rest what it does.
timeout 5 bash -c "exec 3<>/dev/tcp/${1%:*}/${1#*:}" || exit 7
shift
exec "$@"
"""
FIRST = """\
import os, sys
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.entries import Vendor
from outlay.guard.rental.rental import RentalOrder, rent
from outlay.guard.rental.watch import start_watcher
from outlay.units import Duration, Money, Rate

url, *base = sys.argv[1:]
guard = BudgetGuard(50, url, environ={})
vendor = Vendor(name="pods", list=(*base, "list"), terminate=(*base, "terminate", "{id}"))
order = RentalOrder(
    label="lab02-tp", limit=Money.parse("2.2 USD"), rate=Rate.parse("2 USD/h"), vendor=vendor,
    create=(*base, "create", "{name}"),
)
poll = Duration.parse("200ms")
rent(
    guard, order, os.environ,
    start_watcher=lambda hold: start_watcher(guard.log_name, hold, os.environ, poll),
)
print("rented", flush=True)
os.wait()  # The first process of a container adopts the watcher.
print("ended", flush=True)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[TeamDatabase, list[Host]]]:
    """A database, and two hosts of one name that reach it over links of their own."""
    require_hosts()
    server = PostgresServer()
    with hosts("gpu", "gpu") as both:
        try:
            server.create()
            for host in both:
                server.listen(host.gateway, host.subnet)
            server.start()
            team = TeamDatabase(server)
            team.create()
            (tmp_path / "reach").write_text(REACH)
            yield team, both
        finally:
            server.remove()


def set_clock(team: TeamDatabase, ahead: str) -> None:
    """Set the database's clock ahead."""
    team.execute(
        "CREATE OR REPLACE FUNCTION outlay.now() RETURNS timestamptz LANGUAGE sql VOLATILE"
        f" RETURN clock_timestamp() + interval '{ahead}'"
    )


def environ_of(team: TeamDatabase, host: Host, home: Path) -> dict[str, str]:
    reached = f"{host.gateway}:{team.server.port}"
    own = {"OUTLAY_HOME": str(home), "PGPASSWORD": team.password, "POD_HOST": reached}
    return os.environ | own


def url_of(team: TeamDatabase, host: Host, book: str) -> str:
    return f"postgresql://{team.login}@{host.gateway}:{team.server.port}/{team.name}?book={book}"


def test_another_host_watches_a_rental_ends_it_and_captures_once(
    lab: tuple[TeamDatabase, list[Host]], tmp_path: Path
) -> None:
    team, (first, second) = lab
    vendor = StandIn(tmp_path / "vendor")
    vendor.directory.mkdir()
    book = f"lab-{secrets.token_hex(4)}"
    team.execute(f"INSERT INTO outlay.book (name) VALUES ('{book}')")
    guard = BudgetGuard(50, team.url(book), environ={})
    base = ("bash", str(tmp_path / "reach"), "$POD_HOST", *PROGRAM, str(vendor.directory))
    renting = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", FIRST,
         url_of(team, first, book), *base],
        env=environ_of(team, first, tmp_path / "first"), preexec_fn=first.enter, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert renting.stdout is not None
        assert renting.stdout.readline() == "rented\n"
        until(lambda: "listed" in events(guard), "the rental is not listed")
        (hold,) = guard.holds()
        first.cut()
        set_clock(team, "6 minutes")
        commands = [watch_once(team, second, book, tmp_path) for _ in range(2)]
        said = "".join(command.communicate()[1] for command in commands)
        assert said.count("has a new watcher") == 1, said
        (taken,) = guard.holds()
        assert taken.watcher not in ("", hold.watcher)
        assert vendor.running() == ["pod-1"]
        set_clock(team, "2 hours")
        until(lambda: not guard.holds(), "the rental was not ended at its deadline")
        until(lambda: not alive(int(taken.watcher.split(":")[1])), "the watcher did not end")
        lines = guard.log.lines()
        first.restore()
        assert renting.stdout.readline() == "ended\n"
    finally:
        renting.kill()
        renting.communicate()
    assert guard.log.lines() == lines
    assert vendor.running() == []
    (captured,) = [line for line in lines if isinstance(line, Captured)]
    assert captured.hold == hold.id
    assert watchers(lines) == [hold.watcher, taken.watcher]
    # The database's clock was ahead, and so may be in tomorrow.
    assert [each for each in guard.verify().findings if "lies ahead" not in each.message] == []


def watch_once(team: TeamDatabase, host: Host, book: str, directory: Path) -> subprocess.Popen[str]:
    """Start one round of ``outlay watch`` on a host."""
    command = [sys.executable, "-m", "outlay", "watch", "--once", "--log", url_of(team, host, book)]
    return subprocess.Popen(
        command, env=environ_of(team, host, directory / "second"), preexec_fn=host.enter,
        text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def events(guard: BudgetGuard) -> list[str]:
    return [line.event for line in guard.log.lines() if isinstance(line, Noted)]


def watchers(lines: tuple[AnyLine, ...]) -> list[str]:
    notes = [line for line in lines if isinstance(line, Noted) and line.event == "watched"]
    return [note.detail["watcher"] for note in notes]
