"""A job on its node: its specification, its place in the allocation, when it ran."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from outlay.clock import SYSTEM
from outlay.decoding import BadDocument, Decoder, Int64, read_document, read_file
from outlay.errors import InvalidValue
from outlay.files import open_own, seal_of, write_whole
from outlay.record.machine import SlurmJob
from outlay.sweep.engines.ports import RANGE
from outlay.sweep.engines.slurm.options import slurm_options

if TYPE_CHECKING:
    from outlay.sweep.engines.base import Task

# The specification of a job: a file in the run's directory, which holds no secret.
#
# Variables that may hold one travel in the environment of ``sbatch`` instead, which Slurm guards,
# and words of the command that repeat one name the variable.

WORD: Final = "_OUTLAY_WORD_"
"""How variables begin that carry a secret word of the command, which no other variable holds."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as the node reads it.

    Attributes:
        env: What is set on top of what ``sbatch`` hands over.
        dropped: What is removed from that.
        sealed: Secret variables, whose values stand as ``{outlay:NAME}`` in the command.
        most_ns: How long all starts together may take; None for as long as Slurm lets them.
        kill_ns: After how long they are killed, whatever they do; None for a while after that.
        requeues: How often in a row Slurm may start it again after a start without progress.
        notice_ns: How long it has to end when it is told to.
        gpus: Of all its nodes.
        title: What its job is called in the queue; an array has one name until its tasks run.
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
    """Return where an attempt's spec lies."""
    return directory / f"slurm_{ticket.rpartition('/')[2]}.json"


