"""Ships a run's files while it runs, from the node on which it records.

Progress is kept in the run's directory, so that a restart continues. Failures are kept, logged once
each and retried; nothing is raised, and nothing waits for storage except ``flush``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TextIO

import msgspec

from outlay.clock import SYSTEM, Clock
from outlay.decoding import BadDocument, decode, read_document
from outlay.errors import InvalidValue
from outlay.files import make_private, open_own, read_from, read_own, write_whole
from outlay.ledger import ledger_dir, read_identity
from outlay.locks import FileLock, FileLocked, is_locked
from outlay.proc.identity import register_outliving
from outlay.shipping.parts import NAME, Due, Part, digest_of, is_shippable, plan, whole_lines
from outlay.shipping.storage import (
    ShippedFiles,
    Storage,
    check_destination,
    described,
    open_storage,
    state_name,
    without_login,
)
from outlay.store.home import outliving_dir
from outlay.units import Duration

_log = logging.getLogger("outlay")

GROWN: Final = ("ledger/*.jsonl", "*_times.jsonl", "sweep*.log")
REPLACED: Final = ("budget.json", "sweep_exit*.json")
_IDENTITY: Final = "ledger/run.json"
EVERY_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 120.0
_FIRST_RETRY_S: Final = 0.25
_LONGEST_RETRY_S: Final = 5.0
_MARK_BYTES: Final = 64


class NotHome(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not completely shipped: how many of its bytes are."""

    file: str
    shipped_bytes: int
    size_bytes: int


class _FileProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file is shipped.

    Attributes:
        name: What it is shipped as: another name once it was replaced by another file.
        offset: The bytes that are shipped; of a file that is replaced, its version.
        mark: The last bytes before the offset, in hex; of a file that is replaced, its digest.
    """

    name: str
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    mark: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")] = ""


class ShippingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """``ledger/shipping.json``; ``to`` is a digest of the destination and the run's name there."""

    v: int = 1
    to: str
    files: dict[str, _FileProgress] = {}


