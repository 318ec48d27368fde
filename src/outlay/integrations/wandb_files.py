"""Reads offline runs of Weights & Biases from their ``.wandb`` files, without W&B.

The file is a LevelDB log (32 KiB blocks) of protobuf messages. Only what goes into a run log is
decoded: the run, its history, system metrics, configuration and end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlay.decoding import BadDocument, decode, read_document, read_file
from outlay.errors import Finding, OutlayError

_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")  # Checksum, length, kind.
_FULL, _FIRST, _MIDDLE, _LAST = _KINDS = 1, 2, 3, 4
_LARGEST = 4 << 30
Value = float | str | bool | None


class NotAWandbRun(OutlayError):
    """A file is not a ``.wandb`` log, or contains no run."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; expected a .wandb file of an offline run")


RUN_ID = "outlay/run_id"
"""In the configuration of a W&B run that an outlay run was attached to: that run's id."""


@dataclass(slots=True, kw_only=True)
class HistoryRow:
    """Values logged together; ``t_ns`` is UTC nanoseconds."""

    t_ns: int
    step: int
    values: dict[str, Value]


@dataclass(slots=True, kw_only=True)
class SystemRow:
    """System metrics under W&B's names; ``t_ns`` is UTC nanoseconds."""

    t_ns: int
    values: dict[str, Value]


