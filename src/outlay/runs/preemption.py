"""Stopping a run from outside: SIGTERM, preemption, a Slurm job's limit, a cloud's notice."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from outlay.budget.agreement import Group, torch_group
from outlay.clock import SYSTEM, Clock
from outlay.decoding import BadDocument, decode
from outlay.errors import InvalidValue, choices
from outlay.ledger import EndStatus, Step
from outlay.slurm import SlurmJob, job_status
from outlay.units import Duration
from outlay.units.quantity import duration_text

# Joint stop: rank 0 decides, and all ranks stop at the same step
#
# Only rank 0 uses the spend log. With several ranks it broadcasts whether to stop, in a collective
# at steps that it announces in advance, so that no rank waits for one that has stopped.

_BROADCAST_EVERY_NS = 10**9
_REASON_BYTES = 1000


class _Broadcast(msgspec.Struct, frozen=True, array_like=True):
    """Rank 0's message: the reason to stop now, or the number of steps to the next broadcast."""

    reason: str = ""
    steps: int = 1


class JointStop:
    """A gate on every rank that stops all of them when rank 0 does.

    On rank 0 ``stop_reason`` returns why no further step may run, or None; on other ranks it is
    itself None. ``settle`` is called when the attempt ends.
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
        """Return why no further step may run; with several ranks only ``before_step`` does."""
        del step
        return self._stop_reason() if self._stop_reason and self._group is None else None

    def finish(self, status: EndStatus) -> None:
        """Call ``settle``."""
        del status
        self._settle()

    def _exchange(self, group: Group) -> _Broadcast:
        """All-gather, and return rank 0's message."""
        sent = self._broadcast(self._stop_reason()) if self._stop_reason else _Broadcast()
        gathered = group.gather(msgspec.msgpack.encode(sent))
        return msgspec.msgpack.decode(gathered[0], type=_Broadcast)

    def _broadcast(self, reason: str | None) -> _Broadcast:
        """Return rank 0's message; the next one follows about a second later."""
        now_ns, steps = self._clock.monotonic_ns(), max(1, self._steps_since)
        step_ns = max(1, (now_ns - self._sent_ns) // steps) if self._sent_ns else 0
        self._sent_ns, self._steps_since = now_ns, 0
        steps = max(1, _BROADCAST_EVERY_NS // step_ns) if step_ns else 1
        return _Broadcast(_cut(reason or ""), steps)


def _cut(reason: str) -> str:
    """Truncate a reason to the payload size of the collective."""
    return reason.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")


# SIGTERM: recorded, then passed on to the previous handler


class TerminationWatch:
    """Calls back on SIGTERM and then does what would have happened without it.

    ``on_signal`` gets whether the process dies at once. Does nothing outside the main thread, the
    only one that may install signal handlers.
    """

    def __init__(self, on_signal: Callable[[bool], None]) -> None:
        self._on_signal = on_signal
        self._installed = False
        self._previous: Callable[[int, FrameType | None], object] | int | None = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True

    def remove(self) -> None:
        """Restore the previous handler, unless another one was installed since."""
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        self._installed = False
        if signal.getsignal(signal.SIGTERM) == self._handle:
            # A handler not installed from Python reads as None and cannot be restored.
            with contextlib.suppress(TypeError):
                signal.signal(signal.SIGTERM, self._earlier)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        dies = self._dies()
        self._on_signal(dies)
        earlier = self._earlier
        if callable(earlier):
            earlier(number, frame)
        elif dies:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _dies(self) -> bool:
        """Return whether the process dies at once, also by an earlier TerminationWatch."""
        earlier = self._earlier
        watch = getattr(earlier, "__self__", None)
        if isinstance(watch, TerminationWatch):
            return watch._dies()
        return earlier in (signal.SIG_DFL, None)

    @property
    def _earlier(self) -> Callable[[int, FrameType | None], object] | int | None:
        """The handler before this one, without watches that were removed since."""
        earlier = self._previous
        while isinstance(watch := getattr(earlier, "__self__", None), TerminationWatch):
            if watch._installed:
                break
            earlier = watch._previous
        return earlier


# Preemption: save, and end the loop in order
#
# A signal, or the approaching end of the job's time, only sets a flag. Between two steps, on every
# rank at the same one, the run's hook saves the work, the loop ends, and the attempt ends
# ``preempted``.


class PreemptionGate:
    """A gate that ends the loop after a preemption notice, once the hooks have saved the work.

    All ranks follow rank 0. ``on_stop`` is called with the reason before the loop ends.
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
        """Treat these signals as the notice; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in numbers:
            if number not in self._previous:
                self._previous[number] = signal.signal(number, self._on_signal)

    def listen_where_deadly(self, numbers: Iterable[int]) -> None:
        """Treat those signals as the notice whose default action would kill the process."""
        self.listen(n for n in numbers if signal.getsignal(n) is signal.SIG_DFL)

    def announce(self, reason: str) -> None:
        """End the loop after the current step; may be called from any thread."""
        self._notice = self._notice or reason

    def finish(self, status: EndStatus) -> None:
        """Restore the previous signal handlers, unless others were installed since.

        After a notice SIGUSR1 and SIGUSR2 are ignored: the process is ending, and a second notice
        must not kill it.
        """
        del status
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
        """Return why no further step may run; with several ranks only ``before_step`` does."""
        return self._stop(self._joint.after_step(step))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_term = number == signal.SIGTERM
        meaning = "cancelled or preempted" if is_term else "the machine is being taken back"
        self._notice = f"{signal.Signals(number).name}: {meaning}"

    def _stop(self, reason: str | None) -> str | None:
        if reason is not None and not self._stopped:
            self._stopped = True
            try:
                for hook in self.hooks:
                    hook()
            finally:
                self._on_stop(reason)
        return reason


# The time limit of a Slurm job, from the environment or ``squeue``
#
# The loop stops one grace before the limit, so that the work is saved; the job's script need not
# ask for a signal. Slurm is queried in a separate thread: training never waits for it, and without
# an answer nothing happens.

GRACE: Final = Duration(60 * 10**9)
_SHARE: Final = 10
"""If no grace is stated, it is at most 1/_SHARE of the time that is left at the start."""
_LONGEST_WAIT_S: Final = 3600.0


def stated_grace(environ: Mapping[str, str]) -> Duration | None:
    """Return ``OUTLAY_GRACE``: how long before the end of its job a run stops; None if not set.

    Raises:
        InvalidValue: It is not a duration above zero.
    """
    stated = environ.get("OUTLAY_GRACE")
    if not stated:
        return None
    grace = Duration.parse(stated, name="OUTLAY_GRACE")
    if not grace:
        raise InvalidValue("OUTLAY_GRACE", stated, 'a duration above zero, such as "2m"')
    return grace


class JobEndWatch:
    """A daemon thread that calls ``on_due`` once, shortly before the job's time limit.

    Queries the limit again before that: an administrator may have moved it. ``grace`` is how long
    before the end; default: a minute, and at most a tenth of the time that is left.
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
        """Stop watching."""
        self._stopped.set()

    def _ask_end(self) -> int | None:
        status = job_status(self._job.id)
        return None if status is None else status.end_ns

    def _watch(self) -> None:
        end_ns = self._job.end_ns or self._ask_end()
        if end_ns is None:
            return
        left_ns = end_ns - self._clock.wall_ns()
        grace_ns = self._grace.ns if self._grace else min(GRACE.ns, max(0, left_ns) // _SHARE)
        while not self._stopped.is_set():
            left_ns = end_ns - grace_ns - self._clock.wall_ns()
            if left_ns <= 0:
                moved_ns = self._ask_end() or end_ns
                if moved_ns <= end_ns:
                    self._on_due(f"the job's time is up in {duration_text(grace_ns)}")
                    return
                end_ns = moved_ns
                continue
            self._stopped.wait(min(left_ns / 10**9, _LONGEST_WAIT_S))


# A cloud's notice that it takes the machine back, from its metadata service, a file or a command
#
# Only if ``OUTLAY_RECLAIM_NOTICE`` asks for it by name, since it opens connections. It is asked for
# in a thread of its own; no answer and a strange answer are no notice.

_ASK_EVERY_S: Final = 5.0
_ASK_TIMEOUT_S: Final = 2.0
_LARGEST_ANSWER: Final = 65536
_LINK_LOCAL: Final = "http://169.254.169.254"
_METADATA: Final = {
    "aws": _LINK_LOCAL,
    "gcp": "http://metadata.google.internal",
    "azure": _LINK_LOCAL,
}
_NAMED: Final = (*_METADATA, "file", "command")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimSource:
    """Where a notice comes from.

    Attributes:
        name: A cloud, ``file`` or ``command``.
        target: The endpoint of the cloud's metadata service, the path, or the command line.
    """

    name: str
    target: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ReclaimSource | None:
        """Return the source that ``OUTLAY_RECLAIM_NOTICE`` names; None if it is not set.

        Raises:
            InvalidValue: It names none.
        """
        stated = environ.get("OUTLAY_RECLAIM_NOTICE", "")
        if not stated:
            return None
        name, _, target = stated.partition(":")
        target = target or _METADATA.get(name, "")
        is_url = target.startswith(("http://", "https://"))
        if name not in _NAMED or not target or (name in _METADATA and not is_url):
            expected = f"{choices(_NAMED)}: aws, gcp:http://ENDPOINT, file:PATH or command:WORDS"
            raise InvalidValue("OUTLAY_RECLAIM_NOTICE", stated, expected)
        return cls(name=name, target=target)

    def ask(self) -> str | None:
        """Return the notice in words; None if there is none, or no answer."""
        asked = {"aws": _aws, "gcp": _gcp, "azure": _azure, "file": _file, "command": _command}
        try:
            found = asked[self.name](self.target)
        except (OSError, ValueError, BadDocument, subprocess.SubprocessError):
            return None
        return None if found is None else f"{self.name} takes the machine back: {found}"[:200]


class _SpotAction(msgspec.Struct):
    """What AWS is about to do."""

    action: str = "terminate"
    time: str = "once"


class _CloudEvent(msgspec.Struct):
    """A scheduled event of Azure."""

    event_type: str = msgspec.field(name="EventType", default="")
    resources: list[str] = msgspec.field(name="Resources", default_factory=list)
    not_before: str = msgspec.field(name="NotBefore", default="")


class _CloudEvents(msgspec.Struct):
    events: list[_CloudEvent] = msgspec.field(name="Events", default_factory=list)


def _fetch(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    """Return the answer of a metadata service; an HTTP error is an OSError. Never by a proxy."""
    from http.client import HTTPException  # Few runs need them.
    from urllib.request import ProxyHandler, Request, build_opener

    request = Request(url, headers=dict(headers), method=method)  # noqa: S310 - http by ``of``
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_ASK_TIMEOUT_S) as answer:
            raw: bytes = answer.read(_LARGEST_ANSWER)
    except HTTPException as error:
        raise OSError(f"{url}: no valid answer") from error
    return raw.decode(errors="replace").strip()


def _aws(endpoint: str) -> str | None:
    """Ask the instance metadata service, version 2: 404 until the machine is to be taken back."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _fetch(f"{endpoint}/latest/api/token", lifetime, method="PUT")
    headers = {"X-aws-ec2-metadata-token": token}
    found = _fetch(f"{endpoint}/latest/meta-data/spot/instance-action", headers)
    action = decode(found, _SpotAction)
    return f"{action.action} at {action.time}"


def _gcp(endpoint: str) -> str | None:
    url = f"{endpoint}/computeMetadata/v1/instance/preempted"
    return "preempted" if _fetch(url, {"Metadata-Flavor": "Google"}) == "TRUE" else None


def _azure(endpoint: str) -> str | None:
    """Ask for scheduled events, which are those of all machines of a scale set: take our own."""
    headers = {"Metadata": "true"}
    version = "api-version=2020-07-01"
    found = _fetch(f"{endpoint}/metadata/scheduledevents?{version}", headers)
    events = decode(found, _CloudEvents).events
    ours = [each for each in events if each.event_type in ("Preempt", "Terminate")]
    if not ours:
        return None
    url = f"{endpoint}/metadata/instance/compute/name?{version}&format=text"
    name = _fetch(url, headers)
    of_us = [each for each in ours if not each.resources or name in each.resources]
    return f"{of_us[0].event_type} at {of_us[0].not_before or 'once'}" if of_us else None


def _file(path: str) -> str | None:
    """Return the first line of a file; it is a notice as soon as it exists."""
    with Path(path).open(errors="replace") as stream:
        return stream.read(200).partition("\n")[0] or "the file is there"


def _command(words: str) -> str | None:
    """Run a command: exit code 0 is a notice, and its first line says why."""
    done = subprocess.run(
        shlex.split(words), capture_output=True, text=True, errors="replace", check=False,
        timeout=_ASK_TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return (
        (done.stdout.partition("\n")[0] or "the command says so") if not done.returncode else None
    )


class ReclaimWatch:
    """A daemon thread that calls ``on_notice`` once, when the machine is to be taken back."""

    def __init__(self, source: ReclaimSource, on_notice: Callable[[str], object]) -> None:
        self._source = source
        self._on_notice = on_notice
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outlay-reclaim", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            if (found := self._source.ask()) is not None:
                self._on_notice(found)
                return
            self._stopped.wait(_ASK_EVERY_S)
