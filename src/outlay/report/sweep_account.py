"""Everything that is known about one sweep, read once for its reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlay.report.sweep_charts import Chart, charts_of
from outlay.report.sweep_page import page
from outlay.sweep.aggregate import markdown
from outlay.sweep.aggregate.aggregator import Aggregate, aggregate
from outlay.sweep.aggregate.comparison import verdict
from outlay.sweep.journal import Event, read_events


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAccount:
    """A sweep as it stands."""

    root: Path
    summary: Aggregate
    events: Sequence[Event]

    @property
    def reports(self) -> Path:
        """Where its reports go unless told otherwise."""
        return self.root / "reports"

    @property
    def verdict(self) -> str:
        """Which configuration was best, and how sure that is."""
        return verdict(self.summary.subjects, self.summary.rows)

    def to_html(self) -> str:
        """Return the sweep as one page that opens offline."""
        summary = self.summary
        return page(
            summary.name, summary.subjects, summary.rows, self.events, head=summary.head
        )  # fmt: skip

    def to_markdown(self) -> str:
        """Return the verdict and the tables of that page."""
        summary = self.summary
        return markdown.page(summary.name, summary.subjects, summary.rows, head=summary.head)

    def charts(self) -> list[Chart]:
        """Return the charts of that page, before any drawing."""
        return charts_of(self.summary.subjects, self.summary.rows, self.events)


def read_sweep(root: Path, now_ns: int, *, allow_missing: bool = False) -> SweepAccount:
    """Read a sweep for its reports.

    Args:
        root: The sweep's directory.
        now_ns: The present.
        allow_missing: Go on when a completed run misses files.

    Raises:
        NotASweep: There is none.
        IncompleteRuns: Completed runs miss what is required; names all of it.
    """
    summary = aggregate(root, now_ns, allow_missing=allow_missing)
    return SweepAccount(root=root, summary=summary, events=read_events(root))
