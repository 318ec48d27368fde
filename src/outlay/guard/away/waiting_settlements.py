"""Captures and voids that a book could not take: kept on this machine, delivered once.

One file for each in the outlay home, with the idempotency key of the first attempt: whether that
attempt was written, and however often a file is delivered, the hold is settled once. A spend log in
a file needs none of this: its hold stays open and a person settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, TypedDict

import msgspec

from outlay.clock import SYSTEM
from outlay.decoding import MEBIBYTE, BadDocument, Int64, read_document
from outlay.errors import OutlayError
from outlay.files import make_private, write_whole
from outlay.guard.balance import unit_of
from outlay.guard.entries import Captured, RunPart, timestamp
from outlay.guard.errors import HoldResolved, SpendLogUnusable
from outlay.guard.spend_log import (
    BookUrl,
    LogName,
    MemorySpendLog,
    SpendLog,
    documents_dir,
    open_book,
)
from outlay.store.home import books_dir
from outlay.units import Money

_DIRECTORY: Final = "waiting"


class HoldSettler(Protocol):
    """What settles holds: a ``BudgetGuard``."""

    log_name: LogName
    log: SpendLog

    @property
    def currency(self) -> str:
        """The unit of every amount."""

    def record_actual(
        self, op_label: str, actual_usd: object, *, hold: str | None = None, key: str = "",
        basis: str = "measured", part: RunPart | None = None,
    ) -> Captured:  # fmt: skip
        """Record the actual cost of an operation."""

    def void(self, hold: str, reason: str) -> None:
        """Release a hold."""


class WaitingSettlement(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How a hold is to be settled.

    Attributes:
        book: The URL of the book, without a password.
        since: When it could not be delivered first.
        actual_micros: The cost; None for a void.
        reason: Of a void.
    """

    book: str
    hold: str
    op_label: str
    key: str
    since: str
    currency: str
    actual_micros: Int64 | None = None
    basis: str = "measured"
    part: RunPart | None = None
    reason: str = ""

    @property
    def actual(self) -> Money:
        """The cost; nothing for a void."""
        return unit_of(self.currency).money(self.actual_micros or 0)

    def __str__(self) -> str:
        what = "void" if self.actual_micros is None else str(self.actual)
        return f"{what} for hold {self.hold} ({self.op_label})"


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """A file that was not delivered, and why; ``settlement`` is None if it can't be read."""

    path: Path
    settlement: WaitingSettlement | None
    why: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was delivered, and what waits."""

    delivered: tuple[WaitingSettlement, ...] = ()
    waiting: tuple[StillWaiting, ...] = ()

    def __add__(self, other: Delivery) -> Delivery:
        return Delivery(self.delivered + other.delivered, self.waiting + other.waiting)


def settle(
    guard: HoldSettler, hold: str, op_label: str, actual: Money, part: RunPart | None = None
) -> Path | None:
    """Capture the cost of a hold; return the file in which it waits, if its book is away.

    Raises:
        SpendLogUnusable: A log in a file, or the disk, can't take it.
    """
    if (book := _book_of(guard)) is None:
        guard.record_actual(op_label, actual, hold=hold, part=part)
        return None
    return _post_or_keep(guard, book, _capture(book, hold, op_label, actual, part))


def void(guard: HoldSettler, hold: str, op_label: str, reason: str) -> Path | None:
    """Release a hold; return the file in which that waits, if its book is away."""
    if (book := _book_of(guard)) is None:
        guard.void(hold, reason)
        return None
    settlement = WaitingSettlement(
        **_about(book, hold), op_label=op_label, currency=guard.currency, reason=reason
    )
    return _post_or_keep(guard, book, settlement)


def settle_later(log: str, hold: str, op_label: str, actual: Money) -> Path:
    """Keep the capture of a hold in a book that can't be opened now; return its file.

    Raises:
        OSError: It can't be written.
    """
    book = open_book(log).name
    return keep(_capture(book, hold, op_label, actual, None), book)


def waiting_text(file: Path) -> str:
    """Return where a settlement waits, for a message."""
    return f"waits in {file} until the book can be reached; `outlay guard deliver` tries"


def _book_of(guard: HoldSettler) -> BookUrl | None:
    """Return the URL of the book in which a guard records; None for a file or for memory."""
    name = guard.log_name
    return None if isinstance(name, Path) or isinstance(guard.log, MemorySpendLog) else name


class _About(TypedDict):
    book: str
    hold: str
    key: str
    since: str


def _about(book: BookUrl, hold: str) -> _About:
    key, since = f"settle-{hold}", timestamp(SYSTEM.wall_ns())
    return {"book": book.without_password(), "hold": hold, "key": key, "since": since}


def _capture(
    book: BookUrl, hold: str, op_label: str, actual: Money, part: RunPart | None
) -> WaitingSettlement:
    return WaitingSettlement(
        **_about(book, hold), op_label=op_label, currency=str(actual.unit),
        actual_micros=actual.micros, part=part,
    )  # fmt: skip


def _post_or_keep(guard: HoldSettler, book: BookUrl, settlement: WaitingSettlement) -> Path | None:
    try:
        _post(guard, settlement)
    except SpendLogUnusable as error:
        return _keep_or_raise(book, settlement, error)
    deliver_to(guard)  # What other processes could not.
    return None


def _keep_or_raise(book: BookUrl, settlement: WaitingSettlement, error: SpendLogUnusable) -> Path:
    try:
        return keep(settlement, book)
    except OSError:
        raise error from None


def keep(settlement: WaitingSettlement, name: BookUrl) -> Path:
    """Write a settlement to the disk, for a later delivery; return its file.

    Raises:
        OSError: It can't be written.
    """
    directory = waiting_dir(name)
    make_private(directory, synced=True)
    path = directory / f"{sha256(settlement.key.encode()).hexdigest()[:16]}.json"
    write_whole(path, msgspec.json.encode(settlement), synced=True, private=True)
    return path


def waiting_for(name: LogName) -> tuple[StillWaiting, ...]:
    """Return what waits for a book; nothing waits for a log in a file."""
    if isinstance(name, Path):
        return ()
    return tuple(_files_in(waiting_dir(name)))


def waiting_dir(name: BookUrl) -> Path:
    """Return the directory in which settlements wait for a book; often there is none."""
    return documents_dir(name) / _DIRECTORY


def all_waiting() -> tuple[StillWaiting, ...]:
    """Return what waits on this machine, for every book."""
    directories = sorted(books_dir().glob(f"*/{_DIRECTORY}"))
    return tuple(file for directory in directories for file in _files_in(directory))


def deliver_to(guard: HoldSettler) -> Delivery:
    """Deliver what waits for a guard's book; stops at the first that the book can't take now."""
    return _deliver(guard, waiting_for(guard.log_name))


def deliver_all(guard_of: Callable[[str], HoldSettler]) -> Delivery:
    """Deliver what waits on this machine, for every book; ``guard_of`` opens one by its URL."""
    done, by_book = Delivery(), dict[str, list[StillWaiting]]()
    for each in all_waiting():
        if each.settlement is None:
            done += Delivery(waiting=(each,))
        else:
            by_book.setdefault(each.settlement.book, []).append(each)
    for url, files in by_book.items():
        try:
            guard = guard_of(url)
        except OutlayError as error:
            done += _unchanged(files, str(error))
        else:
            done += _deliver(guard, files)
    return done


def _files_in(directory: Path) -> Iterator[StillWaiting]:
    for path in sorted(directory.glob("*.json")):
        try:
            settlement = read_document(path, WaitingSettlement, largest=MEBIBYTE)
        except FileNotFoundError:  # Another process was faster.
            continue
        except (OSError, BadDocument) as error:
            yield StillWaiting(path, None, f"it can't be read: {error}")
        else:
            yield StillWaiting(path, settlement, f"since {settlement.since[:19]}Z")


def _deliver(guard: HoldSettler, files: Sequence[StillWaiting]) -> Delivery:
    if _book_of(guard) is None:
        return _unchanged(files, "the guard is in test mode")
    done = Delivery()
    for place, file in enumerate(files):
        if file.settlement is None:
            done += Delivery(waiting=(file,))
            continue
        try:
            _post(guard, file.settlement)
        except SpendLogUnusable as error:
            return done + _unchanged(files[place:], str(error))
        except OutlayError as error:
            done += _unchanged([file], str(error))
        else:
            _forget(file.path)
            done += Delivery(delivered=(file.settlement,))
    return done


def _unchanged(files: Sequence[StillWaiting], why: str) -> Delivery:
    return Delivery(waiting=tuple(StillWaiting(each.path, each.settlement, why) for each in files))


def _forget(path: Path) -> None:
    with suppress(OSError):  # Another process delivered it as well, or it is delivered again.
        path.unlink()


def _post(guard: HoldSettler, settlement: WaitingSettlement) -> None:
    """Settle a hold; one that was settled in just this way before is left as it is."""
    if settlement.actual_micros is not None:
        guard.record_actual(
            settlement.op_label, settlement.actual, hold=settlement.hold, key=settlement.key,
            basis=settlement.basis, part=settlement.part,
        )  # fmt: skip
        return
    try:
        guard.void(settlement.hold, settlement.reason)
    except HoldResolved:
        how = guard.log.look(lambda books: books.resolution(settlement.hold))
        if how is None or not how.startswith("voided"):
            raise
