"""A record as one JSON line, and back.

The line is ``{"v":1,"seq":7,"kind":"step",...,"crc":"9ae0daaf"}``: plain JSON for any tool, with a
CRC-32 over every byte before ``,"crc"`` at a fixed place, so that checking needs no parsing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from outlay.ledger.records import KnownRecord, Record, Unknown

_PREFIX = b'{"v":1,'
_SEAL_BYTES = len(b',"crc":"00000000"}')

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[KnownRecord] = msgspec.json.Decoder(KnownRecord)
_any_decoder = msgspec.json.Decoder(dict[str, object])


class Decoded(NamedTuple):
    """What a block of lines held: the good records, and (line index, complaint) of the rest."""

    records: Sequence[Record]
    complaints: list[tuple[int, str]]


def encode_line(record: KnownRecord, seq: int) -> bytes:
    """Return the record as a sealed line, newline included, with ``seq`` as its place."""
    body = b'{"v":1,"seq":%d,%b' % (seq, _encode(record)[1:-1])
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def decode_block(block: bytes) -> Decoded:
    """Return every record of a block of whole lines; never raises on bad bytes."""
    lines = block.split(b"\n")
    lines.pop()  # What follows the last newline is empty: a block is made of whole lines.
    if _are_sealed(lines):
        try:
            return Decoded(_decoder.decode_lines(block), [])
        except msgspec.MsgspecError:
            pass  # An unknown kind or an older schema is among them: take them one by one.
    return _decode_each(lines)


def _are_sealed(lines: Iterable[bytes]) -> bool:
    # A plain loop over many lines: a call per line would cost as much as the checksum itself.
    try:
        for line in lines:
            if crc32(line[:-_SEAL_BYTES]) != int(line[-10:-2], 16):
                return False
    except ValueError:
        return False
    return True


def _decode_each(lines: list[bytes]) -> Decoded:
    records: list[Record] = []
    complaints: list[tuple[int, str]] = []
    for index, line in enumerate(lines):
        try:
            records.append(_decode_line(line))
        except (msgspec.MsgspecError, ValueError) as error:
            complaints.append((index, str(error)))
    return Decoded(records, complaints)


def _decode_line(line: bytes) -> Record:
    if not _are_sealed([line]):
        raise ValueError("the line is damaged: its checksum does not match")
    if not line.startswith(_PREFIX):
        raise ValueError("the line was written by another version of outlay; upgrade to read it")
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError as error:
        return _decode_unknown(line, error)


def _decode_unknown(line: bytes, error: msgspec.ValidationError) -> Unknown:
    fields = _any_decoder.decode(line)
    del fields["v"], fields["crc"]
    match fields:
        case {"kind": str() as kind, "seq": int() as seq, "t_ns": int() as t_ns, **rest} if (
            kind not in _KNOWN_KINDS
        ):
            return Unknown(seq=seq, t_ns=t_ns, kind=kind, fields=rest)
    raise error


_KNOWN_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in KnownRecord.__args__)
