"""Reading a vendor's answer row by row: one bad row is one finding, and the rest still counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec

from outlay.decoding import BadDocument, decode
from outlay.errors import Finding, InvalidValue
from outlay.prices.offer import Offer
from outlay.prices.sources.base import Parsed, SourceFailed

Row = TypeVar("Row")
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


def read_answer(source: str, body: bytes, shape: type[Row]) -> Row:
    """Return the whole answer in its expected shape.

    Raises:
        SourceFailed: It is not JSON, or JSON of another shape.
    """
    try:
        return decode(body, shape)
    except BadDocument as error:
        start = body[:15].lstrip().lower()
        if start.startswith((b"<!doctype", b"<html")):
            raise SourceFailed(source, "a web page came where JSON was expected") from None
        raise SourceFailed(source, f"not the JSON that was expected: {error}") from None


def read_rows(
    source: str,
    rows: Iterable[tuple[str, msgspec.Raw]],
    shape: type[Row],
    offers_of: Callable[[Row], Iterable[Offer]],
) -> Parsed:
    """Return the offers of every readable row, and a finding for each of the others.

    Args:
        source: For the findings.
        rows: Each with what to call it in a finding.
        shape: The struct a row must fit.
        offers_of: Turns a row into offers; may raise InvalidValue.
    """
    offers: list[Offer] = []
    findings: list[Finding] = []
    for name, raw in rows:
        try:
            offers.extend(offers_of(decode(bytes(raw), shape)))
        except (BadDocument, InvalidValue) as error:
            findings.append(Finding(source=source, message=f"{name}: {error}"))
    return Parsed(offers=tuple(offers), findings=tuple(findings))


def numbered(rows: Iterable[msgspec.Raw]) -> Iterable[tuple[str, msgspec.Raw]]:
    """Name rows by their position, from 1."""
    return ((f"row {position}", row) for position, row in enumerate(rows, start=1))
