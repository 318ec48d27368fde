"""Reading a mapping key by key so that everything wrong with it is found, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from outlay.errors import Finding, InvalidValue, choices
from outlay.sweep.document import Document, Path

T = TypeVar("T")
D = TypeVar("D")


@dataclass(slots=True)
class Problems:
    """What was found wrong so far, each with its line."""

    document: Document
    findings: list[Finding] = field(default_factory=list)

    def add(self, path: Path, message: str) -> None:
        """Take down one problem."""
        line = self.document.line_of(path)
        self.findings.append(Finding(source=self.document.source, line=line, message=message))


class Block:
    """One mapping of the document, at its path.

    Args:
        value: What stands there; anything but a mapping is a problem, and reads as empty.
        path: Where it stands.
        problems: Who takes down what is wrong.
    """

    def __init__(self, value: object, path: Path, problems: Problems) -> None:
        self._path = path
        self._problems = problems
        self.values: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        if value is not None and not isinstance(value, Mapping):
            self.complain((), f"expected a mapping, got {value!r}")

    def complain(self, below: Path, message: str) -> None:
        """Take down a problem with something in this block."""
        self._problems.add((*self._path, *below), message)

    def allow(self, known: Collection[str]) -> None:
        """Complain of every key that is not known."""
        for key in self.values:
            if str(key) not in known:
                self.complain((key,), f"unknown key {key!r}; expected {choices(known)}")

    def read(self, key: str, convert: Callable[[object], T], default: D) -> T | D:
        """Return a converted value; a missing or null one, or a wrong one, is the default."""
        value = self.values.get(key)
        if value is None:
            return default
        try:
            return convert(value)
        except InvalidValue as error:
            self.complain((key,), str(error))
            return default

    def block(self, key: str) -> Block:
        """Return the mapping under a key; empty where there is none."""
        return Block(self.values.get(key), (*self._path, key), self._problems)

    def items(self, key: str) -> list[Block]:
        """Return the mappings in the list under a key."""
        listed = self.values.get(key)
        if not isinstance(listed, list):
            return []
        return [Block(item, (*self._path, key, i), self._problems) for i, item in enumerate(listed)]
