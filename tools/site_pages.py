"""Brings the pages beside ``docs/`` into the site, and unlinks what lies outside of it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
BROUGHT = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "SECURITY.md": "security.md"}

_PICTURE = re.compile(r'\b(src|srcset)="docs/')
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that stand beside ``docs/``."""
    for name, page in BROUGHT.items():
        text = _PICTURE.sub(r'\1="', (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=_relinked(text, "", files)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turn links that leave ``docs/`` into text, or into links to what was brought in."""
    del config
    if page.file.src_uri in BROUGHT.values():
        return markdown
    return _relinked(markdown, posixpath.dirname(f"docs/{page.file.src_uri}"), files)


def _relinked(markdown: str, folder: str, files: Files) -> str:
    def relink(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = BROUGHT.get(path) or path.removeprefix("docs/")
        built = path.startswith("docs/") and files.get_file_from_path(inside) is not None
        if path not in BROUGHT and not built:
            return text
        home = posixpath.relpath(inside, folder.removeprefix("docs").strip("/") or ".")
        return f"{picture}[{text}]({home}{anchor})"

    return _LINK.sub(relink, markdown)
