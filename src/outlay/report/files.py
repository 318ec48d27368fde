"""Reports on disk, in the forms that were asked for: HTML, Markdown, PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from outlay.files import write_whole
from outlay.report.blocks import Document
from outlay.report.pictures import write_pictures
from outlay.report.rendering import to_html, to_markdown
from outlay.report.run_picture import save_picture
from outlay.report.sweep_account import SweepAccount
from outlay.runs.reading import RunReading

Form = Literal["html", "md", "png"]
PICTURES: Final = "pictures"


def write_run_report(
    run: RunReading, document: Document, directory: Path, forms: Sequence[Form]
) -> list[Path]:
    """Write a run's report as ``report.html``, ``report.md`` and ``report.png``; return the files.

    Raises:
        MissingExtra: A picture is wanted, and matplotlib is not installed; nothing is written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    if "png" in forms:
        pictures = [directory / "report.png"]
        save_picture(run, pictures[0])
    texts: Mapping[Form, Callable[[], str]] = {
        "html": lambda: to_html(document),
        "md": lambda: to_markdown(document),
    }
    return _written(directory, forms, texts) + pictures


def write_sweep_report(account: SweepAccount, directory: Path, forms: Sequence[Form]) -> list[Path]:
    """Write a sweep's report likewise, but each chart as a PNG of its own; return the files.

    Raises:
        MissingExtra: Pictures are wanted, and matplotlib is not installed; nothing is written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    if "png" in forms:
        pictures = write_pictures(account.charts(), directory / PICTURES, ["png"])
    texts: Mapping[Form, Callable[[], str]] = {
        "html": account.to_html,
        "md": account.to_markdown,
    }
    return _written(directory, forms, texts) + pictures


def _written(
    directory: Path, forms: Sequence[Form], texts: Mapping[Form, Callable[[], str]]
) -> list[Path]:
    """Write what is text; return the files."""
    wanted = {directory / f"report.{form}": texts[form] for form in forms if form in texts}
    for path, text in wanted.items():
        write_whole(path, text().encode())
    return list(wanted)
