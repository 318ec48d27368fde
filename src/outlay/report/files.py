"""Reports of runs and sweeps as files: HTML, Markdown, CSV, LaTeX, pictures."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import quote

from outlay.clock import SYSTEM, utc_datetime
from outlay.errors import OutlayError
from outlay.escaping import one_line, write_csv
from outlay.files import write_whole
from outlay.report.document import Document, notebook_html, to_html, to_markdown
from outlay.report.drawing.charts import Chart
from outlay.report.drawing.pictures import write_pictures
from outlay.report.drawing.sweep_charts import charts_of
from outlay.report.run_document import RunSetup
from outlay.report.sweep_document import Link, latex_table, sweep_document
from outlay.runs.collect import data_frame
from outlay.sweep.aggregate.aggregator import Aggregate, aggregate
from outlay.sweep.aggregate.comparison import verdict
from outlay.sweep.aggregate.rows import columns_of
from outlay.sweep.state.manifest import read_events, read_manifest
from outlay.sweep.state.outcomes import Event
from outlay.units.shown import counted

_IN_NOTEBOOKS: Final = ("Configurations", "Unlikely to win", "Rungs", "Runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAccount:
    """A sweep, read once for its reports."""

    root: Path
    summary: Aggregate
    events: Sequence[Event]

    def __repr__(self) -> str:
        runs = counted(len(self.summary.rows), "run")
        return f"<SweepAccount {self.summary.name}: {runs}. {self.verdict}>"

    def _repr_html_(self) -> str:
        """Return the main sections of its report for a notebook."""
        return notebook_html(self.document(), _IN_NOTEBOOKS)

    def to_pandas(self) -> Any:
        """Return a data frame: a row for each run, with the columns of the summary.

        Raises:
            OutlayError: pandas is not installed.
        """
        return data_frame(self.summary.cells)

    @property
    def reports(self) -> Path:
        """The default directory of its reports."""
        return self.root / "reports"

    @property
    def verdict(self) -> str:
        """Which configuration was best, and how certain that is."""
        return verdict(self.summary.rows)

    def document(self, link: Link = lambda _: "", directory: str = "DIR") -> Document:
        """Return the sweep's report; ``link`` returns the address of a run's page.

        ``directory`` is the sweep's, in commands; a report that is passed on does not name it.
        """
        found = self.summary
        return sweep_document(
            found.name, found.rows, self.events, head=found.head, link=link, directory=directory
        )

    def charts(self) -> list[Chart]:
        """Return the charts of that report."""
        return charts_of(self.summary.rows, self.events)


def read_sweep(
    root: Path | str, now_ns: int | None = None, *, allow_missing: bool = False
) -> SweepAccount:
    """Read a sweep: its runs, which configuration is best, its report.

    Args:
        root: The sweep's directory.
        now_ns: The instant of the figures, UTC nanoseconds; default: now.
        allow_missing: Whether completed runs may lack what the summary needs.

    Raises:
        NotASweep: The directory holds no sweep.
        IncompleteRuns: Completed runs lack required files, unless ``allow_missing``; names them.
    """
    root, now_ns = Path(root), SYSTEM.wall_ns() if now_ns is None else now_ns
    summary = aggregate(root, now_ns, allow_missing=allow_missing)
    return SweepAccount(root=root, summary=summary, events=read_events(root))


Form = Literal["html", "md", "png"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
PICTURES: Final = "pictures"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlace:
    """Where the files of a report are written: their directory, and their name without suffix."""

    directory: Path
    stem: str = "report"

    @classmethod
    def of(cls, output: Path) -> ReportPlace:
        """Return the place of a directory, or that of a file by its suffix: ``cmp.html``."""
        if form_of(output):
            return cls(directory=output.parent, stem=output.stem)
        return cls(directory=output)

    def path(self, form: Form) -> Path:
        """Return the file of a format."""
        return self.directory / f"{self.stem}.{form}"


def form_of(output: Path) -> Form | None:
    """Return the format that the suffix of a file names; None of a directory."""
    named = next((form for form in FORMS if output.suffix == f".{form}"), None)
    return None if output.is_dir() else named


def write_page(
    document: Document, place: ReportPlace, forms: Sequence[Form], draw: Callable[[Path], None]
) -> list[Path]:
    """Write the page, and with ``draw`` its picture; return the files.

    Raises:
        MissingExtra: "png" is asked for, and matplotlib is not installed; nothing is written.
    """
    place.directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    if "png" in forms:
        pictures = [place.path("png")]
        draw(pictures[0])
    return _write_texts(document, place, forms) + pictures


def write_sweep_report(
    account: SweepAccount, place: ReportPlace, forms: Sequence[Form]
) -> list[Path]:
    """Write a sweep's report, each chart as its own PNG; return the files.

    Raises:
        MissingExtra: "png" is asked for, and matplotlib is not installed; nothing is written.
    """
    directory = place.directory
    directory.mkdir(parents=True, exist_ok=True)
    pictures = []
    if "png" in forms:
        pictures = write_pictures(account.charts(), directory / PICTURES, ["png"])
    return _write_texts(account.document(_links(account, directory)), place, forms) + pictures


def _write_texts(document: Document, place: ReportPlace, forms: Sequence[Form]) -> list[Path]:
    written = []
    texts: tuple[tuple[Form, Callable[[Document], str]], ...] = (
        ("html", to_html), ("md", to_markdown),
    )  # fmt: skip
    for form, render in texts:
        if form in forms:
            written.append(place.path(form))
            write_whole(written[-1], render(document).encode())
    return written


def _links(account: SweepAccount, directory: Path) -> Link:
    """Return links relative to ``directory`` to the runs' reports that exist."""
    dirs = {row.run.id: account.root / row.run.run_dir for row in account.summary.rows}

    def link(run: str) -> str:
        page = dirs[run] / "report.html"
        return quote(os.path.relpath(page, directory)) if page.exists() else ""

    return link


