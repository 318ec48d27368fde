"""Parsing of vendors' replies, and the commands of six vendors. Pure.

Command line tools: runpodctl (``pod list --all`` includes stopped pods, which still bill), vastai,
prime, sky and dstack; and Lambda's Cloud API through curl, with the key on standard input so that
it is in no process list. With sky (``-o json`` since 2026) and dstack the name set at creation is
the id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlay.decoding import BadDocument, decode_as_python
from outlay.errors import InvalidValue, OutlayError, choices
from outlay.guard.entries import Vendor

_CURL = ("curl", "--silent", "--show-error", "--fail", "--max-time", "30", "--config", "-")
_LAMBDA = "https://cloud.lambda.ai/api/v1"

PRESETS = {
    "runpod": Vendor(
        name="runpod",
        list=("runpodctl", "pod", "list", "--all", "--output", "json"),
        terminate=("runpodctl", "pod", "delete", "{id}"),
    ),
    "vast": Vendor(
        name="vast",
        list=("vastai", "show", "instances", "--raw"),
        terminate=("vastai", "destroy", "instance", "{id}", "--raw"),
        id_from="json:.new_contract",
        name_key="label",
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
    ),
    "prime": Vendor(
        name="prime",
        list=("prime", "pods", "list", "--output", "json", "--plain"),
        terminate=("prime", "pods", "terminate", "{id}", "--yes", "--plain"),
        id_from=r"regex:\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
        items=".pods",
    ),
    "skypilot": Vendor(
        name="skypilot",
        list=("sky", "status", "--refresh", "-o", "json"),
        terminate=("sky", "down", "--yes", "{id}"),
        id_from="name",
        id_key="name",
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
    ),
}  # fmt: skip

_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]")


class UnreadableReply(OutlayError):
    """A vendor's reply can't be parsed, so it proves nothing."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine in a vendor's listing."""

    id: str
    name: str


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


def parse_listing(vendor: Vendor, output: str) -> tuple[ListedMachine, ...]:
    """Return the machines in a listing, without those in a ``gone`` state.

    Raises:
        UnreadableReply: Not the expected list; an empty one is valid.
    """
    items = _at(_json(output), vendor.items)
    if not isinstance(items, list):
        raise UnreadableReply(
            f"expected a JSON array{' at ' + vendor.items if vendor.items else ''}"
        )
    return tuple(
        ListedMachine(_id_of(vendor, item), str(_field(item, vendor.name_key) or ""))
        for item in items
        if not _is_gone(vendor, item)
    )


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
