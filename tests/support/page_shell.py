"""A person's shell that types what a page of the documents shows, and compares what is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SCRIPT = "#!{python}\nimport sys\nfrom outlay.cli import main\nsys.exit(main())\n"
_ID = re.compile(r"\b[0-9a-f]{8}(?:[0-9a-f]{4})?\b")


@dataclass(slots=True)
class Shell:
    """A shell: remembers exports, answers questions, and replaces the page's ids.

    Attributes:
        answers: What a person types when a command asks.
        inside: The words that enter another host before the shell starts.
    """

    directory: Path
    environ: dict[str, str]
    answers: Callable[[str], str] = lambda _: ""
    inside: tuple[str, ...] = ()
    ids: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        for shown, real in self.ids.items():
            command = command.replace(shown, real)
        return subprocess.run(
            [*self.inside, "bash", "-c", command], cwd=self.directory, env=self.environ, text=True,
            check=False, input=self.answers(command), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # without a terminal, psql asks for passwords on stdin
        )  # fmt: skip

    def export(self, words: str) -> None:
        name, _, value = words.partition("=")
        self.environ[name] = value.strip('"')


def write_command(directory: Path) -> None:
    """Write the command ``outlay`` of this tree."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "outlay"
    script.write_text(_SCRIPT.format(python=sys.executable))
    script.chmod(0o755)


def typed(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block, each with the output that the page shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.replace("\\\n", "").splitlines()
        yield lines[0], [line.strip() for line in lines[1:] if line.strip()]


def without_numbers(text: str) -> str:
    """Return a text with figures, dates, ids and runs of spaces made alike."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "HASH", _ID.sub("ID", text))
    return " ".join(re.sub(r"-?\d[\d.,:TZ-]*m?s?\b", "N", text).split())


def complaint(shell: Shell, command: str, shown: list[str], *, refused: bool = False) -> str:
    """Run a command; return how it differs from the page, "" if it does not."""
    if command.startswith("export "):
        shell.export(command.removeprefix("export "))
        return ""
    done = shell.run(command)
    if done.returncode != (3 if refused else 0):
        return f"$ {command}\nexit code {done.returncode}\n{done.stdout}"
    printed = done.stdout
    shell.ids |= dict(zip(ids_in("\n".join(shown)), ids_in(printed), strict=False))
    whole = without_numbers(printed)
    missing = [line for line in shown if without_numbers(line) not in whole]
    return f"$ {command}\nnot printed: {missing}\nprinted:\n{printed}" if missing else ""


def ids_in(text: str) -> list[str]:
    """Return the ids in a text, each once."""
    return list(dict.fromkeys(_ID.findall(text)))
