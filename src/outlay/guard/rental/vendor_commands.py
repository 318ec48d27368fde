"""Parsing of vendors' replies, and the commands of six vendors. Pure.

Command line tools: runpodctl (``pod list --all`` includes stopped pods, which still bill), vastai,
prime, sky and dstack; and Lambda's Cloud API through curl, with the key on standard input so that
it is in no process list. With sky (``-o json`` since 2026) and dstack the name set at creation is
the id. ``prime pods list`` has pages, ``dstack ps`` stops at 100 runs, and the others print all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from outlay.clock import wall_ns_of
from outlay.decoding import BadDocument, decode_as_python
from outlay.errors import InvalidValue, OutlayError, choices
from outlay.guard.entries import Vendor, parse_timestamp
from outlay.units import Rate
from outlay.units.quantity import exact_decimal

_CURL = ("curl", "--silent", "--show-error", "--fail", "--max-time", "30", "--config", "-")
_LAMBDA = "https://cloud.lambda.ai/api/v1"

PRESETS = {
    "runpod": Vendor(
        name="runpod",
        list=("runpodctl", "pod", "list", "--all", "--output", "json"),
        terminate=("runpodctl", "pod", "delete", "{id}"),
        show=("runpodctl", "pod", "get", "{id}", "--output", "json"),
        created_key="createdAt",
        whole_below=0,
    ),
    "vast": Vendor(
        name="vast",
        list=("vastai", "show", "instances", "--raw"),
        terminate=("vastai", "destroy", "instance", "{id}", "--raw"),
        id_from="json:.new_contract",
        name_key="label",
        show=("vastai", "show", "instance", "{id}", "--raw"),
        created_key="start_date",
        whole_below=0,
    ),
    "lambda": Vendor(
        name="lambda",
        list=(*_CURL, f"{_LAMBDA}/instances"),
        terminate=(
            *_CURL, "--header", "Content-Type: application/json",
            "--data", '{"instance_ids": ["{id}"]}', f"{_LAMBDA}/instance-operations/terminate",
        ),
        id_from="json:.data.instance_ids[0]",
        items=".data",
        state_key="status",
        gone_states=("terminated",),
        stdin='header = "Authorization: Bearer $LAMBDA_API_KEY"\n',
        show=(*_CURL, f"{_LAMBDA}/instances/{{id}}"),
        whole_below=0,
    ),
    "prime": Vendor(
        name="prime",
        list=("prime", "pods", "list", "--output", "json", "--plain", "--offset", "{offset}"),
        terminate=("prime", "pods", "terminate", "{id}", "--yes", "--plain"),
        id_from=r"regex:\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
        items=".pods",
        show=("prime", "pods", "status", "{id}", "--output", "json", "--plain"),
        created_key="created_at",
        total=".total_count",
    ),
    "skypilot": Vendor(
        name="skypilot",
        list=("sky", "status", "--refresh", "-o", "json"),
        terminate=("sky", "down", "--yes", "{id}"),
        id_from="name",
        id_key="name",
        whole_below=0,
    ),
    "dstack": Vendor(
        name="dstack",
        list=("dstack", "ps", "--json"),
        terminate=("dstack", "stop", "--yes", "{id}"),
        id_from="name",
        items=".runs",
        id_key=".run_spec.run_name",
        name_key=".run_spec.run_name",
        state_key="status",
        gone_states=("terminated", "failed", "done"),
        whole_below=100,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ListedRate:
    """Where a listed machine has its price per hour.

    Attributes:
        parts: How many of the price are one of the currency: 100 cents are a dollar.
    """

    key: str
    currency: str = "USD"
    parts: int = 1


LISTED_RATES = {
    "runpod": ListedRate("costPerHr"),
    "vast": ListedRate("dph_total"),
    "lambda": ListedRate(".instance_type.price_cents_per_hour", parts=100),
}
"""The prices in the lists of presets; the lists of the others have none."""

MOST_PAGES = 100
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]")


class UnreadableReply(OutlayError):
    """A vendor's reply can't be parsed, so it proves nothing."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine in a vendor's listing; ``created_ns`` and ``rate`` are None if not listed."""

    id: str
    name: str
    created_ns: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class ListingPage:
    """One answer of the list command.

    Attributes:
        ids: Of all rows, those in a ``gone`` state included.
        total: The number of rows of all pages, if the vendor states it.
    """

    machines: tuple[ListedMachine, ...]
    ids: tuple[str, ...]
    total: int | None = None


@dataclass(frozen=True, slots=True)
class VendorListing:
    """The machines that a vendor lists.

    Attributes:
        rows: The number of rows, those in a ``gone`` state included.
        complete: Whether these are all; if not, an absence proves nothing.
    """

    machines: tuple[ListedMachine, ...]
    rows: int
    complete: bool


def preset(name: str) -> Vendor:
    """Return the commands of a known vendor."""
    if name not in PRESETS:
        raise InvalidValue("vendor", name, choices(PRESETS))
    return PRESETS[name]


def check_id_from(id_from: str) -> None:
    """Raise InvalidValue for a malformed ``id_from``."""
    how, _, where = id_from.partition(":")
    if id_from == "name":
        return
    if how == "regex":
        try:
            re.compile(where)
        except re.error as error:
            raise InvalidValue("id-from", id_from, f"a pattern after regex: ({error})") from None
    elif how == "json":
        _steps(where)
    else:
        raise InvalidValue("id-from", id_from, "json:.path.to[0].id, regex:pattern or name")


