"""The guard of a whole run: rank 0 keeps the money, and all ranks stop at the same step.

Rank 0 alone speaks to the spend log. Where ranks train together it tells the others, with a
collective at steps that it names in advance, so that none of them waits for one that has stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from outlay.budget.agreement import Group
from outlay.budget.torch_group import torch_group
from outlay.clock import SYSTEM, Clock
from outlay.ledger import EndStatus, Step

_BETWEEN_WORDS_NS = 10**9
_REASON_BYTES = 1000


class Stopper(Protocol):
    """What rank 0 asks whether all ranks must stop."""

    def stop_reason(self) -> str | None:
        """Return why no further step may run, or None."""

    def finish(self, status: EndStatus) -> None:
        """The attempt is over."""


class _Word(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 says: why all stop now, or after how many steps it speaks again."""

    reason: str = ""
    steps: int = 1


class JointGuard:
    """A gate on every rank that stops all of them when rank 0's guard says so."""

    def __init__(
        self,
        own: Stopper | None,
        *,
        find_group: Callable[[], Group | None] = torch_group,
        clock: Clock = SYSTEM,
    ) -> None:
        self._own = own
        self._find_group = find_group
        self._clock = clock
        self._group: Group | None = None
        self._stepped = False
        self._steps_left = 0
        self._spoke_ns = 0
        self._steps_since = 0

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        """Return why no step may run, on every rank at the same step."""
        del tokens, samples
        if not self._stepped:
            self._stepped, self._group = True, self._find_group()
        if self._group is None:
            return self._own.stop_reason() if self._own else None
        self._steps_since += 1
        if self._steps_left > 0:
            self._steps_left -= 1
            return None
        word = self._hear(self._group)
        self._steps_left = word.steps - 1
        return word.reason or None

    def after_step(self, step: Step) -> str | None:
        """Return why no further step may run; ranks that train together find out before one."""
        del step
        return self._own.stop_reason() if self._own and self._group is None else None

    def finish(self, status: EndStatus) -> None:
        """Let rank 0 settle."""
        if self._own is not None:
            self._own.finish(status)

    def _hear(self, group: Group) -> _Word:
        said = msgspec.msgpack.encode(self._word() if self._own else _Word())
        return msgspec.msgpack.decode(group.gather(said)[0], type=_Word)

    def _word(self) -> _Word:
        """Return rank 0's word: about one a second, whatever a step takes."""
        assert self._own is not None
        now_ns, steps = self._clock.monotonic_ns(), max(1, self._steps_since)
        step_ns = max(1, (now_ns - self._spoke_ns) // steps) if self._spoke_ns else 0
        self._spoke_ns, self._steps_since = now_ns, 0
        reason = _cut(self._own.stop_reason() or "")
        return _Word(reason, max(1, _BETWEEN_WORDS_NS // step_ns) if step_ns else 1)


def _cut(reason: str) -> str:
    """Return as much of a reason as a word can carry: a group gathers payloads of bounded size."""
    return reason.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")
