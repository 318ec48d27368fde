"""The public surface, one line each: what `docs/promises.md` calls public.

``python tests/support/surface.py > tests/data/surface-X.Y.txt`` keeps that of a release.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer.main

import outlay
import outlay.compat
from command_line import outlay as run_outlay
from outlay.cli.app import app
from outlay.guard.entries import AnyEntry, RunPart
from outlay.guard.entries import Rental as RentalOfAnEntry
from outlay.ledger import KnownRecord, Price
from papers import first_cells, page

DATA = Path(__file__).parents[1] / "data"
RETURNED = ("Run", "RunReading")  # Returned by functions; users do not construct them.
GRID = """
name: rates
entrypoint: train.py
price: 1 USD/h
grid:
  - {name: rate, params: {rate: [0.1, 0.2]}, budget: {mode: iso_time, limit: 1}}
"""


def surface() -> set[str]:
    """Return every line."""
    parts = [python_names, compat_names, commands, json_keys, records, documented_names]
    return {line for part in parts for line in part()}


def python_names() -> Iterator[str]:
    """Yield the public names, their parameters, and the public members of classes."""
    for name in outlay.__all__:
        value = getattr(outlay, name)
        if name in RETURNED:
            yield f"python: outlay.{name}"
        else:
            yield from _called(f"python: outlay.{name}", value)
        for member in dir(value) if inspect.isclass(value) else ():
            if not member.startswith("_") and _is_ours(value, member):
                yield from _called(f"python: outlay.{name}.{member}", getattr(value, member))


def _called(shown: str, value: Any) -> Iterator[str]:
    yield shown
    if callable(value) and not isinstance(value, type(outlay)):
        yield from (f"{shown}({each})" for each in _parameters(value))


def _parameters(value: Callable[..., object]) -> Iterator[str]:
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # An enumeration's, or one that is written in C.
        return
    named = (each for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
    yield from (each.name for each in named if each.name != "self")


def _is_ours(value: type, member: str) -> bool:
    (owner,) = [each for each in value.__mro__ if member in vars(each)][:1] or [value]
    return owner.__module__.startswith("outlay")


def compat_names() -> Iterator[str]:
    """Yield the ``__all__`` of the modules with the names of other tools."""
    found = pkgutil.walk_packages(outlay.compat.__path__, "outlay.compat.")
    for name in sorted(each.name for each in found if not each.name.endswith("__main__")):
        module = importlib.import_module(name)
        yield from (f"module: {name}.{each}" for each in getattr(module, "__all__", ()))


def commands() -> Iterator[str]:
    """Yield every command with its options, including hidden former names."""
    waiting: list[tuple[str, Any]] = [("outlay", typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop()
        yield f"command: {path}"
        for parameter in command.params:
            options = [*parameter.opts, *parameter.secondary_opts]
            yield from (f"command: {path} {each}" for each in options if each.startswith("-"))
        waiting += [(f"{path} {name}", each) for name, each in _children(command)]


def _children(command: Any) -> list[tuple[str, Any]]:
    return list(getattr(command, "commands", {}).items())


def json_keys() -> Iterator[str]:
    """Yield the keys that commands print with ``--json`` of the logs that are kept here."""
    with tempfile.TemporaryDirectory() as home:
        run, spend = (
            shutil.copytree(DATA / name, Path(home, name)) for name in ("ledger-v1", "spend-log-v1")
        )
        budgeted, grid = Path(home, "budgeted"), Path(home, "grid.yaml")
        with outlay.run("m", dir=budgeted, budget=outlay.iso_tokens(9), price="1 USD/h") as trained:
            list(trained.steps(range(4), tokens=3))
        grid.write_text(GRID)
        Path(home, "train.py").touch()
        asked: list[tuple[str, ...]] = [
            ("goodput", str(run)), ("cost", str(run)), ("advise", str(run)), ("runs", str(run)),
            ("budget", str(budgeted)), ("log", "verify", str(run)), ("sweep", "plan", str(grid)),
            ("guard", "status", "--log", str(spend)), ("guard", "verify", "--log", str(spend)),
        ]  # fmt: skip
        for words in asked:
            printed = run_outlay(*words, "--json", OUTLAY_HOME=home).json
            command = " ".join(word for word in words if "/" not in word)
            yield from (f"json: outlay {command}: {path}" for path in sorted(set(_paths(printed))))


def _paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}"
            yield from _paths(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, f"{path}[]")


def records() -> Iterator[str]:
    """Yield the keys of every kind of line in a run log and a spend log."""
    for log, kinds in (("run log", KnownRecord), ("spend log", AnyEntry)):
        for kind in get_args(kinds):
            yield from (f"{log}: {kind.__struct_config__.tag}.{f}" for f in kind.__struct_fields__)
    for name, struct in {"price": Price, "rental": RentalOfAnEntry, "part": RunPart}.items():
        yield from (f"log: {name}.{field}" for field in struct.__struct_fields__)


def documented_names() -> Iterator[str]:
    """Yield what the pages of files, variables and exit codes have in the first column of tables.

    Other tests hold those pages to the code.
    """
    for section in re.split(r"^#{2,4} ", page("formats.md"), flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        yield from (f"file: {title}: {name}" for name in first_cells(section))
    for name in ("environment", "exit-codes"):
        yield from (f"{name}: {each}" for each in first_cells(page(f"reference/{name}.md")))


if __name__ == "__main__":
    print("\n".join(sorted(surface())))  # noqa: T201
