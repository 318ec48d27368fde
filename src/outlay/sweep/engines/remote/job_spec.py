"""A job on its node: its spec, the times at which it ran, its output, the marks that it obeys.

The files are in the run's directory, with the name of the engine that the ticket begins with. Every
job loads this, so that it imports little.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from outlay.decoding import BadDocument, Decoder, Int64, read_document, read_file
from outlay.files import open_own, seal_of, write_whole

# The job spec: a file that only its user can read.
#
# Where the scheduler passes an environment on and protects it, secrets travel there, and in the
# command a placeholder stands for each. Elsewhere they are in this file, until the job has ended.

HIDDEN_WORD: Final = "_OUTLAY_WORD_"
"""Prefix of the variables that carry a secret word of the command that no other variable has."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as the node reads it.

    Attributes:
        env: Variables to set on top of the environment that the scheduler passes on.
        dropped: Variables to remove from that environment.
        sealed: Secret variables, with ``{outlay:NAME}`` in the command for the value.
        most_ns: Time limit of all starts together; None for the scheduler's.
        kill_ns: When they are killed at the latest; None for ten seconds after ``most_ns``.
        requeues: How often in a row it may restart after a start without progress.
        notice_ns: How long it has to end once it is signalled.
        gpus: Over all nodes.
        title: Its job name in the queue; an array has one name until its tasks run.
        python: The submitting machine's Python, which the node replaces by its own; "" for none.
        again: Whether the run has begun before, and so has a directory somewhere.
    """

    ticket: str
    name: str
    command: list[str]
    env: dict[str, str]
    dropped: list[str]
    sealed: list[str]
    cwd: str
    directory: str
    log: str
    most_ns: int | None
    requeues: int
    notice_ns: int
    gpus: int = 1
    kill_ns: int | None = None
    title: str = ""
    python: str = ""
    again: bool = False


def _file_of(directory: Path, ticket: str, name: str = "") -> Path:
    """Return a file of a ticket ``<engine>/<run>/<number>``; ``name`` stands for the number."""
    engine, _, rest = ticket.partition("/")
    return directory / f"{engine}_{name or rest.rpartition('/')[2]}"


def run_of(ticket: str) -> str:
    """Return the run's id in such a ticket."""
    return ticket.split("/")[1]


def spec_path(directory: Path, ticket: str) -> Path:
    """Return the path of an attempt's spec."""
    return _file_of(directory, ticket).with_suffix(".json")


def placeholder(name: str) -> str:
    """Return what stands for a secret variable in a spec's command."""
    from outlay.record.redaction import STANDS_FOR  # Jobs without secrets do not load it.

    return f"{STANDS_FOR}{name}}}"


def write_spec_list(path: Path, specs: Sequence[Path]) -> None:
    """Write the spec paths of a batch's jobs, in the order of their array index."""
    path.write_bytes(msgspec.json.encode([str(spec) for spec in specs]) + b"\n")


def read_spec_list(path: Path, index: int) -> JobSpec:
    """Return the spec of the job with an array index from a spec list."""
    return read_document(Path(read_document(path, list[str])[index]), JobSpec)


