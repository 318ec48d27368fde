"""A real PgBouncer in transaction mode, between clients and a PostgreSQL of these tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

import leftovers
from foster_parent import die_with_parent
from outlay.sweep.engines.ports import Ports
from postgres import PostgresServer, TeamDatabase, account, hand_over
from system_parts import missing
from waiting import until

if TYPE_CHECKING:
    from outlay.team import PostgresSpendLog

SETTINGS = """[databases]
{databases}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {directory}/users
pool_mode = transaction
max_client_conn = 400
default_pool_size = {connections}
max_db_connections = {connections}
"""


@dataclass(slots=True)
class Pooler:
    """A pooler in front of one database, with a launcher's login of its own.

    Args:
        forced: The login with which it connects for everybody; empty: with each client's own.
        connections: The most that it opens to the server.
    """

    team: TeamDatabase
    forced: str = ""
    connections: int = 8
    login: str = field(default_factory=lambda: f"pooled_{secrets.token_hex(4)}")
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="outlay-pool-")))
    ports: Ports = field(default_factory=Ports)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> PostgresServer:
        return self.team.server

    def start(self) -> None:
        """Start it and wait until it answers."""
        if (program := shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")) is None:
            missing("PgBouncer is not installed here; see tools/system-packages")
        hand_over(self.directory)
        self.team.add_login(self.login, self.team.password)
        self.port = self.ports.reserve()
        settings = self._write()
        with (self.directory / "log").open("ab") as output, leftovers.wider():
            self.process = subprocess.Popen(
                [program, settings], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, cwd="/", preexec_fn=die_with_parent, **account(),
            )  # fmt: skip
        until(self.answers, lambda: (self.directory / "log").read_text()[-2000:])

    def _write(self) -> Path:
        login, password = self.login, self.team.password
        where = f"* = host=127.0.0.1 port={self.server.port}"
        if self.forced:
            where += f" user={self.forced} password={password}"
        text = SETTINGS.format(
            databases=where, port=self.port, directory=self.directory, connections=self.connections
        )
        files = {"settings": text, "users": f'"{login}" "{password}"\n'}
        for name, content in files.items():
            path = self.directory / name
            path.write_text(content)
            path.chmod(0o600)
            hand_over(path)
        return self.directory / "settings"

    def answers(self) -> bool:
        """Return whether the launcher can log in through it."""
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(self.url(self.team.url()), connect_timeout=10),
        ):
            return True
        return False

    def url(self, url: str) -> str:
        """Return a launcher's URL of the server as one of the pooler."""
        url = url.replace(f"//{self.team.login}:", f"//{self.login}:")
        return url.replace(f":{self.server.port}/", f":{self.port}/")

    def log(self, **options: Any) -> PostgresSpendLog:
        """Return the spend log of a new book, through the pooler."""
        return self.team.log(self.url(self.team.new_book()), **options)

    def remove(self) -> None:
        """End it and delete everything of it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()
            self.team.execute(f"DROP ROLE {self.login}")
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.port:
            self.ports.release(self.port)
