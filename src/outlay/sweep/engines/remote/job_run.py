"""The process on each node of a job, whatever the scheduler.

It starts the run's program, forwards signals to it, obeys the marks of the submitting side, and
records its end; the first node's also records the times. At the job's time limit, or when it is
preempted, the program is signalled, gets time to save its work, and the job is requeued if its
scheduler can. An engine adds what it knows of the node: a ``JobAllocation``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Final

from outlay.clock import SYSTEM, Clock
from outlay.errors import InvalidValue
from outlay.ledger import EndStatus, GpuCount, gpu_count_of
from outlay.ledger.price import typed_price
from outlay.proc.exit_record import ExitRecord, exit_path, shell_code, write_exit
from outlay.proc.identity import (
    MARK_VARIABLE,
    Process,
    catches,
    descendants,
    end_all,
    send,
    set_subreaper,
    signal_group,
)
from outlay.record.supervision import Supervision
from outlay.store.home import outliving_dir
from outlay.sweep.engines.ports import RANGE
from outlay.sweep.engines.remote.job_spec import (
    HIDDEN_WORD,
    EventKind,
    JobEvent,
    JobSpec,
    JobTimes,
    append_event,
    command_with_secrets,
    node_log,
    read_mark,
    read_times,
)
from outlay.sweep.run.attempt_log import (
    begin_log,
    logged_end,
    starts_without_progress,
    supervised,
)
from outlay.sweep.state.outcomes import TAKEN_BACK
from outlay.units import Duration

POLL_INTERVAL_S: Final = 0.1
SIGN_INTERVAL_NS: Final = 5 * 10**9
CHECK_INTERVAL_NS: Final = 10**9
"""How often the program's processes are checked for a handler of SIGUSR2, and marks are read."""
RENAME_AFTER_NS: Final = 2 * 10**9
NO_HANDLER_NS: Final = 2 * 10**9
"""When a program without a handler for SIGUSR2 gets SIGTERM, after the notice."""
NOTICE_NS: Final = 10 * 10**9
OWN_SIGNAL_NS: Final = 10**9
"""How long this process waits for its own signal after SIGTERM killed the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAllocation:
    """One node's view of a job; by default of one that its scheduler never starts again.

    Attributes:
        job: Its number or name for the scheduler, with the array index if it has one.
        number: What distinguishes it from other jobs, for its rendezvous port.
        restart: How often the scheduler had started it before.
        rank: The number of this node within the job; the first, 0, records the times.
        address: The address of the first node.
        apart: This node's own directory for the run, if it does not share the run's; else "".
    """

    job: str
    number: int
    restart: int = 0
    rank: int = 0
    nodes: int = 1
    node: str = ""
    address: str = "127.0.0.1"
    apart: str = ""

    def variables(self) -> dict[str, str]:
        """Return the variables for node rank and rendezvous, with and without torchrun."""
        port = str(rendezvous_port(self.number, self.restart))
        return {
            "MASTER_ADDR": self.address, "MASTER_PORT": port, "NODE_RANK": str(self.rank),
            "PET_NNODES": str(self.nodes), "PET_NODE_RANK": str(self.rank),
            "PET_MASTER_ADDR": self.address, "PET_MASTER_PORT": port, "OUTLAY_NOTICE": "SIGUSR2",
        }  # fmt: skip

    def is_running(self) -> bool:
        """Say whether a job that was signalled is still to run: it is taken back, not cancelled."""
        return False

    def requeue(self) -> bool:
        """Have the job started again; False if that is refused."""
        return False

    def rename(self, title: str) -> subprocess.Popen[bytes] | None:
        """Start to give the job its own name in the queue, if it has another one."""
        del title
        return None


def rendezvous_port(job: int, restart: int) -> int:
    """Return the port for one start of a job; different for consecutive jobs and starts."""
    return RANGE.start + (job + 97 * restart) % len(RANGE)


@dataclass(slots=True)
class JobRun:
    """One start of a job on one node.

    Attributes:
        signals: The signals that this process received, in order.
        overdue: Why the program was ended at its time limit; "" while it is within it.
    """

    spec: JobSpec
    allocation: JobAllocation
    clock: Clock = SYSTEM
    signals: list[int] = field(default_factory=list)
    overdue: str = ""
    _parent: int = field(default_factory=os.getppid)
    _start_ns: int = 0
    _began_ns: int = 0
    _log: Supervision | None = None
    _forwarded: int = 0
    _handles_notice: bool = False
    _term_ns: int | None = None
    _kill_ns: int | None = None
    _renamed: bool = False
    _renaming: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run the program to its end; return the exit code."""
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        if read_mark(Path(self.spec.directory), self.spec.ticket):
            self.signals.append(signal.SIGTERM)
            return self._end(-signal.SIGTERM)  # Nothing runs, and nothing is charged.
        set_subreaper(on=True)  # Orphans of the program become our children.
        self._began_ns = self.clock.monotonic_ns()
        before_ns = self._begin()
        if refusal := self._requeue_refusal(self.allocation.restart - 1):
            return self._end(None, refusal)
        if self.spec.most_ns is not None and before_ns >= self.spec.most_ns:
            return self._end(None, self._timeout_text())
        try:
            child = self._start()
        except (OSError, ValueError) as error:
            reason = f"could not be started: {getattr(error, 'strerror', None) or error}"
            if self._log is not None:
                self._log.end("failed", reason, exit_code=127, t_ns=self._log.start_ns)
            return self._end(127, reason)
        code = self._watch(child, before_ns)
        if code == -signal.SIGTERM and not self.overdue:
            self._wait_for_signal()
        end_all(_leftovers, self.clock)
        return self._conclude(code)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signals.append(number)

    def _wait_for_signal(self) -> None:
        """Wait for a signal: schedulers signal a job's processes in turn, maybe this one last."""
        until_ns = self.clock.monotonic_ns() + OWN_SIGNAL_NS
        while not self.signals and self.clock.monotonic_ns() < until_ns:
            self.clock.sleep(POLL_INTERVAL_S / 10)

    # -- begin and end ----------------------------------------------------------------------

    def _begin(self) -> int:
        """Record the start; return how long earlier starts of the same attempt ran."""
        times = read_times(Path(self.spec.directory), self.spec.ticket)
        restart = self.allocation.restart
        if self.allocation.rank:
            earlier = [event for event in times.events if event.restart < restart]
            return JobTimes(events=earlier, sign_ns=0).ran_ns()
        if times.running_since_ns is not None:
            self._record("lost", times.sign_ns, restart=times.events[-1].restart)
        before_ns = times.ran_ns()
        self._start_ns = self.clock.wall_ns()
        self._record("started", self._start_ns)
        return before_ns

    def _record(self, what: EventKind, t_ns: int, *, restart: int | None = None) -> None:
        here = self.allocation
        if here.rank == 0:
            event = JobEvent(
                ticket=self.spec.ticket, what=what, t_ns=t_ns, job=here.job,
                restart=here.restart if restart is None else restart, node=here.node,
                apart=here.apart,
            )  # fmt: skip
            append_event(Path(self.spec.directory), event)

    def _end(self, code: int | None, reason: str = "") -> int:
        record = ExitRecord(
            ticket=self.spec.ticket, returncode=1 if code is None else code,
            asked=bool(self.signals) and not reason, reason=reason, restart=self.allocation.restart,
        )  # fmt: skip
        # The time first: the poller reads it as soon as it finds the exit record.
        self._record("ended", self._end_log(self._status(record), reason, record.returncode))
        write_exit(exit_path(Path(self.spec.directory), self.allocation.rank), record)
        return shell_code(record.returncode)

    def _status(self, record: ExitRecord) -> EndStatus:
        if self.overdue or record.asked:
            return "terminated"
        return "completed" if record.returncode == 0 else "failed"

    def _begin_log(self, environ: Mapping[str, str]) -> None:
        if self.allocation.rank:
            return  # The ranks of the other nodes record themselves.
        stated, price = environ.get("OUTLAY_PRICE"), None
        with suppress(InvalidValue):  # The program reports the error.
            if stated:
                price = typed_price(stated, name="OUTLAY_PRICE", source="environment")
        gpus: GpuCount = self.spec.gpus
        with suppress(ValueError, ZeroDivisionError):  # Likewise.
            gpus = gpu_count_of(Fraction(environ.get("OUTLAY_GPUS") or gpus))
        what = supervised(self.spec.name, Path(self.spec.directory), price, gpus, self.spec.command)
        self._log = begin_log(what, environ, self.clock, start_ns=self._start_ns)

    def _end_log(self, status: EndStatus, reason: str, code: int) -> int:
        if self._log is None:
            return self.clock.wall_ns()
        self._log.end(status, reason, exit_code=shell_code(code))
        return self._log.end_ns

    def _conclude(self, code: int) -> int:
        if self.overdue:
            return self._end(code, self.overdue)
        if not self._is_preempted(code):
            return self._end(code)
        if refusal := self._requeue_refusal(self.allocation.restart):
            return self._end(code, refusal)
        self._record("requeued", self._end_log("preempted", TAKEN_BACK, code))
        if self.allocation.requeue():
            return 1  # The scheduler ends the rest of this start, and starts the next when it can.
        return self._end(code, "its time was up, and it was not requeued")

    def _requeue_refusal(self, last: int) -> str:
        """Return why it may not start again after restart number ``last``; "" if it may."""
        if last < 0:
            return ""
        if self.spec.requeues == 0:
            return "still not done when it had to end, and requeues is 0"
        directory = Path(self.spec.directory)
        starts_ns = [
            event.t_ns
            for event in read_times(directory, self.spec.ticket).events
            if event.what == "started" and event.restart <= last
        ]
        if len(starts_ns) <= self.spec.requeues:
            return ""  # Too few to reach the limit, whatever their progress.
        if starts_without_progress(directory, starts_ns) <= self.spec.requeues:
            return ""
        return f"started again {self.spec.requeues} times without progress, and still not done"

    def _is_preempted(self, code: int) -> bool:
        """Say whether the signal was a notice of preemption or of the time limit.

        A cancelled job has left the state RUNNING before it gets a signal. One that is still
        RUNNING reaches its time limit or is being preempted, and has time to save.
        """
        if not self.signals or self.allocation.rank:
            return False
        # The program may have completed its work in spite of the signal.
        if code == 0 and logged_end(Path(self.spec.directory)) in ("completed", "paused"):
            return False
        return self.allocation.is_running()

    # -- the program ------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {n: v for n, v in os.environ.items() if n not in self.spec.dropped}
        mark = f"{self.spec.ticket}/{self.allocation.rank}/"
        environ |= self.allocation.variables() | self.spec.env | {MARK_VARIABLE: mark}
        command = command_with_secrets(self.spec, environ)
        self._begin_log(environ)
        environ = {n: v for n, v in environ.items() if not n.startswith(HIDDEN_WORD)}
        log = node_log(Path(self.spec.log), self.allocation.rank)
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env=environ, cwd=self.spec.cwd or None, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, process_group=0,
                preexec_fn=_ignore_notice if "torch.distributed.run" in command else None,
            )  # fmt: skip

    def _watch(self, child: subprocess.Popen[bytes], before_ns: int) -> int:
        sign_ns = checked_ns = self.clock.monotonic_ns()
        pause = self._pause_for(child)
        while (code := child.poll()) is None:
            now_ns = self.clock.monotonic_ns()
            if now_ns - sign_ns >= SIGN_INTERVAL_NS:
                sign_ns = now_ns
                self._record("alive", self.clock.wall_ns())
            if now_ns - checked_ns >= CHECK_INTERVAL_NS:
                checked_ns = now_ns
                self._handles_notice = self._handles_notice or bool(_notice_handlers())
                self._obey_marks(child)
            if self._log is not None:
                self._log.beat()
            self._enforce_time_limit(child, before_ns + now_ns - self._began_ns)
            self._forward_signals(child, now_ns)
            self._rename_job(now_ns)
            pause()
        return code

    def _pause_for(self, child: subprocess.Popen[bytes]) -> Callable[[], object]:
        """Return a function that sleeps for the poll interval, or until the program ends."""
        try:
            descriptor = os.pidfd_open(child.pid)
        except (AttributeError, OSError):  # Not Linux, or too old a kernel.
            return lambda: self.clock.sleep(POLL_INTERVAL_S)
        return lambda: select.select([descriptor], [], [], POLL_INTERVAL_S)

    def _rename_job(self, now_ns: int) -> None:
        """Give a job its own name in the queue, once it has run for a while."""
        if self._renaming is not None:
            self._renaming.poll()
        if self._renamed or now_ns - self._began_ns < RENAME_AFTER_NS:
            return
        self._renamed = True
        if self.allocation.rank == 0 and self.spec.title:
            with suppress(OSError):
                self._renaming = self.allocation.rename(self.spec.title)

    def _obey_marks(self, child: subprocess.Popen[bytes]) -> None:
        """End the program if the submitting side asks for it, or the scheduler's own is gone."""
        mark = read_mark(Path(self.spec.directory), self.spec.ticket)
        if (mark or os.getppid() != self._parent) and not self.signals:
            self.signals.append(signal.SIGTERM)
        if mark == "killed":
            self._kill(child)

    def _enforce_time_limit(self, child: subprocess.Popen[bytes], ran_ns: int) -> None:
        most_ns, kill_ns = self.spec.most_ns, self.spec.kill_ns
        if most_ns is not None and ran_ns >= most_ns and not self.overdue:
            self.overdue = self._timeout_text()
            self._kill_ns = self.clock.monotonic_ns() + NOTICE_NS
            signal_group(child.pid, signal.SIGTERM)
        if kill_ns is not None and ran_ns >= kill_ns:
            self._kill(child)

    def _timeout_text(self) -> str:
        return f"timeout: not done after {Duration(self.spec.most_ns or 0)}"

    def _forward_signals(self, child: subprocess.Popen[bytes], now_ns: int) -> None:
        """Forward the notice: SIGUSR2 to processes with a handler, else SIGTERM to the group."""
        if len(self.signals) > self._forwarded:
            self._forwarded = len(self.signals)
            for process in _notice_handlers():
                send(process, signal.SIGUSR2)
                self._handles_notice = True
            self._term_ns = self._term_ns or now_ns + NO_HANDLER_NS
            # Before the scheduler kills this process too, which then could not record its end.
            notice_ns = max(self.spec.notice_ns - NOTICE_NS, NOTICE_NS // 2)
            self._kill_ns = self._kill_ns or now_ns + notice_ns
        if self._term_ns is not None and now_ns >= self._term_ns and not self._handles_notice:
            self._handles_notice = True  # Send it once.
            signal_group(child.pid, signal.SIGTERM)
        if self._kill_ns is not None and now_ns >= self._kill_ns:
            self._kill(child)

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        signal_group(child.pid, signal.SIGKILL)
        end_all(_leftovers, self.clock)


def _leftovers() -> list[Process]:
    """Return what the program started, without outlay's own that ship it and end by themselves."""
    return descendants(spared=[str(outliving_dir("uploaders"))])


def _notice_handlers() -> list[Process]:
    return [process for process in descendants() if catches(process.pid, signal.SIGUSR2)]


def _ignore_notice() -> None:
    # Schedulers signal every process of a job. torchrun has no handler for SIGUSR2 and would die,
    # and its workers with it, before they could save their work; they have their own handlers.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
