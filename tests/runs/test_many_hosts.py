"""Runs of many users on several hosts, collected in one store on a real PostgreSQL."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, update

from command_line import in_process
from homes import move_host
from ledgers import START_NS, Segment
from outlay.clock import SYSTEM
from outlay.ledger import Price, RunIdentity, claim_identity
from outlay.store import open_store, schema
from outlay.store.connection import writing
from outlay.store.machine_lists import SeenMachine, keep_answer, keep_failure, read_lists
from outlay.web.book_reader import BookReader
from outlay.web.now import now_page
from outlay.web.page import PageQuery
from outlay.web.runs import run_page, runs_page
from postgres import PostgresServer

HOSTS = ("login", "gpu1", "gpu2", "gpu3")
USERS = 50


class Hosts:
    """Four hosts with a home each, of which this process is on one at a time, and sees no other."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._patch = patch

    def on(self, name: str) -> Path:
        """Move to a host; return its directory of runs."""
        home = self.root / name
        for other in HOSTS:
            seen, unseen = self.root / other, self.root / f"of-{other}"
            before, after = (unseen, seen) if other == name else (seen, unseen)
            if before.exists():
                before.rename(after)
        (home / "runs").mkdir(parents=True, exist_ok=True)
        (home / "outlay.toml").write_text(f'[watch]\nruns = ["{home / "runs"}"]\n')
        self._patch.setenv("OUTLAY_HOME", str(home))
        move_host(name, self._patch)
        return home / "runs"

    def round(self) -> str:
        done = in_process("watch", "--once")
        assert done.code == 0, done.err
        return done.err


@pytest.fixture
def hosts(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hosts]:
    name = f"hosts_{secrets.token_hex(4)}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    monkeypatch.setenv("OUTLAY_STORE", postgres_server.url(name))
    yield Hosts(tmp_path, monkeypatch)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def write_run(root: Path, number: int, host: str) -> tuple[str, Fraction]:
    """Write the log of a run; return its user and its exact cost in micro-units."""
    user, seconds, micros = f"user{number % USERS:02}", 61 + number % 977, 1_000_003 + number
    identity = RunIdentity(
        run_id=f"{number:032x}", model=f"m{number % 7}", name=f"run{number}", created_ns=1
    )
    claim_identity(root / f"run{number}", identity)
    about: dict[str, Any] = {
        "run_id": identity.run_id, "model": identity.model, "name": identity.name, "user": user,
        "host": host, "gpus": 1, "price": Price(micros),
    }  # fmt: skip
    Segment(start=float(number), about=about).step(float(seconds)).end().write(
        root / f"run{number}"
    )
    return user, Fraction(micros * seconds, 3600)


