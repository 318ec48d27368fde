"""The site that `make site` builds: links lead somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import find_chromium
from papers import ROOT
from system_parts import missing

LOADED = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="https?:')
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        missing("mkdocs-material is not installed: the extra `docs` has it")
    directory = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(directory)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        build, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_its_first_page_is_the_readme(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert "outlay keeps the books of ML training" in page
    assert 'href="tutorial.html"' in page


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not LOADED.findall(page.read_text()), page


def test_its_search_answers_on_a_page_that_was_opened_from_disk(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((site / "howto" / "slurm.html").as_uri())
        page.wait_for_function("typeof __index !== 'undefined'")
        page.evaluate("document.querySelector('input.md-search__input').focus()")
        page.keyboard.type("goodput")
        page.locator(".md-search-result__item").first.wait_for(timeout=60_000)
        assert "matching documents" in page.inner_text(".md-search-result__meta")
        browser.close()
