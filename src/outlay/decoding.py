"""Decoding of untrusted JSON, YAML, TOML, CSV and gzip into values, or ``BadDocument``.

No other module calls a decoder, except the run log's codec. Every document is limited in size,
nesting and digits per number; only regular files are opened, so that a FIFO cannot block and a
device cannot flood. Does not interpret what a document means.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import io
import itertools
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar, cast

import msgspec

from outlay.errors import OutlayError

T = TypeVar("T")

MEBIBYTE: Final = 1 << 20
LARGEST_DOCUMENT: Final = 64 * MEBIBYTE
"""The default limit on a document, in bytes."""
DEEPEST: Final = 64
"""The limit on nesting."""
MOST_DIGITS: Final = 40
"""The limit on an integer: longer than any amount, count or instant that outlay writes."""
LARGEST_TABLE: Final = 256 * MEBIBYTE

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits a database column, a clock and numpy."""

YamlPath = tuple[str | int, ...]
MOST_EXPANDED: Final = 200_000
"""The limit on the values that YAML aliases expand to."""
_TAG: Final = "tag:yaml.org,2002:"
_TEXT: Final = f"{_TAG}str"
_PLAIN: Final = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null"))
_SURROGATES = re.compile(
    r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_FRACTION = re.compile(rb"\.[0-9]+")
_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_TOO_LONG = b"0" * (MOST_DIGITS + 1)
_TOO_LARGE = b"0e0000"
_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_BAD_INPUT = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


class BadDocument(OutlayError, msgspec.DecodeError):
    """A document that cannot be decoded, or is beyond the limits.

    Also a ``msgspec.DecodeError``, for callers that catch msgspec's errors.
    """


class Decoder(Generic[T]):
    """Decodes JSON documents of one type, of ``largest`` bytes at most."""

    def __init__(self, kind: type[T] | Any, *, largest: int = LARGEST_DOCUMENT) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._largest = largest

    def decode(self, raw: bytes | str) -> T:
        """Return the value of a document.

        Raises:
            BadDocument: Not JSON, another type, too large, too deep, or with too long a number.
        """
        try:
            data = raw.encode() if isinstance(raw, str) else raw
            check_limits(data, self._largest)
            return self._decoder.decode(data)
        except _BAD_INPUT as error:
            raise BadDocument(_reason(error)) from None

    def decode_lines(self, raw: bytes) -> list[T]:
        """Return the lines of an append-only file; torn and damaged ones are skipped."""
        found = []
        for line in filter(None, raw.split(b"\n")):
            with contextlib.suppress(BadDocument):
                found.append(self.decode(line))
        return found


def decode(raw: bytes | str, kind: type[T], *, largest: int = LARGEST_DOCUMENT) -> T:
    """Return the value of one JSON document; raises BadDocument like ``Decoder.decode``."""
    value: T = _decoder(cast(Any, kind), largest).decode(raw)
    return value


@functools.lru_cache(maxsize=256)
def _decoder(kind: Any, largest: int) -> Decoder[Any]:
    return Decoder(kind, largest=largest)  # Cached: making one takes longer than decoding a cell.


def decode_as_python(raw: bytes | str) -> Any:
    """Return JSON in the dialect of Python's ``json``: with NaN, infinities and lone surrogates.

    Raises:
        BadDocument: It cannot be decoded, or is beyond the limits.
    """
    try:
        data = raw.encode(errors="surrogatepass") if isinstance(raw, str) else raw
        check_limits(data, LARGEST_DOCUMENT)
        return json.loads(raw)
    except _BAD_INPUT as error:
        raise BadDocument(_reason(error)) from None


def convert(value: object, kind: type[T]) -> T:
    """Convert decoded data to a type; raises BadDocument where it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except _BAD_INPUT as error:
        raise BadDocument(_reason(error)) from None


def read_document(path: Path, kind: type[T], *, largest: int = LARGEST_DOCUMENT) -> T:
    """Return the value of a JSON file.

    Raises:
        OSError: It cannot be read.
        BadDocument: Not a regular file, or not such a value.
    """
    return decode(read_file(path, largest=largest), kind, largest=largest)


def read_documents(paths: Iterable[Path], kind: type[T]) -> list[T]:
    """Return the values of JSON files; those that cannot be read are skipped."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError, BadDocument):
            found.append(read_document(path, kind))
    return found


def read_toml(path: Path, kind: type[T]) -> T:
    """Return the value of a TOML file; raises like ``read_document``."""
    import tomllib  # Few processes read settings.

    try:
        return convert(tomllib.loads(read_text(path)), kind)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadDocument(_reason(error)) from None


def read_file(path: Path, *, largest: int = LARGEST_DOCUMENT) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: It cannot be read.
        BadDocument: It is a directory, a FIFO, a device or a socket; or it is too large.
    """
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise BadDocument(f"it has more than {largest:,} bytes")
    return content


def read_text(path: Path, *, largest: int = LARGEST_DOCUMENT) -> str:
    """Return the content of a regular UTF-8 file; raises like ``read_file``."""
    return decode_text(read_file(path, largest=largest))


def decode_text(raw: bytes) -> str:
    """Return UTF-8 bytes as text with newlines as line ends; raises BadDocument if not UTF-8."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadDocument(_reason(error)) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def open_regular(path: Path) -> int:
    """Open a regular file for reading; opening never blocks.

    Raises:
        OSError: It cannot be opened, or the name is not valid for a file.
        BadDocument: It is a directory, a FIFO, a device or a socket.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError:  # A NUL in the name.
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # A socket, or a device that is not there.
            raise BadDocument("not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadDocument("not a regular file")
    return descriptor


def open_csv(path: Path) -> Iterable[str]:
    """Return the lines of a regular CSV file, for ``csv_rows``; raises like ``read_file``."""
    try:
        return io.StringIO(read_file(path, largest=LARGEST_TABLE).decode("utf-8"), newline="")
    except UnicodeDecodeError as error:
        raise BadDocument(_reason(error)) from None


def gunzip(chunks: Iterable[bytes], *, largest: int = LARGEST_DOCUMENT) -> bytes:
    """Decompress gzip data of at most ``largest`` bytes, without buffering more.

    Raises:
        BadDocument: Not gzip, truncated, or more than ``largest`` bytes.
    """
    unpacker = zlib.decompressobj(wbits=31)
    content = bytearray()
    try:
        for chunk in chunks:
            content += unpacker.decompress(chunk, largest + 1 - len(content))
            if len(content) > largest:
                raise BadDocument(f"it has more than {largest:,} bytes")
    except zlib.error:
        raise BadDocument("not gzip data") from None
    if not unpacker.eof:
        raise BadDocument("truncated gzip data")
    return bytes(content)


def csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each CSV row with the number of its last line; raises BadDocument at a bad one."""
    reader = csv.reader(lines)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise BadDocument(f"line {reader.line_num}: {error}") from None


def csv_records(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield CSV rows by the names in the first one; extra cells are dropped, missing ones empty."""
    rows = (row for _, row in csv_rows(lines) if row)
    names = next(rows, [])
    for row in rows:
        yield dict(zip(names, [*row, *[""] * (len(names) - len(row))], strict=False))


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A YAML text as plain data, and the 1-based line of each key."""

    tree: Any
    lines: Mapping[YamlPath, int]


class BadYaml(BadDocument):
    """A YAML text that cannot be read, and the line of the problem."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def parse_yaml(text: str) -> YamlDocument:
    """Parse YAML or JSON as Hydra does: 1e-3 is a number, and dates stay text.

    Raises:
        BadYaml: Not YAML, too large or too deep; a duplicate key, whose second value would silently
            win; or aliases that expand to too many values.
    """
    import yaml  # type: ignore[import-untyped]  # Here: training processes never load it.

    if len(text) > LARGEST_DOCUMENT:
        raise BadYaml(1, f"it has more than {LARGEST_DOCUMENT:,} characters")
    text = _json_as_yaml(text)
    try:
        loader = _yaml_loader()(text)
        node = loader.get_single_node()
        if "*" in text:  # Else it has no alias.
            _check_expansion(node)
        lines = _yaml_lines(node)
        return YamlDocument(None if node is None else _plain_data(node, loader), lines)
    except BadYaml:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadYaml(1 if mark is None else mark.line + 1, problem) from None
    except (ValueError, LookupError, RecursionError, OverflowError) as error:  # !!int abc
        raise BadYaml(1, _reason(error)) from None


class _DepthLimit:
    """Part of a YAML loader: stops the recursive composing of text that is nested too deep.

    The loader calls these two around each node.
    """

    _depth = 0

    def descend_resolver(self, parent: Any, index: object) -> None:
        del index
        self._depth += 1
        if self._depth > DEEPEST + 1:  # A scalar may be in the deepest collection.
            raise _too_deep(parent)

    def ascend_resolver(self) -> None:
        self._depth -= 1


def _too_deep(node: Any) -> BadYaml:
    return BadYaml(node.start_mark.line + 1, f"this is nested deeper than {DEEPEST}")


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("HydraLoader", (_DepthLimit, base), {})
    loader.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    # Anchored at its end: 5e3a9c1 is a commit, not a number.
    exponent = re.compile(r"[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][-+]?\d+)$", re.ASCII)
    loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789."))
    return loader


def _json_as_yaml(text: str) -> str:
    """Return JSON as valid YAML: without tabs, and with surrogate pairs as one character."""
    if not text.lstrip().startswith("{"):
        return text
    # JSON has tabs only between its tokens, never inside strings.
    return _SURROGATES.sub(lambda pair: pair[1] + json.loads(f'"{pair[2]}"'), text).replace(
        "\t", " "
    )


def _check_expansion(root: Any) -> None:
    """Reject aliases that recurse or expand too far."""
    sizes: dict[int, int] = {}
    size = 0 if root is None else _expanded_size(root, sizes)
    if size > max(MOST_EXPANDED, len(sizes)):
        expanded = f"its aliases expand to {size:,} values"
        raise BadYaml(1, f"{expanded}, and at most {MOST_EXPANDED:,} are read")


def _expanded_size(node: Any, sizes: dict[int, int]) -> int:
    """Return how many values a node expands to; ``sizes`` has those seen, 0 while one is counted.

    What an alias stands for is before it in the text, so that recursion is as deep as the text.
    """
    sizes[id(node)] = 0
    total = 1
    for child in _child_nodes(node):
        size = sizes.get(id(child))
        if size == 0:
            raise BadYaml(node.start_mark.line + 1, "this refers to itself")
        total += _expanded_size(child, sizes) if size is None else size
    sizes[id(node)] = total
    return total


def _child_nodes(node: Any) -> Iterable[Any]:
    """Return the values of a sequence, or the keys and values of a mapping."""
    if node.id == "scalar":
        return ()
    return itertools.chain(*node.value) if node.id == "mapping" else node.value


def _plain_data(node: Any, loader: Any) -> Any:
    """Return what a node stands for; rejects types that JSON does not have."""
    if node.tag == _TEXT and node.id == "scalar":
        return node.value
    if node.tag == f"{_TAG}map" and node.id == "mapping":
        loader.flatten_mapping(node)  # Replaces merge keys.
        return {_plain_key(key, loader): _plain_data(value, loader) for key, value in node.value}
    if node.tag == f"{_TAG}seq" and node.id == "sequence":
        return [_plain_data(each, loader) for each in node.value]
    if node.tag not in _PLAIN or node.id != "scalar":
        raise BadYaml(node.start_mark.line + 1, f"values of type {node.tag} are not read")
    return loader.yaml_constructors[node.tag](loader, node)


def _plain_key(node: Any, loader: Any) -> Any:
    if node.id != "scalar":
        raise BadYaml(node.start_mark.line + 1, "found unhashable key")
    return _plain_data(node, loader)


def _yaml_lines(root: Any) -> dict[YamlPath, int]:
    import yaml

    lines: dict[YamlPath, int] = {}
    waiting: list[tuple[Any, YamlPath]] = [(root, ())]
    while waiting:
        node, path = waiting.pop()
        if len(path) >= DEEPEST and isinstance(node, yaml.CollectionNode):
            raise _too_deep(node)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below = (*path, str(key.value))
                if below in lines:
                    where = key.start_mark.line + 1
                    raise BadYaml(where, f"duplicate key {key.value!r}")
                lines[below] = key.start_mark.line + 1
                waiting.append((value, below))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines[(*path, index)] = value.start_mark.line + 1
                waiting.append((value, (*path, index)))
    return lines


def check_limits(data: bytes, largest: int = LARGEST_DOCUMENT) -> None:
    """Raise BadDocument for data that is too large, too deep, or has too long a number."""
    if len(data) > largest:
        raise BadDocument(f"it has more than {largest:,} bytes")
    # Cheap checks first, which also count what is inside strings: nearly every document passes.
    is_shallow = data.count(b"[") + data.count(b"{") <= DEEPEST
    is_short = not (has_long_number(data) or _has_large_exponent(data))
    if is_shallow and is_short:
        return
    bare = _STRING.sub(b"", data)
    plain = bare if is_short else _FRACTION.sub(b".0", bare)
    if not is_short and (has_long_number(plain) or _has_large_exponent(plain)):
        raise BadDocument(f"it has a number of more than {MOST_DIGITS} digits")
    if not is_shallow and _is_deep(bare):
        raise BadDocument(f"it is nested deeper than {DEEPEST}")


def has_long_number(data: bytes) -> bool:
    """Return whether there may be too long an integer; strings are not excluded."""
    return _TOO_LONG in data.translate(_DIGITS_ALIKE)


def _has_large_exponent(data: bytes) -> bool:
    """Return whether there may be an exponent of four digits; strings are not excluded."""
    return _TOO_LARGE in data.translate(_DIGITS_ALIKE, b"+-")


def _is_deep(bare: bytes) -> bool:
    """Return whether brackets are nested too deep, by removing innermost pairs level by level.

    Unbalanced brackets are left to the decoder to report.
    """
    brackets = bare.translate(_TO_SQUARE, _BRACKETS)
    for _ in range(DEEPEST):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            return False
        brackets = inner
    return b"[]" in brackets


def _reason(error: BaseException) -> str:
    """Return the reason without quoting the document."""
    match error:
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8"
        case UnicodeEncodeError():
            return "it cannot be encoded in UTF-8"
        case RecursionError():
            return "it is nested too deep"
        case _:
            return str(error)
