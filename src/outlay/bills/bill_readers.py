"""Readers of vendors' bills, one per format: each row of a file becomes one or more bill lines.

Formats are recognised by their columns: FOCUS 1.0 to 1.4 (focus.finops.org), AWS CUR 2.0, Google
Cloud's billing export, and the JSON of ``runpodctl billing``; any other table needs a map of its
columns. Files are CSV, JSON or JSON Lines, plain or gzip. One bad row refuses the whole file.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from outlay.bills.bill_line import CATEGORIES, BillLine, Category
from outlay.clock import utc_datetime, wall_ns_of
from outlay.cost.charges import month_window
from outlay.decoding import (
    LARGEST_TABLE,
    BadDocument,
    convert,
    csv_rows,
    decode,
    decode_text,
    gunzip,
    read_file,
    read_toml,
)
from outlay.errors import InvalidValue, OutlayError
from outlay.units.quantity import EXACT, exact_decimal

_GZIP: Final = b"\x1f\x8b"
_PARQUET: Final = b"PAR1"
_NS_PER_HOUR: Final = 3600 * 10**9
_FIRST_YEAR: Final = 1970
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_HOURS: Final = frozenset({"hour", "hours", "hrs", "hr", "h"})


class UnreadableBill(OutlayError):
    """A bill that cannot be read; names the file, and the row and column of the problem."""

    exit_code = 2

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}. Nothing was imported.")


class _BadCell(Exception):
    """A cell that cannot be read."""


@dataclass(frozen=True, slots=True)
class _BillRow:
    """A row by column; a name with dots may be a path into nested objects."""

    cells: Mapping[str, Any]

    def get(self, name: str) -> Any:
        if name in self.cells:
            return self.cells[name]
        found: Any = self.cells
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def text(self, *names: str) -> str:
        """Return the first of some columns that is not empty, as text; "" if none is."""
        found = (str(value).strip() for name in names if (value := self.get(name)) is not None)
        return next((text for text in found if text and text.lower() != "null"), "")

    def number(self, name: str) -> Decimal:
        try:
            return exact_decimal(self._plain(name), name=name, expected="a number")
        except InvalidValue:
            raise _BadCell(f"{name} is {self.get(name)!r}; expected a number") from None

    def optional(self, *names: str) -> Decimal | None:
        return next((self.number(name) for name in names if self.text(name)), None)

    def _plain(self, name: str) -> object:
        value = self.get(name)
        return value.strip().lstrip("$€£") if isinstance(value, str) else value

    def instant(self, name: str) -> int:
        text = self.text(name).removesuffix(" UTC")
        try:
            moment = datetime.fromisoformat(text)
            at_ns = wall_ns_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
            if not _FIRST_YEAR <= utc_datetime(at_ns).year < MAXYEAR:
                raise ValueError
        except (ValueError, OverflowError):
            raise _BadCell(f"{name} is {text!r}; expected an instant or a date") from None
        return at_ns

    def mapping(self, name: str) -> dict[str, str]:
        """Return tags: a JSON object, or a list of objects with ``key`` and ``value``."""
        value = self.get(name)
        if isinstance(value, str) and value.strip():
            try:
                value = decode(value, object)
            except BadDocument as error:
                raise _BadCell(f"{name} is not JSON ({error})") from None
        if isinstance(value, list):
            pairs = (pair for pair in value if isinstance(pair, Mapping))
            value = {pair.get("key"): pair.get("value") for pair in pairs}
        return {str(k): str(v) for k, v in value.items()} if isinstance(value, Mapping) else {}


# Formats


def _focus(row: _BillRow) -> Iterator[BillLine]:
    """Yield the line of a row of FOCUS; 1.4 names the provider in another column than 1.0."""
    start_ns, end_ns = row.instant("ChargePeriodStart"), row.instant("ChargePeriodEnd")
    provider = row.text("ServiceProviderName", "ProviderName", "InvoiceIssuerName")
    commitment, status = row.text("CommitmentDiscountId"), row.text("CommitmentDiscountStatus")
    unit = row.text("PricingUnit", "ConsumedUnit").lower()
    quantity = row.optional("PricingQuantity", "ConsumedQuantity")
    yield BillLine(
        id="",
        invoice=row.text("InvoiceId"),
        provider=provider,
        month=_month(row.instant("BillingPeriodStart")),
        category=_focus_category(row, commitment, status),
        cost=row.number("BilledCost"),
        currency=row.text("BillingCurrency"),
        start_ns=start_ns,
        end_ns=end_ns,
        resource=row.text("ResourceId"),
        name=row.text("ResourceName"),
        sku=" ".join(filter(None, (row.text("SkuId"), row.text("ChargeDescription")))),
        region=row.text("RegionId", "RegionName"),
        billed_ns=_in_ns(quantity) if unit in _HOURS else None,
        commitment=commitment,
        unused=status == "Unused",
        tags=row.mapping("Tags"),
    )


def _focus_category(row: _BillRow, commitment: str, status: str) -> Category:
    match row.text("ChargeCategory"):
        case "Tax":
            return "tax"
        case "Credit":
            return "credit"
        case "Purchase" if commitment:
            return "commitment"
        case "Usage" if status == "Unused":
            return "commitment"
        case "Usage":
            service = row.text("ServiceCategory")
            return {"Storage": "storage", "Networking": "network"}.get(service, "usage")  # type: ignore[return-value]
        case "Purchase" | "Adjustment":
            return "other"
        case unknown:
            known = "Usage, Purchase, Tax, Credit, Adjustment"
            raise _BadCell(f"ChargeCategory is {unknown!r}; expected one of {known}")


_CUR_KINDS: Final[Mapping[str, Category]] = {
    "Usage": "usage", "SavingsPlanCoveredUsage": "usage", "DiscountedUsage": "usage",
    "SavingsPlanNegation": "usage", "SavingsPlanRecurringFee": "commitment",
    "SavingsPlanUpfrontFee": "commitment", "RIFee": "commitment", "Tax": "tax",
    "Credit": "credit", "Refund": "credit", "BundledDiscount": "credit", "EdpDiscount": "credit",
    "PrivateRateDiscount": "credit", "SppDiscount": "credit", "Discount": "credit",
}  # fmt: skip
_CUR_FAMILIES: Final[Mapping[str, Category]] = {
    "Storage": "storage", "System Operation": "storage", "Storage Snapshot": "storage",
    "Data Transfer": "network", "NAT Gateway": "network",
}  # fmt: skip


def _cur(row: _BillRow) -> Iterator[BillLine]:
    """Yield the line of a row of AWS CUR 2.0.

    Usage that a savings plan covers has its on-demand cost, and a negation that takes it back.
    """
    kind = row.text("line_item_line_item_type")
    category = _CUR_KINDS.get(kind, "other")
    commitment = row.text("savings_plan_savings_plan_a_r_n", "reservation_reservation_a_r_n")
    if kind == "Fee" and commitment:
        category = "commitment"
    if category == "usage":
        category = _CUR_FAMILIES.get(row.text("product_product_family"), category)
    is_hours = row.text("pricing_unit").lower() in _HOURS and kind != "SavingsPlanNegation"
    yield BillLine(
        id=_cur_id(row),
        invoice=row.text("bill_invoice_id"),
        provider="aws",
        month=_month(row.instant("bill_billing_period_start_date")),
        category=category,
        cost=row.number("line_item_unblended_cost"),
        currency=row.text("line_item_currency_code"),
        start_ns=row.instant("line_item_usage_start_date"),
        end_ns=row.instant("line_item_usage_end_date"),
        resource=row.text("line_item_resource_id"),
        sku=row.text("line_item_usage_type", "line_item_line_item_description"),
        region=row.text("product_region_code"),
        billed_ns=_in_ns(row.optional("line_item_usage_amount")) if is_hours else None,
        commitment=commitment,
        tags=row.mapping("resource_tags"),
    )


def _cur_id(row: _BillRow) -> str:
    """Return a line's id, which is unique only in one part of a delivery and one interval."""
    line = row.text("identity_line_item_id")
    return f"{line}@{row.text('line_item_usage_start_date')}" if line else ""


