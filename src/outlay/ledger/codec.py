"""Encodes a record as one JSON line, and decodes it.

The line is ``{"v":1,"seq":7,"kind":"step",...,"crc":"9ae0daaf"}``: plain JSON for any tool, with a
CRC-32 over every byte before ``,"crc"`` at a fixed position, so that checking needs no parsing. The
bytes after the checksummed part are compared literally, so that any changed byte is detected.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from outlay.decoding import check_limits, has_long_number
from outlay.ledger.records import KnownRecord, Record, Step, Unknown

_PREFIX = b'{"v":1,'
SEAL = b',"crc":"%08x"}'
SEAL_BYTES = len(SEAL % 0)
_SEAL_PATTERN = re.compile(rb',"crc":"[0-9a-f]{8}"\}')
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def _unwrap_scalar(value: object) -> object:
    """Return a scalar of an array library (numpy, torch) as a Python number."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


_encode = msgspec.json.Encoder(enc_hook=_unwrap_scalar).encode
_decoder: msgspec.json.Decoder[KnownRecord] = msgspec.json.Decoder(KnownRecord)
_any_decoder = msgspec.json.Decoder(dict[str, object])
_values_decoder = msgspec.json.Decoder(list[float])


class Decoded(NamedTuple):
    """A decoded block of lines: the good records, and (line index, message) of each bad line.

    ``first_seq`` is the number of the first record, set only if the others are known to be
    consecutive and none is a gap; ``rare`` then holds all records that are not steps.
    """

    records: Sequence[Record]
    complaints: list[tuple[int, str]]
    first_seq: int | None = None
    rare: Sequence[Record] = ()


def encode_line(record: KnownRecord, seq: int) -> bytes:
    """Return the record as a line with checksum and newline, numbered ``seq``."""
    body = b'{"v":1,"seq":%d,%b' % (seq, _encode(record)[1:-1])
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def decode_block(block: bytes) -> Decoded:
    """Return every record of a block of whole lines; never raises on bad bytes."""
    lines = block.split(b"\n")
    lines.pop()  # Empty: a block ends with a newline.
    of_this_version = block.startswith(_PREFIX) + block.count(b"\n" + _PREFIX)
    if of_this_version == len(lines) and _match_checksums(lines) and not has_long_number(block):
        try:
            return Decoded(_decoder.decode_lines(block), [])
        except _UNREADABLE:
            pass  # A line has an unknown kind or an older schema: decode them one by one.
    return _decode_each(lines)


def decode_values(numbers: bytes) -> list[float]:
    """Return the values of a metric's lines, separated by commas, as their lines are decoded.

    Raises:
        msgspec.MsgspecError: One of them is no number, or too large for a float.
    """
    return _values_decoder.decode(b"[%b]" % numbers)


def _match_checksums(lines: Sequence[bytes]) -> bool:
    # All at once: formatting each line's checksum separately costs more than computing it.
    found = b"".join([line[-SEAL_BYTES:] for line in lines])
    return found == SEAL * len(lines) % tuple([crc32(line[:-SEAL_BYTES]) for line in lines])


def _decode_each(lines: list[bytes]) -> Decoded:
    records: list[Record] = []
    complaints: list[tuple[int, str]] = []
    for index, line in enumerate(lines):
        try:
            records.append(_decode_line(line))
        except _UNREADABLE as error:
            complaints.append((index, str(error)))
            records.extend(_salvage(line))
    return Decoded(records, complaints)


def _salvage(line: bytes) -> Iterator[Record]:
    """Yield the whole records inside a bad line.

    A bad line may contain good records: another thread wrote after a torn one, or a newline was
    damaged.
    """
    for start in re.finditer(re.escape(_PREFIX), line):
        seal = _SEAL_PATTERN.search(line, start.end())
        if seal is not None and (start.start(), seal.end()) != (0, len(line)):
            with contextlib.suppress(*_UNREADABLE):
                yield _decode_line(line[start.start() : seal.end()])


def _decode_line(line: bytes) -> Record:
    if not _match_checksums([line]):
        raise ValueError("the line is damaged: its checksum does not match")
    if not line.startswith(_PREFIX):
        raise ValueError("the line was written by another version of outlay; upgrade to read it")
    check_limits(line)
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError as error:
        return _decode_leniently(line, error)


def _decode_leniently(line: bytes, error: msgspec.ValidationError) -> Record:
    """Return a record of an unknown kind, or a step whose loop counted in floats."""
    fields = _any_decoder.decode(line)
    del fields["v"], fields["crc"]
    match fields:
        case {"kind": "step"}:
            rounded = {
                name: round(value) if isinstance(value, float) else value
                for name, value in fields.items()
            }
            return msgspec.convert(rounded, Step)
        case {"kind": str() as kind, "seq": int() as seq, "t_ns": int() as t_ns, **rest} if (
            kind not in _KNOWN_KINDS
        ):
            unknown = {"seq": seq, "t_ns": t_ns, "kind": kind, "fields": rest}
            return msgspec.convert(unknown, Unknown)
    raise error


_KNOWN_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in KnownRecord.__args__)
