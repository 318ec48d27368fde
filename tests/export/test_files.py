"""Readings and logs as files: written whole or not at all, in the units of their columns."""

from __future__ import annotations

import csv
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgers import Segment
from outlay.export.csv_files import export_csv
from outlay.export.sinks import CsvSink, JsonLinesSink
from outlay.ledger import Metric
from readings import goodput


@contextmanager
def files_of_at_most(count: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", [CsvSink, JsonLinesSink])
def test_an_upload_that_does_not_fit_is_lost_whole(
    tmp_path: Path, kind: type[CsvSink] | type[JsonLinesSink]
) -> None:
    path = tmp_path / "goodput"
    sink = kind(path)
    sink.write(goodput(1))
    first = path.read_bytes()
    with files_of_at_most(len(first) + 10), pytest.raises(OSError, match="No space left"):
        sink.write(goodput(2))
    assert path.read_bytes() == first
    sink.write(goodput(3))
    assert path.read_bytes().startswith(first)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_record_of_several_steps_shows_what_one_of_them_took(tmp_path: Path) -> None:
    story = Segment().step(10, wait=5, count=10, samples=100, comm_bytes=1000)
    story.end().write(tmp_path)
    export_csv(tmp_path)
    (timing,) = rows(tmp_path / "timings.csv")
    assert (timing["t_data_ms"], timing["t_step_ms"]) == ("500.0", "1500.0")
    assert float(timing["ips_step"]) == pytest.approx(100 / 15)
    assert rows(tmp_path / "comms.csv") == [{"step": "0", "bytes_total": "100"}]


def test_minutes_of_metrics_are_counted_from_the_first_record_that_can_be_read(
    tmp_path: Path,
) -> None:
    Segment().write(tmp_path).write_bytes(b"torn")
    second = Segment(start=600).step(60)
    second.add(Metric(t_ns=second.now_ns, name="acc", value=0.5, step=0)).end().write(tmp_path)
    export_csv(tmp_path)
    assert rows(tmp_path / "eval.csv") == [{"step": "0", "time_minutes": "1.0", "acc": "0.5"}]