def _google(row: _BillRow) -> Iterator[BillLine]:
    """Yield the line of a row of Google Cloud's export, and one for each of its credits.

    Quantities are of cores, GPUs and bytes, and not of machines: hours come from the time.
    """
    kind, sku = row.text("cost_type"), row.text("sku.description")
    kinds: Mapping[str, Category] = {"regular": _google_category(sku), "": _google_category(sku)}
    month = row.text("invoice.month")
    line = BillLine(
        id="",
        invoice=row.text("invoice.id"),
        provider="gcp",
        month=f"{month[:4]}-{month[4:]}" if month.isdigit() else month,
        category="tax" if kind == "tax" else kinds.get(kind, "other"),
        cost=row.number("cost"),
        currency=row.text("currency"),
        start_ns=row.instant("usage_start_time"),
        end_ns=row.instant("usage_end_time"),
        resource=row.text("resource.name"),
        sku=sku,
        region=row.text("location.region"),
        tags=row.mapping("labels"),
    )
    yield line
    credits = row.get("credits")
    if isinstance(credits, str) and credits.strip():
        credits = decode(credits, object)
    for credit in credits if isinstance(credits, list) else ():
        if not isinstance(credit, Mapping):
            raise _BadCell("credits has something else than objects")
        given = _BillRow(credit)
        is_commitment = given.text("type").startswith("COMMITTED_USAGE")
        category: Category = "commitment" if is_commitment else "credit"
        yield replace(
            line, category=category, cost=given.number("amount"), sku=given.text("name", "type"),
            commitment=given.text("id") if is_commitment else "",
        )  # fmt: skip


