"""A sweep's reports on disk: the table, the Markdown page, the HTML page, the table for a paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outlay.report.latex import table
from outlay.report.sweep_page import page
from outlay.sweep.aggregate.aggregator import Aggregate, aggregate, write_reports
from outlay.sweep.aggregate.comparison import verdict
from outlay.sweep.journal import read_events


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFiles:
    """A sweep's summary, and where its reports are."""

    summary: Aggregate
    csv: Path
    markdown: Path
    html: Path
    latex: Path

    @property
    def verdict(self) -> str:
        """Which configuration was best, and how sure that is."""
        return verdict(self.summary.subjects, self.summary.rows)


def write_sweep_files(
    root: Path, now_ns: int, *, output: Path | None = None, allow_missing: bool = False
) -> SweepFiles:
    """Summarise a sweep and write its reports, to ``root/reports`` unless told otherwise.

    Raises:
        NotASweep: There is none.
        IncompleteRuns: Completed runs miss what is required; names all of it.
    """
    summary = aggregate(root, now_ns, allow_missing=allow_missing)
    reports = write_reports(root, summary, now_ns, output)
    html = reports.markdown.with_name("report.html")
    html.write_text(page(summary.name, summary.subjects, summary.rows, read_events(root)))
    latex = html.with_name("table.tex")
    latex.write_text(table(summary.rows))
    return SweepFiles(
        summary=summary, csv=reports.csv, markdown=reports.markdown, html=html, latex=latex
    )
