"""Exceptions and findings.

An *exception* means that the caller cannot get what it asked for. A *finding* is a problem in the
user's data: a value, returned beside the result and shown with it.

    OutlayError
    ├── InvalidValue (ValueError)     an invalid argument or setting
    ├── UnitMismatch (TypeError)      an operation on two different units
    ├── RunInUse                      a second live writer of the same rank
    ├── NotARun                       a path without a run log
    ├── MissingExtra (ImportError)    an optional dependency is not installed
    └── Refused                       refused by a guard or a budget

Imports no other module of outlay; packages subclass these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# A shell's exit codes for a command that cannot be started.
NOT_EXECUTABLE = 126
NOT_FOUND = 127


class OutlayError(Exception):
    """The base class of outlay's exceptions.

    ``exit_code`` is the exit code of the command line: 1 failed, 2 wrong usage, 3 refused.
    """

    exit_code: int = 1


class Refused(OutlayError):
    """A guard or a budget refused the operation."""

    exit_code = 3


def got(seen: object) -> str:
    """Return what an error says of the value that was seen."""
    return "got nothing" if seen is None else f"got {seen!r}"


class InvalidValue(OutlayError, ValueError):
    """An invalid value; the message names it and what is allowed."""

    exit_code = 2

    def __init__(self, name: str, seen: object, expected: str) -> None:
        super().__init__(f"{name}: {got(seen)}; expected {expected}")
        self.name = name
        self.seen = seen
        self.expected = expected


class UnitMismatch(OutlayError, TypeError):
    """Two quantities with different units were added or compared."""

    def __init__(self, left: object, right: object) -> None:
        super().__init__(f"cannot combine {left!r} with {right!r}: their units differ")


class RunInUse(OutlayError):
    """Another live process already records this rank of this run."""

    def __init__(self, directory: str, rank: int, holder: str) -> None:
        super().__init__(
            f"{directory}: rank {rank} is already being recorded by {holder}. "
            "If this process is another rank of the same training, say so: call outlay.run() after "
            "torch.distributed.init_process_group(), or pass rank= and world_size=. "
            "If a cell of a notebook raised before it closed the run, call run.close(). "
            "Else stop that process, or record this run in another directory (dir=...)."
        )


class NotARun(OutlayError):
    """The path has no run log."""

    exit_code = 2

    def __init__(self, path: str) -> None:
        self.path = path
        seen = f"no run log here (expected {path}/ledger/*.jsonl)"
        if not Path(path).exists():
            seen = "no such directory"
        super().__init__(
            f"{path}: {seen}. "
            "Name a directory that was given to outlay.run(dir=...) or `outlay exec --dir`."
        )


class MissingExtra(OutlayError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'outlay[{extra}]'")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """A problem in the user's data.

    Attributes:
        source: The file or vendor.
        line: The 1-based line, or 0 where there are no lines.
        severity: ``error`` when facts were lost or refused, ``warning`` when they are in doubt.
    """

    source: str
    line: int = 0
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"{where}: {self.message}"


def choices(names: Iterable[object]) -> str:
    """Return ``one of a, b``, for an error message."""
    return "one of " + ", ".join(sorted(str(name) for name in names))