def _google_category(sku: str) -> Category:
    words = sku.lower()
    if "network" in words or "egress" in words or "data transfer" in words:
        return "network"
    return "storage" if "storage" in words or "snapshot" in words else "usage"


def _runpod(row: _BillRow) -> Iterator[BillLine]:
    """Yield the line of a record of ``runpodctl billing``, in US dollars.

    A record has the time at which its bucket begins, and how long it was billed in it.
    """
    start_ns, billed_ms = row.instant("time"), row.optional("timeBilledMs")
    pod, volume = row.text("podId", "endpointId"), row.text("networkVolumeId")
    billed_ns = None if billed_ms is None else int(EXACT.multiply(billed_ms, Decimal(10**6)))
    yield BillLine(
        id="",
        invoice="",
        provider="runpod",
        month=_month(start_ns),
        category="usage" if pod or row.text("gpuTypeId") else "storage",
        cost=row.number("amount"),
        currency="USD",
        start_ns=start_ns,
        end_ns=start_ns + max(billed_ns or 0, _NS_PER_HOUR),
        resource=pod or volume,
        sku=row.text("gpuTypeId", "gpuId"),
        billed_ns=billed_ns,
    )


class MappedColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The columns of a table of another vendor; only the first three are required."""

    cost: str
    start: str
    end: str
    currency: str = ""
    resource: str = ""
    name: str = ""
    sku: str = ""
    region: str = ""
    hours: str = ""
    category: str = ""
    invoice: str = ""
    line: str = ""
    month: str = ""
    tags: str = ""


class BillMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a table of another vendor is read.

    Attributes:
        currency: Of all rows, if no column has it.
        categories: Values of the category's column, and what they are; others are usage.
    """

    provider: str
    columns: MappedColumns
    currency: str = ""
    categories: dict[str, Category] = {}


def read_map(path: Path) -> BillMap:
    """Read the map of a table's columns.

    Raises:
        UnreadableBill: It is not such a TOML file.
    """
    try:
        return read_toml(path, BillMap)
    except (OSError, BadDocument) as error:
        expected = "a map with provider, currency, [columns] and [categories]"
        raise UnreadableBill(path, f"not {expected} ({error})") from None


def _mapped(how: BillMap) -> Callable[[_BillRow], Iterator[BillLine]]:
    def lines(row: _BillRow) -> Iterator[BillLine]:
        columns = how.columns
        start_ns = row.instant(columns.start)
        stated = row.text(columns.category)
        yield BillLine(
            id=row.text(columns.line),
            invoice=row.text(columns.invoice),
            provider=how.provider,
            month=row.text(columns.month) or _month(start_ns),
            category=how.categories.get(stated, "usage"),
            cost=row.number(columns.cost),
            currency=row.text(columns.currency) or how.currency,
            start_ns=start_ns,
            end_ns=row.instant(columns.end),
            resource=row.text(columns.resource),
            name=row.text(columns.name),
            sku=row.text(columns.sku),
            region=row.text(columns.region),
            billed_ns=_in_ns(row.optional(columns.hours)) if columns.hours else None,
            tags=row.mapping(columns.tags) if columns.tags else {},
        )

    return lines


@dataclass(frozen=True, slots=True)
class _Format:
    """A format of bills, and the columns by which it is recognised."""

    name: str
    columns: frozenset[str]
    lines: Callable[[_BillRow], Iterator[BillLine]]


_FORMATS: Final = (
    _Format("FOCUS", frozenset({"BilledCost", "ChargePeriodStart", "ChargeCategory"}), _focus),
    _Format(
        "AWS CUR 2.0", frozenset({"line_item_unblended_cost", "line_item_line_item_type"}), _cur
    ),
    _Format("Google Cloud", frozenset({"usage_start_time", "cost", "currency"}), _google),
    _Format("RunPod", frozenset({"amount", "time"}), _runpod),
)


# Files


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBill:
    """A bill as it was read.

    Attributes:
        sha256: Of the file.
        has_ids: Whether every line has an id by which it is known in other files of the vendor.
    """

    path: Path
    sha256: str
    format: str
    lines: tuple[BillLine, ...]
    has_ids: bool


