"""A bounded queue and a worker thread, for work that must not block the caller.

``offer`` never blocks and never raises. An item that does not fit, or fails too often, is dropped
and counted; each distinct error is logged once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

_log = logging.getLogger("outlay")
FIRST_PAUSE_S = 0.5
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How many items were done and lost so far, and why the last one was lost."""

    done: int = 0
    lost: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a background queue.

    Attributes:
        waiting: The queue's capacity; further items are lost.
        batch: The largest number of items in one call.
        attempts: How often a batch is tried before it is lost, with exponential backoff.
        linger_s: How long an item may wait for others to fill its batch.
    """

    waiting: int = 64
    batch: int = 1
    attempts: int = 1
    linger_s: float = 0.0


class Background(Generic[Item]):
    """Calls a function with batches of items, in order, in a separate thread.

    The thread lasts while there are items. Any exception means that the batch failed.
    """

    def __init__(
        self, name: str, work: Callable[[Sequence[Item]], None], limits: Limits | None = None
    ) -> None:
        self.name = name
        self._work = work
        self._limits = limits or Limits()
        self._waiting: deque[Item] = deque()
        self._changed = threading.Condition()
        self._busy = 0
        self._hurry = False
        self._outcome = Outcome()
        self._logged: set[str] = set()
        self._thread: threading.Thread | None = None

    @property
    def outcome(self) -> Outcome:
        """Items done and lost so far."""
        return self._outcome

    def offer(self, item: Item) -> None:
        """Enqueue an item; if the queue is full, count it as lost."""
        with self._changed:
            if len(self._waiting) >= self._limits.waiting:
                self._lose(1, "it is too slow, and the queue is full")
                return
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until the queue is empty; return False on timeout."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: not self._waiting and not self._busy, timeout=timeout_s
            )
            self._hurry = False
        return done

    def abandon(self) -> None:
        """Drop all unfinished items; they count as lost."""
        with self._changed:
            left = len(self._waiting) + self._busy
            self._waiting.clear()
            self._busy = 0
            self._changed.notify_all()
            if left:
                self._lose(left, "there was no time left for it")

    def _run(self) -> None:
        while batch := self._take():
            trouble = self._try(batch)
            with self._changed:
                if self._busy and trouble:
                    self._lose(self._busy, trouble)
                else:  # 0 if it was abandoned meanwhile.
                    self._count(done=self._busy)
                self._busy = 0
                self._changed.notify_all()

    def _take(self) -> list[Item]:
        """Return the next items; none ends the thread, and the next item starts another."""
        limits = self._limits
        with self._changed:
            self._changed.wait_for(
                lambda: self._hurry or not 0 < len(self._waiting) < limits.batch,
                timeout=limits.linger_s,
            )
            batch = list(islice(self._waiting, limits.batch))
            for _ in batch:
                self._waiting.popleft()
            self._busy = len(batch)
            if not batch:
                self._thread = None
            return batch

    def _try(self, batch: Sequence[Item]) -> str:
        """Process a batch, with retries; return the last error, or ""."""
        trouble = ""
        for attempt in range(self._limits.attempts):
            if attempt:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._hurry, timeout=FIRST_PAUSE_S * 2 ** (attempt - 1)
                    )
            try:
                self._work(batch)
            except Exception as error:  # noqa: BLE001 - the edge of a plugin: counted, and logged
                text = " ".join(str(error).split())
                trouble = f"{type(error).__name__}: {text}"[:200]
            else:
                return ""
        return trouble

    def _count(self, *, done: int = 0, lost: int = 0, trouble: str = "") -> None:
        before = self._outcome
        self._outcome = Outcome(
            done=before.done + done, lost=before.lost + lost, trouble=trouble or before.trouble
        )

    def _lose(self, count: int, trouble: str) -> None:
        self._count(lost=count, trouble=trouble)
        if trouble not in self._logged:
            self._logged.add(trouble)
            _log.warning("%s: %s; losses are counted", self.name, trouble)
