"""A job on its node: its spec, the times at which it ran, its allocation.

Every job loads this, so that it imports little.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, Decoder, Int64, read_document, read_file
from outlay.errors import InvalidValue
from outlay.files import open_own, seal_of
from outlay.slurm import SlurmJob, queued_jobs, requeue_job
from outlay.sweep.engines.ports import RANGE

# The job spec: a file in the run's directory, without secrets.
#
# Secret variables are passed in the environment of ``sbatch``, which Slurm protects. In the command
# a placeholder stands for each.

HIDDEN_WORD: Final = "_OUTLAY_WORD_"
"""Prefix of the variables that carry a secret word of the command that no other variable has."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as the node reads it.

    Attributes:
        env: Variables to set on top of the environment that ``sbatch`` passes on.
        dropped: Variables to remove from that environment.
        sealed: Secret variables, with ``{outlay:NAME}`` in the command for the value.
        most_ns: Time limit of all starts together; None for Slurm's.
        kill_ns: When they are killed at the latest; None for ten seconds after ``most_ns``.
        requeues: How often in a row it may restart after a start without progress.
        notice_ns: How long it has to end once it is signalled.
        gpus: Over all nodes.
        title: Its job name in the queue; an array has one name until its tasks run.
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


def spec_path(directory: Path, ticket: str) -> Path:
    """Return the path of an attempt's spec."""
    return directory / f"slurm_{ticket.rpartition('/')[2]}.json"


def placeholder(name: str) -> str:
    """Return what stands for a secret variable in a spec's command."""
    from outlay.record.redaction import STANDS_FOR  # Jobs without secrets do not load it.

    return f"{STANDS_FOR}{name}}}"


def write_spec_list(path: Path, specs: Sequence[Path]) -> None:
    """Write the spec paths of a batch's jobs, in the order of their array index."""
    path.write_bytes(msgspec.json.encode([str(spec) for spec in specs]) + b"\n")


def read_spec(path: Path, index: int) -> JobSpec:
    """Return the spec of the job with an array index from a spec list."""
    return read_document(Path(read_document(path, list[str])[index]), JobSpec)


def command_with_secrets(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the command with its placeholders filled in."""
    words = spec.command
    for name in spec.sealed:
        words = [word.replace(placeholder(name), environ.get(name, "")) for word in words]
    return words


# When a job ran: its starts and ends, which the job appends to a file in the run's directory.
#
# The waits in the queue between them cost nothing. The file's mtime, set by the job's own clock, is
# its last sign of life: a node that dies records no end.

NAME: Final = "slurm_times.jsonl"
SILENT_NS: Final = 60 * 10**9
EventKind = Literal["started", "ended", "requeued", "lost"]


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A start or an end of a job.

    Attributes:
        what: ``lost`` is the last sign of life of a start without an end; the next start adds it.
        restart: How often Slurm had started the job before.
        t_ns: UTC nanoseconds by the node's clock.
    """

    ticket: str
    restart: int
    what: EventKind
    t_ns: Int64
    job: str = ""
    node: str = ""


_decoder = Decoder[JobEvent](JobEvent)


def append_event(directory: Path, event: JobEvent) -> None:
    """Append an event in one write; if the disk refuses, it is lost and the run continues."""
    with contextlib.suppress(OSError):
        descriptor = open_own(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, seal_of(descriptor) + msgspec.json.encode(event) + b"\n")
        finally:
            os.close(descriptor)
    record_sign_of_life(directory, event.t_ns)


def record_sign_of_life(directory: Path, t_ns: int) -> None:
    """Set the mtime of the file."""
    with contextlib.suppress(OSError):
        os.utime(directory / NAME, ns=(t_ns, t_ns))


def read_times(directory: Path, ticket: str) -> JobTimes:
    """Return an attempt's events; torn lines are skipped."""
    path = directory / NAME
    try:
        events, sign_ns = _decoder.decode_lines(read_file(path)), path.stat().st_mtime_ns
    except (OSError, BadDocument):
        return JobTimes(events=(), sign_ns=0)
    is_last = bool(events) and events[-1].ticket == ticket
    return JobTimes(
        events=[event for event in events if event.ticket == ticket],
        sign_ns=sign_ns if is_last else 0,
    )


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


# A job's allocation: its number, its nodes, and the rendezvous of its processes.

_TRIES = 5
_BETWEEN_TRIES_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAllocation:
    """One node's view of a job.

    Attributes:
        job: The job number, with the array index if it has one.
        number: Slurm's ``JobIDRaw``.
        restart: How often Slurm had started it before.
        rank: The number of this node within the job, from 0.
        address: The address of the first node.
    """

    job: str
    number: int
    restart: int
    rank: int
    nodes: int
    node: str
    address: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> JobAllocation:
        """Return the allocation in the environment of a Slurm task."""
        job = SlurmJob.of(environ)
        if job is None:
            raise InvalidValue("SLURM_JOB_ID", "", "a job of Slurm, which starts this by itself")
        return cls(
            job=job.id,
            number=int(job.raw),
            restart=job.restart,
            rank=int(environ.get("SLURM_PROCID", "0")),
            nodes=int(environ.get("SLURM_JOB_NUM_NODES", "1")),
            node=environ.get("SLURMD_NODENAME", ""),
            address=_address(environ),
        )

    @property
    def first(self) -> bool:
        """Whether this is the first node, which records the times."""
        return self.rank == 0

    def variables(self) -> dict[str, str]:
        """Return the variables for node rank and rendezvous, with and without torchrun."""
        port = str(rendezvous_port(self.number, self.restart))
        return {
            "MASTER_ADDR": self.address, "MASTER_PORT": port, "NODE_RANK": str(self.rank),
            "PET_NNODES": str(self.nodes), "PET_NODE_RANK": str(self.rank),
            "PET_MASTER_ADDR": self.address, "PET_MASTER_PORT": port, "OUTLAY_NOTICE": "SIGUSR2",
        }  # fmt: skip

    def is_running(self) -> bool:
        """Say whether Slurm reports the job as running, not as cancelled or over.

        A controller that does not answer may be restarting, and is asked again.
        """
        for _ in range(_TRIES):
            queue = queued_jobs(self.job)
            if queue is not None:
                return (self.job, "RUNNING") in [(one.job, one.state) for one in queue]
            SYSTEM.sleep(_BETWEEN_TRIES_S)
        return False

    def requeue(self) -> bool:
        """Requeue the job; False if Slurm refuses."""
        for _ in range(_TRIES):
            if requeue_job(self.job):
                return True
            SYSTEM.sleep(_BETWEEN_TRIES_S)
        return False


def rendezvous_port(job: int, restart: int) -> int:
    """Return the port for one start of a job; different for consecutive jobs and starts."""
    return RANGE.start + (job + 97 * restart) % len(RANGE)


def node_log(log: Path, rank: int) -> Path:
    """Return the output file of a node; each node has its own."""
    return log if rank == 0 else log.with_name(f"{log.stem}.node{rank}{log.suffix}")


def _address(environ: Mapping[str, str]) -> str:
    """Return the first node's name, or its IP address where the name cannot be resolved."""
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    import socket

    import submitit

    first = submitit.JobEnvironment().hostnames[0]
    try:
        socket.getaddrinfo(first, None)
    except OSError:
        # srun was called on the first node, by the job script.
        return environ.get("SLURM_LAUNCH_NODE_IPADDR", first)
    return first
