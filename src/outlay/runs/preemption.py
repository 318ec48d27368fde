"""The notice that a scheduler gives before it takes a machine back: saved, and ended in order.

A signal, or the end of the job's time coming near, only leaves a mark. Between two steps, on every
rank at the same one, the run's hook saves the work, the loop ends, and the attempt ends
``preempted``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType

from outlay.clock import SYSTEM, Clock
from outlay.ledger import EndStatus, Step
from outlay.runs.guarding import JointGuard


class Notice:
    """Whether the end was announced: what rank 0 tells the others."""

    def __init__(self) -> None:
        self.reason = ""

    def stop_reason(self) -> str | None:
        """Return why no further step may run, or None."""
        return self.reason or None

    def finish(self, status: EndStatus) -> None:
        """Nothing is left to settle."""
        del status


class PreemptionGate:
    """A gate that ends the loop after a notice, once what is to be saved is saved.

    Args:
        rank: Whose gate this is; all ranks follow the first.
        on_stop: Called with the reason before the loop ends.
    """

    def __init__(self, rank: int, on_stop: Callable[[str], None], clock: Clock = SYSTEM) -> None:
        self.hooks: list[Callable[[], object]] = []
        self._notice = Notice()
        self._joint = JointGuard(self._notice if rank == 0 else None, clock=clock)
        self._on_stop = on_stop
        self._stopped = False
        self._previous: dict[int, object] = {}

    def listen(self, numbers: Iterable[int]) -> None:
        """Take these signals as the notice; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in numbers:
            if number not in self._previous:
                self._previous[number] = signal.signal(number, self._hear)

    def listen_where_deadly(self, numbers: Iterable[int]) -> None:
        """Take those of the signals as the notice that would end the process without a word."""
        self.listen(n for n in numbers if signal.getsignal(n) is signal.SIG_DFL)

    def announce(self, reason: str) -> None:
        """Let the loop end after the step that runs; from any thread."""
        self._notice.reason = self._notice.reason or reason

    def remove(self) -> None:
        """Put the previous handlers back, unless somebody installed others since.

        After a notice, another one means nothing: the process is on its way out and not to be
        killed by a signal for which nobody listens any more.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._previous.items():
            if signal.getsignal(number) != self._hear or handler is None:
                continue
            if number in (signal.SIGUSR1, signal.SIGUSR2) and self._notice.reason:
                handler = signal.SIG_IGN
            signal.signal(number, handler)  # type: ignore[arg-type]  # As signal() gave it.
        self._previous.clear()

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        """Return why no step may run, on every rank at the same step."""
        return self._stop(self._joint.before_step(tokens=tokens, samples=samples))

    def after_step(self, step: Step) -> str | None:
        """Return why no further step may run; ranks that train together find out before one."""
        return self._stop(self._joint.after_step(step))

    def finish(self, status: EndStatus) -> None:
        """Stop listening."""
        del status
        self.remove()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_term = number == signal.SIGTERM
        meaning = "cancelled or preempted" if is_term else "the machine is being taken back"
        self._notice.reason = f"{signal.Signals(number).name}: {meaning}"

    def _stop(self, reason: str | None) -> str | None:
        if reason is not None and not self._stopped:
            self._stopped = True
            for hook in self.hooks:
                hook()
            self._on_stop(reason)
        return reason
