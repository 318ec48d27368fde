"""Work that must not hold up whoever asks for it: a bounded queue and a thread.

Offering never blocks and never raises. What does not fit, or fails too often, is lost: it is
counted, and each kind of failure is said once.
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
    """How many items were done and lost so far, and why the last one was."""

    done: int = 0
    lost: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a background takes on.

    Attributes:
        waiting: How many items may wait; one more is lost.
        batch: How many are worked on at once.
        attempts: How often a batch is tried before it is lost, with a longer pause each time.
        linger_s: How long an item may wait for others to fill its batch.
    """

    waiting: int = 64
    batch: int = 1
    attempts: int = 1
    linger_s: float = 0.0


class Background(Generic[Item]):
    """Hands batches of items, in order, to a function in a thread of its own.

    Whatever the function raises means that its batch failed.
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
        self._said: set[str] = set()
        self._thread: threading.Thread | None = None

    @property
    def outcome(self) -> Outcome:
        """What became of the items so far."""
        return self._outcome

    def offer(self, item: Item) -> None:
        """Take an item on, or count it as lost."""
        with self._changed:
            if len(self._waiting) >= self._limits.waiting:
                self._lose(1, "it takes too long, and too much is waiting")
                return
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do; say whether that was in time."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: not self._waiting and not self._busy, timeout=timeout_s
            )
            self._hurry = False
        return done

    def abandon(self) -> None:
        """Give up what is still to do; it counts as lost."""
        with self._changed:
            left = len(self._waiting) + self._busy
            self._waiting.clear()
            self._busy = 0
            if left:
                self._lose(left, "there was no time left for it")

    def _run(self) -> None:
        while True:
            batch = self._take()
            trouble = self._try(batch)
            with self._changed:
                if self._busy and trouble:
                    self._lose(self._busy, trouble)
                else:  # Nothing, if it was abandoned meanwhile.
                    self._count(done=self._busy)
                self._busy = 0
                self._changed.notify_all()

    def _take(self) -> list[Item]:
        limits = self._limits
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) > 0)
            self._changed.wait_for(
                lambda: self._hurry or len(self._waiting) >= limits.batch, timeout=limits.linger_s
            )
            batch = list(islice(self._waiting, limits.batch))
            for _ in batch:
                self._waiting.popleft()
            self._busy = len(batch)
            return batch

    def _try(self, batch: Sequence[Item]) -> str:
        """Work on a batch; return what was wrong the last time, or nothing."""
        trouble = ""
        for attempt in range(self._limits.attempts):
            if attempt:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._hurry, timeout=FIRST_PAUSE_S * 2 ** (attempt - 1)
                    )
            try:
                self._work(batch)
            except Exception as error:  # noqa: BLE001 - the edge of a plugin: counted, and said
                trouble = _told(error)
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
        if trouble not in self._said:
            self._said.add(trouble)
            _log.warning("%s: %s; what is lost is counted", self.name, trouble)


def _told(error: Exception) -> str:
    """Return an error in one line that is not too long."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]
