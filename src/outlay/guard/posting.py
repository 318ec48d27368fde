"""What a decision hands to a spend log. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from outlay.guard.entries import AnyEntry

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Posting(Generic[Answer]):
    """What a decision appends to the log, and what it answers once that is safe."""

    entries: tuple[AnyEntry, ...]
    answer: Answer
