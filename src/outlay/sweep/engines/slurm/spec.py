"""What a job is told: a file in the run's directory, which holds no secret.

Variables that may hold one travel in the environment of ``sbatch`` instead, which Slurm guards, and
words of the command that repeat one name the variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from outlay.decoding import read_document
from outlay.files import write_whole

if TYPE_CHECKING:
    from outlay.sweep.engines.base import Task

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

    Args:
        task: Whose environment it is.
        here: What ``sbatch`` hands over by itself: our own environment.
    """
    from outlay.sweep.redaction import Redactor  # Jobs, which only read, do without.

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
    from outlay.sweep.redaction import REDACTED, STANDS_FOR, Redactor, is_secret_name

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
    from outlay.sweep.redaction import STANDS_FOR

    return f"{STANDS_FOR}{name}}}"


def write_spec(task: Task, here: Mapping[str, str], title: str = "") -> dict[str, str]:
    """Write what the node needs to know; return what ``sbatch`` must hand over besides.

    Args:
        task: Whose attempt it is.
        here: Our own environment, which ``sbatch`` hands over.
        title: What the job is called in the queue.
    """
    opened, secret = split_environment(task, here)
    command, sealed = sealed_command(task)
    secret |= {name: value for name, value in sealed.items() if here.get(name) != value}
    options = task.options
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
    """Write down which spec each job of a batch is told, by its place in the array."""
    path.write_bytes(msgspec.json.encode([str(spec) for spec in specs]) + b"\n")


def listed_spec(path: Path, place: int) -> Path:
    """Return the spec of one place of a list."""
    return Path(read_document(path, list[str])[place])


def read_spec(path: Path) -> JobSpec:
    """Return what a job is told."""
    return read_document(path, JobSpec)


def opened_command(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the command with its secrets put back."""
    words = spec.command
    for name in spec.sealed:
        words = [word.replace(_sealed(name), environ.get(name, "")) for word in words]
    return words
