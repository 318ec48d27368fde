"""A book in PostgreSQL: the race for the last dollars, what an authorisation costs, a cold start.

Run: python benchmarks/team.py

Needs Debian's PostgreSQL, which it starts for itself with fsync on. Each figure is of one server in
one run; the bare alternative inserts a row of the same size and commits, without a ceiling.
"""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timing

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import psycopg

from outlay.errors import Refused
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.chain import NOTHING, Head, encode_slot, link_entries
from outlay.guard.index.head_file import head_path
from outlay.team.transfer import import_file
from postgres import PostgresServer, TeamDatabase
from spend_lines import pairs_of_lines

RACERS, ASKS, CEILING, AMOUNT = 32, 1_000, 5, "0.10 USD"
CALLS = 200
SHORT_CALLS, ROUNDS = 30, 40  # so short that a busy moment of the machine spoils few rounds
CLIENTS = 8
SHORT, LONG, PROCESSES = 100, 100_000, 15
MOST_COLD, MOST_ALONE = 2, 3
WHY_ALONE = "2.8 to 3.1 times on busy cores: half is the decision, half the checks in the database"
LINE = b"x" * 400
FRESH = """
import sys, time
from outlay.guard.budget_guard import BudgetGuard
import outlay.team, psycopg
begun = time.process_time(), time.perf_counter()
BudgetGuard(10**9, sys.argv[1], environ={}).authorize("lab02-a", 0.01, key=sys.argv[2])
print(time.process_time() - begun[0], time.perf_counter() - begun[1])
"""


def race(url: str, asks: int) -> int:
    """Return how many holds one process gets."""
    guard, won = BudgetGuard(CEILING, url, environ={}), 0
    for _ in range(asks):
        try:
            guard.authorize("lab02-race", AMOUNT)
            won += 1
        except Refused:
            pass
    return won


def show_race(team: TeamDatabase) -> None:
    url = team.new_book()
    shares = [ASKS // RACERS + (number < ASKS % RACERS) for number in range(RACERS)]
    begun = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(RACERS) as pool:
        won = sum(pool.starmap(race, [(url, share) for share in shares]))
    took_s = time.perf_counter() - begun
    held = BudgetGuard(CEILING, url, environ={}).held
    what = f"{ASKS:,} x {AMOUNT} on {CEILING} USD, {RACERS} processes"
    print(f"\nrace: {what}: {won} won, {took_s:.1f} s")
    assert (won, held) == (50, 5.0), (won, held)
    timing.row(f"race of {ASKS:,}: winners", won, timing.Figure("exact", 50), unit="", least=1)


def bare_insert(url: str) -> Callable[[], object]:
    connection = psycopg.connect(url, autocommit=True)
    return lambda: connection.execute("INSERT INTO bare (line) VALUES (%s)", [LINE])


def show_one_client(team: TeamDatabase) -> None:
    guard, insert = BudgetGuard(10**9, team.new_book(), environ={}), bare_insert(team.url())
    calls: dict[str, Callable[[], object]] = {
        "bare": insert,
        "ours": lambda: guard.authorize("lab02-a", 0.01),
        "settled": lambda: guard.record_actual("lab02-a", 0.01),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(SHORT_CALLS):
            for name, call in calls.items():
                begun = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - begun)
        best = {name: min(best[name], statistics.median(taken[name])) for name in calls}
    ours, peer = best["ours"] * 1e3, timing.Figure("bare INSERT + COMMIT", best["bare"] * 1e3)
    print(f"\none client: {1e3 / ours:.0f} authorisations/s, {1e3 / peer.value:.0f} bare inserts/s")
    what, least = "authorise in a book, one client", 1 / MOST_ALONE
    timing.row(what, ours, peer, unit="ms", least=least, why=WHY_ALONE)
    timing.row("record what it cost, one client", best["settled"] * 1e3, peer, unit="ms")


def authorize_often(url: str) -> float:
    guard = BudgetGuard(10**9, url, environ={})
    guard.authorize("lab02-a", 0.01)
    begun = time.perf_counter()
    for _ in range(CALLS):
        guard.authorize("lab02-a", 0.01)
    return time.perf_counter() - begun


def insert_often(url: str) -> float:
    insert = bare_insert(url)
    begun = time.perf_counter()
    for _ in range(CALLS):
        insert()
    return time.perf_counter() - begun


def show_many_clients(team: TeamDatabase) -> None:
    url = team.new_book()
    with multiprocessing.get_context("fork").Pool(CLIENTS) as pool:
        ours = max(pool.map(authorize_often, [url] * CLIENTS)) / (CALLS * CLIENTS)
        bare = max(pool.map(insert_often, [team.url()] * CLIENTS)) / (CALLS * CLIENTS)
    print(f"\n{CLIENTS} clients: {1 / ours:.0f} authorisations/s, {1 / bare:.0f} bare inserts/s")
    peer = timing.Figure("bare INSERT + COMMIT", bare * 1e3)
    timing.row(f"authorise in a book, {CLIENTS} clients", ours * 1e3, peer, unit="ms")


def filled(team: TeamDatabase, lines: int) -> str:
    """Return the URL of a book with so many lines, imported from a file."""
    url, after = team.new_book(), NOTHING
    with tempfile.TemporaryDirectory() as directory:
        path, entries = Path(directory) / "spend.jsonl", list(pairs_of_lines(lines))
        with path.open("wb") as file:
            for start in range(0, lines, 500):
                linked = link_entries(after, entries[start : start + 500], ts=entries[0].ts)
                file.write(linked.blob)
                after = linked.after
        head = Head(after.link.covered + 1, after.link.hash)
        head_path(path).write_bytes(encode_slot(head))
        import_file(path, team.log(team.owner_url(url.rpartition("=")[2])))  # Only owners can.
    return url


def fresh(url: str, key: str) -> tuple[float, float]:
    """Return the processor's and the clock's time of one authorisation in a new process, in ms."""
    said = subprocess.check_output([sys.executable, "-c", FRESH, url, key]).split()
    return float(said[0]) * 1e3, float(said[1]) * 1e3


def show_cold_start(team: TeamDatabase) -> None:
    begun = time.perf_counter()
    urls = {lines: filled(team, lines) for lines in (SHORT, LONG)}
    print(f"\nimport of {LONG:,} lines: {time.perf_counter() - begun:.0f} s")
    taken: dict[int, list[tuple[float, float]]] = {lines: [] for lines in urls}
    for number in range(PROCESSES):
        for lines, url in urls.items():
            taken[lines].append(fresh(url, f"new-{number}"))
    medians = {
        lines: [statistics.median(column) for column in zip(*rows, strict=True)]
        for lines, rows in taken.items()
    }
    for lines, (processor, clock) in medians.items():
        print(f"{lines:9,} lines: first authorise {processor:.1f} ms of CPU, {clock:.1f} ms")
    for place, what in enumerate(("CPU", "by the clock")):
        short = timing.Figure(f"{SHORT} lines", medians[SHORT][place])
        name = f"first authorise of a process, a book of {LONG:,} lines, {what}"
        timing.row(name, medians[LONG][place], short, unit="ms", least=1 / MOST_COLD)


def main() -> None:
    server = PostgresServer()
    try:
        server.create()
        server.start()
        team = TeamDatabase(server)
        team.create()
        team.execute(
            "CREATE TABLE bare (id bigserial PRIMARY KEY, line bytea);"
            "GRANT ALL ON bare, bare_id_seq TO outlay_launcher"
        )
        print(timing.machine())
        show_race(team)
        show_one_client(team)
        show_many_clients(team)
        show_cold_start(team)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
