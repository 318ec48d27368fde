"""A reconciled bill as a document: by resource, what differs and why, and three sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from outlay.bills.bill_line import CATEGORIES
from outlay.bills.reconciliation import (
    CAUSES,
    STATES,
    ConfirmedMonth,
    ReconciledRow,
    Reconciliation,
    hours,
    part_name,
)
from outlay.report.document import Block, Document, Figure, NoteBlock, Section, Table
from outlay.units import Money
from outlay.units.shown import counted, money_text

_BESIDE: Final = tuple(name for name in CATEGORIES if name != "usage")
_HEADINGS: Final = (
    "resource", "match", "owner", "our hours", "billed hours", "our cost", "billed usage", *CAUSES,
    *map(part_name, _BESIDE), "total",
)  # fmt: skip
NO_RESOURCE: Final = "(no resource)"


def bill_document(month: str, found: Sequence[Reconciliation]) -> Document:
    """Return the reconciliation of a month, one section for each currency."""
    verdicts = [_verdict(each) for each in found]
    return Document(
        title=f"Bills of {month} beside the books",
        verdict=" ".join(verdicts) or f"Neither a bill nor spending is known in {month}.",
        sections=tuple(Section(each.currency, tuple(_blocks(each))) for each in found),
    )


def _verdict(found: Reconciliation) -> str:
    matched = counted(len(found.of("matched")), "machine")
    return (
        f"{found.currency}: billed {money_text(found.bill)}, booked {money_text(found.books)}; "
        f"{matched} matched, bills confirm {share_text(found.confirmed)} of the books."
    )


def confirmed_figure(found: ConfirmedMonth) -> Figure:
    """Return the part of a month's books that a bill confirms."""
    text = f"{money_text(found.confirmed)} ({share_text(found)})"
    return Figure(f"confirmed by bills, {found.month}", found.confirmed, text)


def share_text(found: ConfirmedMonth) -> str:
    """Return the share of the books that a bill confirms, as text."""
    return "nothing" if found.share is None else f"{found.share:.1%}"


def confirmed_json(found: ConfirmedMonth) -> dict[str, object]:
    """Return the same for JSON."""
    return {
        "month": found.month, "currency": found.booked.currency,
        "booked": str(found.booked.amount), "billed": str(found.billed.amount),
        "confirmed": str(found.confirmed.amount), "confirmed_share": found.share,
    }  # fmt: skip


def _blocks(found: Reconciliation) -> Iterator[Block]:
    """Yield the table of resources, the sums of each state, and the invoices."""
    rows = [
        _cells(row, row.resource or NO_RESOURCE, found.currency, row.how or row.state)
        for row in _ordered(found)
    ]
    shown = _filled(rows)
    yield Table(*_narrowed(_HEADINGS, rows, shown))
    sums = [_cells(_summed(found.of(state)), state, found.currency) for state in STATES]
    sums.append(_cells(_summed(found.rows), "all", found.currency))
    yield Table(*_narrowed(("", *_HEADINGS[1:]), sums, shown), total=len(sums) - 1)
    yield Figure("booked", found.books, str(found.books))
    yield confirmed_figure(found.confirmed)
    if any(row.corrected for row in found.rows):
        corrected = Money(sum(sum(row.corrected.values()) for row in found.rows), found.currency)
        yield Figure("corrected by bills", corrected, str(corrected))
    doubtful = [row for row in found.rows if row.open_parts]
    if doubtful:
        yield NoteBlock("`outlay bill correct` books the differences; nothing was booked here.")
    for each in found.invoices:
        exact = f"{each.to_the_cent:f} {each.currency}"
        yield Figure(f"invoice {each.invoice} of {each.provider}", each.to_the_cent, exact)


def _ordered(found: Reconciliation) -> list[ReconciledRow]:
    place = {state: number for number, state in enumerate(STATES)}
    return sorted(found.rows, key=lambda row: (place[row.state], -row.total, row.resource))


def _summed(rows: Sequence[ReconciledRow]) -> ReconciledRow:
    return ReconciledRow(
        state="matched", provider="", resource="",
        our_ns=sum(row.our_ns for row in rows), billed_ns=sum(row.billed_ns for row in rows),
        ours=sum(row.ours for row in rows),
        billed={name: sum(row.billed.get(name, 0) for row in rows) for name in CATEGORIES},
        causes={name: sum(row.causes.get(name, 0) for row in rows) for name in CAUSES},
    )  # fmt: skip


def _cells(row: ReconciledRow, name: str, currency: str, match: str = "") -> list[object]:
    amounts = [row.ours, row.billed.get("usage", 0), *(row.causes.get(c, 0) for c in CAUSES)]
    amounts += [row.billed.get(category, 0) for category in _BESIDE]
    ours, usage, *others = (Money(micros, currency) for micros in amounts)
    return [
        name, match, row.owner, round(hours(row.our_ns), 4), round(hours(row.billed_ns), 4),
        ours, usage, *(other or None for other in others), Money(row.total, currency),
    ]  # fmt: skip


def _filled(rows: Sequence[Sequence[object]]) -> list[int]:
    """Return the columns to show: all but causes and categories without an amount."""
    last = len(_HEADINGS) - 1
    first = _HEADINGS.index(CAUSES[0])
    return [n for n in range(last + 1) if not first <= n < last or any(row[n] for row in rows)]


def _narrowed(
    headings: Sequence[str], rows: Sequence[Sequence[object]], shown: Sequence[int]
) -> tuple[list[str], list[list[object]]]:
    return [headings[n] for n in shown], [[row[n] for n in shown] for row in rows]
