"""The page on many hosts runs as printed: network namespaces as hosts, and a real PostgreSQL.

``systemctl``, ``crontab`` and the vendor's program are stand-ins, so that nothing is installed on
this machine; a round of ``outlay watch`` is what cron would run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from network import Host, hosts, require_hosts
from page_shell import Shell, complaint, typed, write_command
from papers import ROOT, blocks
from postgres import PostgresServer, program

PAGE = ROOT / "docs" / "howto" / "many-hosts.md"
PASSWORD = "of-the-store"
NAMES = ("login", "gpu1", "gpu2")
POD = """#!/bin/sh
echo '[{"id": "x9f", "name": "demo", "createdAt": "2026-11-17T12:00:00Z", "costPerHr": 7}]'
"""
CRONTAB = '#!/bin/sh\n[ "$1" = -l ] && exec cat ~/crontab\nexec cat > ~/crontab\n'


@dataclass(frozen=True, slots=True)
class Lab:
    """Hosts, by name, and the shell of somebody on each."""

    hosts: dict[str, Host]
    shells: dict[str, Shell]

    def round(self, name: str) -> str:
        """Do what cron does; return what it says."""
        done = self.shells[name].run("outlay watch --once")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def ask(self, name: str, command: str) -> Any:
        done = self.shells[name].run(f"{command} --json")
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    require_hosts()
    with ExitStack() as stack:
        server = PostgresServer()
        stack.callback(server.remove)
        server.create()
        made = dict(zip(NAMES, stack.enter_context(hosts(*NAMES)), strict=True))
        for host in made.values():
            server.listen(host.gateway, host.subnet)
        server.start()
        shells = {name: _shell(tmp_path / name, server, host) for name, host in made.items()}
        shells["db"] = _shell(tmp_path / "db", server, None)
        yield Lab(made, shells)


def _shell(home: Path, server: PostgresServer, host: Host | None) -> Shell:
    write_command(home / "bin")
    programs = {"crontab": CRONTAB, "systemctl": "#!/bin/sh\nexit 1\n", "runpodctl": POD}
    for name, text in programs.items():
        (home / "bin" / name).write_text(text)
        (home / "bin" / name).chmod(0o755)
    rows = [("outlay", PASSWORD), ("postgres", server.password)]
    passwords = home / ".pgpass"
    passwords.write_text("".join(f"db.example:*:*:{login}:{word}\n" for login, word in rows))
    passwords.chmod(0o600)
    environ = {
        "PATH": f"{home / 'bin'}:{program('psql').parent}:{os.environ['PATH']}",
        "HOME": str(home), "PGHOSTADDR": "127.0.0.1" if host is None else host.gateway,
        "PGPORT": str(server.port), "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200",
        "TERM": "dumb", "LANG": "C.UTF-8",
    }  # fmt: skip
    inside = () if host is None else ("nsenter", f"--target={host.pid}", "--net", "--uts")
    return Shell(home, environ, lambda _: f"{PASSWORD}\n" * 2, inside)


def follow_page(lab: Lab) -> int:
    """Type what the page shows on each host; return how many commands that were."""
    ran = 0
    for block in blocks(PAGE.read_text()):
        if block.comment in lab.shells:
            for command, shown in typed(block.text):
                if command.startswith("outlay runs"):
                    lab.round("gpu1")
                if command.startswith("outlay team claim"):
                    assert "sacct" not in lab.round("gpu1")  # It is not told to ask.
                    lab.round("login")
                assert complaint(lab.shells[block.comment], command, shown) == ""
                ran += 1
    return ran


@pytest.mark.timeout(600)
def test_the_page_on_many_hosts_runs_as_printed(lab: Lab) -> None:
    assert follow_page(lab) == 11  # The last claims a machine.
    assert "-m outlay watch --once" in lab.shells["gpu1"].run("crontab -l").stdout
    # A host that is cut off keeps what it has, and catches up.
    gpu2 = lab.shells["gpu2"]
    lab.hosts["gpu2"].cut()
    trained = gpu2.run('outlay exec --price "3 USD/h" -- python3 -c "print()"')
    assert trained.returncode == 0, trained.stdout
    assert "cannot use the store" in lab.round("gpu2")
    assert [run["host"] for run in lab.ask("login", "outlay runs")["runs"]] == ["gpu1"]
    lab.hosts["gpu2"].restore()
    assert lab.round("gpu2") == ""
    runs = lab.ask("login", "outlay runs")["runs"]
    assert {run["host"]: run["log_host"] for run in runs} == {"gpu1": "gpu1", "gpu2": "gpu2"}
    assert all(run["dir"].startswith(f"{run['host']}:/") for run in runs)
    # What each host says of the whole is the same; only gpu2 has its log at hand.
    there = lab.ask("gpu2", "outlay runs")["runs"]
    assert [run["cost_micros"] for run in there] == [run["cost_micros"] for run in runs]
    assert {run["host"]: run["log_host"] for run in there} == {"gpu1": "gpu1", "gpu2": ""}
    # Every host shows the machine that only the vendor's list knows, and what is not known.
    for name in NAMES:
        shown = lab.ask(name, "outlay")
        assert shown["burn_per_hour"] == [{"micros": 7_000_000, "currency": "USD"}]
        assert [row["claim"] for row in shown["machines"]] == ["vision"]
        assert shown["burn"]["unknown"] == {"slurm": "unknown ever: it never answered"}
