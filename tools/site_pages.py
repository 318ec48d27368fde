"""Write what the site is built from: ``docs/``, the pages beside it, and ``mkdocs.yml``.

What lies outside of the site is no longer linked. No hooks: MkDocs and Zensical build the same.

Usage: tools/site_pages.py DIRECTORY
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BROUGHT = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "SECURITY.md": "security.md"}

_PICTURE = re.compile(r'\b(src|srcset)="docs/')
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")


def write_pages(directory: Path) -> None:
    """Write ``docs`` and ``mkdocs.yml`` into a directory, in the place of what was there."""
    docs = directory / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    shutil.copytree(ROOT / "docs", docs)
    shutil.copy(ROOT / "mkdocs.yml", directory)
    for page in docs.rglob("*.md"):
        folder = posixpath.dirname(f"docs/{page.relative_to(docs).as_posix()}")
        page.write_text(_relinked(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    for name, brought in BROUGHT.items():
        text = _PICTURE.sub(r'\1="', (ROOT / name).read_text(encoding="utf-8"))
        (docs / brought).write_text(_relinked(text, ""), encoding="utf-8")


def _relinked(markdown: str, folder: str) -> str:
    """Turn links that leave ``docs/`` into text, or into links to what was brought in."""

    def relink(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = BROUGHT.get(path) or path.removeprefix("docs/")
        built = path.startswith("docs/") and (ROOT / path).is_file()
        if path not in BROUGHT and not built:
            return text
        home = posixpath.relpath(inside, folder.removeprefix("docs").strip("/") or ".")
        return f"{picture}[{text}]({home}{anchor})"

    return _LINK.sub(relink, markdown)


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
