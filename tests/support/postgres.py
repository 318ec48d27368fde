"""A real PostgreSQL on this machine: Debian's server in a directory of its own.

It listens on a loopback port, and on addresses of a test's own network, asks for passwords (SCRAM)
and syncs every commit to the disk. Tests take databases and logins of it; the server itself may be
stopped and started again, and another one may follow it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

import leftovers
from foster_parent import die_with_parent
from outlay.clock import ManualClock
from outlay.sweep.engines.ports import Ports
from system_parts import missing
from waiting import until

if TYPE_CHECKING:  # Every test process imports this module; few use a book.
    from outlay.team import PostgresSpendLog

USER = "postgres"
_VERSIONS = Path("/usr/lib/postgresql")


def program(name: str) -> Path:
    """Return the newest installed program of the server; skip on a machine without it."""
    found = sorted(_VERSIONS.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    if not found:
        missing(f"PostgreSQL is not installed here ({name}); see tools/system-packages")
    return found[-1]


def account() -> dict[str, Any]:
    """Return whom servers run as: they refuse to be root's."""
    if os.geteuid():
        return {}
    return {"user": USER, "group": USER, "extra_groups": []}


def hand_over(directory: Path) -> None:
    """Give a directory to whom servers run as: pytest's own are closed to other users."""
    if not os.geteuid():
        os.chown(directory, *pwd.getpwnam(USER)[2:4])


