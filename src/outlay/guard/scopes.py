"""What limits are for: the whole log, a lab, a UTC day, a UTC month. Pure."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

BUFFER = "buffer"
_LAB = re.compile(r"lab[ _]?(\d+)", re.IGNORECASE)


class Scope(NamedTuple):
    """Something that has a limit: the whole log, a lab, a UTC day or a UTC month."""

    kind: Literal["whole", "lab", "day", "month"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


WHOLE = Scope("whole")


def scopes_of(lab: str, day: str) -> tuple[Scope, ...]:
    """Return every scope that money of this lab and day counts in."""
    return (WHOLE, Scope("lab", lab), Scope("day", day), Scope("month", day[:7]))


def lab_of(op_label: str, lab: str | None = None) -> str:
    """Return the lab that pays: the one named, else the label's ``labNN``, else the buffer.

    ``lab02`` and ``02`` are the same lab, as the manifest writes it: ``02``.
    """
    name = op_label.split("-", 1)[0] if lab is None else lab
    if match := _LAB.fullmatch(name.strip()):
        return match[1]
    return BUFFER if lab is None else lab.strip()
