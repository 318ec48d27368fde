"""What ends a run from outside: SIGTERM, a notice, a Slurm job's end, a guard's stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Final

import msgspec

from outlay.budget.agreement import Group, torch_group
from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.ledger import EndStatus, Step
from outlay.record.machine import SlurmJob, end_of
from outlay.units import Duration
from outlay.units.quantity import duration_text

# A stop of a whole run: rank 0 decides, and all ranks stop at the same step.
#
# Rank 0 alone uses the spend log. Where ranks train together it broadcasts whether to stop, in a
# collective at steps that it names in advance, so that no rank waits for one that has stopped.

_BROADCAST_EVERY_NS = 10**9
_REASON_BYTES = 1000


class _Broadcast(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 sends: why all stop now, or after how many steps it sends again."""

    reason: str = ""
    steps: int = 1


class JointStop:
    """A gate on every rank that stops all of them when rank 0 does.

    On rank 0 ``stop_reason`` returns why no further step may run, or None; it is None on the
    others. ``settle`` is called when the attempt is over.
    """

    def __init__(
        self,
        stop_reason: Callable[[], str | None] | None,
        settle: Callable[[], object] = lambda: None,
        *,
        find_group: Callable[[], Group | None] = torch_group,
        clock: Clock = SYSTEM,
    ) -> None:
        self._stop_reason = stop_reason
        self._settle = settle
        self._find_group = find_group
        self._clock = clock
        self._group: Group | None = None
        self._stepped = False
        self._steps_left = 0
        self._sent_ns = 0
        self._steps_since = 0

    def before_step(self, *, tokens: int, samples: int) -> str | None:
        """Return why no step may run, on every rank at the same step."""
        del tokens, samples
        if not self._stepped:
            self._stepped, self._group = True, self._find_group()
        if self._group is None:
            return self._stop_reason() if self._stop_reason else None
        self._steps_since += 1
        if self._steps_left > 0:
            self._steps_left -= 1
            return None
        received = self._exchange(self._group)
        self._steps_left = received.steps - 1
        return received.reason or None

    def after_step(self, step: Step) -> str | None:
        """Return why no further step may run; ranks that train together find out before one."""
        del step
        return self._stop_reason() if self._stop_reason and self._group is None else None

    def finish(self, status: EndStatus) -> None:
        """Settle what the stop was about."""
        del status
        self._settle()

    def _exchange(self, group: Group) -> _Broadcast:
        """All-gather, and return what rank 0 sent."""
        sent = self._broadcast(self._stop_reason()) if self._stop_reason else _Broadcast()
        gathered = group.gather(msgspec.msgpack.encode(sent))
        return msgspec.msgpack.decode(gathered[0], type=_Broadcast)

    def _broadcast(self, reason: str | None) -> _Broadcast:
        """Return what rank 0 sends: about once a second, whatever a step takes."""
        now_ns, steps = self._clock.monotonic_ns(), max(1, self._steps_since)
        step_ns = max(1, (now_ns - self._sent_ns) // steps) if self._sent_ns else 0
        self._sent_ns, self._steps_since = now_ns, 0
        steps = max(1, _BROADCAST_EVERY_NS // step_ns) if step_ns else 1
        return _Broadcast(_cut(reason or ""), steps)


def _cut(reason: str) -> str:
    """Return as much of a reason as a group gathers: its payloads are of bounded size."""
    return reason.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")


# SIGTERM on behalf of a run: it is noted, and then whatever was there before decides.


class TerminationWatch:
    """Calls back on SIGTERM and then does what would have happened without it.

    ``on_signal`` is told whether the process will die of it at once. Only the main thread may
    install signal handlers, so elsewhere it watches nothing.
    """

    def __init__(self, on_signal: Callable[[bool], None]) -> None:
        self._on_signal = on_signal
        self._installed = False
        self._previous: Callable[[int, FrameType | None], object] | int | None = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True

    def remove(self) -> None:
        """Put the previous handler back, unless somebody installed another one since."""
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        self._installed = False
        if signal.getsignal(signal.SIGTERM) == self._handle:
            # A handler that was not installed from Python reads as None and cannot be put back.
            with contextlib.suppress(TypeError):
                signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        dies = self._dies()
        self._on_signal(dies)
        if callable(self._previous):
            self._previous(number, frame)
        elif dies:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _dies(self) -> bool:
        """Say whether the process dies at once, of this or of the watch that was there before."""
        watch = getattr(self._previous, "__self__", None)
        if isinstance(watch, TerminationWatch):
            return watch._dies()
        return self._previous in (signal.SIG_DFL, None)


# The notice that a scheduler gives before it takes a machine back: saved, and ended in order.
#
# A signal, or the end of the job's time coming near, only leaves a mark. Between two steps, on
# every rank at the same one, the run's hook saves the work, the loop ends, and the attempt ends
# ``preempted``.


class PreemptionGate:
    """A gate that ends the loop after a notice, once what is to be saved is saved.

    All ranks follow the first. ``on_stop`` is called with the reason before the loop ends.
    """

    def __init__(self, rank: int, on_stop: Callable[[str], None], clock: Clock = SYSTEM) -> None:
        self.hooks: list[Callable[[], object]] = []
        self._notice = ""
        own = (lambda: self._notice or None) if rank == 0 else None
        self._joint = JointStop(own, clock=clock)
        self._on_stop = on_stop
        self._stopped = False
        self._previous: dict[int, object] = {}

    def listen(self, numbers: Iterable[int]) -> None:
        """Take these signals as the notice; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in numbers:
            if number not in self._previous:
                self._previous[number] = signal.signal(number, self._on_signal)

    def listen_where_deadly(self, numbers: Iterable[int]) -> None:
        """Take those of the signals as the notice that would end the process at once."""
        self.listen(n for n in numbers if signal.getsignal(n) is signal.SIG_DFL)

    def announce(self, reason: str) -> None:
        """Let the loop end after the step that runs; from any thread."""
        self._notice = self._notice or reason

    def remove(self) -> None:
        """Put the previous handlers back, unless somebody installed others since.

        After a notice, another one means nothing: the process is on its way out and not to be
        killed by a signal for which nobody listens any more.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._previous.items():
            if signal.getsignal(number) != self._on_signal or handler is None:
                continue
            if number in (signal.SIGUSR1, signal.SIGUSR2) and self._notice:
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

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_term = number == signal.SIGTERM
        meaning = "cancelled or preempted" if is_term else "the machine is being taken back"
        self._notice = f"{signal.Signals(number).name}: {meaning}"

    def _stop(self, reason: str | None) -> str | None:
        if reason is not None and not self._stopped:
            self._stopped = True
            for hook in self.hooks:
                hook()
            self._on_stop(reason)
        return reason


# When a Slurm job's time is up: known from the environment or ``squeue``, and announced in time.
#
# One grace before the end the loop is to stop, so that what was done is saved; the job's script
# need not ask for a signal. Asking Slurm happens in a thread of its own: training never waits for
# it, and a Slurm that does not answer leaves the job as it is.

GRACE: Final = Duration(60 * 10**9)
_SHARE: Final = 10
"""Of the time that is left at the start at most this part is the grace, where nobody stated one."""
_ASK_TIMEOUT_S: Final = 30.0
_LONGEST_WAIT_S: Final = 3600.0


def stated_grace(environ: Mapping[str, str]) -> Duration | None:
    """Return how long before the end a run is to stop, where somebody says so.

    Raises:
        InvalidValue: It is no duration.
    """
    stated = environ.get("OUTLAY_GRACE")
    if not stated:
        return None
    grace = Duration.parse(stated, name="OUTLAY_GRACE")
    if not grace:
        raise InvalidValue("OUTLAY_GRACE", stated, 'a duration above zero, such as "2m"')
    return grace


def ask_end(job: SlurmJob) -> int | None:
    """Return when Slurm says that a job's time is up; None without a limit or an answer."""
    return end_of(_ask(job, "%e"))


def ask_state(job: SlurmJob) -> str:
    """Return what Slurm calls a job now, such as CANCELLED; "" without an answer.

    A job is gone from the queue as soon as its script is, whatever its other processes still do;
    Slurm remembers it for a while.
    """
    return _ask(job, "%T")


def _ask(job: SlurmJob, wanted: str) -> str:
    shown = ["--noheader", "--states=all", f"--format=%i {wanted}"]
    command = ["squeue", *shown, f"--jobs={job.id}"]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL, env=os.environ | {"SLURM_TIME_FORMAT": "%s"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ""
    rows = (line.split() for line in asked.stdout.splitlines())
    return next((row[1] for row in rows if len(row) == 2 and row[0] == job.id), "")


class JobEndWatch:
    """A thread that says once that the job's time is nearly up; never keeps the process alive.

    The end is asked for again before that is said: an administrator may have moved it. ``grace``
    is how long before the end; default: a minute, and at most a tenth of what is left.
    """

    def __init__(
        self,
        job: SlurmJob,
        on_due: Callable[[str], object],
        *,
        grace: Duration | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._job = job
        self._on_due = on_due
        self._grace = grace
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outlay-job-end", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say nothing any more."""
        self._stopped.set()

    def _watch(self) -> None:
        end_ns = self._job.end_ns or ask_end(self._job)
        if end_ns is None:
            return
        left_ns = end_ns - self._clock.wall_ns()
        grace_ns = self._grace.ns if self._grace else min(GRACE.ns, max(0, left_ns) // _SHARE)
        while not self._stopped.is_set():
            left_ns = end_ns - grace_ns - self._clock.wall_ns()
            if left_ns <= 0:
                moved_ns = ask_end(self._job) or end_ns
                if moved_ns <= end_ns:
                    self._on_due(f"the job's time is up in {duration_text(grace_ns)}")
                    return
                end_ns = moved_ns
                continue
            self._stopped.wait(min(left_ns / 10**9, _LONGEST_WAIT_S))
