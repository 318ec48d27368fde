"""Imported bills: their lines in immutable files of the outlay home, indexed by the store.

A file is identified by its SHA-256, a line by its provider, invoice and id: importing a file again
changes nothing. A newer version of an invoice replaces its lines only if that is asked for; the
earlier file stays where it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
from sqlalchemy import Connection, Engine, insert, select

from outlay.bills.bill_line import (
    BillLine,
    InvoiceTotal,
    exact_sum,
    to_the_cent,
    totals_of,
)
from outlay.bills.bill_readers import ParsedBill
from outlay.decoding import LARGEST_TABLE, BadDocument, convert, decode, read_file
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.files import make_private, write_whole
from outlay.store import outlay_home
from outlay.store.connection import report_damage, writing
from outlay.store.schema import bills
from outlay.units import Money

VERSION: Final = 1
Again = Literal["refuse", "add", "replace"]
"""What to do with lines of an invoice of which others are known already."""
_LineKey = tuple[str, str, str]


class BillFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a kept file: where its lines are from.

    Attributes:
        file: The name of the imported file, and ``sha256`` its hash.
        invoices: By provider and invoice, the currency and the exact sum of all lines.
        replaces: The invoices, as ``[provider, invoice]``, whose earlier lines it replaces.
    """

    version: int = VERSION
    file: str
    sha256: str
    format: str
    imported_ns: int
    lines: int
    months: tuple[str, ...]
    invoices: tuple[InvoiceTotal, ...]
    replaces: tuple[tuple[str, str], ...] = ()


class InvoiceKnown(OutlayError):
    """Lines of an invoice were imported before, and it is not clear what this file is to it."""

    exit_code = 2

    def __init__(self, line: BillLine, files: Sequence[_KeptBill], problem: str) -> None:
        seen = [each.file for each, _, lines in files if any(_same(line, e) for e in lines)]
        super().__init__(
            f"invoice {line.invoice} was imported from {', '.join(seen)}, and {problem}. "
            "Nothing was imported. --replace takes this file's lines instead of those; --add adds "
            "them, if this file is another part of the same invoice."
        )


