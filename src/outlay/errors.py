"""Every way outlay says that something is wrong: exceptions and findings.

An *exception* means the caller cannot get what it asked for. A *finding* means something is wrong
in the user's data: it is a value, returned beside the result and shown with it.

    OutlayError
    ├── InvalidValue (ValueError)     an argument or setting that cannot be used
    ├── UnitMismatch (TypeError)      two quantities of different units met
    ├── RunInUse                      a second live writer of the same rank
    ├── NotARun                       a path that holds no run log
    ├── MissingExtra (ImportError)    an optional dependency is not installed
    └── Refused                       a guard or a budget says no; each has its own case below it

This module knows no other module; packages add their own cases below one of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# What a shell exits with when the command that it was given cannot be started.
NOT_EXECUTABLE = 126
NOT_FOUND = 127


class OutlayError(Exception):
    """The root of every exception that outlay raises on purpose.

    ``exit_code`` is what the command line exits with: 1 failed, 2 wrong usage, 3 refused.
    """

    exit_code: int = 1


class Refused(OutlayError):
    """A guard or a budget does not allow what was asked."""

    exit_code = 3


class InvalidValue(OutlayError, ValueError):
    """A value was given that cannot be used; says what was seen and what is allowed."""

    exit_code = 2

    def __init__(self, name: str, seen: object, expected: str) -> None:
        super().__init__(f"{name}: got {seen!r}; expected {expected}")
        self.name = name
        self.seen = seen
        self.expected = expected


class UnitMismatch(OutlayError, TypeError):
    """Two quantities that do not share a unit were added or compared."""

    def __init__(self, left: object, right: object) -> None:
        super().__init__(f"cannot combine {left!r} with {right!r}: their units differ")


class RunInUse(OutlayError):
    """Another live process is already recording this rank of this run."""

    def __init__(self, directory: str, rank: int, holder: str) -> None:
        super().__init__(
            f"{directory}: rank {rank} is already being recorded by {holder}. "
            "If this process is another rank of the same training, say so: call outlay.run() after "
            "torch.distributed.init_process_group(), or pass rank= and world_size=. "
            "Else stop that process, or record this run in another directory (dir=...)."
        )


class NotARun(OutlayError):
    """A path was given that holds no run log."""

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
    """Something wrong in the user's data, and where.

    Attributes:
        source: The file or vendor it was found in.
        line: Its 1-based line, or 0 where lines mean nothing.
        message: What is wrong, as a sentence.
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
    """Return the valid choices as one phrase for an error message."""
    return "one of " + ", ".join(sorted(str(name) for name in names))
