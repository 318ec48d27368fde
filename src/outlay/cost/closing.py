"""Closed months: a month as it was reported, which nothing that becomes known later changes.

A closed month is a document. What is known of it later (a log that was imported, a corrected
price, a line of a bill) is the difference to the document, and books into the open month: the one
after the last that is closed. Each such spend names its month of origin. So every month's total
stays what was reported, and all months together are what is known. Pure, but for reading and
writing the documents in the outlay home, which the store indexes.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal

import msgspec
from sqlalchemy import Engine, insert, select, text

from outlay.clock import utc_datetime, utc_text
from outlay.cost.charges import month_window
from outlay.cost.spending import Spending, SpendItem
from outlay.decoding import BadDocument, decode
from outlay.errors import Finding, InvalidValue, OutlayError
from outlay.files import make_private, write_whole
from outlay.rates import share_out
from outlay.store import outlay_home
from outlay.store.connection import writing
from outlay.store.schema import closed_months
from outlay.units import Money, Unit
from outlay.units.billing_terms import BillingTerms
from outlay.units.money import MICROS, Kind

CLOSED: Final = "closed"
"""The directory of the documents, in the outlay home."""
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ([A-Z]{3})/([A-Z]{3})")


class NotTheOwner(OutlayError):
    """A login that does not own the store tried to close a month of it."""

    def __init__(self, login: str, owner: str) -> None:
        super().__init__(
            f"{login} may not close a month of this store: {owner} owns it and may. "
            "Set OUTLAY_STORE to the owner's URL, or ask them to run the command."
        )


class ClosedSpend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A spend of a closed month, with the fields of ``SpendItem``."""

    source: Literal["ledger", "stated", "rental", "owned", "increment", "commitment", "bill"]
    run_id: str
    model: str
    name: str
    start_ns: int
    end_ns: int
    booked_ns: int
    micros: int
    currency: str
    kind: Kind = "cash"
    assumed_micros: int = 0
    gpu_us: int = 0
    user: str = ""
    tags: dict[str, str] = {}
    provider: str = ""
    machine: str = ""
    host: str = ""
    machines: dict[str, int] = {}
    aliases: tuple[str, ...] = ()
    offer: str = ""
    terms: BillingTerms | None = None
    between: bool = False
    origin: str = ""

    def item(self) -> SpendItem:
        """Return it as a spend."""
        unit = Unit(self.currency, self.kind)
        amounts = ("micros", "currency", "kind", "assumed_micros")
        same = {n: v for n, v in msgspec.structs.asdict(self).items() if n not in amounts}
        return SpendItem(
            **same, cost=unit.money(self.micros), assumed=unit.money(self.assumed_micros),
            closed=True,
        )  # fmt: skip


