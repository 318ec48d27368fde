"""A run in a notebook: its report as HTML, without charts, style or script."""

from __future__ import annotations

from outlay.escaping import html_text
from outlay.report.document import ChartBlock, blocks_html
from outlay.report.run_document import run_document
from outlay.runs.reading import RunReading

_SHOWN = ("The run", "Where time and money went", "Budget", "What to change")


def run_html(run: RunReading) -> str:
    """Return the title, the verdict and the main sections of a run's report."""
    document = run_document(run)
    parts = [f"<p><b>{html_text(document.title)}</b>: {html_text(document.verdict)}</p>"]
    for section in document.sections:
        blocks = [block for block in section.blocks if not isinstance(block, ChartBlock)]
        if section.title in _SHOWN and blocks:
            opened = " open" if section.title == _SHOWN[0] else ""
            summary = f"<summary>{html_text(section.title)}</summary>"
            parts.append(f"<details{opened}>{summary}{blocks_html(blocks)}</details>")
    return "".join(parts)
