"""Who looks at a page: a reverse proxy says so, and nobody else can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from command_line import in_process
from waiting import PATIENCE_S
from web_server import HOSTILE, Served, serving

TOKEN = "0123456789abcdef"
HERE, THERE = "127.0.0.1", "127.0.0.2"
HEADER = "X-Remote-User"
pytestmark = pytest.mark.xdist_group("web")


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module", params=[HERE, THERE])
def proxy(request: pytest.FixtureRequest) -> str:
    """The address of the reverse proxy; the other address of loopback is somebody else's."""
    address: str = request.param
    return address


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, token_file: Path, proxy: str
) -> Iterator[Served]:
    more = ("--token-file", str(token_file), "--user-header", HEADER, "--proxy", proxy)
    with serving(tmp_path_factory.mktemp("home"), *more) as found:
        yield found


def get(
    served: Served, source: str, *headers: tuple[str, str], token: str = TOKEN
) -> httpx2.Response:
    """Ask for the start page on a connection from an address of this machine."""
    transport = httpx2.HTTPTransport(local_address=source)
    given = [*headers, *([("Authorization", f"Bearer {token}")] if token else [])]
    encoded = [(name.encode(), text.encode()) for name, text in given]
    with httpx2.Client(transport=transport, timeout=PATIENCE_S) as client:
        return client.get(served.base, headers=encoded)


def other(proxy: str) -> str:
    return THERE if proxy == HERE else HERE


def test_the_page_shows_the_user_that_the_proxy_names(served: Served, proxy: str) -> None:
    answer = get(served, proxy, (HEADER, "ada"), ("X-Forwarded-For", "10.0.0.9"))
    assert (answer.status_code, '<span class="user">ada</span>' in answer.text) == (200, True)
    assert 'class="user"' not in get(served, proxy).text


@pytest.mark.parametrize("forwarded", ["", HERE, THERE])
@pytest.mark.parametrize("token", [TOKEN, "", "wrong"])
def test_somebody_else_may_not_name_a_user(
    served: Served, proxy: str, forwarded: str, token: str
) -> None:
    more = [("X-Forwarded-For", forwarded)] if forwarded else []
    answer = get(served, other(proxy), (HEADER.lower(), "ada"), *more, token=token)
    assert (answer.status_code, "see --proxy" in answer.text) == (403, True)


def test_somebody_else_without_the_header_is_treated_as_before(served: Served, proxy: str) -> None:
    answer = get(served, other(proxy))
    assert (answer.status_code, 'class="user"' in answer.text) == (200, False)
    assert get(served, other(proxy), token="").status_code == 401


def test_the_header_lets_nobody_in(served: Served, proxy: str) -> None:
    assert get(served, proxy, (HEADER, "ada"), token="").status_code == 401
    assert get(served, proxy, (HEADER, "ada"), token="wrong").status_code == 401


def test_a_proxy_that_passes_on_what_a_browser_sent_is_refused(served: Served, proxy: str) -> None:
    answer = get(served, proxy, (HEADER, "ada"), (HEADER, "bob"))
    assert (answer.status_code, "twice" in answer.text) == (403, True)
    assert get(served, proxy, (HEADER, "a" * 201)).status_code == 403


def test_a_name_is_text_on_the_page(served: Served, proxy: str) -> None:
    name = HOSTILE.replace("\x1b", "")
    assert "<script>alert" not in get(served, proxy, (HEADER, name)).text
    assert ">Zoë<" in get(served, proxy, (HEADER, "Zoë")).text


def test_a_hidden_user_is_a_number(tmp_path: Path, token_file: Path) -> None:
    more = ("--token-file", str(token_file), "--user-header", HEADER, "--proxy", HERE)
    with serving(tmp_path, *more, "--hide-people") as served:
        text = get(served, HERE, (HEADER, "ada")).text
    assert '<span class="user">user 1</span>' in text
    assert "ada" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--user-header", HEADER], "--proxy ADDRESS"),
        (["--proxy", HERE], "--user-header NAME"),
        (["--user-header", "Cookie", "--proxy", HERE], "only the proxy sets"),
        (["--user-header", "a b", "--proxy", HERE], "only the proxy sets"),
        (["--user-header", HEADER, "--proxy", "proxy.example"], "such as 127.0.0.1"),
        (["--user-header", HEADER, "--proxy", "0.0.0.0"], "such as 127.0.0.1"),
    ],
)
def test_options_that_make_no_sense_are_refused(words: list[str], said: str) -> None:
    refused = in_process("web", "--no-open", *words, columns=200)
    assert (refused.code, said in refused.err) == (2, True)
