"""Corrections by bills: entries that make the books equal to a bill, written only when asked for.

They are lines of one append-only file in the outlay home. A correction has a key, and counts once,
also if two processes wrote it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlay.bills.reconciliation import ReconciledRow, Reconciliation
from outlay.cost.charges import month_window
from outlay.cost.spending import SpendItem
from outlay.decoding import Decoder
from outlay.errors import InvalidValue
from outlay.files import make_private, open_own, read_own, seal_of
from outlay.rates import share_out
from outlay.store import outlay_home
from outlay.units import Money

FILE: Final = "corrections.jsonl"


class BillCorrection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One amount by which a bill corrects the books.

    Attributes:
        key: Identifies it: it counts once.
        month: Of the bill, such as ``2026-10``.
        part: The cause or category of the difference.
        user: Who pays, with ``tags``: those of the runs on the machine; "" if unknown.
        by: Who asked for it, why, and when.
    """

    key: str
    month: str
    provider: str
    resource: str = ""
    part: str
    micros: int
    currency: str
    user: str = ""
    tags: dict[str, str] = {}
    by: str
    reason: str
    at_ns: int


_decoder = Decoder[BillCorrection](BillCorrection)


def _path() -> Path:
    return outlay_home() / "bills" / FILE


def read_corrections(until_ns: int | None = None) -> list[BillCorrection]:
    """Return the corrections that were written until an instant, each once."""
    try:
        raw = read_own(_path())
    except FileNotFoundError:
        return []
    found = {each.key: each for each in reversed(_decoder.decode_lines(raw))}
    return [each for each in reversed(found.values()) if until_ns is None or each.at_ns <= until_ns]


def append_corrections(corrections: Sequence[BillCorrection]) -> None:
    """Append corrections with one write, on disk when this returns."""
    make_private(_path().parent)
    file = open_own(_path(), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        lines = (msgspec.json.encode(each) + b"\n" for each in corrections)
        os.write(file, seal_of(file) + b"".join(lines))
        os.fsync(file)
    finally:
        os.close(file)


def corrections_for(
    found: Iterable[Reconciliation],
    earlier: Iterable[BillCorrection],
    *,
    by: str,
    reason: str,
    at_ns: int,
    resources: Sequence[str] = (),
) -> list[BillCorrection]:
    """Return what the books lack to equal the bill, of all resources or of some.

    Raises:
        InvalidValue: There is no reason, or a resource is on no bill of the month.
    """
    if not reason.strip():
        raise InvalidValue("--reason", reason, "why, in a few words")
    found = list(found)
    known = {row.resource for each in found for row in each.rows}
    for resource in resources:
        if resource not in known:
            raise InvalidValue("--resource", resource, "a resource of the reconciliation")
    times = Counter(each.key.rpartition("#")[0] for each in earlier)
    made: list[BillCorrection] = []
    for each in found:
        for row in each.rows:
            if not resources or row.resource in resources:
                for part, micros, user, tags in _shares(row):
                    labels = (f"{key}={value}" for key, value in sorted(tags.items()))
                    where = (each.month, each.currency, row.provider, row.resource)
                    name = "|".join((*where, part, user, *labels))
                    made.append(
                        BillCorrection(
                            key=f"{name}#{times[name]}", month=each.month, provider=row.provider,
                            resource=row.resource, part=part, micros=micros,
                            currency=each.currency, user=user, tags=tags, by=by, reason=reason,
                            at_ns=at_ns,
                        )
                    )  # fmt: skip
    return made


def _shares(row: ReconciledRow) -> Iterator[tuple[str, int, str, dict[str, str]]]:
    """Yield each open part by owner, in proportion to the cost of the owners' runs on it."""
    owners: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for part in row.machine.parts if row.machine is not None else ():
        owner = part.spend.user, tuple(sorted(part.spend.tags.items()))
        owners[owner] = owners.get(owner, 0) + max(part.micros, 0)
    if not any(owners.values()):
        owners = {("", ()): 1}
    for name, micros in row.open_parts.items():
        for (user, tags), share in share_out(micros, owners).items():
            if share:
                yield name, share, user, dict(tags)


def correction_spends(corrections: Iterable[BillCorrection]) -> Iterator[SpendItem]:
    """Yield corrections as spends of the month of their bill."""
    for each in corrections:
        window = month_window(each.month)
        amount = Money(each.micros, each.currency)
        yield SpendItem(
            source="bill", run_id=each.key, model=f"(billed: {each.part})", name=each.part,
            start_ns=window.start_ns, end_ns=window.end_ns, booked_ns=window.start_ns,
            cost=amount, assumed=amount * 0, user=each.user, tags=each.tags,
            provider=each.provider, machine=each.resource,
        )  # fmt: skip
