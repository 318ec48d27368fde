"""A storage URL: objects in it, and the runs that were shipped there.

A path or ``file://`` is a directory; any other URL is opened by fsspec. The node only writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from outlay.decoding import BadDocument, Int64, read_document
from outlay.errors import Finding, InvalidValue, MissingExtra, OutlayError
from outlay.files import make_private, open_own, read_from, read_own, write_whole
from outlay.locks import FileLock, FileLocked
from outlay.shipping.parts import Chain, Part, chain, digest_of, join, parse_key
from outlay.store.home import outlay_home

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://[^\s\0]+")
_AT_ONCE: Final = 64
_JOINED_BYTES: Final = 64 << 20
_PATIENCE_S: Final = 60.0
_VERIFIED: Final = "fetched.keys"


class StorageFailed(OutlayError):
    """Objects at a storage URL cannot be listed or fetched."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(
            f"{without_login(url)}: cannot be read: {described(error)}. Check the address, and "
            "that the credentials may list and get objects (those of a node need only write)."
        )


class FetchInProgress(OutlayError):
    """Another process fetches runs into the same directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"{directory}: another `outlay import runs` is fetching into this directory. "
            "Wait for it, or name another directory (--to DIR)."
        )


class NothingShipped(OutlayError):
    """There is no part of a run below a storage URL."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{without_login(url)}: no run was shipped here. Name the URL that the runs had as "
            "OUTLAY_SHIP_TO; their first parts come after some seconds of training."
        )


def without_login(text: str) -> str:
    """Return a text with URLs, without their user names and passwords."""
    return re.sub(r"//[^/@\s]+@", "//", text)


def described(error: BaseException) -> str:
    """Return an error in one short line, without a login."""
    words = [f"{type(error).__name__}:", *str(error).split()]
    return without_login(" ".join(words).removesuffix(":"))[:300]


# Objects


