"""What is stated of this home, as a JSON list of named values: owned machines, commitments."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from outlay.decoding import BadDocument, read_document
from outlay.errors import InvalidValue
from outlay.files import make_private, open_own, write_whole
from outlay.locks import FileLock
from outlay.store import outlay_home

Stated = TypeVar("Stated", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedList(Generic[Stated]):
    """A list of values in a file of the outlay home.

    Attributes:
        what: One value in words, such as ``machine``; an ``s`` makes it several.
        argument: The name of a value in commands.
        name_of: Returns the name of a value; setting one replaces that of the same name.
    """

    file: str
    type: type[Stated]
    what: str
    argument: str
    name_of: Callable[[Stated], str]

    @property
    def path(self) -> Path:
        """The file; it may not exist yet."""
        return outlay_home() / self.file

    def read(self) -> dict[str, Stated]:
        """Return the values by name.

        Raises:
            InvalidValue: The file exists and cannot be parsed.
        """
        try:
            stated = read_document(self.path, list[self.type])  # type: ignore[name-defined]
        except FileNotFoundError:
            return {}
        except (OSError, BadDocument) as error:
            expected = f"a JSON list of {self.what}s ({error})"
            raise InvalidValue(f"{self.what}s", str(self.path), expected) from None
        return {self.name_of(each): each for each in stated}

    def set(self, value: Stated) -> None:
        """Add or replace a value."""
        with self._locked():
            self._write(self.read() | {self.name_of(value): value})

    def remove(self, name: str) -> None:
        """Remove a value.

        Raises:
            InvalidValue: There is none of that name.
        """
        with self._locked():
            stated = self.read()
            if name not in stated:
                known = ", ".join(stated) or "none is stated"
                expected = f"a {self.what} that was stated ({known})"
                raise InvalidValue(self.argument, name, expected)
            del stated[name]
            self._write(stated)

    def _locked(self) -> FileLock:
        """Let two commands at once change the list one after the other."""
        make_private(self.path.parent)
        file = open_own(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        return FileLock(file, patience_s=None)

    def _write(self, stated: dict[str, Stated]) -> None:
        rows = [stated[name] for name in sorted(stated)]
        content = msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n"
        write_whole(self.path, content, synced=True, private=True)
