"""Access to the pages: the token, the Host header, loopback, and read-only requests."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import httpx2
import pytest

from command_line import in_process, outlay
from hostile import good_run
from outlay.web.access import Access, ServerAddress
from web_server import Served, serving

VENDORED = {
    "htmx.min.js": "e484d9171a9db30a39c8f16e3d709d4137f3211c659f8e6125816635033d593f",
    "hx-sse.min.js": "8a834680c4000a9034d79228872372a92e140c810a075cb6d4a76690dfc13085",
    "htmx-LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot-LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
pytestmark = pytest.mark.xdist_group("web")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("web-home")
    run = good_run(tmp_path_factory.mktemp("runs") / "one", "one")
    done = outlay("collect", run, OUTLAY_HOME=str(home))
    assert done.code == 0, done.err
    with serving(home) as found:
        yield found


@pytest.fixture
def client(served: Served) -> Iterator[httpx2.Client]:
    with served.client() as found:
        yield found


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory, token_file: Path) -> Iterator[Served]:
    """A server beyond 127.0.0.1, with names."""
    names = ("--name", "Box.lan", "--name", "[FD00:0::5]")
    given = ("--host", "127.0.0.2", "--token-file", str(token_file), *names)
    with serving(tmp_path_factory.mktemp("exposed"), *given) as found:
        yield found


@pytest.mark.parametrize("name", VENDORED)
def test_vendored_scripts_have_the_published_checksums(name: str) -> None:
    content = (files("outlay.web") / "assets" / name).read_bytes()
    assert sha256(content).hexdigest() == VENDORED[name]


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_never_get(served: Served) -> None:
    answer = httpx2.get(f"{served.url}&x=1")
    cookie = answer.headers["set-cookie"].lower()
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert served.url.rpartition("=")[2].lower() not in cookie


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 401), ("/runs.json", 401), ("/assets/style.css", 401), ("/?token=wrong", 403)],
)
def test_without_the_token_nothing_is_shown(served: Served, path: str, status: int) -> None:
    answer = httpx2.get(served.base + path)
    assert answer.status_code == status
    assert "id-one" not in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_header_is_refused(client: httpx2.Client, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code in (400, 421)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_requests_are_answered(client: httpx2.Client, method: str) -> None:
    assert client.request(method, "/runs").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/run/../../etc/passwd", "/run/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/assets/../server.py",
        "/assets/%2e%2e%2fserver.py", "/run//etc/passwd", "/sweep/%2Ftmp", "/events/run/nobody",
        "/nowhere", "/run/one/ledger/run.json",
    ],
)  # fmt: skip
def test_no_address_reads_a_file_outside_the_pages(client: httpx2.Client, path: str) -> None:
    with client.stream("GET", path) as answer:
        if answer.headers["content-type"].startswith("text/event-stream"):
            shown = next(answer.iter_text())
        else:
            shown = answer.read().decode()
            assert answer.status_code == 404
    assert "root:" not in shown
    assert "from __future__" not in shown


@pytest.mark.parametrize("length", [9_000, 1_000_000])
def test_an_oversized_query_is_refused(served: Served, length: int) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        with suppress(OSError):  # It may be closed while the rest is still being sent.
            request = f"GET /runs?q={'x' * length} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            connection.sendall(request.encode())
        answer = b""
        with suppress(OSError):
            answer = connection.recv(4096)
    assert answer[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 414", b"HTTP/1.1 431")
    assert len(answer) < 1000


def test_every_answer_forbids_inline_scripts_and_frames(client: httpx2.Client) -> None:
    for path in ("/", "/runs.json", "/assets/live.js", "/nowhere"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "path", ["/", "/money", "/runs", "/sweeps", "/guard", "/prices", "/compare", "/run/id-one"]
)
def test_each_view_opens_and_weighs_little(client: httpx2.Client, path: str) -> None:
    page = client.get(path)
    assert page.status_code == 200, page.text
    linked = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.text)
    assert len(linked) >= 2
    assets = (client.get(path).content for path in linked)
    weight = len(page.content) + sum(map(len, assets))
    assert weight < 250_000
    assert "style=" not in page.text


@pytest.mark.parametrize("path", ["/now", "/money", "/runs", "/guard", "/run/id-one"])
def test_each_view_is_also_json(client: httpx2.Client, path: str) -> None:
    assert client.get(f"{path}.json").json()


def test_tables_are_also_csv(client: httpx2.Client) -> None:
    head, row = client.get("/runs.csv").text.splitlines()
    assert head.startswith("run_id,name,status")
    assert row.startswith("id-one,one,completed")


def test_beyond_loopback_a_token_file_is_needed(tmp_path: Path) -> None:
    refused = in_process("web", "--host", "0.0.0.0", "--no-open")
    assert refused.code == 2
    assert "--token-file" in refused.err
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o644)
    open_to_all = in_process("web", "--host", "0.0.0.0", "--token-file", secret, "--no-open")
    assert "chmod 600" in open_to_all.err
    secret.chmod(0o600)
    assert ServerAddress(host="0.0.0.0", token_file=secret).token() == "0123456789abcdef"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", ""])
def test_on_all_addresses_a_name_is_needed(token_file: Path, host: str) -> None:
    refused = in_process("web", "--host", host, "--token-file", token_file, "--no-open")
    assert refused.code == 2
    assert "--name NAME" in refused.err


@pytest.mark.parametrize("name", ["http://box.lan", "box.lan:80", "*", "*.lan", "", "box lan", "é"])
def test_a_name_is_a_host_name_or_an_address(token_file: Path, name: str) -> None:
    given = ("--host", "127.0.0.2", "--token-file", token_file, "--name", name, "--no-open")
    refused = in_process("web", *given)
    assert refused.code == 2
    assert "without a port" in refused.err


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("box.lan", 200), ("BOX.lan:80", 200), ("[fd00::5]:8000", 200), ("localhost", 200),
        ("127.0.0.2", 421), ("lan", 421), ("box.lan.evil.example", 421), ("box.lan:80@evil", 421),
        ("fd00", 421), ("0.0.0.0", 421),
    ],
)  # fmt: skip
def test_beyond_loopback_it_answers_to_its_names(exposed: Served, host: str, status: int) -> None:
    headers = {"host": host, "authorization": "Bearer 0123456789abcdef"}
    answer = httpx2.get(f"http://127.0.0.2:{exposed.port}/health.json", headers=headers)
    assert answer.status_code == status


def test_without_names_it_answers_to_the_address_that_it_listens_on(
    tmp_path: Path, token_file: Path
) -> None:
    with serving(tmp_path, "--host", "127.0.0.2", "--token-file", str(token_file)) as found:
        assert found.base == f"http://127.0.0.2:{found.port}"
        assert httpx2.get(found.url, follow_redirects=True).status_code == 200


def test_beyond_loopback_it_says_that_it_is_plain_http(exposed: Served, served: Served) -> None:
    assert exposed.url.startswith(f"http://box.lan:{exposed.port}/?token=")
    assert "plain HTTP" in exposed.warnings[0]
    assert "reverse proxy" in exposed.warnings[0]
    assert served.warnings == []


def test_behind_a_proxy_with_tls_the_cookie_is_never_sent_in_plain(served: Served) -> None:
    plain = httpx2.get(served.url)
    encrypted = httpx2.get(served.url, headers={"x-forwarded-proto": "https"})
    assert "secure" not in plain.headers["set-cookie"].lower()
    assert "secure" in encrypted.headers["set-cookie"].lower()


def test_two_servers_of_one_host_admit_the_same_browser(served: Served, tmp_path: Path) -> None:
    with serving(tmp_path) as other, httpx2.Client(follow_redirects=True) as client:
        for url in (served.url, other.url, served.base, other.base):
            assert client.get(url).status_code == 200


def test_a_socket_file_has_mode_600(tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    with ServerAddress(unix_socket=path).listen():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f":{path} " in ServerAddress(unix_socket=path).forwarding()


def test_pages_are_served_through_a_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    with serving(tmp_path, "--unix-socket", str(path)) as found:
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, follow_redirects=True) as client:
            assert "<h1>Now</h1>" in client.get(found.url).text
    assert not path.exists()


def test_ctrl_c_ends_it_though_streams_are_open(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as found,
        found.client() as client,
        client.stream("GET", "/events/") as stream,
    ):
        next(stream.iter_text())
        os.kill(found.process.pid, signal.SIGINT)
        assert found.process.wait() == 0


def test_names_of_people_can_be_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "ada"
    command = ("python", str(home / "train.py"))
    config = {"files": [{"name": str(home / "train.txt")}], "author": "ada"}
    run = good_run(home / "run", "one", user="ada", command=command, config=config)
    segment = next((run / "ledger").glob("*.jsonl"))
    segment.write_text(segment.read_text() + "damaged\n")  # A finding, which names the file.
    log = tmp_path / "home" / "ada" / "spend.jsonl"
    log.write_text('{"ts": "2026-01-02T00:00:00Z", "op_label": "a", "who": "ada"}\n')
    outlay("collect", run, OUTLAY_HOME=str(tmp_path))
    monkeypatch.setenv("OUTLAY_SPEND_LOG", str(log))
    with serving(tmp_path, "--hide-people") as found, found.client() as client:
        compared = "run=id-one&run=id-one"
        for path in (
            "/runs?col=dir&col=user", "/run/id-one", "/run/id-one.json", "/runs.csv", "/money",
            "/guard", "/guard.json", "/guard.csv", "/money.json", "/", "/sweeps.json",
            "/runs.json", "/now.json", f"/compare?{compared}", f"/compare.json?{compared}",
        ):  # fmt: skip
            text = client.get(path).text
            assert "ada" not in text.replace("adaptive", "").replace("data", ""), path
        assert client.get("/run/id-one.json").json()["goodput"]["findings"]
        assert "user 1" in client.get("/runs?col=user").text
        assert "id-one" in client.get("/runs?user=user+1").text


def test_the_cookie_is_not_the_token() -> None:
    access = Access(token="t" * 20)
    assert access.cookie != access.token


def test_a_port_in_use_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "outlay", "web", "--no-open", "--port", str(port)],
            env=os.environ | {"OUTLAY_HOME": str(tmp_path)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_server_that_cannot_listen_evaluates_no_alert() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        in_process("web", "--no-open", "--port", taken.getsockname()[1])
    assert "outlay-alerts" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(("token", "status"), [("right", 200), ("wrong", 401), ("", 401)])
def test_metrics_need_the_bearer_token(served: Served, token: str, status: int) -> None:
    given = served.url.rpartition("=")[2] if token == "right" else token
    answer = httpx2.get(
        f"{served.base}/metrics", headers={"authorization": f"Bearer {given}"} if token else {}
    )
    assert answer.status_code == status
    assert ("outlay_reading_timestamp_seconds" in answer.text) is (status == 200)
    if status == 200:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