class MonthTotal(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent in a month in one unit."""

    micros: int
    currency: str
    kind: Kind


class ClosedMonth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of a closed month.

    Attributes:
        month: Such as ``2026-10``, UTC.
        by: Who closed it.
        previous: SHA-256 of the document of the month before; "" for the first one.
        rates: Stated exchange rates: what one of a currency is worth, such as ``1.08 USD``.
        findings: What was known to be wrong when it was closed.
    """

    month: str
    closed_ns: int
    by: str
    reason: str
    previous: str = ""
    totals: tuple[MonthTotal, ...] = ()
    rates: dict[str, str] = {}
    spends: tuple[ClosedSpend, ...] = ()
    findings: tuple[str, ...] = ()

    def money(self) -> dict[Unit, Money]:
        """Return the total of each unit."""
        units = ((Unit(each.currency, each.kind), each.micros) for each in self.totals)
        return {unit: unit.money(micros) for unit, micros in units}

    def at_stated_rates(self) -> list[Money]:
        """Return the totals in the currency of the stated rates, where all of them are stated."""
        worth = {name: Money.parse(amount) for name, amount in self.rates.items()}
        currencies = {money.currency for money in worth.values()}
        if len(currencies) != 1:
            return []
        (one,) = currencies
        sums: dict[Kind, int] = defaultdict(int)
        for unit, money in self.money().items():
            if unit.currency != one and unit.currency not in worth:
                return []
            rate = MICROS if unit.currency == one else worth[unit.currency].micros
            sums[unit.kind] += round(Decimal(money.micros * rate) / MICROS)
        return [Unit(one, kind).money(micros) for kind, micros in sums.items()]


@dataclass(frozen=True, slots=True)
class KeptMonth:
    """A closed month, and the SHA-256 of its document."""

    document: ClosedMonth
    sha256: str

    @property
    def start_ns(self) -> int:
        """The begin of the month."""
        return month_window(self.document.month).start_ns

    @property
    def end_ns(self) -> int:
        """The end of the month."""
        return month_window(self.document.month).end_ns


# What counts


def with_closed_months(
    spending: Spending, closed: Sequence[KeptMonth], *, as_of_ns: int | None = None
) -> Spending:
    """Return spending in which closed months are as their documents have them.

    What else is known of a closed month books into the open one, and names its origin. As of an
    instant, only documents say what was spent before the end of the last closed month: what was not
    known when a month was closed does not count in it, nor does it have a month yet.
    """
    counted = [each for each in closed if as_of_ns is None or each.start_ns < as_of_ns]
    if not counted:
        return spending
    first_ns, open_ns = counted[0].start_ns, counted[-1].end_ns
    known = [each for each in spending.spends if not first_ns <= each.booked_ns < open_ns]
    documented = [spend.item() for each in counted for spend in each.document.spends]
    late: list[SpendItem] = []
    if as_of_ns is None:
        late = list(_late(spending, counted, documented, open_ns))
    else:
        documented = list(_until(documented, as_of_ns))
    spends = sorted(
        (*known, *documented, *late), key=lambda each: (each.booked_ns, each.run_id, each.start_ns)
    )
    return replace(spending, spends=tuple(spends))


def _late(
    spending: Spending, closed: Sequence[KeptMonth], documented: Iterable[SpendItem], open_ns: int
) -> Iterator[SpendItem]:
    """Yield the differences between what is known of closed months and what was booked of them."""
    known: dict[tuple[object, ...], list[SpendItem]] = defaultdict(list)
    booked: dict[tuple[object, ...], list[SpendItem]] = defaultdict(list)
    for spend in spending.spends:
        if closed[0].start_ns <= spend.booked_ns < open_ns:
            known[_month(spend), *_key(spend)].append(spend)
    for spend in documented:
        booked[spend.origin or _month(spend), *_key(spend)].append(spend)
    for key in dict.fromkeys((*known, *booked)):
        now, then = known[key], booked[key]
        cost = _total(now, "cost") - _total(then, "cost")
        assumed = _total(now, "assumed") - _total(then, "assumed")
        if cost or assumed:
            first, last = (now or then)[0], (now or then)[-1]
            yield replace(
                first, cost=first.unit.money(cost), assumed=first.unit.money(assumed),
                gpu_us=sum(s.gpu_us for s in now) - sum(s.gpu_us for s in then),
                end_ns=max(first.end_ns, last.end_ns), booked_ns=open_ns, closed=False,
                origin=str(key[0]),
            )  # fmt: skip


def _month(spend: SpendItem) -> str:
    return utc_datetime(spend.booked_ns).strftime("%Y-%m")


def _key(spend: SpendItem) -> tuple[object, ...]:
    """Return what a spend has to have in common with another to be about the same."""
    tags = tuple(sorted(spend.tags.items()))
    return spend.source, spend.run_id, spend.unit, spend.user, tags


def _total(spends: Iterable[SpendItem], name: Literal["cost", "assumed"]) -> int:
    return sum(getattr(spend, name).micros for spend in spends)


def _until(spends: Iterable[SpendItem], until_ns: int) -> Iterator[SpendItem]:
    """Yield what a document says of the time up to an instant, in proportion to time."""
    for spend in spends:
        if spend.booked_ns >= until_ns:
            continue
        if spend.end_ns <= until_ns or spend.between or spend.origin or spend.source == "stated":
            yield spend
            continue
        weights = {True: until_ns - spend.start_ns, False: spend.end_ns - until_ns}
        cost, assumed, gpu_us = (
            share_out(whole, weights)[True]
            for whole in (spend.cost.micros, spend.assumed.micros, spend.gpu_us)
        )
        money = spend.unit.money
        yield replace(
            spend, cost=money(cost), assumed=money(assumed), gpu_us=gpu_us, end_ns=until_ns
        )


# Documents


def document_of(
    month: str,
    spending: Spending,
    *,
    by: str,
    reason: str,
    now_ns: int,
    previous: str = "",
    rates: Sequence[str] = (),
) -> ClosedMonth:
    """Return the document of a month from all spending.

    Raises:
        InvalidValue: The month has not ended, there is no reason, or a rate cannot be parsed.
    """
    window = month_window(month)
    if now_ns < window.end_ns:
        expected = f"a month that has ended; this one ends on {utc_text(window.end_ns)}"
        raise InvalidValue("MONTH", month, expected)
    if not reason.strip():
        raise InvalidValue("--reason", reason, "why the month is closed, such as the invoices seen")
    found = spending.within(window.start_ns, window.end_ns)
    findings = (*found.findings, *found.unpriced_finding())
    return ClosedMonth(
        month=month,
        closed_ns=now_ns,
        by=by,
        reason=reason,
        previous=previous,
        totals=tuple(
            MonthTotal(micros=total.cost.micros, currency=unit.currency, kind=unit.kind)
            for unit, total in found.totals().items()
        ),
        rates=dict(map(_parse_rate, rates)),
        spends=tuple(map(_closed_spend, found.spends)),
        findings=tuple(map(str, findings)),
    )


def _parse_rate(stated: str) -> tuple[str, str]:
    match = _RATE.fullmatch(stated.strip())
    if match is None or not Decimal(match[1]):
        raise InvalidValue("--rate", stated, 'what one unit is worth, such as "1.08 USD/EUR"')
    return match[3], f"{match[1]} {match[2]}"


def _closed_spend(spend: SpendItem) -> ClosedSpend:
    same = {
        name: getattr(spend, name)
        for name in ClosedSpend.__struct_fields__
        if name not in ("micros", "currency", "kind", "assumed_micros", "tags")
    }
    return ClosedSpend(
        **same, tags=dict(spend.tags), micros=spend.cost.micros, currency=spend.unit.currency,
        kind=spend.unit.kind, assumed_micros=spend.assumed.micros,
    )  # fmt: skip


def open_month(t_ns: int, closed: Sequence[KeptMonth]) -> str | None:
    """Return where what belongs to an instant is booked now; None if its own month is open."""
    if not closed or t_ns >= closed[-1].end_ns:
        return None
    return utc_datetime(closed[-1].end_ns).strftime("%Y-%m")


def must_follow(month: str, closed: Sequence[KeptMonth]) -> None:
    """Raise InvalidValue unless a month is the one after the last that is closed."""
    if not closed:
        return
    following = open_month(closed[-1].start_ns, closed)
    if month in [each.document.month for each in closed]:
        raise InvalidValue("MONTH", month, f"a month that is not closed yet: {following} is next")
    if month != following:
        raise InvalidValue("MONTH", month, f"the month after the last closed one: {following}")


def keep_month(store: Engine, document: ClosedMonth) -> tuple[KeptMonth, Path]:
    """Write a document to the outlay home, and index it in the store.

    Raises:
        NotTheOwner: The store is in PostgreSQL, and somebody else's.
    """
    _must_own(store)
    content = msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2)
    content += b"\n"
    sha256 = hashlib.sha256(content).hexdigest()
    path = outlay_home() / CLOSED / f"{document.month}.json"
    row = {
        "month": document.month, "sha256": sha256, "closed_ns": document.closed_ns,
        "closed_by": document.by, "reason": document.reason, "document": content.decode(),
    }  # fmt: skip
    with writing(store) as connection:
        connection.execute(insert(closed_months).values(row))
        make_private(path.parent)
        write_whole(path, content, synced=True, private=True)
    return KeptMonth(document, sha256), path


