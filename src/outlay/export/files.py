"""Readings at the end of a file, as CSV or as JSON Lines: ``time``, ``name``, ``value``, ``step``.

Each upload is one write, so that a process that is killed leaves whole uploads. A file that is
opened again is read once, so that no step's deviation is written twice.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import msgspec

from outlay.clock import utc_datetime
from outlay.decoding import BadDocument, Decoder, csv_records, read_file
from outlay.escaping import write_csv
from outlay.export.scalars import STEP_DEVIATION, Scalar, scalars
from outlay.goodput.readings import Reading

COLUMNS = ("time", "name", "value", "step", "window_s")


class _FileSink(ABC):
    """Appends rows that are new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._last_step = self._last_deviation() if path.exists() else -1

    def write(self, reading: Reading) -> None:
        """Append a reading's numbers, each step's deviation once."""
        time = utc_datetime(reading.t_ns).isoformat()
        new = [s for s in scalars(reading) if s.name != STEP_DEVIATION or s.step > self._last_step]
        if not new:
            return
        with self._path.open("ab", buffering=0) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # Several uploaders may share a file.
            end = stream.seek(0, io.SEEK_END)
            rows = self._rows(time, new, first=end == 0)
            if stream.write(rows) != len(rows):  # The disk took a part: all of it, or nothing.
                stream.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        told = [scalar.step for scalar in new if scalar.name == STEP_DEVIATION]
        self._last_step = max([self._last_step, *told])

    def close(self) -> None:  # noqa: B027 - there is nothing to do, in any file
        """Nothing is held open."""

    @abstractmethod
    def _rows(self, time: str, new: Iterable[Scalar], *, first: bool) -> bytes:
        """Return rows as they stand in the file; the first ones of all may need a header."""

    @abstractmethod
    def _last_deviation(self) -> int:
        """Return the last step whose deviation the file has; -1 without one."""


class CsvSink(_FileSink):
    """Rows at the end of a CSV file, which begins with a header."""

    def _rows(self, time: str, new: Iterable[Scalar], *, first: bool) -> bytes:
        text = io.StringIO()
        rows = ([time, s.name, s.value, s.step, s.window_s] for s in new)
        named = (dict(zip(COLUMNS, row, strict=True)) for row in rows)
        write_csv(text, COLUMNS, named, header=first)
        return text.getvalue().encode()

    def _last_deviation(self) -> int:
        with self._path.open(newline="", errors="replace") as stream:
            rows = csv_records(stream)
            steps = (row["step"] for row in rows if row.get("name") == STEP_DEVIATION)
            return max((int(step) for step in steps if step and step.isdecimal()), default=-1)


class _Line(msgspec.Struct, kw_only=True):
    time: str
    name: str
    value: float
    step: int
    window_s: int | None = None


class JsonLinesSink(_FileSink):
    """One JSON object a line."""

    def _rows(self, time: str, new: Iterable[Scalar], *, first: bool) -> bytes:
        del first
        lines = [
            _Line(time=time, name=s.name, value=s.value, step=s.step, window_s=s.window_s)
            for s in new
        ]
        return msgspec.json.Encoder().encode_lines(lines)

    def _last_deviation(self) -> int:
        last = -1
        decoder = Decoder[_Line](_Line)
        for text in read_file(self._path, largest=1 << 30).splitlines():
            try:
                line = decoder.decode(text)
            except BadDocument:
                continue  # Somebody else's line, or a torn one: nothing to go by.
            if line.name == STEP_DEVIATION:
                last = max(last, line.step)
        return last
