"""The described keys and columns of files are those in the code.

The spend log is tested in test_guard_docs.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

import outlay
from outlay.budget.fold import DROPPED
from outlay.cli.sweep.live import status_document
from outlay.clock import ManualClock
from outlay.compat.ml_goodput_measurement.cloud import GCPOptions
from outlay.compat.ml_goodput_measurement.goodput_utils import BadputType
from outlay.compat.ml_goodput_measurement.uploads.cloud_monitoring import MetricSeries, time_series
from outlay.compat.ml_goodput_measurement.uploads.readings import (
    DeviationReading,
    GoodputReading,
    Reading,
    WindowReading,
)
from outlay.cost.focus import COLUMNS as FOCUS_COLUMNS
from outlay.cost.focus import MANDATORY
from outlay.export.csv_files import COMMS, ENERGY, TIMINGS
from outlay.export.sinks import COLUMNS as UPLOAD_COLUMNS
from outlay.goodput.timeline import SliceEfficiency
from outlay.ledger import BudgetEvent, KnownRecord, Price, RunIdentity
from outlay.prices.names import Quote
from outlay.proc.exit_record import ExitRecord
from outlay.record.facts import PERSONAL
from outlay.shipping.shipper import ShippingProgress
from outlay.shipping.storage import ShippedFiles
from outlay.store import schema
from outlay.sweep.aggregate.rows import FIRST, TOTALS
from outlay.sweep.engines.base import ENGINES
from outlay.sweep.engines.ray.ray_options import KEYS as RAY_KEYS
from outlay.sweep.engines.remote.job_spec import JobEvent, JobSpec
from outlay.sweep.engines.slurm.job_options import KEYS as SLURM_KEYS
from outlay.sweep.engines.slurm.queue import Batch
from outlay.sweep.grid.grid import ENTRY_KEYS, ROOT_KEYS, read_grid
from outlay.sweep.plan.planning import make_plan
from outlay.sweep.run.detached import Detached
from outlay.sweep.state import setup
from outlay.sweep.state.manifest import read_manifest
from outlay.sweep.state.outcomes import Event
from papers import first_cells, page, rows, under

FORMATS = page("formats.md")
RECORDS = [*KnownRecord.__args__, Price, RunIdentity]


def named(text: str) -> set[str]:
    """Return every name in code marks."""
    return set(re.findall(r"`([^`]+)`", text))


def heading_of(record: type[msgspec.Struct]) -> str:
    return {Price: "price", RunIdentity: "run.json"}.get(record, str(record.__struct_config__.tag))


def section_of(record: type[msgspec.Struct]) -> str:
    """Return the section whose heading names a record, alone or with another."""
    parts = re.split(r"^#{2,4} ", FORMATS, flags=re.MULTILINE)
    (found,) = (part for part in parts if f"`{heading_of(record)}`" in part.splitlines()[0])
    return found


def undocumented_fields(record: type[msgspec.Struct]) -> set[str]:
    cells = [cell for row in rows(section_of(record)) for cell in row[:2]]
    documented = {name for cell in cells for name in cell.split(", ")}
    return set(record.__struct_fields__) - {"seq", "t_ns"} - documented


def test_every_field_of_every_record_is_documented() -> None:
    found = {heading_of(record): undocumented_fields(record) for record in RECORDS}
    assert {heading: names for heading, names in found.items() if names} == {}


def test_every_event_of_a_budget_is_documented() -> None:
    package = Path(outlay.__file__).parent / "budget"
    source = "".join(path.read_text() for path in package.glob("*.py"))
    events = set(re.findall(r'_event\("(\w+)"', source)) | {"set", "changed", DROPPED}
    assert len(events) >= 7
    assert events <= named(section_of(BudgetEvent))


def test_no_field_is_documented_that_records_do_not_have() -> None:
    start, end = "### Kinds of records", "### What a reader does"
    kinds = FORMATS.split(start)[1].split(end)[0]
    tags = {heading_of(record) for record in RECORDS}
    fields = {name for record in RECORDS for name in record.__struct_fields__}
    assert first_cells(kinds) - {"field", "kind"} <= fields | tags


def test_the_keys_of_a_budgets_document_are_described_and_no_other(tmp_path: Path) -> None:
    with outlay.run("mlp", dir=tmp_path, budget=outlay.iso_tokens(8)) as run:
        for _ in run.steps(range(3), tokens=4):
            pass
    document = json.loads((tmp_path / "budget.json").read_text())
    text = under(FORMATS, "`budget.json`")
    sometimes = {"energy_quality", "ranks"}  # With a sensor; with several ranks.
    assert first_cells(text) - {"key"} == set(document) | sometimes
    inner = {*document["totals"], *document["clocks_ms"], *document["stop_reason"]}
    assert inner <= named(text)


def test_the_fields_of_the_price_file_are_described_and_no_other() -> None:
    documented = first_cells(under(FORMATS, "Price file")) - {"field"}
    assert {name for cell in documented for name in cell.split(", ")} == set(
        Quote.__struct_fields__
    )


def sweep_manifest(tmp_path: Path, environ: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the manifest of a sweep of one run of a search, as a program reads it."""
    search = {"method": "random", "trials": 1, "halving": {"first": "1tok", "last": "3tok"}}
    stated = {
        "budget": {"target_metric": "loss"}, "search": search,
        "grid": [{"params": {"x": {"low": 1.0, "high": 2.0}}}],
    }  # fmt: skip
    grid = read_grid(json.dumps(stated), source="grid.json", default_name="grid")
    manifest = setup.create(make_plan(grid), tmp_path, environ or {}, ManualClock(), cwd=tmp_path)
    document: dict[str, Any] = json.loads(manifest.document())
    return document


