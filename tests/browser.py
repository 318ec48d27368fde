"""A real browser on a page: how wide it comes out, and how many charts it shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from system_parts import missing

PHONE = 500  # The narrowest window that headless Chromium opens.
DESKTOP = 1200


@dataclass(frozen=True)
class Seen:
    page_width: int
    window_width: int
    charts: int
    empty_charts: int


def look_at(page: str, directory: Path, *, width: int = PHONE) -> Seen:
    """Open a page in Chromium and return what came of it."""
    measure = (
        "<script>const charts=[...document.querySelectorAll('svg[role]')];"
        "document.title=[document.documentElement.scrollWidth,innerWidth,charts.length,"
        "charts.filter(c=>!c.getBoundingClientRect().height||c.querySelectorAll('*').length<2).length].join(' ')"
        "</script>"
    )
    source = directory / "looked-at.html"
    source.write_text(page.replace("</body>", f"{measure}</body>"))
    done = subprocess.run(
        [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu",
         f"--window-size={width},900", f"--user-data-dir={directory / 'profile'}",
         "--dump-dom", source.as_uri()],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r"<title>(\d+) (\d+) (\d+) (\d+)</title>", done.stdout)
    assert found is not None
    return Seen(*map(int, found.groups()))


def find_chromium() -> str:
    """Return where Chromium is."""
    found = shutil.which("chromium")
    if found is None:
        missing("chromium is not installed; see tools/system-packages")
    return found
