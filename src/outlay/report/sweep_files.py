"""A sweep's reports on disk: the table, the Markdown page, the HTML page, the table for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlay.report.latex import table
from outlay.report.pictures import write_pictures
from outlay.report.sweep_charts import charts_of
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
    pictures: Sequence[Path] = ()

    @property
    def verdict(self) -> str:
        """Which configuration was best, and how sure that is."""
        return verdict(self.summary.subjects, self.summary.rows)

    @property
    def written(self) -> dict[str, Path]:
        """The reports by their form, without pictures."""
        return {
            "html": self.html, "markdown": self.markdown, "csv": self.csv, "latex": self.latex,
        }  # fmt: skip


def write_sweep_files(
    root: Path,
    now_ns: int,
    *,
    output: Path | None = None,
    allow_missing: bool = False,
    pictures: Sequence[str] = (),
) -> SweepFiles:
    """Summarise a sweep and write its reports, to ``root/reports`` unless told otherwise.

    Args:
        root: The sweep's directory.
        now_ns: The present.
        output: Where to write.
        allow_missing: Go on when a completed run misses files.
        pictures: Also draw every chart as files of these formats.

    Raises:
        NotASweep: There is none.
        IncompleteRuns: Completed runs miss what is required; names all of it.
        MissingExtra: Pictures are wanted, and matplotlib is not installed.
    """
    summary, events = aggregate(root, now_ns, allow_missing=allow_missing), read_events(root)
    reports = write_reports(root, summary, now_ns, output)
    html = reports.markdown.with_name("report.html")
    html.write_text(page(summary.name, summary.subjects, summary.rows, events))
    latex = html.with_name("table.tex")
    latex.write_text(table(summary.rows))
    charts = charts_of(summary.subjects, summary.rows, events) if pictures else []
    return SweepFiles(
        summary=summary, csv=reports.csv, markdown=reports.markdown, html=html, latex=latex,
        pictures=write_pictures(charts, html.with_name("pictures"), pictures),
    )  # fmt: skip
