"""Facts recorded about the process, user and host, and the variables that switch this off.

Read from environment variables and a few files, without commands or the network. With
``OUTLAY_RECORD_IDENTITY=0`` the facts that identify a person or a machine (PERSONAL) stay empty.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from outlay import machine
from outlay._version import __version__
from outlay.files import first_line
from outlay.ledger.records import AttemptStarted
from outlay.slurm import SlurmJob

PERSONAL = ("user", "host", "boot_id", "init_start", "instance_id", "slurm_account", "command")
_INSTANCE_VARIABLES = (
    "RUNPOD_POD_ID", "CONTAINER_ID", "VAST_CONTAINERLABEL", "DSTACK_RUN_NAME", "INSTANCE_ID",
)  # fmt: skip
_POD_VARIABLES = ("POD_NAME", "HOSTNAME")
_NO = ("0", "false", "off", "no")
QUEUED_AT = "OUTLAY_QUEUED_AT"
"""Names when a process's job was queued, in seconds since 1970."""
_SECONDS = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,9})[0-9]*)?")
_VERSIONED = ("torch", "jax", "tensorflow", "numpy", "lightning", "transformers")


def gather(environ: Mapping[str, str], command: Sequence[str] | None = None) -> AttemptStarted:
    """Return a header with the facts of this process alone, at instant 0.

    ``command`` is what it starts, if not its own.
    """
    command = command_of(machine.own_command() if command is None else command, environ)
    if not "".join(environ.values()).isascii():
        environ = {name: _clean(value) for name, value in environ.items()}
    personal = records_identity(environ)
    job = SlurmJob.of(environ)
    return AttemptStarted(
        t_ns=0,
        rank=rank(environ),
        world_size=world_size(environ),
        pid=os.getpid(),
        host=platform.node() if personal else "",
        boot_id=machine.boot_id() if personal else "",
        user=_user() if personal else "",
        launch=launch_id(environ),
        slurm_job="" if job is None else job.id,
        slurm_account=environ.get("SLURM_JOB_ACCOUNT", "") if personal else "",
        slurm_partition="" if job is None else job.partition,
        instance_id=instance_id(environ) if personal else "",
        git_commit=git_commit(_working_directory()),
        versions={"python": platform.python_version(), "outlay": __version__} | _versions(),
        nodes=machine.node_count(environ),
        node=machine.node_number(environ),
        node_gpus=machine.node_gpus(environ).count,
        init_start=machine.init_start() if personal else "",
        slurm_restart="" if job is None else str(job.restart),
        queued_ns=queued_ns(environ, job),
        command=command,
    )


def queued_ns(environ: Mapping[str, str], job: SlurmJob | None) -> int:
    """Return when the job of this process was queued; 0 if unknown, and of a requeued job."""
    stated = _SECONDS.fullmatch(environ.get(QUEUED_AT, ""))
    if stated is None or (job is not None and job.restart):
        return 0
    return int(stated[1]) * 10**9 + int((stated[2] or "").ljust(9, "0"))


def queued_at(t_ns: int) -> dict[str, str]:
    """Return the variable that tells a job when it was queued."""
    return {QUEUED_AT: f"{t_ns // 10**9}.{t_ns % 10**9:09}"}


def command_of(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command as recorded: without secrets; empty if identity is not recorded.

    Its paths may contain the name of a home directory.
    """
    if not words or not records_identity(environ):
        return ()
    from outlay.record.redaction import recorded_command  # Loaded only if needed.

    return recorded_command(words, environ)


def instance_id(environ: Mapping[str, str]) -> str:
    """Return the vendor's id of this rented machine, else the name of a Kubernetes pod, or ""."""
    pod = _POD_VARIABLES if environ.get("KUBERNETES_SERVICE_HOST") else ()
    return _first_set(environ, (*_INSTANCE_VARIABLES, *pod))


def is_on(environ: Mapping[str, str], switch: str, *, default: bool) -> bool:
    """Return whether a switch is on; ``0``, ``false``, ``off`` and ``no`` turn it off."""
    word = environ.get(switch, "").strip().lower()
    return word not in _NO if word else default


def is_disabled(environ: Mapping[str, str]) -> bool:
    """Return whether all recording is switched off."""
    return is_on(environ, "OUTLAY_DISABLED", default=False)


def records_identity(environ: Mapping[str, str]) -> bool:
    """Return whether facts that identify a person or a machine are recorded."""
    return is_on(environ, "OUTLAY_RECORD_IDENTITY", default=True)


def rank(environ: Mapping[str, str]) -> int:
    """Return this process's rank from torchrun's or Slurm's variables; 0 when alone."""
    return _first_int(environ, ("RANK", "SLURM_PROCID"), default=0)


def world_size(environ: Mapping[str, str]) -> int:
    """Return how many processes train together; 1 when alone."""
    return _first_int(environ, ("WORLD_SIZE", "SLURM_NTASKS"), default=1) or 1


def is_first_of_node(environ: Mapping[str, str]) -> bool:
    """Return whether this process has local rank 0, and so measures for its whole node."""
    return _first_int(environ, ("LOCAL_RANK", "SLURM_LOCALID"), default=0) == 0


def launch_id(environ: Mapping[str, str]) -> str:
    """Return an id that all ranks of one start share and no other start has, or ""."""
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return f"torchelastic-{elastic}-{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    job = SlurmJob.of(environ)
    return "" if job is None else f"slurm-{job.raw}-{job.restart}"


def git_commit(directory: Path) -> str:
    """Return the commit checked out in ``directory`` or above, from git's files, or ""."""
    # Paths are strings here: a sweep asks for every run that it starts.
    for parent in (directory, *directory.parents):
        link = first_line(f"{parent}/.git")  # In a linked worktree a file that names the directory.
        git_dir = str(parent / link.removeprefix("gitdir: ")) if link else f"{parent}/.git"
        head = first_line(f"{git_dir}/HEAD")
        if not head:
            continue
        reference = head.removeprefix("ref: ")
        if reference == head:
            return head
        common = first_line(f"{git_dir}/commondir")  # Exists in linked worktrees only.
        shared = str(Path(git_dir, common)) if common else git_dir
        return first_line(f"{shared}/{reference}") or _read_packed_ref(shared, reference)
    return ""


def _read_packed_ref(git_dir: str, reference: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path(git_dir, "packed-refs").read_text().splitlines():
            if line.endswith(f" {reference}"):
                return line.split(" ", 1)[0]
    return ""


def _versions() -> dict[str, str]:
    loaded = {name: sys.modules[name] for name in _VERSIONED if name in sys.modules}
    return {name: str(getattr(module, "__version__", "")) for name, module in loaded.items()}


def _user() -> str:
    with contextlib.suppress(OSError, KeyError):
        return _clean(getpass.getuser())
    return ""


def _clean(text: str) -> str:
    # An environment may hold bytes that are not UTF-8; JSON may not.
    return text if text.isascii() else text.encode(errors="replace").decode()


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:  # It was deleted.
        return Path("/")


def _first_set(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _first_int(environ: Mapping[str, str], names: tuple[str, ...], *, default: int) -> int:
    text = _first_set(environ, names)
    return int(text) if text.isdecimal() else default
