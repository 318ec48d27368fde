"""What a report is made of, before anybody decides how it is shown. Pure.

Every figure says how it is known: ``measured`` by the run itself, ``estimated`` from measurements,
or ``assumed`` because nobody measured it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from outlay.advise.recommendation import Grade


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what it is of, its value, how people read it, and how it is known."""

    label: str
    value: Any
    text: str
    grade: Grade = "measured"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; cells are text or numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    grade: Grade = "measured"


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture as inline SVG.

    Attributes:
        legend: Which curve is whose, where that needs to be said; HTML.
        wide: Whether it needs the whole width of a page.
    """

    svg: str
    grade: Grade = "measured"
    legend: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence."""

    text: str


Block = Figure | Table | Chart | Note


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; consecutive figures are shown together."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report: a title, a verdict in a sentence, and sections."""

    title: str
    verdict: str
    sections: tuple[Section, ...]

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield every figure with the title of its section."""
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Figure):
                    yield section.title, block


def sections(found: Iterable[tuple[str, Iterable[Block]]]) -> tuple[Section, ...]:
    """Return the sections that have anything to say."""
    filled = ((title, tuple(blocks)) for title, blocks in found)
    return tuple(Section(title, blocks) for title, blocks in filled if blocks)
