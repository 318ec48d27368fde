"""Running a vendor's command: no shell, a time limit, secrets from the environment only."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from outlay.errors import InvalidValue

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SECRET = re.compile(r"(?i)(?:bearer|api[-_]?key|token|password)[\s=:]+(?!\$)[\w.-]{8,}")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command did.

    Attributes:
        output: What it printed on standard output.
        problem: What went wrong, or empty; never what it printed, which may hold a secret.
        finished: False when it was killed for taking too long, so what it did is unknown.
    """

    output: str
    problem: str
    finished: bool = True


def words(text: str, *, name: str) -> tuple[str, ...]:
    """Split a command into words as a shell would, without being one.

    Raises:
        InvalidValue: It is empty, badly quoted, or holds a secret that belongs elsewhere.
    """
    try:
        split = tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidValue(name, text, f"a command ({error})") from None
    if not split:
        raise InvalidValue(name, text, "a command")
    if _SECRET.search(text) or _SECRET.search(" ".join(split)):
        expected = "a command without a key in it: write $VARIABLE, it is filled in when it runs"
        raise InvalidValue(name, "<hidden>", expected)
    return split


def filled(text: str, environ: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Return ``text`` with ``$VARIABLES`` and ``{places}`` filled in.

    Raises:
        InvalidValue: A variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in environ:
            raise InvalidValue(f"${name}", None, "an environment variable that is set")
        return environ[name]

    text = _VARIABLE.sub(value, text)
    for place, content in places.items():
        text = text.replace("{" + place + "}", content)
    return text


def call(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdin: str = "",
    places: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Reply:
    """Run a vendor's command and return what it did; never raises for what it does."""
    argv = [filled(word, environ, places or {}) for word in command]
    given = filled(stdin, environ, {})
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=dict(environ), start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:  # no such program; a zero byte in an argument
        return Reply("", f"{argv[0]}: {getattr(error, 'strerror', None) or error}")
    try:
        output, _ = process.communicate(given.encode(), timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # not read to its end: what left the group may hold the pipe for ever
            pass
        return Reply("", f"{argv[0]} did not answer within {timeout_s:g} s", finished=False)
    problem = f"{argv[0]} exited with {process.returncode}" if process.returncode else ""
    return Reply(output.decode(errors="replace"), problem)
