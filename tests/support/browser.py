"""A real browser on a page: how wide it is, and how many charts it shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from system_parts import missing

MEASURE = """() => {
    const charts = [...document.querySelectorAll("svg[role]")];
    const empty = charts.filter(
        each => !each.getBoundingClientRect().height || each.querySelectorAll("*").length < 2
    );
    return [document.documentElement.scrollWidth, innerWidth, charts.length, empty.length];
}"""


@dataclass(frozen=True)
class Seen:
    page_width: int
    window_width: int
    charts: int
    empty_charts: int


def measure(page: Any) -> Seen:
    """Return what a page shows in its window."""
    return Seen(*page.evaluate(MEASURE))


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser that the system has."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


def find_chromium() -> str:
    """Return where Chromium is."""
    found = shutil.which("chromium")
    if found is None:
        missing("chromium is not installed; see tools/system-packages")
    return found