def parse_id(id_from: str, output: str, name: str) -> str:
    """Return the id in the create command's output; ``name`` is the machine's name."""
    check_id_from(id_from)
    how, _, where = id_from.partition(":")
    if id_from == "name":
        return name
    if how == "regex":
        match = re.search(where, output)
        found: object = match[1] if match and match.re.groups else match and match[0]
    else:
        found = _at(_json(output), where)
    if isinstance(found, bool) or not isinstance(found, str | int) or not str(found).strip():
        raise UnreadableReply(f"no id at {id_from} in what creation printed")
    return str(found).strip()


def parse_page(vendor: Vendor, output: str, rate: ListedRate | None = None) -> ListingPage:
    """Return one page of a listing; its machines are those not in a ``gone`` state.

    ``rate`` says where machines have their price.

    Raises:
        UnreadableReply: Not the expected list; an empty one is valid.
    """
    document = _json(output)
    items = _at(document, vendor.items)
    if not isinstance(items, list):
        raise UnreadableReply(
            f"expected a JSON array{' at ' + vendor.items if vendor.items else ''}"
        )
    total = _at(document, vendor.total) if vendor.total else None
    if vendor.total and (isinstance(total, bool) or not isinstance(total, int)):
        raise UnreadableReply(f"no number of items at {vendor.total}")
    machines = (
        ListedMachine(
            _id_of(vendor, item),
            str(_field(item, vendor.name_key) or ""),
            _created_ns(_field(item, vendor.created_key) if vendor.created_key else None),
            None if rate is None else _rate_of(_field(item, rate.key), rate),
        )
        for item in items
        if not _is_gone(vendor, item)
    )
    return ListingPage(
        machines=tuple(machines),
        ids=tuple(_id_of(vendor, item) for item in items),
        total=total if isinstance(total, int) else None,
    )


def has_pages(vendor: Vendor) -> bool:
    """Return whether the list command asks for pages."""
    return any("{offset}" in word for word in vendor.list)


def may_continue(vendor: Vendor, pages: Sequence[ListingPage]) -> bool:
    """Return whether a page may follow these: the last one added rows, and not all are there."""
    if not has_pages(vendor) or len(pages) >= MOST_PAGES:
        return False
    *before, last = pages
    seen = {each for page in before for each in page.ids}
    return not seen.issuperset(last.ids) and last.total != len(seen.union(last.ids))


def join_pages(vendor: Vendor, pages: Sequence[ListingPage], *, all_rows: bool) -> VendorListing:
    """Return the listing of all pages; ``all_rows`` if the user stated that it has none.

    With a stated total, pages that moved while they were read do not add up to it. Without one,
    the last page must be empty.
    """
    machines = {machine.id: machine for page in pages for machine in page.machines}
    rows = len({each for page in pages for each in page.ids})
    if vendor.total:
        complete = all(page.total == rows for page in pages)
    elif has_pages(vendor):
        complete = not pages[-1].ids
    else:
        complete = all_rows or not vendor.whole_below or rows < vendor.whole_below
    return VendorListing(tuple(machines.values()), rows, complete)


def is_shown(vendor: Vendor, output: str, machine_id: str) -> bool:
    """Return whether the output of the show command is that machine, not in a ``gone`` state."""
    try:
        document = _json(output)
    except UnreadableReply:
        return False
    inner = _field(document, vendor.items) if vendor.items else None
    found = [document, inner, *(inner if isinstance(inner, list) else ())]
    found += document if isinstance(document, list) else ()
    return any(
        str(_field(item, vendor.id_key)) == machine_id and not _is_gone(vendor, item)
        for item in found
        if isinstance(item, dict)
    )


def _created_ns(value: object) -> int | None:
    """Return a creation time in UTC nanoseconds; None if it can't be read."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).removesuffix(" UTC").replace(" +", "+")  # as Go prints it
    try:
        is_number = not isinstance(value, str) or value.isdecimal()
        return wall_ns_of(parse_timestamp(float(text) if is_number else text))
    except (msgspec.ValidationError, OverflowError):
        return None


def _rate_of(value: object, stated: ListedRate) -> Rate | None:
    """Return a listed price per hour; None if it can't be read."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        amount = exact_decimal(value, name=stated.key, expected="a price") / stated.parts
        return Rate.parse(amount, currency=stated.currency)
    except InvalidValue:
        return None


def _id_of(vendor: Vendor, item: object) -> str:
    found = _field(item, vendor.id_key)
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise UnreadableReply(f"a listed item has no {vendor.id_key!r}")
    return str(found)


def _is_gone(vendor: Vendor, item: object) -> bool:
    return bool(vendor.state_key) and _field(item, vendor.state_key) in vendor.gone_states


def _field(item: object, key: str) -> object:
    """Return a listed item's value at a key, or at a path such as ``.spec.name``; None if none."""
    if not key.startswith("."):
        return item.get(key) if isinstance(item, dict) else None
    try:
        return _at(item, key)
    except UnreadableReply:
        return None


def _json(output: str) -> object:
    try:
        return decode_as_python(output)
    except BadDocument as error:
        raise UnreadableReply(f"the answer is not JSON ({error})") from None


def _steps(path: str) -> list[re.Match[str]]:
    steps = list(_STEP.finditer(path))
    if "".join(step[0] for step in steps) != path:
        raise InvalidValue("path", path, "keys and indices such as .data.ids[0]")
    return steps


def _at(value: object, path: str) -> object:
    """Return the value at ``.a.b[0]``; the empty path is the value itself."""
    for match in _steps(path):
        key, index = match[1], match[2]
        if key is not None and isinstance(value, dict) and key in value:
            value = value[key]
        elif index is not None and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            raise UnreadableReply(f"nothing at {path}")
    return value