def store_login(store: Engine) -> str:
    """Return who uses a store in PostgreSQL; "" for a file, which does not know."""
    if store.dialect.name != "postgresql":
        return ""
    with store.begin() as connection:
        return str(connection.scalar(text("SELECT current_user")))


def _must_own(store: Engine) -> None:
    if not (login := store_login(store)):
        return
    query = text(
        "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass(:name)"
    ).bindparams(name=closed_months.name)
    with store.begin() as connection:
        owner = str(connection.scalar(query))
    if owner != login:
        raise NotTheOwner(login, owner)


def read_closed_months(store: Engine) -> tuple[list[KeptMonth], list[Finding]]:
    """Return the closed months in order, and findings on documents that do not have their hash.

    The store's copy counts; a document that only the outlay home has counts, too: the store is an
    index, and may be a new one.
    """
    column, findings = closed_months.c, list[Finding]()
    with store.begin() as connection:
        query = select(column.month, column.sha256, column.document).order_by(column.month)
        rows = {month: (sha256, document) for month, sha256, document in connection.execute(query)}
    kept: dict[str, KeptMonth] = {}
    for path in sorted((outlay_home() / CLOSED).glob("*.json")):
        try:
            content = path.read_bytes()
        except OSError as error:
            findings.append(Finding(source=str(path), message=str(error)))
            continue
        expected = rows[path.stem][0] if path.stem in rows else None
        seen = hashlib.sha256(content).hexdigest()
        if expected not in (None, seen):
            message = f"is not the document that was closed: its SHA-256 is {seen}, not {expected}"
            findings.append(Finding(source=str(path), message=message))
        elif expected is None:
            rows[path.stem] = (seen, content.decode(errors="replace"))
    for month, (sha256, document) in sorted(rows.items()):
        try:
            found = decode(document, ClosedMonth)
        except BadDocument as error:
            findings.append(Finding(source=f"closed month {month}", message=str(error)))
            continue
        if hashlib.sha256(document.encode()).hexdigest() != sha256:
            message = "the store's copy of its document does not have its hash"
            findings.append(Finding(source=f"closed month {month}", message=message))
        kept[month] = KeptMonth(found, sha256)
    return list(kept.values()), findings
