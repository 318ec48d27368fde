"""The decoding edge: bytes from a file, a process or a vendor become a value, or ``BadDocument``.

Nothing else calls a decoder, but for the codec of the run log. Every document has limits on its
size, its nesting and its numbers; only regular files are opened, so that a FIFO cannot block and a
device cannot flood. What a document means is for its own module to say.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import io
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
"""How many bytes a document may have, unless its reader says otherwise."""
DEEPEST: Final = 64
"""How deep a document may be nested."""
MOST_DIGITS: Final = 40
"""How long an integer may be: longer than any amount, count or instant that outlay writes."""
LARGEST_TABLE: Final = 256 * MEBIBYTE

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that a database column, a clock and numpy can hold."""

YamlPath = tuple[str | int, ...]
MOST_EXPANDED: Final = 200_000
"""How many values a YAML text may stand for by its aliases."""
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = frozenset(["str", "int", "float", "bool", "null", "map", "seq", "merge"])
_INDENTATION = re.compile(r"^[ \t?:-]+", re.MULTILINE)
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
    """A document holds what cannot be read, or more than outlay reads.

    Also a ``msgspec.DecodeError``, as which callers that know msgspec catch it.
    """


class Decoder(Generic[T]):
    """Decodes JSON documents of one type, of ``largest`` bytes at most."""

    def __init__(self, kind: type[T] | Any, *, largest: int = LARGEST_DOCUMENT) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._largest = largest

    def decode(self, raw: bytes | str) -> T:
        """Return the value of a document.

        Raises:
            BadDocument: It is no JSON, of another type, too large, too deep, or holds a number that
                is too long.
        """
        try:
            data = raw.encode() if isinstance(raw, str) else raw
            check_limits(data, self._largest)
            return self._decoder.decode(data)
        except BadDocument:
            raise
        except _BAD_INPUT as error:
            raise BadDocument(_reason(error)) from None

    def decode_lines(self, raw: bytes) -> list[T]:
        """Return each whole line of an append-only file; a torn or damaged one is passed over."""
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
    """Return a decoder of a type; making one takes longer than decoding a cell."""
    return Decoder(kind, largest=largest)


def decode_as_python(raw: bytes | str) -> Any:
    """Return JSON as Python's own ``json`` writes it: with NaN, infinities and lone surrogates.

    Raises:
        BadDocument: It is not even that, or beyond the limits.
    """
    try:
        data = raw.encode(errors="surrogatepass") if isinstance(raw, str) else raw
        check_limits(data, LARGEST_DOCUMENT)
        return json.loads(raw)
    except BadDocument:
        raise
    except _BAD_INPUT as error:
        raise BadDocument(_reason(error)) from None


def convert(value: object, kind: type[T]) -> T:
    """Return decoded data as a type; raises BadDocument where it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except _BAD_INPUT as error:
        raise BadDocument(_reason(error)) from None


def read_document(path: Path, kind: type[T], *, largest: int = LARGEST_DOCUMENT) -> T:
    """Return the value of a JSON file.

    Raises:
        OSError: The system does not let it be read.
        BadDocument: It is no regular file, or holds no such value.
    """
    return decode(read_file(path, largest=largest), kind, largest=largest)


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
        OSError: The system does not let it be read.
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
    """Return UTF-8 bytes as text with newlines as line ends; raises BadDocument if none."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadDocument(_reason(error)) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def open_regular(path: Path) -> int:
    """Return a descriptor to read a regular file with; opening never waits for a writer.

    Raises:
        OSError: The system does not let it be opened, or no file can have this name.
        BadDocument: It is a directory, a FIFO, a device or a socket.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError:  # A NUL in the name.
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # A socket, or a device that is not there.
            raise BadDocument("it is no regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadDocument("it is no regular file")
    return descriptor


def open_csv(path: Path) -> Iterable[str]:
    """Return the lines of a regular CSV file, for ``csv_rows``; raises like ``read_file``."""
    try:
        return io.StringIO(read_file(path, largest=LARGEST_TABLE).decode("utf-8"), newline="")
    except UnicodeDecodeError as error:
        raise BadDocument(_reason(error)) from None


def gunzip(chunks: Iterable[bytes], *, largest: int = LARGEST_DOCUMENT) -> bytes:
    """Return what was packed with gzip, and never hold much more of it than that.

    Raises:
        BadDocument: It is no gzip, or holds more.
    """
    unpacker = zlib.decompressobj(wbits=31)
    content = bytearray()
    try:
        for chunk in chunks:
            content += unpacker.decompress(chunk, largest + 1 - len(content))
            if len(content) > largest:
                raise BadDocument(f"it has more than {largest:,} bytes")
    except zlib.error:
        raise BadDocument("it is no gzip") from None
    if not unpacker.eof:
        raise BadDocument("it is cut off")
    return bytes(content)


def csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV text with the line it ends on; raises BadDocument at a bad one."""
    reader = csv.reader(lines)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise BadDocument(f"line {reader.line_num}: {error}") from None


