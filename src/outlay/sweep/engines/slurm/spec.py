"""What a job is told: a file in the run's directory, which holds no secret.

Variables that may hold one travel in the environment of ``sbatch`` instead, which Slurm guards, and
words of the command that repeat one name the variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from outlay.sweep.engines.base import Task
from outlay.sweep.redaction import REDACTED, Redactor, is_secret_name


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as the node reads it.

    Attributes:
        env: What is set on top of what ``sbatch`` hands over.
        dropped: What is removed from that.
        sealed: Secret variables, whose values stand as ``{outlay:NAME}`` in the command.
        most_ns: How long all starts together may take; None for as long as Slurm lets them.
        requeues: How often Slurm may start it again.
        notice_ns: How long it has to end when it is told to.
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


def spec_path(directory: Path, ticket: str) -> Path:
    """Return where an attempt's spec lies."""
    return directory / f"slurm_{ticket.rpartition('/')[2]}.json"


def split_environment(
    task: Task, here: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return a task's variables beyond ours: those a file may hold, the secret ones, the removed.

    Args:
        task: Whose environment it is.
        here: What ``sbatch`` hands over by itself: our own environment.
    """
    redact = Redactor([task.env])
    added = {name: value for name, value in task.env.items() if here.get(name) != value}
    shown = redact.environment(added)
    secret = {name: value for name, value in added.items() if shown[name] != value}
    opened = {name: value for name, value in added.items() if name not in secret}
    return opened, secret, sorted(here.keys() - task.env.keys())


def sealed_command(task: Task) -> tuple[list[str], list[str]]:
    """Return the command without secrets, and the variables that stand in for them."""
    secrets = {
        value: name for name, value in sorted(task.env.items()) if is_secret_name(name) and value
    }
    words, used = [], []
    redact = Redactor([task.env])
    for word in task.command:
        if REDACTED in redact.text(word):
            for value, name in sorted(secrets.items(), key=lambda item: -len(item[0])):
                if value in word:
                    word = word.replace(value, f"{{outlay:{name}}}")
                    used.append(name)
        words.append(word)
    return words, sorted(set(used))


def write_spec(task: Task, here: Mapping[str, str]) -> dict[str, str]:
    """Write what the node needs to know; return what ``sbatch`` must hand over besides."""
    opened, secret, dropped = split_environment(task, here)
    command, sealed = sealed_command(task)
    options = task.options
    spec = JobSpec(
        ticket=task.ticket, name=task.name, command=command, env=opened, dropped=dropped,
        sealed=sealed, cwd=str(task.cwd), directory=str(task.directory), log=str(task.log),
        most_ns=task.most_ns, requeues=options.requeues, notice_ns=options.notice.ns,
    )  # fmt: skip
    spec_path(task.directory, task.ticket).write_bytes(msgspec.json.encode(spec) + b"\n")
    return secret


def read_spec(path: Path) -> JobSpec:
    """Return what a job is told."""
    return msgspec.json.decode(path.read_bytes(), type=JobSpec)


def opened_command(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the command with its secrets put back."""
    words = spec.command
    for name in spec.sealed:
        words = [word.replace(f"{{outlay:{name}}}", environ.get(name, "")) for word in words]
    return words
