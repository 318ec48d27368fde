"""Parts of files: their names, which bytes are due, and how parts join. Pure.

A file that only grows is shipped in parts, each named by its offset, length and SHA-256:

    <run>/ledger~<segment>.jsonl/<offset, 20 digits>-<length>-<sha256>.part

The same bytes at the same offset are the same object, so that a part may be written again. Parts
may overlap: a node that lost its state cuts the file elsewhere. A file that is replaced is shipped
whole; ``.whole`` is its suffix, and a version stands for the offset.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

PART_BYTES: Final = 1 << 20
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,=+@-]{0,199}")
"""A run's name, and a file or directory of a run: nothing that leads out of a directory."""
_KEY: Final = re.compile(
    rf"({NAME.pattern})/({NAME.pattern}(?:~{NAME.pattern})?)/"
    r"([0-9]{20})-([0-9]{1,12})-([0-9a-f]{64})\.(part|whole)"
)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Bytes of a run's file, of at most one directory below the run's.

    Attributes:
        start: The offset of its first byte; of a whole file, its version.
    """

    run: str
    file: str
    start: int
    length: int
    digest: str
    is_whole: bool = False

    @classmethod
    def of(cls, run: str, file: str, start: int, content: bytes, *, is_whole: bool = False) -> Part:
        """Return the part with this content."""
        return cls(run, file, start, len(content), digest_of(content), is_whole)

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.start + self.length

    @property
    def key(self) -> str:
        """Its name below the storage URL."""
        suffix = "whole" if self.is_whole else "part"
        name = f"{self.start:020d}-{self.length}-{self.digest}.{suffix}"
        return f"{self.run}/{self.file.replace('/', '~')}/{name}"


def parse_key(key: str) -> Part | None:
    """Return the part of a name; None for any other object."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    run, file, start, length, digest, suffix = found.groups()
    path = file.replace("~", "/")
    return Part(run, path, int(start), int(length), digest, is_whole=suffix == "whole")


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def is_shippable(file: str) -> bool:
    """Return whether a part can be named after a file, given below its run's directory."""
    names = file.split("/")
    return len(names) <= 2 and all(NAME.fullmatch(name) for name in names)


# On the node


class Due(NamedTuple):
    """Bytes ``[start, end)`` of a file that are to be shipped."""

    file: str
    start: int
    end: int


def plan(
    sizes: Mapping[str, int], shipped: Mapping[str, int], most: int = PART_BYTES
) -> Iterator[Due]:
    """Yield what is due of files that grow, in order: at most ``most`` bytes at a time."""
    for file, size in sizes.items():
        for start in range(shipped.get(file, 0), size, most):
            yield Due(file, start, min(start + most, size))


def whole_lines(content: bytes) -> bytes:
    """Return the content up to its last newline: a reader need not see half a line."""
    return content[: content.rfind(b"\n") + 1]


# At home


class Chain(NamedTuple):
    """Parts that extend a file, in order, up to ``end``.

    ``beyond`` is where the next part begins if bytes are missing in between, else None.
    """

    parts: tuple[Part, ...]
    end: int
    beyond: int | None


def chain(have: int, parts: Iterable[Part], most: int | None = None) -> Chain:
    """Return the parts that extend the first ``have`` bytes, until ``most`` bytes are added."""
    chosen: list[Part] = []
    end, longest = have, None
    waiting = sorted(parts, key=lambda part: part.start, reverse=True)
    while most is None or end - have < most:
        while waiting and waiting[-1].start <= end:
            part = waiting.pop()
            longest = part if longest is None or part.end > longest.end else longest
        if longest is None or longest.end <= end:
            return Chain(tuple(chosen), end, waiting[-1].start if waiting else None)
        chosen.append(longest)
        end = longest.end
    return Chain(tuple(chosen), end, None)


def join(have: bytes, start: int, chained: Iterable[tuple[Part, bytes]]) -> bytes | Part:
    """Return ``have``, which begins at ``start``, extended; or a part that contradicts it."""
    joined = bytearray(have)
    for part, content in chained:
        known = joined[part.start - start : part.end - start]
        if digest_of(content) != part.digest or known != content[: len(known)]:
            return part
        joined += content[len(known) :]
    return bytes(joined)