def csv_records(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV text by the names in its first one.

    Cells beyond the names are left out, and missing ones are empty.
    """
    rows = (row for _, row in csv_rows(lines) if row)
    names = next(rows, [])
    for row in rows:
        yield dict(zip(names, [*row, *[""] * (len(names) - len(row))], strict=False))


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A YAML text as plain data, and the 1-based line on which each of its keys stands."""

    tree: Any
    lines: Mapping[YamlPath, int]


class BadYaml(BadDocument):
    """A YAML text cannot be read; says on which line."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def parse_yaml(text: str) -> YamlDocument:
    """Return a YAML or JSON text as Hydra reads it: 1e-3 is a number, and dates stay text.

    Raises:
        BadYaml: It is no YAML, too large or too deep; a key stands twice, of which the second would
            silently win; or aliases make it much longer than it is written.
    """
    import yaml  # type: ignore[import-untyped]  # Here: nothing inside training waits for it.

    if len(text) > LARGEST_DOCUMENT:
        raise BadYaml(1, f"it has more than {LARGEST_DOCUMENT:,} characters")
    text = _json_as_yaml(text)
    try:
        loader = _yaml_loader()(text)
        _check_yaml_depth(text)
        node = loader.get_single_node()
        _check_expansion(node)
        lines = _yaml_lines(node)
        return YamlDocument(None if node is None else loader.construct_document(node), lines)
    except BadYaml:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadYaml(1 if mark is None else mark.line + 1, problem) from None
    except (ValueError, LookupError, RecursionError, OverflowError) as error:  # !!int abc
        raise BadYaml(1, _reason(error)) from None


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    loader: Any = type("HydraLoader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    loader.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    # Anchored at its end: 5e3a9c1 is a commit, and no number.
    exponent = re.compile(r"[-+]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][-+]?\d+)$", re.ASCII)
    loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789."))
    return loader


def _json_as_yaml(text: str) -> str:
    """Return JSON as the YAML it almost is: without tabs, and with one character per pair."""
    if not text.lstrip().startswith("{"):
        return text
    # Tabs stand only between the tokens of JSON, never inside its strings.
    return _SURROGATES.sub(lambda pair: pair[1] + json.loads(f'"{pair[2]}"'), text).replace(
        "\t", " "
    )


def _check_yaml_depth(text: str) -> None:
    """Refuse a text that is nested too deep, before a parser that recurses sees it."""
    import yaml

    indented = max(map(len, _INDENTATION.findall(text)), default=0)
    # Each level takes a bracket, or a column of indentation for at most two of them.
    if text.count("[") + text.count("{") + 2 * indented <= DEEPEST:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_yaml_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise BadYaml(event.start_mark.line + 1, f"this is nested deeper than {DEEPEST}")


def _check_expansion(root: Any) -> None:
    """Refuse a text that its aliases make endless or much longer, and types beside JSON's."""
    sizes: dict[int, int] = {}
    waiting = [] if root is None else [root]
    entered: set[int] = set()
    while waiting:
        node = waiting[-1]
        if node.tag.removeprefix(_TAG) not in _PLAIN:
            raise BadYaml(node.start_mark.line + 1, f"values of type {node.tag} are not read")
        below = _below(node)
        unknown = [each for each in below if id(each) not in sizes]
        if id(node) in sizes or not unknown:
            sizes[id(node)] = 1 + sum(sizes[id(each)] for each in below)
            waiting.pop()
        elif any(id(each) in entered for each in unknown):
            raise BadYaml(node.start_mark.line + 1, "this refers to itself")
        else:
            entered.add(id(node))
            waiting += unknown
    if root is not None and sizes[id(root)] > max(MOST_EXPANDED, len(sizes)):
        expanded = f"its aliases stand for {sizes[id(root)]:,} values"
        raise BadYaml(1, f"{expanded}, and at most {MOST_EXPANDED:,} are read")


def _below(node: Any) -> list[Any]:
    if isinstance(node.value, str):
        return []
    return [each for item in node.value for each in (item if isinstance(item, tuple) else (item,))]


def _yaml_lines(root: Any) -> dict[YamlPath, int]:
    """Return the line of every key."""
    import yaml

    lines: dict[YamlPath, int] = {}
    waiting: list[tuple[Any, YamlPath]] = [(root, ())]
    while waiting:
        node, path = waiting.pop()
        if len(path) > DEEPEST:
            raise BadYaml(node.start_mark.line + 1, f"this is nested deeper than {DEEPEST}")
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below = (*path, str(key.value))
                if below in lines:
                    where = key.start_mark.line + 1
                    raise BadYaml(where, f"the key {key.value!r} stands here twice")
                lines[below] = key.start_mark.line + 1
                waiting.append((value, below))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines[(*path, index)] = value.start_mark.line + 1
                waiting.append((value, (*path, index)))
    return lines


def check_limits(data: bytes, largest: int = LARGEST_DOCUMENT) -> None:
    """Refuse what is too large, too deep, or holds too long a number."""
    if len(data) > largest:
        raise BadDocument(f"it has more than {largest:,} bytes")
    # Cheap looks first, which take what stands in strings for more: nearly every document passes.
    is_shallow = data.count(b"[") + data.count(b"{") <= DEEPEST
    is_short = not (has_long_number(data) or _has_large_exponent(data))
    if is_shallow and is_short:
        return
    bare = _STRING.sub(b"", data)
    plain = bare if is_short else _FRACTION.sub(b".0", bare)
    if not is_short and (has_long_number(plain) or _has_large_exponent(plain)):
        raise BadDocument(f"it holds a number of more than {MOST_DIGITS} digits")
    if not is_shallow and _is_deep(bare):
        raise BadDocument(f"it is nested deeper than {DEEPEST}")


def has_long_number(data: bytes) -> bool:
    """Say whether there may be an integer of too many digits; those inside strings count, too."""
    return _TOO_LONG in data.translate(_DIGITS_ALIKE)


def _has_large_exponent(data: bytes) -> bool:
    """Say whether there may be an exponent of four digits; those inside strings count, too."""
    return _TOO_LARGE in data.translate(_DIGITS_ALIKE, b"+-")


def _is_deep(bare: bytes) -> bool:
    """Say whether brackets are nested too deep, by taking away the innermost pairs, level by level.

    What stays may also be unbalanced: the decoder then says so.
    """
    brackets = bare.translate(_TO_SQUARE, _BRACKETS)
    for _ in range(DEEPEST):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            return False
        brackets = inner
    return b"[]" in brackets


def _reason(error: BaseException) -> str:
    """Return why, without quoting what the document holds."""
    match error:
        case UnicodeDecodeError():
            return f"byte {error.start} is no UTF-8"
        case UnicodeEncodeError():
            return "it is no text that UTF-8 can hold"
        case RecursionError():
            return "it is nested too deep"
        case _:
            return str(error)
