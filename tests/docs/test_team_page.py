"""The page on teams runs as printed, on a real PostgreSQL, and shows what its commands print.

The host's name, its port and the passwords come from the environment, as libpq reads it; ids that
a command makes up replace those of the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from page_shell import Shell, complaint, typed, write_command
from papers import ROOT, blocks
from postgres import PostgresServer, program

PAGE = ROOT / "docs" / "howto" / "team.md"
LOGINS = {"owner": "of-the-owner", "ana": "of-ana"}


def answers_to(command: str) -> str:
    """Return what a person types: the name of the book, or a new password, twice."""
    if (asked := re.search(r"\\password (\w+)", command)) is not None:
        return f"{LOGINS[asked[1]]}\n" * 2
    return "lab\n"


@pytest.fixture
def shell(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Shell]:
    """The shell of a machine that reaches a server with an owner's login and a database."""
    server, home = postgres_server, tmp_path / "home"
    home.mkdir()
    server.execute(f"CREATE ROLE owner LOGIN CREATEROLE PASSWORD '{LOGINS['owner']}'")
    server.execute("CREATE DATABASE spend OWNER owner")
    passwords = home / ".pgpass"
    rows = [f"db.example:{server.port}:*:{login}:{word}" for login, word in LOGINS.items()]
    passwords.write_text("\n".join(rows) + "\n")
    passwords.chmod(0o600)
    write_command(home / "bin")
    environ = {
        "PATH": f"{home / 'bin'}:{program('psql').parent}:{os.environ['PATH']}", "HOME": str(home),
        "PGHOSTADDR": "127.0.0.1", "PGPORT": str(server.port), "PYTHONPATH": str(ROOT / "src"),
        "OUTLAY_HOME": str(home / ".outlay"), "COLUMNS": "110", "TERM": "dumb", "LANG": "C.UTF-8",
    }  # fmt: skip
    try:
        yield Shell(tmp_path, environ, answers_to)
    finally:
        server.execute("DROP DATABASE IF EXISTS spend WITH (FORCE)")
        for login in ("ana", "queue", "owner"):
            server.execute(f"DROP ROLE IF EXISTS {login}")


def test_the_page_on_teams_runs_as_printed(shell: Shell) -> None:
    ran = 0
    for block in blocks(PAGE.read_text()):
        if block.language != "console":
            continue
        for command, shown in typed(block.text):
            refused = block.comment == "refused"
            assert complaint(shell, command, shown, refused=refused) == ""
            ran += 1
    assert ran > 20


def test_output_that_the_page_gets_wrong_is_noticed(shell: Shell) -> None:
    assert "not printed" in complaint(shell, "echo 5.00 USD", ["5.00 EUR"], refused=False)
    assert "exit code" in complaint(shell, "exit 2", [], refused=True)
