"""Code in the documents runs: Python blocks; `outlay` and `python` commands in console blocks.

The blocks of a page run in order in one empty directory, so that a command can use what the Python
above it recorded. An HTML comment right before a Python block can be ``before`` and lines to run
ahead of it (which the page does not show), or ``needs: NAME`` for a module that may be missing:
then the block is skipped, and fails if CI=true. A block of any language with ``file: NAME`` before
it is saved under that name. Processes are forked from one that has imported outlay; the README and
the tutorial run in fresh processes, in test_tutorial, and the pages on teams and many hosts in
test_team_page and test_many_hosts_page.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from command_line import Outcome, outlay, python
from papers import ROOT, Block, blocks, markdown_files
from system_parts import missing

BEFORE, NEEDS, FILE = "before\n", "needs: ", "file: "
STRICT = "import warnings\nwarnings.simplefilter('error')"


def runnable(path: Path) -> list[Block]:
    found = blocks(path.read_text())
    return [b for b in found if b.language in ("python", "console") or b.comment.startswith(FILE)]


HOWTO = ROOT / "docs" / "howto"
ELSEWHERE = {
    ROOT / "README.md", ROOT / "docs" / "tutorial.md", HOWTO / "team.md", HOWTO / "many-hosts.md",
}  # fmt: skip
PAGES = [path for path in markdown_files() if runnable(path) and path not in ELSEWHERE]


def missing_module(block: Block) -> str | None:
    name = block.comment.removeprefix(NEEDS).strip()
    if not block.comment.startswith(NEEDS) or importlib.util.find_spec(name):
        return None
    return name


Program = Callable[[], Outcome]


def programs(block: Block) -> list[Program]:
    """Return the commands that a block stands for; ``NAME=value`` before one is its environment."""
    if block.language == "python":
        before = block.comment[len(BEFORE) :] if block.comment.startswith(BEFORE) else ""
        return [partial(python, f"{STRICT}\n{before}\n{block.text}")]
    lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    return [program for line in lines if (program := typed(shlex.split(line, comments=True)))]


def typed(words: list[str]) -> Program | None:
    """Return a typed command as it is run here; None for programs that are not ours."""
    settings = list(takewhile(lambda word: "=" in word, words))
    name, *arguments = words[len(settings) :]
    if name == "outlay":
        environment: dict[str, Any] = dict(word.split("=", 1) for word in settings)
        return partial(outlay, *arguments, **environment)
    return (
        partial(started, ["env", *settings, sys.executable, *arguments])
        if name == "python"
        else None
    )


def started(command: list[str]) -> Outcome:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def complaint_about(block: Block, directory: Path) -> str | None:
    """Run a block, or save it; return what went wrong with it."""
    if block.comment.startswith(FILE):
        (directory / block.comment.removeprefix(FILE).strip()).write_text(block.text)
        return None
    with contextlib.chdir(directory):
        for program in programs(block):
            done = program()
            if done.code != 0:
                return f"line {block.line}: exit code {done.code}\n{done.err}"
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_shows_runs(path: Path, tmp_path: Path) -> None:
    lacking = []
    for block in runnable(path):
        if name := missing_module(block):
            lacking.append(name)
            continue
        assert complaint_about(block, tmp_path) is None
    if lacking:
        missing(f"not all blocks were run: {lacking} not installed")


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    page = "text\n\n<!-- before\nx = 1\n-->\n```python\nassert x == 2\n```\n"
    (block,) = blocks(page)
    complaint = complaint_about(block, tmp_path)
    assert complaint is not None
    assert "AssertionError" in complaint


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    (block,) = blocks("```console\n$ outlay log nowhere\n```\n")
    complaint = complaint_about(block, tmp_path)
    assert complaint is not None
    assert "exit code 2" in complaint


def test_a_block_that_needs_a_missing_module_says_which() -> None:
    (block,) = blocks("<!-- needs: no_such_module -->\n```python\nimport no_such_module\n```\n")
    assert missing_module(block) == "no_such_module"
