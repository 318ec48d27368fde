"""Job specs on the submitting side: a task's spec, and the same without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from outlay.files import write_whole
from outlay.record.redaction import REDACTED, STANDS_FOR, Redactor, is_secret_name
from outlay.sweep.engines.base import Task
from outlay.sweep.engines.remote.job_spec import HIDDEN_WORD, JobSpec, placeholder, spec_path


def spec_of(task: Task, *, notice_ns: int, requeues: int = 0, title: str = "") -> JobSpec:
    """Return a task's job spec, with its command and environment as they are."""
    return JobSpec(
        ticket=task.ticket, name=task.name, command=list(task.command), env=dict(task.env),
        dropped=[], sealed=[], cwd=str(task.cwd), directory=str(task.directory), log=str(task.log),
        most_ns=task.most_ns, requeues=requeues, notice_ns=notice_ns, gpus=task.gpus,
        kill_ns=task.kill_ns, title=title,
    )  # fmt: skip


def write_spec(spec: JobSpec) -> Path:
    """Write a spec, for its user alone; return its path."""
    path = spec_path(Path(spec.directory), spec.ticket)
    write_whole(path, msgspec.json.encode(spec) + b"\n", private=True)
    return path


def without_secrets(
    task: Task, spec: JobSpec, here: Mapping[str, str]
) -> tuple[JobSpec, dict[str, str]]:
    """Return a spec without secrets, and the variables that the scheduler must pass on.

    ``here`` is this process's environment, which the scheduler passes on by itself.
    """
    plain, secret = _split_environment(task, here)
    command, replaced = _command_without_secrets(task)
    secret |= {name: value for name, value in replaced.items() if here.get(name) != value}
    dropped = sorted(here.keys() - task.env.keys())
    return msgspec.structs.replace(
        spec, command=command, env=plain, dropped=dropped, sealed=sorted(replaced)
    ), secret


def _split_environment(
    task: Task, here: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a task's variables that differ from ``here``: the plain and the secret ones."""
    added = {name: value for name, value in task.env.items() if here.get(name) != value}
    shown = Redactor([task.env]).environment(added)
    secret = {name: value for name, value in added.items() if shown[name] != value}
    return {name: value for name, value in added.items() if name not in secret}, secret


def _command_without_secrets(task: Task) -> tuple[list[str], dict[str, str]]:
    """Return the command with placeholders for secrets, and the variables they stand for.

    A word that looks like a secret and is in no variable gets a new variable.
    """
    secrets = [(name, value) for name, value in task.env.items() if is_secret_name(name) and value]
    secrets.sort(key=lambda item: (-len(item[1]), item[0]))
    words: list[str] = []
    used: dict[str, str] = {}
    redact = Redactor([task.env])
    shown = redact.command(task.command)
    for index, word in enumerate(task.command):
        is_value = shown[index] == REDACTED  # All of it: the word after --token, whatever it is.
        if REDACTED in shown[index]:
            for name, value in secrets:
                if value in word:
                    word = word.replace(value, placeholder(name))
                    used[name] = value
        if REDACTED in redact.text(word) or (is_value and not word.startswith(STANDS_FOR)):
            name = f"{HIDDEN_WORD}{index}"
            used[name], word = word, placeholder(name)
        words.append(word)
    return words, used
