"""The journal of a sweep: what happened to its runs, one line each, appended and never rewritten.

A line is one write, so that a killed harness leaves whole lines and at most one torn one, which
readers skip and the next writer closes. What a run is stands in the manifest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from outlay.decoding import Decoder, Int64, read_file
from outlay.files import open_own, seal_of
from outlay.ledger.price import Kind
from outlay.sweep.errors import SweepNotRecorded

NAME: Final = "sweep_journal.jsonl"
LARGEST: Final = 1 << 30
Status = Literal["pending", "running", "completed", "error", "cancelled", "preempted", "skipped"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to one run.

    Attributes:
        t_ns: When, in UTC nanoseconds.
        ticket: Of the attempt that began; what the engine finds it again by.
        env: What the sweep added to its environment.
        cost_micros: What the attempt cost, in millionths of ``currency``.
        logged_micros: What the run's log added up to then; None where it did not say.
        kind: Of the cost: ``cash`` or ``showback``; "" where it is that of the sweep's price.
        hold: The hold that pays for it.
        corrects: Whether it only adds to what an attempt that has ended cost.
    """

    t_ns: Int64
    run: str
    status: Status
    ticket: str = ""
    returncode: int | None = None
    reason: str = ""
    elapsed_ns: Int64 = 0
    command: list[str] = []
    env: dict[str, str] = {}
    cost_micros: Int64 | None = None
    logged_micros: Int64 | None = None
    currency: str = ""
    kind: Kind | Literal[""] = ""
    hold: str = ""
    corrects: bool = False


_decoder = Decoder[Event](Event)


class Journal:
    """The writing end of a journal, in the sweep's directory."""

    def __init__(self, root: Path) -> None:
        self.path = root / NAME
        self._descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._unwritten = seal_of(self._descriptor)

    def append(self, event: Event, *, keep: bool = True) -> None:
        """Write an event down; what was kept from before is tried again first.

        With ``keep`` an event that the disk refuses is tried again later.
        """
        line = msgspec.json.encode(event) + b"\n"
        self._unwritten += line
        try:
            while self._unwritten:
                written = os.write(self._descriptor, self._unwritten)
                self._unwritten = self._unwritten[written:]
        except OSError as error:
            if not keep:
                kept = len(self._unwritten) - len(line)
                # What is left of earlier lines; of this one, a newline where half of it is written.
                self._unwritten = self._unwritten[:kept] if kept >= 0 else b"\n"
            raise SweepNotRecorded(str(self.path), error.strerror or str(error)) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_events(root: Path) -> list[Event]:
    """Return every whole event, in order; a torn or damaged line is passed over."""
    try:
        return _decoder.decode_lines(read_file(root / NAME, largest=LARGEST))
    except FileNotFoundError:
        return []
