"""A gate at a real Slurm: jobs start when their team can pay, and cost what the accounts say."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from command_line import in_process
from outlay.guard.budget_guard import BudgetGuard
from outlay.guard.ceilings import LimitChange
from outlay.guard.entries import ACCOUNTED, Captured, Held
from outlay.guard.scopes import ScopePattern
from outlay.units import Money
from postgres import TeamDatabase
from slurm_cluster import ACCOUNTING_PROGRAMS, AccountedCluster, require_programs
from waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("accounts")]
USER = getpass.getuser()
MINUTE = ("--gres=gpu:2", "--time=1")
"""Of a job that holds 120 USD: each of two GPUs costs one a second."""


class GatedCluster(AccountedCluster):
    """A cluster whose controller has the lines that ``outlay slurm files`` prints."""

    lines: str = ""

    def _conf_text(self) -> str:
        return f"{super()._conf_text()}{self.lines}\n"


@dataclass
class Gate:
    """The cluster, its book as an owner reads it, and the script that its controller calls."""

    cluster: GatedCluster
    guard: BudgetGuard
    team: TeamDatabase
    script: Path

    def submit(self, *words: str, command: str = "sleep 3") -> str:
        done = self.cluster.run(
            "sbatch", "--parsable", "--output=/dev/null", *words, f"--wrap={command}"
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        found = self.cluster.run(
            "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"
        )
        return found.stdout.strip()

    def comment(self, job: str) -> str:
        shown = self.cluster.run("scontrol", "show", "job", job).stdout
        return next((x.strip() for x in shown.splitlines() if x.strip().startswith("Comment=")), "")

    def captures(self, job: str) -> list[Captured]:
        lines = self.guard.log.lines()
        mine = (f"slurm-{job}", f"slurm-{job}-unheld")
        return [each for each in lines if isinstance(each, Captured) and each.op_label in mine]

    def settled(self, job: str, starts: int = 1) -> list[Captured]:
        """Wait until so many starts of a job are captured; return the captures."""
        until(lambda: len(self.captures(job)) == starts, self.explain)
        return self.captures(job)

    def seconds(self, job: str) -> list[int]:
        """Return how long each start of a job lasted, by sacct."""
        done = self.cluster.run(
            "sacct", "--noheader", "--parsable2", "--allocations", "--duplicates",
            f"--jobs={job}", "--format=ElapsedRaw,State",
        )  # fmt: skip
        rows = [line.split("|") for line in done.stdout.splitlines()]
        return [int(elapsed) for elapsed, _ in rows]

    def explain(self) -> str:
        said = self.script.parent / "home" / "gate.log"
        return (said.read_text() if said.exists() else "") + self.cluster.explain()

    def when_down(self, before: str, after: str) -> None:
        text = self.script.read_text()
        assert f"--when-down {before}" in text
        self.script.write_text(text.replace(f"--when-down {before}", f"--when-down {after}"))


@pytest.fixture
def gate(gated: Gate) -> Gate:
    """The cluster, while the team has 200 USD left."""
    spent = Money.parse(str(gated.guard.total_spent))
    pattern = ScopePattern("team", "vision", "")
    limit = LimitChange(pattern=pattern, amount=spent + Money.parse("200 USD"))
    gated.guard.set_limit(limit, "for a test")
    return gated


@pytest.fixture(scope="module")
def gated(team: TeamDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A cluster whose jobs draw on a team's book, through a service's login."""
    require_programs(*ACCOUNTING_PROGRAMS)
    root = tmp_path_factory.mktemp("gate")
    (root / "home").mkdir()
    service, word = f"queue_{secrets.token_hex(4)}", secrets.token_hex(8)
    team.add_login(service, word)
    team.execute(f"INSERT INTO outlay.service VALUES ('{service}', '*')")
    team.add_member(USER, "vision")
    owned = team.new_book(owner=True)
    book = owned.rpartition("=")[2]
    guard = BudgetGuard(None, owned, environ={})
    passwords = root / "pgpass"
    passwords.write_text(f"127.0.0.1:{team.server.port}:*:{service}:{word}\n")
    passwords.chmod(0o600)
    cluster = GatedCluster(root, gpus=4)
    url = f"postgresql://{service}@127.0.0.1:{team.server.port}/{team.name}?book={book}"
    own = {"OUTLAY_HOME": str(root / "home"), "PGPASSFILE": str(passwords)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (own | cluster.environ).items():
            patch.setenv(name, value)
        in_process("prices", "partition", "set", "main", "3600 USD/h cash")
        written = in_process("slurm", "files", root, "--log", url, "--json")
    assert written.code == 0, written.err
    cluster.lines = "\n".join([*written.json["lines"], "MessageTimeout=100"])  # Of a busy machine.
    lua = root / "job_submit.lua"
    lua.write_text(lua.read_text().replace("PATIENCE_S = 5", "PATIENCE_S = 90"))
    try:
        cluster.start()
        yield Gate(cluster, guard, team, root / "outlay-gate")
    finally:
        cluster.stop()
        team.forget_people()


def test_a_job_that_fits_is_held_and_costs_what_the_accounts_say_to_the_second(gate: Gate) -> None:
    job = gate.submit(*MINUTE)
    (captured,) = gate.settled(job)
    (seconds,) = gate.seconds(job)
    assert (captured.actual, captured.basis) == (Decimal(2 * seconds), ACCOUNTED)
    assert seconds >= 3
    (held,) = [line for line in gate.guard.log.lines() if line.op_label == f"slurm-{job}"][:1]
    assert isinstance(held, Held)
    assert (held.estimated, held.rate) == (Decimal(120), Decimal(7200))
    assert (held.user, held.team) == (USER, "vision")
    assert gate.guard.verify().findings == ()


def test_a_job_beyond_what_its_team_has_left_does_not_start_and_says_why(
    gate: Gate, tmp_path: Path
) -> None:
    """It was queued while there was room; once there is room again, it runs."""
    touched = tmp_path / "touched"
    late = gate.submit("--hold", *MINUTE, command=f"touch {touched}")
    first = gate.submit(*MINUTE, command="sleep 300")
    until(lambda: gate.state(first) == "RUNNING", gate.explain)
    gate.cluster.run("scontrol", "release", late)
    until(lambda: "outlay: team vision" in gate.comment(late), gate.explain)
    assert "120.00 USD held + 120.00 USD asked >" in gate.comment(late)
    until(lambda: gate.state(late) == "PENDING", gate.explain)
    gate.cluster.run("scancel", first)
    (captured,) = gate.settled(first)
    assert captured.actual == 2 * gate.seconds(first)[0]
    assert (touched.exists(), gate.captures(late)) == (False, [])
    gate.cluster.run("scontrol", "release", late)
    (captured,) = gate.settled(late)
    assert captured.actual == 2 * gate.seconds(late)[-1]
    assert touched.exists()


def test_a_job_that_can_never_fit_is_refused_when_it_is_submitted(gate: Gate) -> None:
    command = ("sbatch", "--output=/dev/null", "--gres=gpu:4", "--time=10", "--wrap=true")
    refused = gate.cluster.run(*command)
    assert refused.returncode != 0
    assert "team vision" in refused.stderr
    assert "2400.00 USD asked >" in refused.stderr
    assert gate.cluster.run(*command, "--gres=none").returncode == 0


def test_words_of_a_user_are_not_run_by_the_controller(gate: Gate, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    words = (f"--account=x'; touch {touched}; '", "--gres=gpu:1", "--time=1", "--wrap=true")
    gate.cluster.run("sbatch", "--output=/dev/null", *words)
    assert not touched.exists()


@pytest.mark.slow
def test_each_start_of_a_job_and_each_task_of_an_array_is_held_and_settled(gate: Gate) -> None:
    again = gate.submit("--gres=gpu:1", "--time=1", "--requeue", command="sleep 4")
    array = gate.submit("--gres=gpu:1", "--time=1", "--array=1-2", command="sleep 2")
    until(lambda: gate.state(again) == "RUNNING", gate.explain)
    assert gate.cluster.run("scontrol", "requeue", again).returncode == 0
    amounts = [captured.actual for captured in gate.settled(again, starts=2)]
    assert sorted(map(Decimal, gate.seconds(again))) == sorted(each or 0 for each in amounts)
    for task in (1, 2):
        (captured,) = gate.settled(f"{array}_{task}")
        assert captured.actual == gate.seconds(f"{array}_{task}")[0]
    assert gate.guard.holds() == ()


def test_while_the_book_is_away_a_job_waits_or_starts_as_was_stated(gate: Gate) -> None:
    gate.team.server.stop_at_once()
    try:
        waits = gate.submit(*MINUTE)
        until(lambda: "it waits, since the book" in gate.comment(waits), gate.explain)
        gate.cluster.run("scontrol", "hold", waits)
        gate.when_down("refuse", "allow")
        allowed = gate.submit(*MINUTE)
        until(lambda: "starts without a hold" in gate.comment(allowed), gate.explain)
        until(lambda: gate.state(allowed) == "COMPLETED", gate.explain)
    finally:
        gate.team.server.start()
        gate.when_down("allow", "refuse")
    until(lambda: gate.state(waits) == "PENDING", gate.explain)
    gate.cluster.run("scontrol", "release", waits)
    assert gate.settled(waits)[0].actual == 2 * gate.seconds(waits)[-1]
    (captured,) = gate.settled(allowed)
    assert captured.actual == 2 * gate.seconds(allowed)[0]
    assert captured.hold == ""
