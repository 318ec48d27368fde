"""The page on teams runs as printed, on a real PostgreSQL, and shows what its commands print.

The host's name, its port and the passwords come from the environment, as libpq reads it; ids that
a command makes up replace those of the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from papers import ROOT, blocks
from postgres import PostgresServer, program

PAGE = ROOT / "docs" / "howto" / "team.md"
SCRIPT = "#!{python}\nimport sys\nfrom outlay.cli import main\nsys.exit(main())\n"
LOGINS = {"owner": "of-the-owner", "ana": "of-ana"}
ID = re.compile(r"\b[0-9a-f]{8}(?:[0-9a-f]{4})?\b")


@dataclass(slots=True)
class Shell:
    """A person's shell: remembers exports, answers questions, and replaces the page's ids."""

    directory: Path
    environ: dict[str, str]
    ids: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        for shown, real in self.ids.items():
            command = command.replace(shown, real)
        return subprocess.run(
            ["bash", "-c", command], cwd=self.directory, env=self.environ, text=True, check=False,
            input=answers_to(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,  # without a terminal, psql asks for passwords on stdin
        )  # fmt: skip

    def export(self, words: str) -> None:
        name, _, value = words.partition("=")
        self.environ[name] = value.strip('"')


def answers_to(command: str) -> str:
    """Return what a person types: the name of the book, or a new password, twice."""
    if (asked := re.search(r"\\password (\w+)", command)) is not None:
        return f"{LOGINS[asked[1]]}\n" * 2
    return "lab\n"


def typed(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block, each with the output that the page shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.replace("\\\n", "").splitlines()
        yield lines[0], [line.strip() for line in lines[1:] if line.strip()]


def without_numbers(text: str) -> str:
    """Return a text with figures, dates, ids and runs of spaces made alike."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "HASH", ID.sub("ID", text))
    return " ".join(re.sub(r"-?\d[\d.,:TZ-]*m?s?\b", "N", text).split())


def complaint(shell: Shell, command: str, shown: list[str], *, refused: bool) -> str:
    """Run a command; return how it differs from the page, "" if it does not."""
    if command.startswith("export "):
        shell.export(command.removeprefix("export "))
        return ""
    done = shell.run(command)
    if done.returncode != (3 if refused else 0):
        return f"$ {command}\nexit code {done.returncode}\n{done.stdout}"
    printed = done.stdout
    shell.ids |= dict(zip(ids_in("\n".join(shown)), ids_in(printed), strict=False))
    whole = without_numbers(printed)
    missing = [line for line in shown if without_numbers(line) not in whole]
    return f"$ {command}\nnot printed: {missing}\nprinted:\n{printed}" if missing else ""


def ids_in(text: str) -> list[str]:
    return list(dict.fromkeys(ID.findall(text)))


@pytest.fixture
def shell(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Shell]:
    """The shell of a machine that reaches a server with an owner's login and a database."""
    server, home = postgres_server, tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    server.execute(f"CREATE ROLE owner LOGIN CREATEROLE PASSWORD '{LOGINS['owner']}'")
    server.execute("CREATE DATABASE spend OWNER owner")
    passwords = home / ".pgpass"
    rows = [f"db.example:{server.port}:*:{login}:{word}" for login, word in LOGINS.items()]
    passwords.write_text("\n".join(rows) + "\n")
    passwords.chmod(0o600)
    script = home / "bin" / "outlay"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    environ = {
        "PATH": f"{home / 'bin'}:{program('psql').parent}:{os.environ['PATH']}", "HOME": str(home),
        "PGHOSTADDR": "127.0.0.1", "PGPORT": str(server.port), "PYTHONPATH": str(ROOT / "src"),
        "OUTLAY_HOME": str(home / ".outlay"), "COLUMNS": "110", "TERM": "dumb", "LANG": "C.UTF-8",
    }  # fmt: skip
    try:
        yield Shell(tmp_path, environ)
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