@dataclass(slots=True, kw_only=True)
class TrackedRun:
    """A run as a tracker recorded it.

    Attributes:
        exit_code: None if no end was recorded.
        runtime_s: The tracker's own count at the end; None if there is none.
        summary: The last values that were set.
        axes: The x axis of metrics, by name or pattern.
    """

    run_id: str = ""
    entity: str = ""
    project: str = ""
    name: str = ""
    host: str = ""
    user: str = ""
    gpu: str = ""
    gpus: int = 0
    started_ns: int = 0
    exit_code: int | None = None
    runtime_s: float | None = None
    config: dict[str, Value] = field(default_factory=dict)
    summary: dict[str, Value] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    history: list[HistoryRow] = field(default_factory=list)
    system: list[SystemRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_offline_run(path: Path) -> TrackedRun:
    """Parse a ``.wandb`` file; a torn or damaged end is a finding.

    Raises:
        NotAWandbRun: It is not such a file, or names no run.
        OSError: It cannot be read.
    """
    run = TrackedRun()
    try:
        for message in read_messages(read_file(path, largest=_LARGEST)):
            _fold(run, message)
    except _Damaged as damaged:
        run.findings.append(Finding(source=str(path), message=str(damaged), severity="warning"))
    except BadDocument as error:
        raise NotAWandbRun(str(error)) from None
    if not run.run_id:
        raise NotAWandbRun("it names no run")
    _add_metadata(run, path.parent / "files" / "wandb-metadata.json")
    return run


# The log


class _Damaged(Exception):
    """The rest of a file cannot be read."""


def read_messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a ``.wandb`` file, in order.

    Raises:
        BadDocument: It is not such a file.
        _Damaged: The rest is torn or was changed.
    """
    if not data.startswith(_MAGIC):
        raise BadDocument("it does not begin as a W&B log")
    place = len(_MAGIC)
    parts: list[bytes] = []
    while place < len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER.size:  # Too small for a header: padding.
            place += left
            continue
        if len(data) - place < _HEADER.size:
            raise _Damaged(f"it ends in the middle of a header, at byte {place}")
        checksum, length, kind = _HEADER.unpack_from(data, place)
        begin = place + _HEADER.size
        part = data[begin : begin + length]
        if len(part) < length:
            raise _Damaged(f"it ends in the middle of a record, at byte {place}")
        if zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            raise _Damaged(f"the record at byte {place} was changed")
        if kind not in _KINDS or (kind in (_FULL, _FIRST)) == bool(parts):
            raise _Damaged(f"the record at byte {place} does not go with the one before it")
        place = begin + length
        parts.append(part)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
    if parts:
        raise _Damaged("it ends in the middle of a record, at the end of a block")


# The messages; field numbers are those of W&B's wandb_internal.proto


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: varints as int, the rest as bytes.

    Raises:
        BadDocument: It is not a message.
    """
    place = 0
    try:
        while place < len(message):
            tag, place = _varint(message, place)
            match tag & 7:
                case 0:
                    value, place = _varint(message, place)
                    yield tag >> 3, value
                case 1:
                    yield tag >> 3, message[place : place + 8]
                    place += 8
                case 2:
                    length, place = _varint(message, place)
                    if place + length > len(message):
                        raise BadDocument("a field is longer than its message")
                    yield tag >> 3, message[place : place + length]
                    place += length
                case 5:
                    yield tag >> 3, message[place : place + 4]
                    place += 4
                case _:
                    raise BadDocument("a field of an unknown type")
    except IndexError:
        raise BadDocument("a message ends in the middle of a field") from None


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise BadDocument("a number of more than 64 bits")


def _fold_history(run: TrackedRun, body: bytes) -> None:
    values = _items(body, 1)
    stated = [dict(fields(part)).get(1, 0) for part in _parts(body, 2)]
    step = values.pop("_step", stated[0] if stated else len(run.history))
    at_s = values.pop("_timestamp", None)
    for name in [name for name in values if name.startswith("_")]:
        del values[name]
    if isinstance(at_s, int | float) and isinstance(step, int | float):
        run.history.append(HistoryRow(t_ns=round(at_s * 1e9), step=int(step), values=values))


def _fold_stats(run: TrackedRun, body: bytes) -> None:
    at_ns = next(map(_timestamp, _parts(body, 2)), 0)
    run.system.append(SystemRow(t_ns=at_ns, values=_items(body, 3)))


def _fold_run(run: TrackedRun, body: bytes) -> None:
    for number, part in fields(body):
        if not isinstance(part, bytes):
            continue
        if number in _TEXTS_OF_RUN:
            setattr(run, _TEXTS_OF_RUN[number], _text(part))
        elif number == 4:
            run.config |= _items(part, 1)
        elif number == 17:
            run.started_ns = run.started_ns or _timestamp(part)


def _fold_exit(run: TrackedRun, body: bytes) -> None:
    found = {number: value for number, value in fields(body) if isinstance(value, int)}
    run.exit_code = found.get(1, 0)
    run.runtime_s = found.get(2)


def _fold_environment(run: TrackedRun, body: bytes) -> None:
    for number, value in fields(body):
        match number, value:
            case 12, bytes():
                run.host = run.host or _text(value)
            case 13, bytes():
                run.user = _text(value)
            case 18, bytes():
                run.gpu = _text(value)
            case 19, int():
                run.gpus = value
            case _:
                pass


def _fold_summary(run: TrackedRun, body: bytes) -> None:
    run.summary |= _items(body, 1)


def _fold_config(run: TrackedRun, body: bytes) -> None:
    run.config |= _items(body, 1)


def _fold_metric(run: TrackedRun, body: bytes) -> None:
    found = {number: _text(part) for number, part in fields(body) if isinstance(part, bytes)}
    if name := found.get(1) or found.get(2):
        run.axes[name] = found.get(4, "")


_TEXTS_OF_RUN = {1: "run_id", 2: "entity", 3: "project", 8: "name", 13: "host"}
_FOLDS = {
    2: _fold_history, 3: _fold_summary, 5: _fold_config, 7: _fold_stats, 12: _fold_metric,
    17: _fold_run, 18: _fold_exit, 26: _fold_environment,
}  # fmt: skip
"""Handlers of the messages in a record, by field number."""


def _fold(run: TrackedRun, record: bytes) -> None:
    for number, body in fields(record):
        if number in _FOLDS and isinstance(body, bytes):
            _FOLDS[number](run, body)


def _items(body: bytes, wanted: int) -> dict[str, Value]:
    """Return the items of a record; nested keys are joined by ``/``."""
    found: dict[str, Value] = {}
    for item in _parts(body, wanted):
        keys: list[str] = []
        value: Value = None
        for part, content in fields(item):
            if part in (1, 2) and isinstance(content, bytes):
                keys.append(_text(content))
            else:
                value = _value(part, content)
        found["/".join(keys)] = value
    return found


def _parts(body: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the messages with one field number in a message."""
    for number, part in fields(body):
        if number == wanted and isinstance(part, bytes):
            yield part


def _value(number: int, content: int | bytes) -> Value:
    """Decode an item's value: JSON in older versions, else typed."""
    match number, content:
        case ((8 | 16), bytes()):
            try:
                plain: Any = decode(content, object)
            except BadDocument:
                return {b"NaN": float("nan"), b"Infinity": float("inf")}.get(content)
            return plain if isinstance(plain, int | float | str) else None
        case 4, int():
            return bool(content)
        case 5, int():
            return (content >> 1) ^ -(content & 1)  # Zigzag.
        case 6, bytes():
            (number_value,) = struct.unpack("<d", content)
            return float(number_value)
        case 7, bytes():
            return _text(content)
        case _:
            return None


def _timestamp(body: bytes) -> int:
    found = {number: value for number, value in fields(body) if isinstance(value, int)}
    return found.get(1, 0) * 10**9 + found.get(2, 0)


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _add_metadata(run: TrackedRun, path: Path) -> None:
    """Add metadata that older versions keep in a separate file."""
    try:
        known = read_document(path, dict[str, Any])
    except (OSError, BadDocument):
        return
    run.host = run.host or str(known.get("host", ""))
    run.user = run.user or str(known.get("username", ""))
    run.gpu = run.gpu or str(known.get("gpu", ""))
    count = known.get("gpu_count")
    run.gpus = run.gpus or (count if isinstance(count, int) and count > 0 else 0)