class WrongTotal(OutlayError):
    """The lines of a bill do not sum to the total that the user read on the invoice."""

    exit_code = 2

    def __init__(self, stated: Money, found: Sequence[InvoiceTotal]) -> None:
        sums = ", ".join(f"{each.to_the_cent} {each.currency}" for each in found)
        super().__init__(
            f"the lines sum to {sums}, and --total is {stated}. Nothing was imported. Is a part "
            "of the invoice in another file?"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did: the kept file, and how many lines were new."""

    about: BillFile
    path: Path
    new_lines: int


def check_total(parsed: ParsedBill, stated: Money) -> None:
    """Compare a bill with the total of the invoice, to the cent.

    Raises:
        WrongTotal: They differ.
    """
    found = totals_of(parsed.lines)
    total = exact_sum(each.total for each in found)
    currencies = {each.currency for each in found}
    if currencies != {stated.currency} or to_the_cent(total) != to_the_cent(stated.amount):
        raise WrongTotal(stated, found)


class BillBook:
    """The imported bills of a store.

    Attributes:
        damage: Findings about bills that cannot be read, which are left out.
    """

    def __init__(self, store: Engine, damage: list[Finding] | None = None) -> None:
        self._store = store
        self.damage = [] if damage is None else damage

    def add(self, parsed: ParsedBill, now_ns: int, *, again: Again = "refuse") -> Imported:
        """Import a bill; a file, or lines, that were imported before are not imported again.

        Raises:
            InvoiceKnown: Others lines of an invoice in it are known, and ``again`` is ``refuse``.
        """
        with writing(self._store) as connection:
            known = self._files(connection, {line.month for line in parsed.lines})
            for about, path, _ in known:
                if about.sha256 == parsed.sha256:
                    return Imported(about=about, path=path, new_lines=0)
            new, replaces = _new_lines(parsed, known, again)
            if not new:
                about, path, _ = known[-1]
                return Imported(about=about, path=path, new_lines=0)
            about = BillFile(
                file=parsed.path.name, sha256=parsed.sha256, format=parsed.format,
                imported_ns=now_ns, lines=len(new), invoices=totals_of(new), replaces=replaces,
                months=tuple(sorted({line.month for line in new})),
            )  # fmt: skip
            path = _keep(about, new)
            row = {
                "sha256": about.sha256, "path": str(path), "imported_ns": now_ns,
                "kept_sha256": _digest(path), "months": about.months,
                "about": msgspec.to_builtins(about),
            }  # fmt: skip
            connection.execute(insert(bills), [row])
        return Imported(about=about, path=path, new_lines=len(new))

    def files(self) -> list[BillFile]:
        """Return the imported files, oldest first."""
        with self._store.begin() as connection:
            return [about for about, _, _ in self._files(connection, with_lines=False)]

    def lines(self, month: str | None = None) -> list[BillLine]:
        """Return the lines of a month's invoices, or of all, without replaced ones."""
        with self._store.begin() as connection:
            found = self._files(connection, None if month is None else {month})
        return [line for line in _effective(found).values() if month in (None, line.month)]

    def _files(
        self, connection: Connection, months: Set[str] | None = None, *, with_lines: bool = True
    ) -> list[_KeptBill]:
        order = select(bills).order_by(bills.c.imported_ns, bills.c.sha256)
        found = []
        for row in connection.execute(order).mappings():
            try:
                about, path = convert(row["about"], BillFile), Path(row["path"])
                if months is not None and months.isdisjoint(about.months):
                    continue
                lines = _read_kept(path, row["kept_sha256"]) if with_lines else []
            except (BadDocument, OSError, TypeError) as error:
                report_damage(self.damage, f"bill {row['sha256']!s:.12}", str(error))
            else:
                found.append((about, path, lines))
        return found


_KeptBill = tuple[BillFile, Path, list[BillLine]]


def _key(line: BillLine) -> _LineKey:
    return line.provider, line.invoice, line.id


def _same(one: BillLine, other: BillLine) -> bool:
    """Return whether two lines are of the same invoice."""
    return _key(one)[:2] == _key(other)[:2]


def _effective(files: Iterable[_KeptBill]) -> dict[_LineKey, BillLine]:
    """Return the lines that are in force, by key, in the order of import."""
    found: dict[_LineKey, BillLine] = {}
    for about, _, lines in files:
        if gone := set(about.replaces):
            found = {key: line for key, line in found.items() if key[:2] not in gone}
        found |= {_key(line): line for line in lines}
    return found


def _new_lines(
    parsed: ParsedBill, files: Sequence[_KeptBill], again: Again
) -> tuple[list[BillLine], tuple[tuple[str, str], ...]]:
    """Return the lines to import, and the invoices whose earlier lines they replace."""
    known = _effective(files)
    mine = {_key(line): line for line in parsed.lines}
    if len(mine) != len(parsed.lines):
        raise InvalidValue("FILE", str(parsed.path), "a bill whose line ids are unique")
    invoices = {key[:2] for key in mine} & {key[:2] for key in known}
    new = [line for key, line in mine.items() if known.get(key) != line]
    if not new or not invoices:
        return new, ()
    if again == "replace":
        return list(mine.values()), tuple(sorted(invoices))
    for line in new:
        if _key(line) in known:
            raise InvoiceKnown(line, files, f"its line {line.id} is another one here")
        if _key(line)[:2] in invoices and again == "refuse" and not parsed.has_ids:
            raise InvoiceKnown(line, files, "this file has other lines of it")
    return new, ()


def _keep(about: BillFile, lines: Sequence[BillLine]) -> Path:
    directory = outlay_home() / "bills"
    make_private(directory)
    path = (directory / f"{about.sha256}.jsonl").absolute()
    content = b"".join(msgspec.json.encode(each) + b"\n" for each in (about, *lines))
    write_whole(path, content, synced=True, private=True)
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(read_file(path, largest=4 * LARGEST_TABLE)).hexdigest()


def _read_kept(path: Path, digest: str) -> list[BillLine]:
    """Return the lines of a kept file.

    Raises:
        BadDocument: It is not as it was written.
        OSError: It cannot be read.
    """
    raw = read_file(path, largest=4 * LARGEST_TABLE)
    if hashlib.sha256(raw).hexdigest() != digest:
        raise BadDocument(f"{path} was changed since it was written")
    about, *lines = raw.splitlines()
    if decode(about, BillFile).version > VERSION:
        raise BadDocument(f"{path} is of a newer version")
    return [decode(line, BillLine) for line in lines]
