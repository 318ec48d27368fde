"""Replay: what is written is read back, once, however the bytes were cut, copied or named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ledger_strategies as some
from ledgers import START_NS, Segment, numbered, scratch_dir, to_lines
from outlay.ledger import (
    KnownRecord,
    LedgerReader,
    Record,
    SegmentId,
    Unknown,
    encode_line,
    kind_of,
    ledger_dir,
    read_run,
)
from outlay.ledger.codec import decode_block

Log = dict[SegmentId, list[Record]]


def sealed(body: bytes) -> bytes:
    return body + b',"crc":"%08x"}\n' % crc32(body)


def segment_of(records: Sequence[KnownRecord], *, start: int = 0, pid: int = 7) -> Segment:
    segment = Segment(start=start, about={"pid": pid})
    segment.records.extend(records)
    return segment


def drain(reader: LedgerReader, into: Log) -> Log:
    for chunk in reader.poll():
        into.setdefault(chunk.segment, []).extend(chunk.records)
    return into


def in_order(log: Log) -> Log:
    return {segment: sorted(log[segment], key=lambda record: record.seq) for segment in log}


@pytest.mark.parametrize("kind", some.KINDS, ids=lambda kind: kind.__name__)
@given(drawn=st.data(), seq=st.integers(min_value=0, max_value=2**53))
@settings(max_examples=50, deadline=None)
def test_decoding_an_encoded_record_gives_the_record(
    kind: type[KnownRecord], drawn: st.DataObject, seq: int
) -> None:
    record = drawn.draw(some.records_of(kind))
    decoded = decode_block(encode_line(record, seq))
    assert decoded.complaints == []
    assert decoded.records == [msgspec.structs.replace(record, seq=seq)]


@given(record=some.records, seq=st.integers(min_value=0, max_value=2**53))
@settings(deadline=None)
def test_a_line_is_plain_json_for_any_tool(record: KnownRecord, seq: int) -> None:
    fields = json.loads(encode_line(record, seq))
    assert (fields["v"], fields["seq"], fields["kind"]) == (1, seq, kind_of(record))
    assert fields["t_ns"] == record.t_ns


@given(
    fields=some.data.filter(lambda data: not {"v", "seq", "kind", "t_ns", "crc"} & set(data)),
    kind=some.texts.map(lambda text: f"new {text}"),
    t_ns=some.instants,
)
@settings(deadline=None)
def test_a_record_of_an_unknown_kind_is_kept_as_it_was(
    fields: dict[str, object], kind: str, t_ns: int
) -> None:
    written = {"v": 1, "seq": 3, "kind": kind, "t_ns": t_ns, **fields}
    line = sealed(json.dumps(written, separators=(",", ":")).encode()[:-1])
    assert decode_block(line).records == [Unknown(seq=3, t_ns=t_ns, kind=kind, fields=fields)]


@given(block=st.binary(max_size=200).map(lambda junk: junk + b"\n"))
def test_no_bytes_make_decoding_raise(block: bytes) -> None:
    decoded = decode_block(block)
    assert len(decoded.records) + len(decoded.complaints) == block.count(b"\n")


@given(body=st.binary(max_size=60).filter(lambda junk: b"\n" not in junk))
def test_no_sealed_bytes_make_decoding_raise(body: bytes) -> None:
    assert len(decode_block(sealed(b'{"v":1,' + body)).complaints) == 1


@given(
    records=st.lists(some.records, min_size=1, max_size=6),
    junk=st.binary(max_size=30).map(lambda junk: junk.replace(b"\n", b"")),
    at=st.integers(min_value=0, max_value=6),
)
@settings(deadline=None)
def test_a_bad_line_among_good_ones_is_one_complaint(
    records: list[KnownRecord], junk: bytes, at: int
) -> None:
    lines = to_lines(records)
    lines.insert(min(at, len(lines)), junk + b"\n")
    decoded = decode_block(b"".join(lines))
    assert [index for index, _ in decoded.complaints] == [min(at, len(records))]
    assert decoded.records == numbered(records)


@given(
    records=st.lists(some.later, max_size=8),
    cuts=st.lists(st.integers(min_value=0), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_following_a_growing_file_gives_what_reading_it_at_once_gives(
    records: list[KnownRecord], cuts: list[int]
) -> None:
    segment = segment_of(records)
    with scratch_dir() as folder:
        path = segment.write(Path(folder))
        whole = path.read_bytes()
        ends = sorted(cut % (len(whole) + 1) for cut in cuts)
        path.write_bytes(b"")
        reader, followed = LedgerReader(Path(folder)), Log()
        for begin, end in zip([0, *ends], [*ends, len(whole)], strict=True):
            with path.open("ab") as stream:
                stream.write(whole[begin:end])
            drain(reader, followed)
        assert followed == {segment.id: numbered(segment.records)}
        assert reader.findings() == []


@given(
    logs=st.lists(st.lists(some.later, max_size=4), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_neither_the_order_nor_the_names_of_files_matter(
    logs: list[list[KnownRecord]], order: object
) -> None:
    segments = [segment_of(records, start=i, pid=i) for i, records in enumerate(logs)]
    names = [f"{number}.jsonl" for number in range(len(segments))]
    order.shuffle(names)  # type: ignore[attr-defined]
    with scratch_dir() as named, scratch_dir() as renamed:
        for segment, name in zip(segments, names, strict=True):
            segment.write(Path(named))
            segment.write(Path(renamed), name=name)
        assert read_run(Path(renamed)) == read_run(Path(named))
        assert read_run(Path(named)).segments == {s.id: numbered(s.records) for s in segments}


@given(records=st.lists(some.records, max_size=6), copies=st.integers(min_value=1, max_value=3))
@settings(max_examples=40, deadline=None)
def test_copies_of_a_file_change_nothing(records: list[KnownRecord], copies: int) -> None:
    segment = segment_of(records)
    with scratch_dir() as folder:
        path = segment.write(Path(folder))
        alone = read_run(Path(folder))
        for number in range(copies):
            (ledger_dir(Path(folder)) / f"copy-{number}.jsonl").write_bytes(path.read_bytes())
        assert read_run(Path(folder)).segments == alone.segments


@given(
    records=st.lists(some.later, min_size=1, max_size=6),
    kept=st.lists(st.booleans(), min_size=7, max_size=7),
    swap=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_two_files_that_complete_each_other_read_as_one(
    records: list[KnownRecord], kept: list[bool], swap: bool
) -> None:
    segment = segment_of(records)
    header, *lines = to_lines(segment.records)
    first = [line for line, keep in zip(lines, kept, strict=False) if keep]
    second = [line for line, keep in zip(lines, kept, strict=False) if not keep]
    with scratch_dir() as folder:
        directory = ledger_dir(Path(folder))
        directory.mkdir()
        (directory / "a.jsonl").write_bytes(b"".join([header, *(second if swap else first)]))
        (directory / "b.jsonl").write_bytes(b"".join([header, *(first if swap else second)]))
        log = read_run(Path(folder))
        assert log.segments == {segment.id: numbered(segment.records)}
        assert log.findings == []


@given(
    logs=st.lists(st.lists(some.later, max_size=4), min_size=1, max_size=3),
    split=st.integers(min_value=0),
)
@settings(max_examples=40, deadline=None)
def test_replaying_a_prefix_and_then_the_rest_is_replaying_all(
    logs: list[list[KnownRecord]], split: int
) -> None:
    segments = [segment_of(records, start=i, pid=i) for i, records in enumerate(logs)]
    with scratch_dir() as folder:
        files = {path: path.read_bytes() for s in segments for path in [s.write(Path(folder))]}
        for path, whole in files.items():
            path.write_bytes(whole[: split % (len(whole) + 1)])
        reader = LedgerReader(Path(folder))
        followed = drain(reader, {})
        for path, whole in files.items():
            path.write_bytes(whole)  # The same file, grown: its inode stays.
        assert in_order(drain(reader, followed)) == read_run(Path(folder)).segments


def test_the_strategies_cover_every_field_of_every_kind() -> None:
    drawn = {kind: some.fields_of(kind) for kind in some.KINDS}
    assert drawn == {kind: set(kind.__struct_fields__) for kind in KnownRecord.__args__}


def test_the_builders_use_the_manual_clocks_epoch() -> None:
    assert Segment().header.t_ns == START_NS
