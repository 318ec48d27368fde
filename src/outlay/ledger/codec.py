"""A record as one JSON line, and back.

The line is ``{"v":1,"seq":7,"kind":"step",...,"crc":"9ae0daaf"}``: plain JSON for any tool, with a
CRC-32 over every byte before ``,"crc"`` at a fixed place, so that checking needs no parsing. What
follows the checksummed bytes is compared as it must stand, so that no byte can change unnoticed.
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


def _plain(value: object) -> object:
    """Return a scalar of an array library (numpy, torch) as the Python number it stands for."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decoder: msgspec.json.Decoder[KnownRecord] = msgspec.json.Decoder(KnownRecord)
_any_decoder = msgspec.json.Decoder(dict[str, object])


class Decoded(NamedTuple):
    """What a block of lines held: the good records, and (line index, complaint) of the rest.

    ``first_seq`` is the number of the first record, told only where the others are known to follow
    it one by one, and none of them is a gap; ``rare`` are then all records that are not steps.
    """

    records: Sequence[Record]
    complaints: list[tuple[int, str]]
    first_seq: int | None = None
    rare: Sequence[Record] = ()


def encode_line(record: KnownRecord, seq: int) -> bytes:
    """Return the record as a sealed line, newline included, with ``seq`` as its place."""
    body = b'{"v":1,"seq":%d,%b' % (seq, _encode(record)[1:-1])
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def decode_block(block: bytes) -> Decoded:
    """Return every record of a block of whole lines; never raises on bad bytes."""
    lines = block.split(b"\n")
    lines.pop()  # What follows the last newline is empty: a block is made of whole lines.
    if (
        _are_sealed(lines)
        and _are_of_this_version(block, len(lines))
        and not has_long_number(block)
    ):
        try:
            return Decoded(_decoder.decode_lines(block), [])
        except _UNREADABLE:
            pass  # An unknown kind or an older schema is among them: take them one by one.
    return _decode_each(lines)


def is_readable(line: bytes) -> bool:
    """Say whether a reader takes a line that ``encode_line`` made."""
    return not decode_block(line).complaints


def _are_sealed(lines: Sequence[bytes]) -> bool:
    # All at once: formatting each line's checksum by itself would cost more than computing it.
    found = b"".join([line[-SEAL_BYTES:] for line in lines])
    return found == SEAL * len(lines) % tuple([crc32(line[:-SEAL_BYTES]) for line in lines])


def _are_of_this_version(block: bytes, lines: int) -> bool:
    return block.startswith(_PREFIX) + block.count(b"\n" + _PREFIX) == lines


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

    A torn record that another thread wrote behind, or a newline that was damaged, joins a good
    record to a bad one.
    """
    for start in re.finditer(re.escape(_PREFIX), line):
        seal = _SEAL_PATTERN.search(line, start.end())
        if seal is not None and (start.start(), seal.end()) != (0, len(line)):
            with contextlib.suppress(*_UNREADABLE):
                yield _decode_line(line[start.start() : seal.end()])


def _decode_line(line: bytes) -> Record:
    if not _are_sealed([line]):
        raise ValueError("the line is damaged: its checksum does not match")
    if not line.startswith(_PREFIX):
        raise ValueError("the line was written by another version of outlay; upgrade to read it")
    check_limits(line)
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError as error:
        return _decode_otherwise(line, error)


def _decode_otherwise(line: bytes, error: msgspec.ValidationError) -> Record:
    """Return a sealed record of an unknown kind, or a step whose loop counted in floats."""
    fields = _any_decoder.decode(line)
    del fields["v"], fields["crc"]
    match fields:
        case {"kind": "step"}:
            whole = {name: _whole(value) for name, value in fields.items()}
            return msgspec.convert(whole, Step)
        case {"kind": str() as kind, "seq": int() as seq, "t_ns": int() as t_ns, **rest} if (
            kind not in _KNOWN_KINDS
        ):
            unknown = {"seq": seq, "t_ns": t_ns, "kind": kind, "fields": rest}
            return msgspec.convert(unknown, Unknown)
    raise error


def _whole(value: object) -> object:
    return round(value) if isinstance(value, float) else value


_KNOWN_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in KnownRecord.__args__)