class Storage(Protocol):
    """Objects by name. ``put`` replaces an object as a whole, or leaves it as it was."""

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""

    def names(self, run: str = "") -> list[str]:
        """Return the names of all objects, or of those of one run."""

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of objects."""


class DirectoryStorage:
    """Objects as files below a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, key: str, content: bytes) -> None:
        """Write a file atomically."""
        path = self._directory / key
        make_private(path.parent)
        write_whole(path, content, private=True)

    def names(self, run: str = "") -> list[str]:
        """Return the paths of all files, relative to the directory."""
        if run and run not in os.listdir(self._directory):  # noqa: PTH208 - raises without any
            return []
        found = os.walk(self._directory / run, onerror=_raise)
        return [Path(at, name).relative_to(self._directory).as_posix()
                for at, _, files in found for name in files]  # fmt: skip

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of files."""
        return [read_own(self._directory / key) for key in keys]


class FsspecStorage:
    """Objects of any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        opened: tuple[Any, str] = url_to_fs(url)
        self._files, self._root = opened[0], opened[1].rstrip("/")

    def put(self, key: str, content: bytes) -> None:
        """Write an object with one request; nothing is listed or read."""
        self._files.pipe_file(f"{self._root}/{key}", content)

    def names(self, run: str = "") -> list[str]:
        """Return the names of all objects below the URL."""
        self._files.invalidate_cache()
        try:
            found = self._files.find(f"{self._root}/{run}".rstrip("/"))
        except FileNotFoundError:
            return []
        return [str(path)[len(self._root) + 1 :] for path in found]

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the content of objects, fetched at the same time where that is possible."""
        paths = [f"{self._root}/{key}" for key in keys]
        found: dict[str, bytes] = self._files.cat(paths)
        return [found[path] for path in paths]


def _raise(error: OSError) -> None:
    raise error


def check_destination(to: str, *, name: str) -> str:
    """Return a storage URL, or the absolute path of a directory.

    Raises:
        InvalidValue: It is neither.
        MissingExtra: It is a URL, and fsspec is not installed.
    """
    expected = "a URL such as s3://bucket/runs, or a directory"
    if "://" not in to:
        if not to.strip() or "\0" in to or re.match(r"[a-z][a-z0-9+.-]+:", to):
            raise InvalidValue(name, to, expected)
        return str(Path(to).expanduser().absolute())
    if not _URL.fullmatch(to):
        raise InvalidValue(name, to, expected)
    if not to.startswith("file://") and find_spec("fsspec") is None:
        raise MissingExtra("shipping to a URL", "ship")
    return to


def check_shared_destination(to: str, *, name: str) -> str:
    """Return a storage URL or directory that means the same on every machine.

    Raises:
        InvalidValue: It does not, has a login, or nothing installed here can open it.
    """
    if without_login(to) != to:
        expected = "a URL without a login: each machine has credentials of its own"
        raise InvalidValue(name, without_login(to), expected)
    if "://" not in to and not Path(to).is_absolute():
        raise InvalidValue(name, to, "a URL such as s3://bucket/runs, or an absolute directory")
    try:
        if "://" in check_destination(to, name=name) and not to.startswith("file://"):
            from fsspec import get_filesystem_class

            get_filesystem_class(re.split("://|::", to)[0])
    except (MissingExtra, ImportError) as error:
        raise InvalidValue(name, to, f"what is needed to open it: {error}") from None
    except ValueError as error:
        raise InvalidValue(name, to, f"a protocol that fsspec knows: {error}") from None
    return to


def open_storage(to: str) -> Storage:
    """Open a checked destination; connects to nothing yet."""
    if "://" not in to:
        return DirectoryStorage(Path(to))
    if to.startswith("file://"):
        return DirectoryStorage(Path(unquote(urlsplit(to).path)))
    return FsspecStorage(to)


# Whether a directory here is the same one there


def leave_probe(directory: Path) -> str:
    """Write a probe file into a directory, and return its name for ``sees_probe`` elsewhere.

    Raises:
        OSError: The directory cannot be written.
    """
    name = f".outlay-probe-{os.urandom(12).hex()}"
    make_private(directory)
    write_whole(directory / name, name.encode(), private=True)
    return name


def sees_probe(directory: Path, name: str) -> bool:
    """Return whether a probe that another machine wrote is in this directory."""
    with contextlib.suppress(OSError):
        os.listdir(directory)  # NFS may remember that there was no such file.  # noqa: PTH208
        return read_own(directory / name) == name.encode()
    return False


def remove_probe(directory: Path, name: str) -> None:
    """Remove a probe."""
    with contextlib.suppress(OSError):
        (directory / name).unlink()


# Runs


class ShippedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """``shipped.json``: what a node last said about its shipping.

    Attributes:
        interval_s: How often it ships.
        home: The size of each file when all of them had been shipped; empty while one is not.
    """

    v: int = 1
    interval_s: float
    home: dict[str, Int64] = {}


def state_name(node: int) -> str:
    """Return the file of what a node has shipped."""
    return "shipped.json" if node == 0 else f"shipped.node{node}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRun:
    """A run that was fetched.

    Attributes:
        fetched_bytes: How many bytes are new.
        is_complete: Whether everything is here that the node had when it last shipped.
        interval_s: How often the node ships; 0 if unknown.
    """

    name: str
    dir: Path
    fetched_bytes: int
    is_complete: bool
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """The runs below a URL, and what is missing or contradictory in them."""

    runs: list[FetchedRun] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def holds_shipped(directory: Path) -> bool:
    """Return whether runs were shipped to a directory."""
    return any(directory.glob("*/ledger~run.json"))


def fetched_dir(url: str) -> Path:
    """Return where runs of a URL are kept if no directory is named: in the outlay home."""
    parts = urlsplit(url)
    shown = re.sub(r"[^A-Za-z0-9.]+", "-", f"{parts.hostname or ''}{parts.path}").strip("-.")
    return outlay_home() / "shipped" / f"{shown[:80]}-{digest_of(url.encode())[:8]}"


def fetch_runs(url: str, to: Path) -> Fetched:
    """Fetch what is new of all runs below a URL into directories below ``to``, one per run.

    Raises:
        NothingShipped: There is no run.
        StorageFailed: Objects cannot be listed.
        OSError: The directory cannot be written.
        FetchInProgress: Another process is fetching into it.
    """
    try:
        storage = open_storage(url)
        found = _parts_in(storage)
    except Exception as error:  # noqa: BLE001 - any error of a storage's library
        raise StorageFailed(url, error) from None
    if not found:
        raise NothingShipped(url)
    make_private(to)
    fetched = Fetched()
    lock = open_own(to / "fetching.lock", os.O_RDWR | os.O_CREAT)
    try:
        taken = FileLock(lock, patience_s=_PATIENCE_S)
    except FileLocked:
        raise FetchInProgress(to) from None
    with taken:
        for name, parts in sorted(_grouped(found, "run").items()):
            run = _RunFetch(storage, to / name, fetched.findings)
            fetched.runs.append(run.fetch(name, parts))
    return fetched


def _parts_in(storage: Storage, run: str = "") -> list[Part]:
    parsed = map(parse_key, storage.names(run))
    return [part for part in parsed if part is not None and part.file != _VERIFIED]


def fetch_run(url: str, name: str, directory: Path) -> FetchedRun | None:
    """Fetch what is new of one run into its directory; None if nothing of it was shipped yet.

    A run of which something could not be fetched is not complete.

    Raises:
        StorageFailed: Its objects cannot be listed.
        OSError: The directory cannot be written.
    """
    try:
        storage = open_storage(url)
        parts = _parts_in(storage, name)
    except Exception as error:  # noqa: BLE001 - any error of a storage's library
        raise StorageFailed(url, error) from None
    return _RunFetch(storage, directory, []).fetch(name, parts) if parts else None


def _grouped(parts: Iterable[Part], attribute: str) -> dict[str, list[Part]]:
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(getattr(part, attribute), []).append(part)
    return groups


class _RunFetch:
    """Fetches one run; parts that were verified once are listed in ``fetched.keys``."""

    def __init__(self, storage: Storage, directory: Path, findings: list[Finding]) -> None:
        self._storage = storage
        self._directory = directory
        self._findings = findings
        self._bytes = 0
        self._verified: set[str] = set()
        with contextlib.suppress(OSError):
            self._verified.update(read_own(directory / _VERIFIED).decode().split())

    def fetch(self, name: str, parts: Sequence[Part]) -> FetchedRun:
        for file, mine in sorted(_grouped(parts, "file").items()):
            try:
                self._fetch_file(file, mine)
            except Exception as error:  # noqa: BLE001 - of a storage's library: the rest goes on
                self._find(file, f"could not be fetched: {described(error)}; import it again")
        states = list(self._states())
        return FetchedRun(
            name=name,
            dir=self._directory,
            fetched_bytes=self._bytes,
            is_complete=bool(states) and all(map(self._is_here, states)),
            interval_s=max((state.interval_s for state in states), default=0.0),
        )

    def _states(self) -> Iterator[ShippedFiles]:
        for path in self._directory.glob("shipped*.json"):
            with contextlib.suppress(OSError, BadDocument):
                yield read_document(path, ShippedFiles)

    def _is_here(self, state: ShippedFiles) -> bool:
        sizes = {file: _size(self._directory / file) for file in state.home}
        return bool(sizes) and sizes == state.home

    def _fetch_file(self, file: str, parts: Sequence[Part]) -> None:
        path = self._directory / file
        make_private(path.parent)
        grown = [part for part in parts if not part.is_whole]
        if len(grown) < len(parts):
            self._replace(path, max(part for part in parts if part.is_whole))
        elif any(part.key not in self._verified or part.end > _size(path) for part in grown):
            self._extend(path, file, grown)

    def _replace(self, path: Path, latest: Part) -> None:
        if latest.key in self._verified and path.exists():
            return
        (content,) = self._storage.get([latest.key])
        if digest_of(content) != latest.digest:
            raise OSError(f"the content of {latest.key} is not what its name says")
        write_whole(path, content, private=True)
        self._note([latest], len(content))

    def _extend(self, path: Path, file: str, parts: Sequence[Part]) -> None:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            while True:
                have = os.fstat(descriptor).st_size
                found = chain(have, parts, _JOINED_BYTES)
                wrong = self._append(descriptor, have, found, parts)
                if wrong is not None or found.end == have:
                    break
        finally:
            os.close(descriptor)
        if wrong is not None:
            message = (
                f"parts of it contradict each other in bytes {wrong.start:,} to {wrong.end:,}: "
                f"it was left as it was, with {have:,} bytes ({wrong.key})"
            )
            self._find(file, message)
        elif found.beyond is not None:
            message = (
                f"bytes {found.end:,} to {found.beyond:,} have not come home: what was recorded "
                "after them is left out until they do"
            )
            self._find(file, message)

    def _append(
        self, descriptor: int, have: int, found: Chain, parts: Sequence[Part]
    ) -> Part | None:
        """Append a chain to a file; return a part that contradicts others, and append nothing."""
        start = min([have, *(part.start for part in found.parts)])
        before = read_from(descriptor, start, have)
        joined = join(before, start, self._contents(found.parts))
        if isinstance(joined, Part):
            return joined
        ended = [part for part in parts if part.end <= found.end]
        new = [part for part in ended if part.key not in self._verified]
        for part in new:
            content = read_from(descriptor, part.start, min(part.end, start))
            content += joined[max(0, part.start - start) : max(0, part.end - start)]
            if digest_of(content) != part.digest:
                return part
        if os.pwrite(descriptor, joined[have - start :], have) != found.end - have:
            raise OSError(errno.ENOSPC, "no space left")
        self._note(new, found.end - have)
        return None

    def _contents(self, parts: Sequence[Part]) -> Iterable[tuple[Part, bytes]]:
        for at in range(0, len(parts), _AT_ONCE):
            some = parts[at : at + _AT_ONCE]
            yield from zip(some, self._storage.get([part.key for part in some]), strict=True)

    def _note(self, verified: Sequence[Part], new_bytes: int) -> None:
        self._bytes += new_bytes
        self._verified.update(part.key for part in verified)
        lines = "".join(f"{part.key}\n" for part in verified)
        with os.fdopen(open_own(self._directory / _VERIFIED, _APPEND), "ab") as stream:
            stream.write(lines.encode())

    def _find(self, file: str, message: str) -> None:
        self._findings.append(Finding(source=str(self._directory / file), message=message))


_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def unshipped(run: FetchedRun, status: str) -> list[Finding]:
    """Return a finding for a run that died without having shipped everything."""
    if run.is_complete or status != "dead":
        return []
    interval = f"{run.interval_s:g} s" if run.interval_s else "interval"
    message = (
        "its node stopped before all of its log was shipped: what it recorded after its last part "
        f"is missing, at most the last {interval} unless its storage was away"
    )
    return [Finding(source=str(run.dir), message=message, severity="warning")]