class Shipper:
    """Ships the files of one run.

    Call ``poll`` often, ``flush`` at the end, and ``close``. Only one shipper per directory works;
    others wait for its lock.

    Args:
        run_dir: The run's directory, which need not exist yet.
        to: A storage URL or a directory.
        name: The run's name there; default: its id.
        interval_s: How often to ship.
        node: The number of this node, if several ship their parts of a run under one name.
        also: Patterns of more files that only grow, relative to the run's directory.
        clock: For the interval.

    Attributes:
        trouble: Why the last round failed; "" if it did not.
        failures: How many rounds failed since one did not.

    Raises:
        InvalidValue: The destination or the name cannot be used.
        MissingExtra: The destination is a URL, and fsspec is not installed.
    """

    def __init__(
        self,
        run_dir: Path,
        to: str,
        *,
        name: str = "",
        interval_s: float = EVERY_S,
        node: int = 0,
        also: Sequence[str] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        if name and not NAME.fullmatch(name):
            raise InvalidValue("name", name, "letters, digits and . , = + @ _ -")
        self.trouble = ""
        self.failures = 0
        self._run_dir = run_dir
        self._to = check_destination(to, name="to")
        self._name = name
        self._interval_s = interval_s
        self._state = state_name(node)
        self._grown = (*GROWN, *also)
        self._clock = clock
        self._due_ns = clock.monotonic_ns()
        self._storage: Storage | None = None
        self._lock: FileLock | None = None
        self._yields = False  # Whether another process ships this directory.
        self._files: dict[str, _FileProgress] | None = None
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Begin a round in another thread if one is due; return at once."""
        if self._clock.monotonic_ns() >= self._due_ns:
            self._begin_round(final=False)

    def flush(self, deadline_s: float) -> tuple[NotHome, ...]:
        """Ship everything; after ``deadline_s`` return what is not home, which is also logged."""
        until_ns = self._clock.monotonic_ns() + round(deadline_s * 1e9)
        pause_s = _FIRST_RETRY_S
        self._join(until_ns)  # A round that had begun ships whole lines only.
        while True:
            self._begin_round(final=True)
            self._join(until_ns)
            left = self.left()
            if not (left or self.failures) or self._clock.monotonic_ns() >= until_ns:
                break
            self._clock.sleep(min(pause_s, self._seconds_to(until_ns)))
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)
        if left:
            _log.warning("%s", left_text(left, self._to, self.trouble))
        return left

    def left(self) -> tuple[NotHome, ...]:
        """Return the files that have grown since they were shipped; none while another ships."""
        if self._yields:
            return ()
        files = self._files or {}
        left = []
        for file, size in self._sizes().items():
            shipped = files[file].offset if file in files else 0
            if shipped != size:
                left.append(NotHome(file=file, shipped_bytes=shipped, size_bytes=size))
        for file in self._matching((_IDENTITY, *REPLACED)):
            with contextlib.suppress(OSError):
                content = read_own(self._run_dir / file)
                if file not in files or files[file].mark != digest_of(content):
                    left.append(NotHome(file=file, shipped_bytes=0, size_bytes=len(content)))
        return tuple(left)

    def close(self) -> None:
        """Let another process ship this directory."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # One round, in its own thread

    def _begin_round(self, *, final: bool) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(
            target=self._round, args=(final,), name="outlay-shipper", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # No more threads, or the interpreter is ending.
            self._thread = None
            self._fail(error)

    def _join(self, until_ns: int) -> None:
        if self._thread is not None:
            self._thread.join(self._seconds_to(until_ns))

    def _seconds_to(self, until_ns: int) -> float:
        return max(0.0, (until_ns - self._clock.monotonic_ns()) / 1e9)

    def _round(self, final: bool) -> None:  # noqa: FBT001 - a thread's only argument
        try:
            self._ship(final=final)
        except Exception as error:  # noqa: BLE001 - any error of a storage's library: kept, retried
            self._fail(error)
        else:
            self.trouble, self.failures = "", 0
        pause_s = self._interval_s * 2 ** max(0, min(self.failures, 10) - 1)
        pause_s = min(pause_s, max(self._interval_s, _LONGEST_PAUSE_S))
        self._due_ns = self._clock.monotonic_ns() + round(pause_s * 1e9)

    def _fail(self, error: BaseException) -> None:
        trouble = described(error)
        if trouble != self.trouble:
            place = without_login(self._to)
            _log.warning("cannot ship to %s: %s; it is tried again", place, trouble)
        self.trouble, self.failures = trouble, self.failures + 1

    def _ship(self, *, final: bool) -> None:
        if (sender := self._open_sender()) is None:
            return
        sender.replace(_IDENTITY)
        sizes = self._sizes()
        for file, size in sizes.items():
            sender.check(file, size)
        dues = list(plan(sizes, {file: sender.files[file].offset for file in sizes}))
        state = ShippedFiles(interval_s=self._interval_s)
        if dues:
            sender.state(self._state, state)
        for due in dues:
            sender.grow(due, final=final or due.end < sizes[due.file])
        for file in self._matching(REPLACED):
            sender.replace(file)
        if final:
            home = {sender.files[file].name: size for file, size in sizes.items()}
            sender.state(self._state, msgspec.structs.replace(state, home=home))

    def _open_sender(self) -> _Sender | None:
        """Return the sender; None before the run has begun, and while another process ships it."""
        identity = read_identity(self._run_dir)
        name = self._name or ("" if identity is None else identity.run_id)
        if not name or not self._has_lock():
            return None
        if self._files is None:
            self._files = self._read_progress(name)
        if self._storage is None:
            self._storage = open_storage(self._to)
        return _Sender(self._storage, self._run_dir, name, self._files, self._save)

    def _has_lock(self) -> bool:
        if self._lock is None:
            path = ledger_dir(self._run_dir) / "shipping.lock"
            make_private(path.parent)
            self._yields = False
            try:
                self._lock = FileLock(open_own(path, os.O_RDWR | os.O_CREAT), visible=True)
            except FileLocked:
                self._yields = True
            except OSError:
                pass  # Without locks two may ship: they write the same objects.
        return not self._yields

    def _sizes(self) -> dict[str, int]:
        found = {}
        for file in self._matching(self._grown):
            with contextlib.suppress(OSError):
                found[file] = (self._run_dir / file).stat().st_size
        return found

    def _matching(self, patterns: Iterable[str]) -> Iterator[str]:
        for pattern in patterns:
            for path in sorted(self._run_dir.glob(pattern)):
                file = path.relative_to(self._run_dir).as_posix()
                if is_shippable(file) and path.is_file():
                    yield file

    # Progress

    def _progress_path(self) -> Path:
        return ledger_dir(self._run_dir) / "shipping.json"

    def _read_progress(self, name: str) -> dict[str, _FileProgress]:
        """Return the progress of an earlier shipper to the same place; else ship all again."""
        self._target = digest_of(f"{self._to}\n{name}".encode())
        with contextlib.suppress(OSError, BadDocument):
            progress = read_document(self._progress_path(), ShippingProgress)
            if progress.v == 1 and progress.to == self._target:
                return dict(progress.files)
        return {}

    def _save(self, files: Mapping[str, _FileProgress]) -> None:
        progress = ShippingProgress(to=self._target, files=dict(files))
        with contextlib.suppress(OSError):  # A restart then ships more again.
            write_whole(self._progress_path(), msgspec.json.encode(progress), private=True)


@dataclass(frozen=True, slots=True)
class _Sender:
    """Writes a run's files to storage, and saves the progress after each part."""

    storage: Storage
    run_dir: Path
    run: str
    files: dict[str, _FileProgress]
    save: Callable[[Mapping[str, _FileProgress]], None]

    def grow(self, due: Due, *, final: bool) -> None:
        """Ship a part of a file that grows; unless ``final``, only its whole lines."""
        known = self.files[due.file]
        content = _read(self.run_dir / due.file, due.start, due.end)
        if due.file.endswith(".jsonl") and not final:
            content = whole_lines(content)
        if not content:
            return
        part = Part.of(self.run, known.name, due.start, content)
        self.storage.put(part.key, content)
        mark = (bytes.fromhex(known.mark) + content)[-_MARK_BYTES:]
        self._progress(due.file, _FileProgress(name=known.name, offset=part.end, mark=mark.hex()))

    def check(self, file: str, size: int) -> None:
        """Give a file another name if it is not the one of which a part was shipped."""
        known = self.files.setdefault(file, _FileProgress(name=file))
        mark = bytes.fromhex(known.mark)
        seen = _read(self.run_dir / file, known.offset - len(mark), known.offset)
        if size < known.offset or seen != mark:
            stem, dot, suffix = file.rpartition(".")
            name = f"{stem}-{os.urandom(4).hex()}{dot}{suffix}"
            self._progress(file, _FileProgress(name=name))

    def replace(self, file: str) -> None:
        """Ship a file that is replaced, if it was."""
        try:
            version_ns = (self.run_dir / file).stat().st_mtime_ns
            content = read_own(self.run_dir / file)
        except FileNotFoundError:
            return
        self._put_whole(file, content, version_ns)

    def state(self, file: str, shipped: ShippedFiles) -> None:
        """Ship what is shipped."""
        self._put_whole(file, msgspec.json.encode(shipped) + b"\n", SYSTEM.wall_ns())

    def _put_whole(self, file: str, content: bytes, version: int) -> None:
        known = self.files.get(file, _FileProgress(name=file))
        if known.mark == digest_of(content):
            return
        version = max(version, known.offset + 1)  # The clock may have been set back.
        part = Part.of(self.run, file, version, content, is_whole=True)
        self.storage.put(part.key, content)
        self._progress(file, _FileProgress(name=file, offset=version, mark=part.digest))

    def _progress(self, file: str, progress: _FileProgress) -> None:
        self.files[file] = progress
        self.save(self.files)


def _read(path: Path, start: int, end: int) -> bytes:
    file = open_own(path, os.O_RDONLY)
    try:
        return read_from(file, start, end)
    finally:
        os.close(file)


def left_text(left: Sequence[NotHome], to: str, trouble: str) -> str:
    """Return in words what is not home."""
    files = ", ".join(f"{f.file} ({f.shipped_bytes:,} of {f.size_bytes:,} bytes)" for f in left)
    why = f"; last error: {trouble}" if trouble else ""
    return f"not all of the run is shipped to {without_login(to)}: {files}{why}"


# A process that ships a run: ``python -m outlay.shipping.shipper``
#
# It gets its task on stdin, and ships until its parent has ended and no rank of the run is recorded
# any more: so it also brings home what a killed training left.

FINISH_S: Final = 10.0
"""How long the end of a run waits until all of it is shipped."""
LINGER_S: Final = 300.0
"""How long the process goes on without the run."""
INBOX_EVERY_S: Final = 5.0
_INBOX_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.5
_EXIT_S: Final = 0.2
_NICENESS: Final = 10


class ShippingTask(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run ships itself to, and how often.

    Attributes:
        name: The run's name there; default: its id.
        also: Patterns of more files that only grow.
        inbox: Objects of the run's name that the submitting side writes. They are fetched into the
            directory before anything is shipped, and again when they change.
    """

    to: str
    interval_s: float = EVERY_S
    run_dir: str = ""
    name: str = ""
    also: list[str] = []
    inbox: list[str] = []

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ShippingTask | None:
        """Return what ``OUTLAY_SHIP_TO`` and ``OUTLAY_SHIP_EVERY`` state; None if nothing.

        Raises:
            InvalidValue: One of them cannot be used.
            MissingExtra: fsspec is not installed, and the destination is a URL.
        """
        if not (to := environ.get("OUTLAY_SHIP_TO")):
            return None
        to, every = check_destination(to, name="OUTLAY_SHIP_TO"), environ.get("OUTLAY_SHIP_EVERY")
        if not every:
            return cls(to=to)
        interval_s = Duration.parse(every, name="OUTLAY_SHIP_EVERY").seconds
        if not interval_s:
            raise InvalidValue("OUTLAY_SHIP_EVERY", every, 'a time such as "30s"')
        return cls(to=to, interval_s=interval_s)


class ShippingProcess:
    """A process that ships a run; errors are logged, and never raised."""

    def __init__(self, task: ShippingTask, run_dir: Path) -> None:
        self._to = task.to
        self._process: subprocess.Popen[bytes] | None = None
        task = msgspec.structs.replace(task, run_dir=str(run_dir))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "outlay.shipping.shipper"], bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C ends the training; this ships its end.
            )  # fmt: skip
            register_outliving(outliving_dir("uploaders"), self._process.pid)
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
        except OSError as error:
            _log.warning("the run is not shipped to %s: %s", without_login(self._to), error)

    def wait_for_inbox(self) -> str:
        """Wait until the inbox is fetched; return why it is not, or ""."""
        if self._process is None or self._process.stdout is None:
            return "no process that ships could be started"
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(_INBOX_WAIT_S):
                return f"no answer in {_INBOX_WAIT_S:g} s"
        said = self._process.stdout.readline().decode()
        return said.strip() if said else "the process that ships has ended"

    def finish(self, timeout_s: float = FINISH_S) -> None:
        """Wait until everything is shipped; after ``timeout_s`` the process goes on alone.

        It also goes on, without being waited for, while others record the run.
        """
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with selectors.DefaultSelector() as selector, self._process.stdout as output:
            selector.register(output, selectors.EVENT_READ)  # Its end.
            if not selector.select(timeout_s):
                _log.warning(
                    "not all of the run is shipped to %s yet: process %d goes on for up to %d s",
                    without_login(self._to), self._process.pid, LINGER_S,
                )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        self._process.returncode = 0  # Popen must not warn that nobody waited.


def _is_recorded(ledger: Path) -> bool:
    """Return whether a live process records a rank of the run."""
    for path in ledger.glob("rank-*.lock"):
        with contextlib.suppress(OSError):
            if is_locked(path):
                return True
    return False


def serve() -> int:
    """Ship a run until it has ended; return 0 if all of it is home."""
    task = decode(sys.stdin.buffer.readline(), ShippingTask)
    logging.basicConfig(format="outlay: %(message)s", level=logging.WARNING)
    os.nice(_NICENESS)
    if task.inbox and not _open_inbox(task):
        return 1
    shipper = Shipper(
        Path(task.run_dir), task.to, name=task.name, interval_s=task.interval_s, also=task.also
    )
    _ship_beside_parent(shipper, min(_LOOK_S, task.interval_s))
    return 1 if _ship_rest(shipper, ledger_dir(Path(task.run_dir))) else 0


def _open_inbox(task: ShippingTask) -> bool:
    """Fetch the inbox and say so, or why not; then have it fetched again and again."""
    received: dict[str, bytes] = {}
    trouble, until_ns = "?", SYSTEM.monotonic_ns() + round(FINISH_S * 1e9)
    while trouble and SYSTEM.monotonic_ns() < until_ns:
        if trouble := _receive(task, received):
            SYSTEM.sleep(_FIRST_RETRY_S)
    os.write(sys.stdout.fileno(), f"{trouble}\n".encode())
    if not trouble:
        threading.Thread(target=_keep_receiving, args=(task, received), daemon=True).start()
    return not trouble


def _receive(task: ShippingTask, received: dict[str, bytes]) -> str:
    """Write the objects that have changed into the directory; return why not, or ""."""
    try:
        found = open_storage(task.to).get([f"{task.name}/{file}" for file in task.inbox])
        for file, content in zip(task.inbox, found, strict=True):
            if received.get(file) != content:
                write_whole(Path(task.run_dir) / file, content, private=True)
                received[file] = content
    except Exception as error:  # noqa: BLE001 - any error of a storage's library
        return described(error)
    return ""


def _keep_receiving(task: ShippingTask, received: dict[str, bytes]) -> None:
    while True:
        SYSTEM.sleep(INBOX_EVERY_S)
        _receive(task, received)


def _ship_beside_parent(shipper: Shipper, pause_s: float) -> None:
    """Ship until the parent closes stdin or is gone."""
    parent, stop = os.getppid(), threading.Event()

    def listen() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    # A process forked by the training may hold stdin open: look at the parent as well.
    while not stop.wait(pause_s) and os.getppid() == parent:
        shipper.poll()


def _ship_rest(shipper: Shipper, ledger: Path) -> tuple[NotHome, ...]:
    """Ship what the parent left, and what other ranks or the next attempt still record."""
    left = shipper.flush(FINISH_S)
    if not left:
        _leave(sys.stdout)  # All that the parent recorded is home.
    if left or _is_recorded(ledger):
        _leave(sys.stderr)  # Whoever reads the training's output does not wait for this.
        while _is_recorded(ledger):
            SYSTEM.sleep(_LOOK_S)
            shipper.poll()
        left = shipper.flush(LINGER_S)
    shipper.close()
    while not left and shipper.left():  # The next attempt ended while this had the lock.
        left = shipper.flush(LINGER_S)
        shipper.close()
    return left


def _leave(output: TextIO) -> None:
    """Close the other end of an output."""
    output.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    code = serve()
    sys.stderr.flush()
    os._exit(code)  # A request that hangs must not keep the process.