def command_with_secrets(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the command with its placeholders filled in."""
    words = [sys.executable if word == spec.python else word for word in spec.command]
    for name in spec.sealed:
        words = [word.replace(placeholder(name), environ.get(name, "")) for word in words]
    return words


# When a job ran: its starts and ends, which the job appends to a file in the run's directory.
#
# The waits in the queue between them cost nothing. The file's mtime, set by the job's own clock, is
# its last sign of life: a node that dies records no end.

TIMES: Final = "times.jsonl"
SILENT_NS: Final = 60 * 10**9
EventKind = Literal["started", "ended", "requeued", "lost", "alive"]


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A start or an end of a job.

    Attributes:
        what: ``lost`` is the last sign of life of a start without an end; the next start adds it.
            ``alive`` is a sign of life, for which the file's mtime usually stands.
        restart: How often the scheduler had started the job before.
        t_ns: UTC nanoseconds by the node's clock.
        apart: The node's own directory, if it does not share the run's.
    """

    ticket: str
    restart: int
    what: EventKind
    t_ns: Int64
    job: str = ""
    node: str = ""
    apart: str = ""


_decoder = Decoder[JobEvent](JobEvent)


def append_event(directory: Path, event: JobEvent) -> None:
    """Append an event in one write; if the disk refuses, it is lost and the run continues."""
    path = times_path(directory, event.ticket)
    with contextlib.suppress(OSError):
        if event.what != "alive" or event.apart:
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                os.write(descriptor, seal_of(descriptor) + msgspec.json.encode(event) + b"\n")
            finally:
                os.close(descriptor)
        os.utime(path, ns=(event.t_ns, event.t_ns))


def times_path(directory: Path, ticket: str) -> Path:
    """Return the file with the times of a run's jobs."""
    return _file_of(directory, ticket, TIMES)


def read_times(directory: Path, ticket: str) -> JobTimes:
    """Return an attempt's events; torn lines are skipped."""
    path = times_path(directory, ticket)
    try:
        events, sign_ns = _decoder.decode_lines(read_file(path)), path.stat().st_mtime_ns
    except (OSError, BadDocument):
        return JobTimes(events=(), sign_ns=0)
    mine = [event for event in events if event.ticket == ticket]
    if not mine or events[-1].ticket != ticket:
        sign_ns = 0
    elif mine[-1].apart:
        sign_ns = mine[-1].t_ns
    return JobTimes(events=[one for one in mine if one.what != "alive"], sign_ns=sign_ns)


def ran_so_far_ns(directory: Path, ticket: str, now_ns: int) -> int:
    """Return how long an attempt has run; without a recent sign of life, up to the last one."""
    times = read_times(directory, ticket)
    return times.ran_ns(now_ns if now_ns - times.sign_ns < SILENT_NS else None)


class JobTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one attempt, in order, and the last sign of life after them."""

    events: Sequence[JobEvent]
    sign_ns: int

    @property
    def running_since_ns(self) -> int | None:
        """When the current start began; None while it is queued, and after its end."""
        last = self.events[-1] if self.events else None
        return last.t_ns if last is not None and last.what == "started" else None

    def ran_ns(self, now_ns: int | None = None) -> int:
        """Return the run time over all starts; an open one lasts until now, or the last sign."""
        total_ns = 0
        began_ns: int | None = None
        for event in self.events:
            if event.what == "started":
                began_ns = event.t_ns
            elif began_ns is not None:
                total_ns += event.t_ns - began_ns
                began_ns = None
        end_ns = self.sign_ns if now_ns is None else now_ns
        if began_ns is not None and end_ns > began_ns:
            total_ns += end_ns - began_ns
        return total_ns


# What a node leaves and obeys besides: its output, and the marks of the submitting side.


def node_log(log: Path, rank: int) -> Path:
    """Return the output file of a node; each node has its own."""
    return log if rank == 0 else log.with_name(f"{log.stem}.node{rank}{log.suffix}")


Mark = Literal["", "cancelled", "killed"]
"""What the submitting side asks of a job without asking the scheduler."""


def mark_path(directory: Path, ticket: str) -> Path:
    """Return the file that asks a job to end."""
    return _file_of(directory, ticket).with_suffix(".mark")


def write_mark(directory: Path, ticket: str, mark: Mark) -> None:
    """Ask a job to end; one that has not begun then starts no program."""
    write_whole(mark_path(directory, ticket), mark.encode(), private=True)


def read_mark(directory: Path, ticket: str) -> Mark:
    """Return what is asked of a job; "" for nothing."""
    try:
        found = mark_path(directory, ticket).read_bytes()
    except OSError:
        return ""
    return "killed" if found == b"killed" else "cancelled" if found == b"cancelled" else ""