def read_bill(path: Path, how: BillMap | None = None) -> ParsedBill:
    """Read a bill.

    Raises:
        UnreadableBill: It is in no known format, or a row cannot be read.
        OSError: The file cannot be read.
    """
    try:
        raw = read_file(path, largest=LARGEST_TABLE)
        rows = _rows(_plain(raw), path)
        first = next(rows, None)
        if first is None:
            raise UnreadableBill(path, "it has no rows")
        named = (
            _recognised(first[1], path)
            if how is None
            else _Format("mapped", frozenset(), _mapped(how))
        )
        found = list(_lines([first, *rows], named, path))
    except BadDocument as error:
        raise UnreadableBill(path, str(error)) from None
    return ParsedBill(
        path=path,
        sha256=hashlib.sha256(raw).hexdigest(),
        format=named.name,
        lines=tuple(_with_ids(found)),
        has_ids=how is not None and all(line.id for line in found),
    )


def _plain(raw: bytes) -> bytes:
    return gunzip([raw], largest=LARGEST_TABLE) if raw.startswith(_GZIP) else raw


def _rows(content: bytes, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each row with its number in the file."""
    if content.startswith(_PARQUET):
        command = f"duckdb -c \"COPY (FROM '{path.name}') TO '{path.stem}.csv'\""
        raise UnreadableBill(path, f"Parquet is not read; convert it, for example with: {command}")
    text = decode_text(content).lstrip("\ufeff")
    start = text.lstrip()[:1]
    if start == "[":
        yield from enumerate(decode(text, list[dict[str, Any]], largest=LARGEST_TABLE), 1)
    elif start == "{":
        yield from _json_rows(text)
    else:
        yield from _csv_rows(text)


def _json_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows of JSON Lines, or of one object with a list of ``records``."""
    try:
        whole = decode(text, dict[str, Any], largest=LARGEST_TABLE)
    except BadDocument:
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield number, decode(line, dict[str, Any])
        return
    records = whole.get("records")
    yield from enumerate([whole] if records is None else convert(records, list[dict[str, Any]]), 1)


def _csv_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = ((number, row) for number, row in csv_rows(io.StringIO(text, newline="")) if row)
    _, names = next(rows, (0, []))
    for number, row in rows:
        if len(row) != len(names):
            raise BadDocument(f"line {number}: {len(row)} cells, and the header has {len(names)}")
        yield number, dict(zip(names, row, strict=True))


def _recognised(row: Mapping[str, Any], path: Path) -> _Format:
    for each in _FORMATS:
        if each.columns <= row.keys():
            return each
    known = ", ".join(each.name for each in _FORMATS)
    raise UnreadableBill(
        path, f"its columns are those of none of {known}; map them with --map FILE.toml"
    )


def _lines(
    rows: Iterable[tuple[int, Mapping[str, Any]]], named: _Format, path: Path
) -> Iterator[BillLine]:
    for number, cells in rows:
        try:
            for line in named.lines(_BillRow(cells)):
                yield _checked(line)
        except _BadCell as error:
            raise UnreadableBill(path, f"row {number}: {error}") from None


def _checked(line: BillLine) -> BillLine:
    """Return a line with an invoice; raises _BadCell if it says what cannot be."""
    if not _CURRENCY.fullmatch(line.currency):
        raise _BadCell(f"the currency is {line.currency!r}; expected a code such as USD")
    if line.end_ns < line.start_ns:
        raise _BadCell("it ends before it begins")
    if (line.billed_ns or 0) < 0:
        raise _BadCell("its hours are negative")
    if line.category not in CATEGORIES or not line.provider:
        raise _BadCell("it names no provider")
    try:
        month_window(line.month)
    except InvalidValue as error:
        raise _BadCell(str(error)) from None
    return replace(line, invoice=line.invoice or f"{line.provider} {line.month}")


def _with_ids(lines: Iterable[BillLine]) -> Iterator[BillLine]:
    """Yield lines with ids: of one without an id, a hash of its content and its occurrence."""
    seen: Counter[str] = Counter()
    for line in lines:
        if line.id:
            yield line
            continue
        digest = hashlib.sha256(msgspec.json.encode(line)).hexdigest()[:24]
        seen[digest] += 1
        yield replace(line, id=f"{digest}-{seen[digest]}")


def _in_ns(hours: Decimal | None) -> int | None:
    return None if hours is None else round(EXACT.multiply(hours, Decimal(_NS_PER_HOUR)))


def _month(at_ns: int) -> str:
    return utc_datetime(at_ns).strftime("%Y-%m")