def split_environment(task: Task, here: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a task's variables beyond ours: those that a file may hold, and the secret ones.

    ``here`` is our own environment, which ``sbatch`` hands over by itself.
    """
    from outlay.record.redaction import Redactor  # Jobs, which only read, do without.

    redact = Redactor([task.env])
    added = {name: value for name, value in task.env.items() if here.get(name) != value}
    shown = redact.environment(added)
    secret = {name: value for name, value in added.items() if shown[name] != value}
    opened = {name: value for name, value in added.items() if name not in secret}
    return opened, secret


def sealed_command(task: Task) -> tuple[list[str], dict[str, str]]:
    """Return the command without secrets, and the variables that stand in for them.

    A word that only looks like a secret has no variable yet, and gets one.
    """
    from outlay.record.redaction import REDACTED, STANDS_FOR, Redactor, is_secret_name

    secrets = [(name, value) for name, value in task.env.items() if is_secret_name(name) and value]
    secrets.sort(key=lambda item: (-len(item[1]), item[0]))
    words: list[str] = []
    used: dict[str, str] = {}
    redact = Redactor([task.env])
    shown = redact.command(task.command)
    for place, word in enumerate(task.command):
        is_value = shown[place] == REDACTED  # Whole: a word behind --token, of whatever form.
        if REDACTED in shown[place]:
            for name, value in secrets:
                if value in word:
                    word = word.replace(value, _sealed(name))
                    used[name] = value
        if REDACTED in redact.text(word) or (is_value and not word.startswith(STANDS_FOR)):
            name = f"{WORD}{place}"
            used[name], word = word, _sealed(name)
        words.append(word)
    return words, used


def _sealed(name: str) -> str:
    from outlay.record.redaction import STANDS_FOR

    return f"{STANDS_FOR}{name}}}"


def write_spec(task: Task, here: Mapping[str, str], title: str = "") -> dict[str, str]:
    """Write what the node needs to know; return what ``sbatch`` must hand over besides."""
    opened, secret = split_environment(task, here)
    command, sealed = sealed_command(task)
    secret |= {name: value for name, value in sealed.items() if here.get(name) != value}
    options = slurm_options(task.options)
    spec = JobSpec(
        ticket=task.ticket, name=task.name, command=command, env=opened,
        dropped=sorted(here.keys() - task.env.keys()), sealed=sorted(sealed), cwd=str(task.cwd),
        directory=str(task.directory), log=str(task.log), most_ns=task.most_ns,
        requeues=options.requeues, notice_ns=options.notice_ns, gpus=task.gpus,
        kill_ns=task.kill_ns, title=title,
    )  # fmt: skip
    path = spec_path(task.directory, task.ticket)
    write_whole(path, msgspec.json.encode(spec) + b"\n", private=True)
    return secret


def list_specs(path: Path, specs: Sequence[Path]) -> None:
    """Write down which spec each job of a batch has, by its place in the array."""
    path.write_bytes(msgspec.json.encode([str(spec) for spec in specs]) + b"\n")


def listed_spec(path: Path, place: int) -> JobSpec:
    """Return the spec of the job at one place of a list."""
    return read_document(Path(read_document(path, list[str])[place]), JobSpec)


def opened_command(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the command with its secrets put back."""
    words = spec.command
    for name in spec.sealed:
        words = [word.replace(_sealed(name), environ.get(name, "")) for word in words]
    return words


# When a job really ran: its starts and ends, written in the run's directory by the job itself.
#
# The queue's waits lie between them and cost nothing. The file's time of change is the job's last
# sign of life, set by the job's own clock: a node that dies writes no end.

NAME: Final = "slurm_times.jsonl"
SILENT_NS: Final = 60 * 10**9
What = Literal["started", "ended", "requeued", "lost"]


class JobMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A start or an end.

    Attributes:
        what: ``lost`` is the last sign of life of a start without an end, noted by the next one.
        restart: How often Slurm had started the job before.
        t_ns: When, in UTC nanoseconds by the node's clock.
    """

    ticket: str
    restart: int
    what: What
    t_ns: Int64
    job: str = ""
    node: str = ""


_decoder = Decoder[JobMoment](JobMoment)


def note(directory: Path, moment: JobMoment) -> None:
    """Add a moment, in one write; what the disk refuses is lost, and the run continues."""
    with contextlib.suppress(OSError):
        descriptor = open_own(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, seal_of(descriptor) + msgspec.json.encode(moment) + b"\n")
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
        moments, sign_ns = _decoder.decode_lines(read_file(path)), path.stat().st_mtime_ns
    except (OSError, BadDocument):
        return Times(moments=(), sign_ns=0)
    ours = tuple(moment for moment in moments if moment.ticket == ticket)
    last = bool(moments) and moments[-1].ticket == ticket
    return Times(moments=ours, sign_ns=sign_ns if last else 0)


def ran_so_far_ns(directory: Path, ticket: str, now_ns: int) -> int:
    """Return how long an attempt has run; one without recent signs of life, until the last."""
    times = read_times(directory, ticket)
    return times.ran_ns(now_ns if now_ns - times.sign_ns < SILENT_NS else None)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The moments of one attempt, in order, and the last sign of life after them."""

    moments: Sequence[JobMoment]
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


# A job's allocation: its number, its node, and the rendezvous of its processes.

_TRIES = 5
_BETWEEN_TRIES_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAllocation:
    """One node's view of a job.

    Attributes:
        job: Its identity, by which Slurm is asked about this task of an array alone.
        number: Slurm's raw number of it.
        restart: How often Slurm had started it before.
        rank: Which of its nodes this is, from 0.
        address: Where the first node is reached.
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
        """Return what Slurm says in the environment of a task."""
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
        """Whether this is the node that keeps the books."""
        return self.rank == 0

    @property
    def port(self) -> int:
        """The rendezvous port: of its own for every job and every start."""
        return rendezvous_port(self.number, self.restart)

    def variables(self) -> dict[str, str]:
        """Return node rank and rendezvous, for torchrun and for programs without it."""
        port = str(self.port)
        return {
            "MASTER_ADDR": self.address, "MASTER_PORT": port, "NODE_RANK": str(self.rank),
            "PET_NNODES": str(self.nodes), "PET_NODE_RANK": str(self.rank),
            "PET_MASTER_ADDR": self.address, "PET_MASTER_PORT": port, "OUTLAY_NOTICE": "SIGUSR2",
        }  # fmt: skip

    def is_running(self) -> bool:
        """Say whether Slurm counts the job as running, not as cancelled or over."""
        command = ["squeue", "--noheader", f"--jobs={self.job}", "--format=%i %T"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        return [self.job, "RUNNING"] in [line.split() for line in asked.stdout.splitlines()]

    def rename(self, title: str) -> subprocess.Popen[bytes]:
        """Begin to give the job another name in the queue; nobody need wait for that."""
        command = ["scontrol", "update", f"jobid={self.job}", f"jobname={title}"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)

    def requeue(self) -> bool:
        """Put the job back into the queue; False when Slurm will not."""
        for _ in range(_TRIES):
            command = ["scontrol", "requeue", self.job]
            asked = subprocess.run(command, check=False)
            if asked.returncode == 0:
                return True
            SYSTEM.sleep(_BETWEEN_TRIES_S)
        return False


def rendezvous_port(job: int, restart: int) -> int:
    """Return the port of a job's start: jobs that follow each other get ports that do."""
    return RANGE.start + (job + 97 * restart) % len(RANGE)


def node_log(log: Path, rank: int) -> Path:
    """Return where a node's output goes: nodes never write into one file."""
    return log if rank == 0 else log.with_name(f"{log.stem}.node{rank}{log.suffix}")


def _address(environ: Mapping[str, str]) -> str:
    """Return the first node's name, where names can be looked up, or its address."""
    if environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    import socket

    import submitit

    first = submitit.JobEnvironment().hostnames[0]
    try:
        socket.getaddrinfo(first, None)
    except OSError:
        # The task was started from the first node, by the script that Slurm runs there.
        return environ.get("SLURM_LAUNCH_NODE_IPADDR", first)
    return first