@pytest.mark.parametrize(
    "count", [60, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_runs_of_many_users_are_collected_listed_and_allocated_exactly(
    hosts: Hosts, count: int
) -> None:
    spent: Counter[str] = Counter()
    for place, host in enumerate(HOSTS):
        root = hosts.on(host)
        for number in range(place, count, len(HOSTS)):
            user, exact = write_run(root, number, host)
            spent[user] += round(exact)  # Half to even, as costs are.
        assert hosts.round() == ""
    hosts.on("login")
    listed = in_process("runs", "--all", "--json").json["runs"]
    assert len(listed) == count
    assert Counter(run["log_host"] for run in listed) == Counter(
        {"" if host == "login" else host: len(range(place, count, 4))
         for place, host in enumerate(HOSTS)}
    )  # fmt: skip
    words = ("cost", "allocate", "--by", "user", "--month", "2023-11", "--json")
    shares = {row["owner"]: Decimal(row["direct"]) for row in in_process(*words).json["rows"]}
    assert shares == {user: Decimal(micros) / 10**6 for user, micros in spent.items()}
    bill = Decimal(sum(spent.values()) + 12_345_678) / 10**6
    billed = in_process(*words, "--bill", f"{bill} USD").json
    assert sum(Decimal(row["total"]) for row in billed["rows"]) == bill


def write_live_run(run_dir: Path, name: str, host: str, dollars: int) -> None:
    """Write the log of a run that was alive a moment ago."""
    claim_identity(run_dir, RunIdentity(run_id=name * 4, model="m", name=name, created_ns=1))
    about: dict[str, Any] = {
        "run_id": name * 4, "model": "m", "name": name, "user": "ana", "host": host, "gpus": 1,
        "price": Price(dollars * 10**6),
    }  # fmt: skip
    begun_s = (SYSTEM.wall_ns() - START_NS) / 1e9 - 60
    Segment(start=begun_s, about=about).step(30).heartbeat(20).write(run_dir)


def test_a_run_of_another_host_is_on_every_page(hosts: Hosts) -> None:
    root = hosts.on("gpu1")
    write_run(root, 7, "gpu1")
    write_live_run(root / "live", "bert", "gpu1", 2)
    hosts.round()
    hosts.on("login")
    books = BookReader()
    listed = runs_page(PageQuery(path="/runs"), books)
    now = now_page(PageQuery(path="/"), books)
    page = run_page(PageQuery(path="/run", name="bert" * 4), books)
    today = books.spent_since(0)
    books.close()
    shown = in_process("--json").json
    assert isinstance(listed.document, dict)
    assert isinstance(now.document, dict)
    assert listed.document["count"] == 2
    assert ">gpu1<" in "".join(listed.parts)
    assert "its log is on gpu1, not reachable from here" in page.verdict
    assert [row.name for row in now.document["running"]] == ["bert"]
    assert [row["name"] for row in shown["running"]] == ["bert"]
    assert shown["burn_per_hour"] == [{"micros": 2_000_000, "currency": "USD"}]
    (burn,) = now.document["burn_per_hour"]
    assert burn["money"].micros == 2_000_000
    costs = [Decimal(run["cost_micros"]) for run in in_process("runs", "--json").json["runs"]]
    assert [money.micros for money in today] == [sum(costs)]


def test_a_directory_that_two_hosts_see_is_read_on_both(hosts: Hosts) -> None:
    hosts.on("gpu1")
    shared = hosts.root / "shared"
    write_run(shared, 7, "gpu1")
    write_live_run(shared / "live", "bert", "gpu1", 2)
    assert in_process("import", "runs", shared).code == 0
    hosts.on("login")
    dirs = [run["dir"] for run in in_process("runs", "--json").json["runs"]]
    assert dirs == [str(shared / "live"), f"gpu1:{shared / 'run7'}"]  # The live one at once.
    assert in_process("import", "runs", shared).code == 0
    dirs = [run["dir"] for run in in_process("runs", "--json").json["runs"]]
    assert dirs == [str(shared / "live"), str(shared / "run7")]


def test_a_path_that_is_another_run_here_is_not_taken_for_it(hosts: Hosts) -> None:
    same = hosts.root / "same"
    hosts.on("gpu1")
    write_live_run(same, "bert", "gpu1", 2)
    assert in_process("import", "runs", same).code == 0
    same.rename(hosts.root / "same-of-gpu1")
    hosts.on("login")
    write_live_run(same, "other", "login", 3)
    assert in_process("import", "runs", same).code == 0
    shown = in_process("--json").json
    assert sorted((row["name"], row["log_host"]) for row in shown["running"]) == [
        ("bert", "gpu1"), ("other", ""),
    ]  # fmt: skip
    assert shown["burn_per_hour"] == [{"micros": 5_000_000, "currency": "USD"}]


def test_what_other_hosts_own_and_rent_has_its_rows(hosts: Hosts) -> None:
    hosts.on("gpu1")
    words = ("cost", "machines", "set", "gpu1", "8 USD/h cash", "--since", "2026-01-01")
    assert in_process(*words).code == 0
    hosts.round()
    hosts.on("login")
    shown = in_process("--json").json
    assert [(row["name"], row["part"]) for row in shown["machines"]] == [("gpu1", "idle")]
    assert shown["burn_per_hour"] == [{"micros": 8_000_000, "currency": "USD"}]


def test_a_host_without_the_key_does_not_make_another_hosts_list_unknown(hosts: Hosts) -> None:
    hosts.on("gpu1")
    store = open_store()
    keep_answer(store, "runpod", [SeenMachine(kind="machine", id="x9f")])
    hosts.on("gpu2")
    keep_failure(store, "runpod", "no key")
    (kept,) = read_lists(store)
    store.dispose()
    assert (kept.unknown, [each.id for each in kept.machines]) == ("", ["x9f"])
    assert kept.machines[0].since_ns == kept.answered_ns > 0


def test_an_owned_node_has_the_cost_of_runs_whose_log_is_on_it(hosts: Hosts) -> None:
    _, exact = write_run(hosts.on("gpu1"), 7, "gpu1")
    hosts.round()
    hosts.on("login")
    words = ("cost", "machines", "set", "gpu1", "8 USD/h cash", "--since", "2023-11-01")
    (machine,) = in_process(*words, "--until", "2023-11-30", "--json").json["machines"]
    assert machine["in_runs"]["micros"] == round(exact)
    total = machine["in_runs"]["micros"] + machine["in_no_run"]["micros"]
    assert total == machine["cost"]["micros"] == 29 * 24 * 8_000_000


def earlier(table: Table, column: str) -> None:
    """Let an hour pass since an instant in the store."""
    store = open_store()
    with writing(store) as connection:
        connection.execute(update(table).values({column: table.c[column] - 3600 * 10**9}))
    store.dispose()


def test_a_host_that_is_silent_leaves_its_runs_in_the_burn_and_says_so(hosts: Hosts) -> None:
    write_live_run(hosts.on("gpu1") / "live", "bert", "gpu1", 2)
    hosts.round()
    hosts.on("login")
    assert in_process("--json").json["findings"] == []
    earlier(schema.runs, "seen_ns")
    shown = in_process("--json").json
    assert shown["burn_per_hour"] == [{"micros": 2_000_000, "currency": "USD"}]
    (finding,) = (each["message"] for each in shown["findings"] if "bert" in each["message"])
    assert finding.startswith("unknown since; bert was running as of ")


def test_a_list_that_nobody_asks_any_more_is_unknown_since(hosts: Hosts) -> None:
    hosts.on("gpu1")
    store = open_store()
    pod = SeenMachine(kind="machine", id="x9f", rate="7 USD/h")
    keep_answer(store, "runpod", [pod])
    store.dispose()
    earlier(schema.machine_lists, "answered_ns")
    shown = in_process("--json").json
    assert shown["burn"]["unknown"]["runpod"].startswith("unknown since 20")
    assert shown["burn_per_hour"] == [{"micros": 7_000_000, "currency": "USD"}]


ACCOUNTS = """\
JobID|JobName|User|Partition|Cluster|State|Start|End|AllocTRES
40|train|ana|main|c|COMPLETED|1700000000|1700003600|gres/gpu=1
41|plain|ana|main|c|COMPLETED|1700000000|1700003600|gres/gpu=1
"""


def test_a_job_that_recorded_itself_on_another_host_is_not_imported(hosts: Hosts) -> None:
    root = hosts.on("gpu1")
    run_dir = root / "job"
    claim_identity(run_dir, RunIdentity(run_id="40" * 16, model="m", name="train", created_ns=1))
    for number, job in enumerate(("40", "39")):  # Started again, in another job.
        about = {"run_id": "40" * 16, "slurm_job": job, "host": "gpu1"}
        Segment(start=number * 100.0, about=about).step(9).end("preempted").write(run_dir)
    hosts.round()
    hosts.on("login")
    file = hosts.root / "accounts.txt"
    file.write_text(ACCOUNTS)
    done = in_process("import", "sacct", file, "--json").json
    assert (done["registered"], done["recorded"]) == (1, 1)
    assert {run["name"] for run in in_process("runs", "--json").json["runs"]} == {"train", "plain"}
