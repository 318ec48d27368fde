"""A copy-on-write hash trie of rows, in which every node is checked by its parent. Pure.

A reference to a node has its checksum, so that whoever trusts the root can trust each answer, also
that there is no such row. A changed row gets new nodes up to the root; old nodes stay as they are.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from outlay.decoding import BadDocument, Decoder

_LEAF_BYTES = 4096  # a larger leaf becomes a branch, unless it has one row
_DIGITS = "0123456789abcdef"
_DEEPEST = 16  # digits of a path
_CHILD = struct.Struct("<QII")
_BRANCH = b"B"
_text = Decoder[str](str)


class DoubtfulIndex(Exception):
    """Some of the index is damaged, missing, or of another log or version."""


class NodeRef(NamedTuple):
    """Where a node is, and the CRC-32 of its bytes; no bytes mean that there is no node."""

    offset: int
    length: int
    crc: int


NO_NODE = NodeRef(0, 0, 0)
Load = Callable[[NodeRef], bytes]
Store = Callable[[bytes], NodeRef]


class _Row(NamedTuple):
    path: str
    key: bytes
    raw: bytes | None


def ref_to(node: bytes, offset: int) -> NodeRef:
    """Return the reference to a node at an offset."""
    return NodeRef(offset, len(node), zlib.crc32(node))


def checked(node: bytes, ref: NodeRef) -> bytes:
    """Return a node that was read; raises DoubtfulIndex if it is not the one referred to."""
    if (len(node), zlib.crc32(node)) != ref[1:]:
        raise DoubtfulIndex(f"the {ref.length} bytes at {ref.offset} are damaged")
    return node


def find(load: Load, root: NodeRef, key: str) -> bytes | None:
    """Return the row of a key, or None."""
    encoded = msgspec.json.encode(key)
    path, depth, ref = _path(encoded), 0, root
    while ref.length:
        node = load(ref)
        if not node.startswith(_BRANCH):
            return _row_in(node, encoded)
        if depth == _DEEPEST:
            raise DoubtfulIndex("a branch lies too deep")
        ref = _child(node, int(path[depth], 16))
        depth += 1
    return None


def walk(load: Load, root: NodeRef, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield all keys and rows, in no order."""
    if not root.length:
        return
    node = load(root)
    if node.startswith(_BRANCH):
        if depth == _DEEPEST:
            raise DoubtfulIndex("a branch lies too deep")
        for ref in _children(node):
            yield from walk(load, ref, depth + 1)
        return
    for row in _rows_of(node):
        try:
            yield _text.decode(row.key), row.raw or b""
        except BadDocument as error:
            raise DoubtfulIndex(str(error)) from None


def merge(
    load: Load,
    store: Store,
    root: NodeRef,
    changes: Iterable[tuple[str, bytes | None]],
    *,
    copy: bool = False,
) -> NodeRef:
    """Store the nodes of a trie with changed and removed rows; return its root.

    With ``copy``, unchanged nodes are stored, too: the new trie then needs none of the old one.
    """
    encoded = ((msgspec.json.encode(key), raw) for key, raw in changes)
    rows = [_Row(_path(key), key, raw) for key, raw in encoded]
    return _Merge(load, store, copy=copy).merge(root, rows, 0)


class _Merge:
    """One merge of changed rows into a trie."""

    def __init__(self, load: Load, store: Store, *, copy: bool) -> None:
        self._load = load
        self._store = store
        self._copy = copy

    def merge(self, ref: NodeRef, rows: list[_Row], depth: int) -> NodeRef:
        if not rows and not (self._copy and ref.length):
            return ref
        node = self._load(ref) if ref.length else b""
        if node.startswith(_BRANCH):
            return self._branch(_children(node), rows, depth)
        merged = {row.key: row for row in (*_rows_of(node), *rows)}
        return self._leaf([row for row in merged.values() if row.raw is not None], depth)

    def _branch(self, children: Iterable[NodeRef], rows: list[_Row], depth: int) -> NodeRef:
        parts: dict[str, list[_Row]] = {digit: [] for digit in _DIGITS}
        for row in rows:
            parts[row.path[depth]].append(row)
        below = zip(children, parts.values(), strict=True)
        refs = [self.merge(child, part, depth + 1) for child, part in below]
        return self._store(_BRANCH + b"".join(_CHILD.pack(*ref) for ref in refs))

    def _leaf(self, rows: list[_Row], depth: int) -> NodeRef:
        size = sum(len(row.key) + len(row.raw or b"") + 2 for row in rows)
        if size > _LEAF_BYTES and len(rows) > 1 and depth < _DEEPEST:
            return self._branch([NO_NODE] * len(_DIGITS), rows, depth)
        if not rows:
            return NO_NODE
        # JSON has neither tabs nor newlines but escaped ones.
        lines = (b"%b\t%b\n" % (row.key, row.raw or b"") for row in rows)
        return self._store(b"\n" + b"".join(lines))


def _path(encoded_key: bytes) -> str:
    return hashlib.blake2b(encoded_key, digest_size=_DEEPEST // 2).hexdigest()


def _child(branch: bytes, digit: int) -> NodeRef:
    try:
        return NodeRef(*_CHILD.unpack_from(branch, 1 + digit * _CHILD.size))
    except struct.error:
        raise DoubtfulIndex("a branch is too short") from None


def _children(branch: bytes) -> list[NodeRef]:
    return [_child(branch, digit) for digit in range(len(_DIGITS))]


def _row_in(leaf: bytes, encoded_key: bytes) -> bytes | None:
    found = leaf.find(b"\n%b\t" % encoded_key)
    if found < 0:
        return None
    start = found + len(encoded_key) + 2
    return leaf[start:].partition(b"\n")[0]


def _rows_of(leaf: bytes) -> Iterator[_Row]:
    for line in leaf.split(b"\n")[1:-1]:
        key, _, raw = line.partition(b"\t")
        yield _Row(_path(key), key, raw)