def test_the_keys_of_a_sweeps_manifest_are_described_and_no_other(tmp_path: Path) -> None:
    document = sweep_manifest(tmp_path)
    text = under(FORMATS, "Manifest of a sweep")
    assert set(document) <= named(text)
    assert first_cells(text) - {"key"} == set(document["runs"][0])


@pytest.mark.parametrize(("place", "keys"), [("root", ROOT_KEYS), ("entry", ENTRY_KEYS)])
def test_the_keys_of_a_grid_are_described_with_where_they_may_stand(
    place: str, keys: tuple[str, ...]
) -> None:
    table = rows(under(page("sweeps.md"), "The grid"))[1:]
    here = [row[0] for row in table if place in row[1] or row[1] == "both"]
    blocks = {name for name, entry in ENGINES.items() if entry.options}
    assert {key for cell in here for key in cell.split(", ")} == {*keys, *blocks}


def test_the_keys_for_a_cluster_are_described_and_no_other() -> None:
    text = under(page("howto/slurm.md"), "What a grid may ask for")
    assert first_cells(text) - {"key of slurm"} == set(SLURM_KEYS)
    text = under(page("howto/ray.md"), "What a grid may ask for")
    assert first_cells(text) - {"key of ray"} == set(RAY_KEYS)


def test_the_keys_of_a_sweeps_status_are_described_and_no_other(tmp_path: Path) -> None:
    sweep_manifest(tmp_path)
    status = status_document(Detached(read_manifest(tmp_path), ManualClock()), 0, None)
    of_sweep, of_run = under(FORMATS, "Status of a sweep").split("Each of `runs`")
    assert first_cells(of_sweep) - {"key"} == set(status)
    assert first_cells(of_run) - {"key"} == set(status["runs"][0])


def test_the_keys_of_a_sweeps_journal_are_described_and_no_other() -> None:
    text = under(FORMATS, "Journal of a sweep")
    assert first_cells(text) - {"field"} == set(Event.__struct_fields__)


def test_the_keys_of_a_clusters_files_are_described() -> None:
    keys = {field.name for field in fields(ExitRecord)}
    keys |= {key for kind in (Batch, JobSpec, JobEvent) for key in kind.__struct_fields__}
    assert keys <= named(under(FORMATS, "Jobs on a cluster"))


def test_the_columns_of_a_summary_are_described_and_no_other() -> None:
    documented = first_cells(under(FORMATS, "Summary of a sweep")) - {"column"}
    assert documented == {*FIRST, *TOTALS, "limit_<key>", "param_<name>"}


def test_the_columns_of_a_run_as_csv_are_described() -> None:
    assert {*TIMINGS, *COMMS, *ENERGY} <= named(under(FORMATS, "A run as CSV"))


def test_the_columns_of_an_allocation_are_described() -> None:
    text = under(FORMATS, "Allocation as CSV")
    assert f"the {len(MANDATORY)} mandatory columns" in text
    assert set(FOCUS_COLUMNS) - set(MANDATORY) <= named(text)


def test_the_columns_of_uploads_are_described_and_no_other() -> None:
    assert first_cells(under(FORMATS, "Uploads to a file")) - {"column"} == set(UPLOAD_COLUMNS)


def series() -> list[MetricSeries]:
    """Return a number of every kind that goes to Google Cloud Monitoring."""
    slices = SliceEfficiency(goodput=1.0, stepping=1.0, available=1.0, known_ns=1)
    parts: Any = {BadputType.OTHER: 1.0}
    readings: list[Reading] = [
        GoodputReading(
            t_ns=1, goodput_s=1.0, goodput_percent=50.0, badput_s=parts, badput_percent=parts,
            last_step=1, elapsed_s=2.0, disruptions=0, ideal_step_s=1.0, slices=slices,
        ),
        WindowReading(
            t_ns=1, window_s=60, goodput_percent=50.0, badput_percent=parts, last_step=1,
            slices=slices,
        ),
        DeviationReading(t_ns=1, ideal_step_s=1.0, deviations_s={}, spike_s=0.0),
    ]  # fmt: skip
    return [one for reading in readings for one in time_series(reading, GCPOptions())]


def test_the_series_of_google_cloud_are_described_and_no_other() -> None:
    text = under(FORMATS, "Uploads to Google Cloud Monitoring")
    assert first_cells(text) - {"series"} == {one.name for one in series()}


def test_the_labels_of_google_clouds_series_are_described() -> None:
    text = under(FORMATS, "Uploads to Google Cloud Monitoring")
    assert {label for one in series() for label in one.labels} <= named(text)


def test_every_table_of_the_store_and_its_columns_are_documented() -> None:
    store = named(FORMATS.split("### Store")[1].split("\n## ")[0])
    tables = schema.metadata.tables.values()
    assert {table.name for table in tables} <= store
    assert {column.name for table in tables for column in table.columns} <= store


def test_every_personal_fact_is_listed_with_the_switch() -> None:
    text = under(FORMATS, "What is recorded about person and host")
    switched = [line for line in text.splitlines() if "| empty" in line]
    listed = {name for line in switched for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert listed == set(PERSONAL)


def test_the_environment_of_a_sweep_is_left_out_with_the_switch(tmp_path: Path) -> None:
    environ = {"USER": "ada", "OUTLAY_RECORD_IDENTITY": "0"}
    assert sweep_manifest(tmp_path, environ)["environment"] == {}


def test_every_key_of_the_files_of_shipping_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", under(FORMATS, "Shipped runs")))
    files = msgspec.json.schema(ShippingProgress)["$defs"]
    keys = {
        *ShippedFiles.__struct_fields__,
        *(key for file in files.values() for key in file["properties"]),
    }
    assert len(keys) == 8
    assert keys - documented == set()
