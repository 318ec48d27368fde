"""The project's files, and the parts of a Markdown page."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r'\b(?:src|srcset)="([^"\s]+)"')


def project_files() -> list[Path]:
    """Return the files that belong to the project: those that git tracks."""
    if shutil.which("git") and (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # An unpacked source archive.
        paths = [path for path in ROOT.rglob("*") if not _is_scratch(path.relative_to(ROOT))]
    return sorted({path for path in paths if path.is_file()})


def _is_scratch(path: Path) -> bool:
    """Return whether .gitignore lists the path; supports only the plain patterns used there."""
    patterns = (ROOT / ".gitignore").read_text().split()
    return any(Path(part).match(p.rstrip("/")) for part in path.parts for p in patterns)


def markdown_files() -> list[Path]:
    """Return every Markdown page of the project, without the templates of its hosting page."""
    pages = (path for path in project_files() if path.suffix == ".md")
    return [path for path in pages if ".github" not in path.parts]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: its language, its text, and the comment right before it."""

    language: str
    text: str
    line: int
    comment: str = ""


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for fence in _FENCE.finditer(page):
        before = page[: fence.start()]
        comments = [c for c in _COMMENT.finditer(before) if not before[c.end() :].strip()]
        comment = comments[-1][0][4:-3].strip() if comments else ""
        found.append(Block(fence[2], fence[3], before.count("\n") + 1, comment))
    return found


def prose(page: str) -> str:
    """Return a page without its fenced blocks and comments."""
    return _COMMENT.sub("", _FENCE.sub("", page))


def links(page: str) -> list[str]:
    """Return the targets of the links and pictures of a page."""
    text = re.sub(r"`[^`\n]*`", "`", prose(page))
    return [*_LINK.findall(text), *_PICTURE.findall(text)]


def headings(page: str) -> list[str]:
    """Return the titles of a page's headings."""
    return _HEADING.findall(prose(page))


def anchors(page: str) -> set[str]:
    """Return the anchors of a page, as GitHub derives them from headings."""
    seen: dict[str, int] = {}
    found = set()
    for title in headings(page):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def page(name: str) -> str:
    """Return the text of a page below docs."""
    return (ROOT / "docs" / name).read_text()


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row of a page, without code marks."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]


def first_cells(text: str) -> set[str]:
    """Return the names in the first column of a page's tables, several per cell allowed."""
    return {name.strip() for cells in rows(text) for name in cells[0].split(",")}


def under(text: str, title: str) -> str:
    """Return the section with this title, up to the next heading."""
    parts = re.split(r"^#{2,4} ", text, flags=re.MULTILINE)
    (found,) = (part for part in parts if part.splitlines()[0] == title)
    return found
