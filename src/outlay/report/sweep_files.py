"""All reports of a sweep on disk, as ``outlay sweep aggregate`` documents them.

The table, the Markdown page, the HTML page, the table for a paper, and pictures where wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlay.files import write_whole
from outlay.report.files import PICTURES
from outlay.report.latex import table
from outlay.report.pictures import write_pictures
from outlay.report.sweep_account import SweepAccount
from outlay.sweep.aggregate.aggregator import write_reports


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFiles:
    """Where a sweep's reports are."""

    csv: Path
    markdown: Path
    html: Path
    latex: Path
    pictures: Sequence[Path] = ()

    @property
    def written(self) -> dict[str, Path]:
        """The reports by their form, without pictures."""
        return {
            "html": self.html, "markdown": self.markdown, "csv": self.csv, "latex": self.latex,
        }  # fmt: skip


def write_sweep_files(
    account: SweepAccount, directory: Path, now_ns: int, pictures: Sequence[str] = ()
) -> SweepFiles:
    """Write every report of a sweep, and each chart as files of these formats.

    Raises:
        MissingExtra: Pictures are wanted, and matplotlib is not installed.
    """
    reports = write_reports(account.root, account.summary, now_ns, directory)
    html, latex = directory / "report.html", directory / "table.tex"
    write_whole(html, account.to_html().encode())
    write_whole(latex, table(account.summary.rows).encode())
    charts = account.charts() if pictures else []
    return SweepFiles(
        csv=reports.csv, markdown=reports.markdown, html=html, latex=latex,
        pictures=write_pictures(charts, directory / PICTURES, pictures),
    )  # fmt: skip