def setup_of(run_dir: Path) -> RunSetup:
    """Return how a sweep started a run; an empty setup for a run outside a sweep."""
    try:
        manifest = read_manifest(run_dir.absolute().parent)
    except (OutlayError, OSError):
        return RunSetup()
    for name, run in manifest.runs.items():
        if run.run_dir == run_dir.absolute().name:
            state = manifest.state(name)
            return RunSetup(
                command=state.command or run.command,
                configuration=run.params, sweep=str(manifest.about["name"]),
                in_sweep=": ".join(filter(None, (state.status, state.reason))),
            )  # fmt: skip
    return RunSetup()


# All reports of a sweep: what ``outlay sweep report`` writes.


class SweepFiles(NamedTuple):
    """A sweep's reports by format, and its pictures."""

    written: dict[str, Path]
    pictures: list[Path]


def write_sweep_files(
    account: SweepAccount, directory: Path, now_ns: int, pictures: Sequence[str] = ()
) -> SweepFiles:
    """Write every report of a sweep, and each chart in the formats ``pictures``.

    Raises:
        MissingExtra: ``pictures`` is not empty, and matplotlib is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows, document = account.summary.rows, account.document(_links(account, directory))
    table, columns = io.StringIO(), columns_of(rows)
    write_csv(table, columns, rows)
    path = _free_name(directory, f"summary_{utc_datetime(now_ns):%Y%m%d_%H%M%S}")
    names = ", ".join(f"`{one_line(name).replace('`', '')}`" for name in columns)
    beside = f"\nEvery run in full: `{path.name}`, with the columns {names}.\n"
    reports = {
        "html": ("report.html", to_html(document)),
        "markdown": ("summary.md", to_markdown(document) + beside),
        "csv": (path.name, table.getvalue()),
        "latex": ("table.tex", latex_table(rows)),
    }
    for name, text in reports.values():
        write_whole(directory / name, text.encode())
    charts = account.charts() if pictures else []
    return SweepFiles(
        {form: directory / name for form, (name, _) in reports.items()},
        write_pictures(charts, directory / PICTURES, pictures),
    )


def _free_name(directory: Path, stem: str) -> Path:
    """Return an unused name: an earlier table is never overwritten."""
    path, number = directory / f"{stem}.csv", 1
    while path.exists():
        path, number = directory / f"{stem}_{number}.csv", number + 1
    return path
