"""When a job really ran: its starts and ends, written in the run's directory by the job itself.

The queue's waits lie between them and cost nothing. The file's time of change is the job's last
sign of life, set by the job's own clock: a node that dies writes no end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from outlay.decoding import BadDocument, Decoder, Int64, read_file
from outlay.files import open_own

NAME: Final = "slurm_times.jsonl"
SILENT_NS: Final = 60 * 10**9
What = Literal["started", "ended", "requeued", "lost"]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A start or an end.

    Attributes:
        ticket: Of the attempt.
        what: ``lost`` is the last sign of life of a start without an end, noted by the next one.
        restart: How often Slurm had started the job before.
        t_ns: When, in UTC nanoseconds by the node's clock.
        job: Slurm's number of it.
        node: Where.
    """

    ticket: str
    restart: int
    what: What
    t_ns: Int64
    job: str = ""
    node: str = ""


_decoder = Decoder[Moment](Moment)


def note(directory: Path, moment: Moment) -> None:
    """Add a moment, in one write; what the disk refuses is lost, and the run goes on."""
    with contextlib.suppress(OSError):
        descriptor = open_own(directory / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, msgspec.json.encode(moment) + b"\n")
        finally:
            os.close(descriptor)
    give_sign(directory, moment.t_ns)


def give_sign(directory: Path, t_ns: int) -> None:
    """Leave a sign of life."""
    with contextlib.suppress(OSError):
        os.utime(directory / NAME, ns=(t_ns, t_ns))


def read_times(directory: Path, ticket: str) -> Times:
    """Return an attempt's moments; a torn line is passed over."""
    path = directory / NAME
    try:
        lines, sign_ns = read_file(path).split(b"\n"), path.stat().st_mtime_ns
    except (OSError, BadDocument):
        return Times(moments=(), sign_ns=0)
    moments = []
    for line in filter(None, lines):
        with contextlib.suppress(BadDocument):
            moments.append(_decoder.decode(line))
    ours = tuple(moment for moment in moments if moment.ticket == ticket)
    last = bool(moments) and moments[-1].ticket == ticket
    return Times(moments=ours, sign_ns=sign_ns if last else 0)


def ran_so_far_ns(directory: Path, ticket: str, now_ns: int) -> int:
    """Return how long an attempt has run; one that fell silent, until its last sign of life."""
    times = read_times(directory, ticket)
    return times.ran_ns(now_ns if now_ns - times.sign_ns < SILENT_NS else None)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The moments of one attempt, in order, and the last sign of life after them."""

    moments: Sequence[Moment]
    sign_ns: int

    @property
    def running_since_ns(self) -> int | None:
        """When the job started that runs now; None while it waits, and after its end."""
        last = self.moments[-1] if self.moments else None
        return last.t_ns if last is not None and last.what == "started" else None

    def ran_ns(self, now_ns: int | None = None) -> int:
        """Return how long the job ran, all its starts; the open one until now, or its last sign."""
        total_ns = 0
        began_ns: int | None = None
        for moment in self.moments:
            if moment.what == "started":
                began_ns = moment.t_ns
            elif began_ns is not None:
                total_ns += moment.t_ns - began_ns
                began_ns = None
        end_ns = self.sign_ns if now_ns is None else now_ns
        if began_ns is not None and end_ns > began_ns:
            total_ns += end_ns - began_ns
        return total_ns
