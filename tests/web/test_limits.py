"""Limits of the web server: half-sent requests, rubbish, clients that do not read, live pages."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from outlay.web.limits import ServerLimits, limits_within
from waiting import until
from web_server import WEB, Served, serving

FILES = 128
ATTACKERS = 1_100
MOST_LOG_BYTES = 64_000
LIMITS = limits_within(FILES)
FEW_FILES = ("sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"', *WEB)
IMPATIENT = """
from outlay.cli.output import print_json
from outlay.web.access import ServerAddress
from outlay.web.book_reader import BookReader
from outlay.web.limits import ServerLimits
from outlay.web.page import People
from outlay.web.server import WebServer, serve
web = WebServer(BookReader(people=People(hidden=False)), ServerLimits(patience_s=0.2))
serve(web, ServerAddress(), lambda url: print_json({"url": url}))
"""
HEAD = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"
pytestmark = pytest.mark.xdist_group("web")


@dataclass(frozen=True)
class Attacked:
    served: Served
    log: Path

    @property
    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.served.process.pid}/fd").iterdir()))

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.served.port), timeout=60)
        with suppress(OSError):  # It may be closed already.
            connection.sendall(sent)
        return connection


@contextmanager
def attacked(home: Path, *command: str) -> Iterator[Attacked]:
    """Serve a home to attackers; its log stays short."""
    log = home / "stderr.txt"
    with log.open("wb") as stderr, serving(home, command=command, stderr=stderr) as served:
        yield Attacked(served, log)
        assert served.process.poll() is None
        os.kill(served.process.pid, signal.SIGINT)
        assert served.process.wait(timeout=60) == 0
    assert log.stat().st_size < MOST_LOG_BYTES


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow this process to open as many connections as an attacker would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * ATTACKERS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(HEAD, id="half a request"),
        pytest.param(HEAD + b"content-length: 9999999\r\n\r\nhalf", id="half a body"),
        pytest.param(HEAD + b"x: " + b"x" * 100_000, id="an endless header"),
        pytest.param(b"\x16\x03\x01 rubbish\r\n\r\n", id="rubbish"),
        pytest.param(HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n", id="upgrade"),
    ],
)
@pytest.mark.usefixtures("many_files")
def test_a_user_is_answered_during_an_attack(tmp_path: Path, sent: bytes) -> None:
    with attacked(tmp_path, *FEW_FILES) as found, ExitStack() as attack:
        for number in range(ATTACKERS):
            attack.enter_context(found.connect(sent))
            if number % 100 == 0:
                assert httpx2.get(f"{found.served.base}/", timeout=60).status_code == 401
        with found.served.client() as client:
            assert client.get("/health.json").json()["streams"] == 0
        assert found.open_files <= FILES * 2 // 3


def test_repeated_lines_of_the_log_are_counted(tmp_path: Path) -> None:
    with attacked(tmp_path, *WEB) as found:
        for _ in range(100):
            with found.connect(b"rubbish\r\n\r\n") as connection:
                assert connection.recv(12) == b"HTTP/1.1 400"
    lines = found.log.read_text().splitlines()
    assert len(lines) == 5
    assert lines[-1].endswith("Invalid HTTP request received. (100 times so far)")


def test_it_recovers_when_no_file_could_be_opened(tmp_path: Path) -> None:
    with attacked(tmp_path, *WEB) as found:
        pid = found.served.process.pid
        assert httpx2.get(found.served.base, timeout=60).status_code == 401  # It has started.
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (found.open_files, limit[1]))
        with ExitStack() as attack:
            for _ in range(50):
                attack.enter_context(found.connect(HEAD))
            until(lambda: b"Too many open files" in found.log.read_bytes(), "it never failed")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
            assert httpx2.get(found.served.base, timeout=60).status_code == 401


def test_live_pages_beyond_the_limit_get_status_503(tmp_path: Path) -> None:
    with attacked(tmp_path, *FEW_FILES) as found, found.served.client() as client:
        with ExitStack() as opened:
            for _ in range(LIMITS.streams):
                stream = opened.enter_context(client.stream("GET", "/events/"))
                assert stream.status_code == 200
            refused = opened.enter_context(client.stream("GET", "/events/"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            assert f"{LIMITS.streams} live pages are open" in refused.read().decode()
            assert client.get("/runs").status_code == 200
        until(lambda: not client.get("/health.json").json()["streams"], "streams stay open")
        with client.stream("GET", "/events/") as stream:
            assert stream.status_code == 200


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A server that soon closes a stalled connection."""
    with attacked(tmp_path_factory.mktemp("web"), sys.executable, "-c", IMPATIENT) as found:
        yield found


@pytest.mark.parametrize(
    ("sent", "drip"),
    [
        pytest.param(b"", b"", id="nothing"),
        pytest.param(HEAD + b"x: ", b"x", id="a header that never ends"),
        pytest.param(HEAD + b"content-length: 9999999\r\n\r\n", b"x", id="a body that never ends"),
        pytest.param(HEAD + b"\r\n" + HEAD + b"x: ", b"x", id="a second request that never ends"),
    ],
)
def test_a_request_that_is_never_complete_is_given_up(
    impatient: Attacked, sent: bytes, drip: bytes
) -> None:
    with impatient.connect(sent) as connection:
        connection.settimeout(0.05)

        def is_closed() -> bool:
            try:
                connection.sendall(drip)
                return not connection.recv(4096)
            except TimeoutError:
                return False
            except OSError:
                return True

        until(is_closed, "the connection stays open")


def test_a_client_that_does_not_read_is_disconnected(impatient: Attacked) -> None:
    token = impatient.served.url.rpartition("=")[2]
    request = f"GET /assets/live.js HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}"
    before = impatient.open_files
    with impatient.connect(f"{request}\r\n\r\n".encode() * 500) as connection:
        assert connection.recv(8) == b"HTTP/1.1"  # It was accepted.
        until(lambda: impatient.open_files <= before, "the connection stays open")


@pytest.mark.parametrize("files", [20, 64, 100, FILES, 256, 432, 1024, 10**6])
def test_connections_leave_a_third_of_the_open_files_to_the_books(files: int) -> None:
    limits = limits_within(files)
    assert limits.waiting + limits.requests + limits.accepted <= files * 2 / 3
    assert 0 < 4 * limits.accepted <= limits.waiting
    assert 0 < limits.streams <= limits.requests / 2
    assert limits == ServerLimits() or files < 432