@dataclass(slots=True)
class PostgresServer:
    """One server, and where it lives."""

    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="outlay-pg-")))
    password: str = field(default_factory=lambda: secrets.token_hex(8))
    ports: Ports = field(default_factory=Ports)
    addresses: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def create(self) -> None:
        """Make the directory of an empty server."""
        hand_over(self.directory)
        secret = self.directory / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        made = subprocess.run(
            [
                program("initdb"), "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync",
                f"--username={USER}", "--encoding=UTF8", "--locale=C", f"--pgdata={self.data}",
            ],
            capture_output=True, text=True, check=False, cwd="/", **account(),
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        secret.unlink()
        self.port = self.ports.reserve()

    def copy(self, of: PostgresServer) -> None:
        """Make the directory of a standby, which follows another server without delaying it."""
        hand_over(self.directory)
        self.password = of.password
        made = subprocess.run(
            [
                program("pg_basebackup"), f"--dbname={of.url()}", f"--pgdata={self.data}",
                "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
            ],
            capture_output=True, text=True, check=False, cwd="/", **account(),
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        self.port = self.ports.reserve()

    def listen(self, address: str, subnet: str) -> None:
        """Listen on another address, too, from the next start on, for logins of a subnet."""
        self.addresses.append(address)
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {subnet} scram-sha-256\n")

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        settings = {
            "listen_addresses": ",".join(self.addresses), "port": self.port,
            "unix_socket_directories": "", "shared_buffers": "32MB", "max_connections": 100,
            "autovacuum": "off", "wal_retrieve_retry_interval": "100ms",
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in settings.items()]
        with (self.directory / "log").open("ab") as output, leftovers.wider():
            self.process = subprocess.Popen(
                [program("postgres"), "-D", self.data, *words], stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True, cwd="/",
                preexec_fn=die_with_parent, **account(),
            )  # fmt: skip
        until(self.answers, self.explain)

    def answers(self) -> bool:
        """Return whether it takes connections."""
        assert self.process is not None
        assert self.process.poll() is None, self.explain()
        with contextlib.suppress(psycopg.OperationalError), self.connect():
            return True
        return False

    def has(self, of: PostgresServer) -> bool:
        """Return whether a standby has everything that another server has written."""
        (written,) = of.execute("SELECT pg_current_wal_flush_lsn()::text")
        return self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{written[0]}'") == [(True,)]

    def stop_following(self) -> None:
        """Receive nothing more of the server that this standby follows."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        receivers = "SELECT FROM pg_stat_activity WHERE backend_type = 'walreceiver'"
        until(lambda: not self.execute(receivers), "the standby still receives")

    def promote(self) -> None:
        """Make a standby a server that takes writes."""
        assert self.execute("SELECT pg_promote(wait_seconds => 120)") == [(True,)], self.explain()

    def stop_at_once(self) -> None:
        """Stop it as ``pg_ctl stop -m immediate`` does: it recovers at its next start."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        """End it and delete everything of it."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.port:
            self.ports.release(self.port)

    def url(self, database: str = USER, user: str = USER, password: str = "") -> str:
        """Return the URL of a database; by default the superuser's."""
        secret = password or self.password
        return f"postgresql://{user}:{secret}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = USER) -> psycopg.Connection[tuple[object, ...]]:
        """Connect as superuser; every statement commits."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=10)

    def execute(self, statement: str, *, database: str = USER) -> list[tuple[object, ...]]:
        """Run a statement as superuser; return its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def explain(self) -> str:
        """Return what it had to say, for a test that gives up."""
        return (self.directory / "log").read_text()[-2000:]


@dataclass(slots=True)
class TeamDatabase:
    """A database with books, and the login of a launcher."""

    server: PostgresServer
    name: str = field(default_factory=lambda: f"team_{secrets.token_hex(4)}")
    login: str = field(default_factory=lambda: f"ada_{secrets.token_hex(4)}")
    password: str = field(default_factory=lambda: secrets.token_hex(8))

    def create(self) -> None:
        """Create it as an owner does: the schema, a login, and its grant."""
        from outlay.team.team_schema import schema_text

        self.server.execute(f"CREATE DATABASE {self.name}")
        self.execute(schema_text())
        self.add_login(self.login, self.password)

    def add_login(self, login: str, password: str) -> None:
        """Create a login that may launch."""
        self.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{password}' IN ROLE outlay_launcher")

    def another_login(self, book: str) -> str:
        """Return the URL of a book for a new login, which may launch."""
        login, password = f"bea_{secrets.token_hex(4)}", secrets.token_hex(8)
        self.add_login(login, password)
        return f"{self.server.url(self.name, login, password)}?book={book}"

    def add_member(self, login: str, team: str, since: str = "2000-01-01") -> None:
        """Let a login be in a team, unless it is."""
        row = f"('{login}', '{team}', '{since}')"
        self.execute(
            f"INSERT INTO outlay.member (login, team, since) VALUES {row} ON CONFLICT DO NOTHING"
        )

    def forget_people(self) -> None:
        """Remove every membership and service, which all books of the database share."""
        self.execute("DELETE FROM outlay.member; DELETE FROM outlay.service")

    def owner_url(self, book: str) -> str:
        """Return the URL of a book for an owner."""
        return f"{self.server.url(self.name)}?book={book}"

    @contextlib.contextmanager
    def at_time(self, clock: ManualClock) -> Iterator[Callable[[], None]]:
        """Let the database have a clock's time; what it yields says that this has advanced."""
        made = "CREATE OR REPLACE FUNCTION outlay.now() RETURNS timestamptz LANGUAGE sql VOLATILE"
        true = self.execute("SELECT pg_get_functiondef('outlay.now'::regproc)")[0][0]

        def advance() -> None:
            self.execute(f"{made} AS 'SELECT to_timestamp({clock.wall_ns()}::numeric / 1e9)'")

        advance()
        try:
            yield advance
        finally:
            self.execute(str(true))

    def remove(self) -> None:
        """Drop it, whoever is connected."""
        self.server.execute(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")
        self.server.execute(f"DROP ROLE IF EXISTS {self.login}")

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run statements as superuser; return the rows of the last."""
        return self.server.execute(statement, database=self.name)

    def new_book(self, *, owner: bool = False) -> str:
        """Return the launcher's URL of a new, empty book, or an owner's."""
        book = f"book-{secrets.token_hex(4)}"
        self.execute(f"INSERT INTO outlay.book (name) VALUES ('{book}')")
        return self.owner_url(book) if owner else self.url(book)

    def url(self, book: str = "") -> str:
        """Return the launcher's URL of the database, or of a book."""
        url = self.server.url(self.name, self.login, self.password)
        return f"{url}?book={book}" if book else url

    def log(self, url: str = "", **options: Any) -> PostgresSpendLog:
        """Return the spend log of a book; by default of a new one."""
        from outlay.team import PostgresSpendLog, PostgresUrl

        return PostgresSpendLog(PostgresUrl.parse(url or self.new_book()), **options)
