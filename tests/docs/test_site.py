"""The site of `make site`: links have targets, pages fit, and nothing is loaded from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import find_chromium
from papers import ROOT
from system_parts import missing
from waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LOADED = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="https?:')
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        missing("mkdocs-material is not installed: the extra `docs` has it")
    pages, directory = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "tools" / "site_pages.py", pages], check=True)
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(directory)]
    build += ["-f", str(pages / "mkdocs.yml")]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def index(site: Path) -> str:
    return (site / "index.html").read_text()


def test_the_first_page_is_the_readme(site: Path) -> None:
    assert "outlay keeps the books of ML training" in index(site)


def test_no_page_refers_to_scripts_styles_or_pictures_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not LOADED.findall(page.read_text()), page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if importlib.util.find_spec("playwright") is None:
        missing("playwright is not installed: the group `test-integrations` has it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


def test_pages_fit_the_window_with_their_pictures_and_load_nothing_from_elsewhere(
    site: Path, browser: Browser
) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for name in ("index", "tutorial", "cheatsheet", "four-numbers", "howto/moving"):
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto((site / f"{name}.html").as_uri(), wait_until="load")
            assert page.evaluate("document.documentElement.scrollWidth") == width, name
            pictures = page.evaluate("[...document.images].map(each => each.naturalWidth)")
            assert all(pictures), (name, pictures)
            assert bool(pictures) == (name == "index")
    assert {url.partition(":")[0] for url in requests} <= {"file", "data", "blob"}
    page.close()


def test_search_works_on_a_page_that_was_opened_from_disk(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto((site / "howto" / "slurm.html").as_uri())
    page.wait_for_function("typeof __index !== 'undefined'")
    page.evaluate("document.querySelector('input.md-search__input').focus()")
    page.keyboard.type("goodput")
    page.locator(".md-search-result__item").first.wait_for()
    assert "matching documents" in page.inner_text(".md-search-result__meta")
    page.close()


def test_every_page_is_in_the_navigation(site: Path) -> None:
    listed = set(re.findall(r'<a href="([\w/.-]+\.html)" class="md-nav__link', index(site)))
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    decisions = {path for path in built if path.startswith("adr/0")}  # Their own page lists them.
    assert decisions
    assert built - listed == decisions | {"404.html"}
