"""The decoding edge: bytes become a value or BadDocument, within limits, of regular files only."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from hostile import SPECIAL
from outlay.decoding import (
    DEEPEST,
    MOST_DIGITS,
    BadDocument,
    BadYaml,
    Decoder,
    Int64,
    convert,
    csv_records,
    csv_rows,
    decode,
    decode_as_python,
    gunzip,
    open_csv,
    parse_yaml,
    read_document,
    read_file,
    read_text,
)


class Timed(msgspec.Struct):
    t_ns: Int64
    note: str = ""


BAD = {
    "empty": b"",
    "not utf-8": b'{"t_ns": 1, "note": "\xff"}',
    "a surrogate": rb'{"t_ns": 1, "note": "\ud800"}',
    "an encoded surrogate": b'{"t_ns": 1, "note": "\xed\xa0\x80"}',
    "cut off": b'{"t_ns": 1',
    "two": b'{"t_ns": 1}{"t_ns": 1}',
    "another type": b'{"t_ns": "1"}',
    "beyond 64 bits": b'{"t_ns": 9223372036854775808}',
    "a long number": b'{"t_ns": ' + b"9" * (MOST_DIGITS + 1) + b"}",
    "a very long number": b'{"t_ns": 1, "x": ' + b"9" * 100_000 + b"}",
    "a large exponent": b'{"t_ns": 1, "x": 1e99999}',
    "deep": b'{"t_ns": 1, "x": ' + b"[" * 100 + b"]" * 100 + b"}",
    "very deep": b"[" * 1_000_000,
    "deep in turns": b'{"t_ns": 1, "x": ' + b'{"a":[[],' * 60 + b"1" + b"]}" * 60 + b"}",
    "NaN": b'{"t_ns": NaN}',
}


@pytest.mark.parametrize("raw", BAD.values(), ids=[*BAD])
def test_invalid_document_raises_bad_document(raw: bytes) -> None:
    with pytest.raises(BadDocument):
        decode(raw, Timed)
    with pytest.raises(BadDocument):
        Decoder[Timed](Timed).decode(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * DEEPEST + b"]" * DEEPEST,
        b"[" + b"[]," * 1000 + b"[]]",
        b'["' + b"[" * 1000 + b'"]',
        b'["' + b"9" * 1000 + b'"]',
        b"[0." + b"3" * 1000 + b"]",
        b"[" + b"9" * MOST_DIGITS + b"]",
        rb'["a \" [ { 99999999999999999999999999999999999999999999999999"]',
    ],
    ids=["deepest", "wide", "brackets in text", "digits in text", "fraction", "longest", "quoted"],
)
def test_documents_within_the_limits_are_read(raw: bytes) -> None:
    assert decode(raw, object) == msgspec.json.decode(raw)


def test_a_document_that_is_too_large_is_refused_unread() -> None:
    with pytest.raises(BadDocument, match="more than 10 bytes"):
        decode(b'"0123456789"', str, largest=10)


def test_an_error_quotes_nothing_of_the_document() -> None:
    with pytest.raises(BadDocument) as caught:
        decode(b'{"note": "hunter2\xff"}', Timed)
    assert "hunter2" not in str(caught.value)


def test_python_json_dialect_is_decoded() -> None:
    assert decode_as_python('{"a": Infinity, "b": "\\ud800"}') == {"a": float("inf"), "b": "\ud800"}
    with pytest.raises(BadDocument):
        decode_as_python("[" * 100_000)


def test_data_of_another_type_is_one_error() -> None:
    with pytest.raises(BadDocument):
        convert({"t_ns": 2**70}, Timed)


@pytest.mark.parametrize("kind", [*SPECIAL])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    SPECIAL[kind](tmp_path / "x.json")
    with pytest.raises(BadDocument, match="not a regular file"):
        read_file(tmp_path / "x.json")


def test_a_name_that_no_file_can_have_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        read_file(Path("a\0b"))


def test_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "x", Timed)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_file(tmp_path / "x", largest=5) == b"12345"
    with pytest.raises(BadDocument):
        read_file(tmp_path / "x", largest=4)


def test_line_ends_are_normalised(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "x") == "a\nb\nc\n"
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(BadDocument):
        read_text(tmp_path / "x")


def test_csv_is_read_by_name_and_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a,b\n1,"2\n3"\n4\n\n5,6,7\n')
    assert [*csv_rows(open_csv(tmp_path / "x.csv"))][1] == (3, ["1", "2\n3"])
    assert [*csv_records(open_csv(tmp_path / "x.csv"))] == [
        {"a": "1", "b": "2\n3"}, {"a": "4", "b": ""}, {"a": "5", "b": "6"},
    ]  # fmt: skip


@pytest.mark.parametrize("raw", [b"a,\xff\n", b"a,b\n" + b'"' + b"x" * 200_000])
def test_csv_that_cannot_be_read_is_one_error(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.csv").write_bytes(raw)
    with pytest.raises(BadDocument):
        list(csv_records(open_csv(tmp_path / "x.csv")))


def test_gzip_is_unpacked_within_a_limit() -> None:
    assert gunzip([gzip.compress(b"abc")], largest=3) == b"abc"
    for raw in (gzip.compress(b"abcd"), b"abc", gzip.compress(b"abc")[:-1]):
        with pytest.raises(BadDocument):
            gunzip([raw], largest=3)


@pytest.mark.parametrize(
    "text",
    [
        "a: ]", "a: \x00", "a: \ud800", "[" * 100_000, "- " * 100_000, "a: &a [*a]", "a: *b",
        "a: 1\na: 2", "? [a, b]\n: c", "!!python/object:os.system 1", "!!timestamp 2020-13-45",
        "!!bool x", "!!int x", "a: 0b_", "a: " + "9" * 5000, "!!set {a}", "---\na\n---\nb",
    ],
)  # fmt: skip
def test_invalid_yaml_raises_bad_yaml(text: str) -> None:
    with pytest.raises(BadYaml):
        parse_yaml(text)


def test_yaml_has_the_line_of_each_key() -> None:
    read = parse_yaml("a:\n  b: [1,\n    2]\n")
    assert read.tree == {"a": {"b": [1, 2]}}
    assert read.lines == {("a",): 1, ("a", "b"): 2, ("a", "b", 0): 2, ("a", "b", 1): 3}


def test_small_yaml_aliases_are_expanded() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a}").tree["c"] == {"x": 1}
