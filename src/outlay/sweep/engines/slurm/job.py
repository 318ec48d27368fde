"""What runs on the node: ``python -m outlay.sweep.engines.slurm.job LIST``.

It starts the run's program, passes signals on, and writes down its end.

One of these stands on every node of a job; that of the first node keeps the books. When the job's
time runs out or its machine is taken back, the program is told, given time to save its work, and
the job goes back into the queue under its own number.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
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
from outlay.proc.strays import ExitRecord, exit_path, shell_code, write_exit
from outlay.record.supervision import Supervision
from outlay.sweep.engines.slurm.allocation import (
    WORD,
    JobAllocation,
    JobMoment,
    JobSpec,
    Times,
    What,
    give_sign,
    listed_spec,
    node_log,
    note,
    opened_command,
    read_times,
)
from outlay.sweep.run.attempt_log import begin as begin_log
from outlay.sweep.run.attempt_log import logged_end, starts_without_progress, supervised
from outlay.sweep.state.outcomes import TAKEN_BACK
from outlay.units import Duration

LOOK_EVERY_S: Final = 0.1
SIGN_EVERY_NS: Final = 5 * 10**9
CHECK_EVERY_NS: Final = 10**9
NAME_AFTER_NS: Final = 2 * 10**9
NO_HANDLER_NS: Final = 2 * 10**9
"""After how long without a handler for SIGUSR2 a program gets SIGTERM."""
NOTICE_NS: Final = 10 * 10**9
OWN_SIGNAL_NS: Final = 10**9
"""How long after a program's death by SIGTERM this process waits for a signal of its own."""


@dataclass(slots=True)
class JobRun:
    """One start of a job on one node.

    Attributes:
        signals: Those that reached the job, in order.
        late: Why the program had to be ended by us, if it had to.
    """

    spec: JobSpec
    place: JobAllocation
    clock: Clock = SYSTEM
    signals: list[int] = field(default_factory=list)
    late: str = ""
    _start_ns: int = 0
    _began_ns: int = 0
    _log: Supervision | None = None
    _forwarded: int = 0
    _handles_notice: bool = False
    _term_ns: int | None = None
    _kill_ns: int | None = None
    _named: bool = False
    _naming: subprocess.Popen[bytes] | None = None

    @property
    def mark(self) -> str:
        """What the processes of this node carry in their environment."""
        return f"{self.spec.ticket}/{self.place.rank}/"

    def run(self) -> int:
        """Run the program to its end; return what to exit with."""
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        set_subreaper(on=True)  # Whatever the program leaves behind is ours to end.
        self._began_ns = self.clock.monotonic_ns()
        before_ns = self._begin()
        if stuck := self._stuck(self.place.restart - 1):
            return self._end(None, stuck)
        if self.spec.most_ns is not None and before_ns >= self.spec.most_ns:
            return self._end(None, self._overdue())
        try:
            child = self._start()
        except (OSError, ValueError) as error:
            reason = f"could not be started: {getattr(error, 'strerror', None) or error}"
            if self._log is not None:
                start_ns = self._log.start_ns
                self._log.end("failed", reason, exit_code=127, t_ns=start_ns)
            return self._end(127, reason)
        code = self._watch(child, before_ns)
        if code == -signal.SIGTERM and not self.late:
            self._wait_for_signal()
        end_all(descendants, self.clock)
        return self._conclude(code)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signals.append(number)

    def _wait_for_signal(self) -> None:
        """Wait a moment: Slurm signals a job's processes in turn, and ours may come last."""
        until_ns = self.clock.monotonic_ns() + OWN_SIGNAL_NS
        while not self.signals and self.clock.monotonic_ns() < until_ns:
            self.clock.sleep(LOOK_EVERY_S / 10)

    # -- begin and end ----------------------------------------------------------------------

    def _begin(self) -> int:
        """Write the start down; return how long earlier starts of the same attempt ran."""
        times = read_times(Path(self.spec.directory), self.spec.ticket)
        if not self.place.first:
            earlier = [m for m in times.moments if m.restart < self.place.restart]
            return Times(moments=earlier, sign_ns=0).ran_ns()
        if times.running_since_ns is not None:
            self._note("lost", times.sign_ns, restart=times.moments[-1].restart)
        before_ns = times.ran_ns()
        self._start_ns = self.clock.wall_ns()
        self._note("started", self._start_ns)
        return before_ns

    def _note(self, what: What, t_ns: int, *, restart: int | None = None) -> None:
        if self.place.first:
            moment = JobMoment(
                ticket=self.spec.ticket, what=what, t_ns=t_ns, job=self.place.job,
                restart=self.place.restart if restart is None else restart, node=self.place.node,
            )  # fmt: skip
            note(Path(self.spec.directory), moment)

    def _end(self, code: int | None, reason: str = "") -> int:
        """Write down how it ended; return what to exit with."""
        record = ExitRecord(
            ticket=self.spec.ticket, returncode=1 if code is None else code,
            asked=bool(self.signals) and not reason, reason=reason, restart=self.place.restart,
        )  # fmt: skip
        # First the time: whoever finds the end reads that next.
        self._note("ended", self._end_log(self._status(record), reason, record.returncode))
        write_exit(exit_path(Path(self.spec.directory), self.place.rank), record)
        return shell_code(record.returncode)

    def _status(self, record: ExitRecord) -> EndStatus:
        if self.late or record.asked:
            return "terminated"
        return "completed" if record.returncode == 0 else "failed"

    def _begin_log(self, environ: Mapping[str, str]) -> None:
        """Write down in the run's log that the program is about to be started."""
        if not self.place.first:
            return  # What the others add, their own processes record.
        stated, price = environ.get("OUTLAY_PRICE"), None
        with suppress(InvalidValue):  # The program says what is wrong with it.
            if stated:
                price = typed_price(stated, name="OUTLAY_PRICE", source="environment")
        gpus: GpuCount = self.spec.gpus
        with suppress(ValueError, ZeroDivisionError):  # Likewise.
            gpus = gpu_count_of(Fraction(environ.get("OUTLAY_GPUS") or gpus))
        what = supervised(self.spec.name, Path(self.spec.directory), price, gpus, self.spec.command)
        self._log = begin_log(what, environ, self.clock, start_ns=self._start_ns)

    def _end_log(self, status: EndStatus, reason: str, code: int) -> int:
        """Write down in the run's log that the program has ended; return when that was."""
        if self._log is None:
            return self.clock.wall_ns()
        self._log.end(status, reason, exit_code=shell_code(code))
        return self._log.end_ns

    def _conclude(self, code: int) -> int:
        if self.late:
            return self._end(code, self.late)
        if not self._is_preempted(code):
            return self._end(code)
        if stuck := self._stuck(self.place.restart):
            return self._end(code, stuck)
        self._note("requeued", self._end_log("preempted", TAKEN_BACK, code))
        if self.place.requeue():
            return 1  # Slurm ends what is left of this start, and starts the next when it can.
        return self._end(code, "its time was up, and Slurm would not queue it again")

    def _stuck(self, last: int) -> str:
        """Return why it may not start again after this restart; "" where it may."""
        if last < 0:
            return ""
        if self.spec.requeues == 0:
            return "still not done when it had to end, and requeues is 0"
        directory = Path(self.spec.directory)
        starts_ns = [
            moment.t_ns
            for moment in read_times(directory, self.spec.ticket).moments
            if moment.what == "started" and moment.restart <= last
        ]
        if len(starts_ns) <= self.spec.requeues:
            return ""  # However little they did, these are not too many.
        if starts_without_progress(directory, starts_ns) <= self.spec.requeues:
            return ""
        return f"started again {self.spec.requeues} times without progress, and still not done"

    def _is_preempted(self, code: int) -> bool:
        """Say whether the program was asked to end by a cluster that wants its machine back.

        Whoever cancels a job has told Slurm before the job gets a signal. A job that still
        counts as running was told of its time limit, or is being preempted and has time to save.
        """
        if not self.signals or not self.place.first or self._is_done(code):
            return False
        return self.place.is_running()

    def _is_done(self, code: int) -> bool:
        """Say whether a program that was asked to end had finished its work all the same."""
        return code == 0 and logged_end(Path(self.spec.directory)) == "completed"

    # -- the program ------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {n: v for n, v in os.environ.items() if n not in self.spec.dropped}
        environ |= self.place.variables() | self.spec.env | {MARK_VARIABLE: self.mark}
        command = opened_command(self.spec, environ)
        self._begin_log(environ)
        environ = {n: v for n, v in environ.items() if not n.startswith(WORD)}
        log = node_log(Path(self.spec.log), self.place.rank)
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env=environ, cwd=self.spec.cwd, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, process_group=0,
                preexec_fn=_ignore_notice if "torch.distributed.run" in command else None,
            )  # fmt: skip

    def _watch(self, child: subprocess.Popen[bytes], before_ns: int) -> int:
        sign_ns = checked_ns = self.clock.monotonic_ns()
        pause = self._pause_until_end_of(child)
        while (code := child.poll()) is None:
            now_ns = self.clock.monotonic_ns()
            if now_ns - sign_ns >= SIGN_EVERY_NS and self.place.first:
                sign_ns = now_ns
                give_sign(Path(self.spec.directory), self.clock.wall_ns())
            if not self._handles_notice and now_ns - checked_ns >= CHECK_EVERY_NS:
                checked_ns = now_ns
                self._handles_notice = bool(_notice_handlers())
            if self._log is not None:
                self._log.beat()
            self._end_when_due(child, before_ns + now_ns - self._began_ns)
            self._forward_signals(child, now_ns)
            self._set_job_name(now_ns)
            pause()
        return code

    def _pause_until_end_of(self, child: subprocess.Popen[bytes]) -> Callable[[], object]:
        """Return what waits for the next look, or for the end of the program if that is sooner."""
        try:
            descriptor = os.pidfd_open(child.pid)
        except (AttributeError, OSError):  # Not Linux, or an old one.
            return lambda: self.clock.sleep(LOOK_EVERY_S)
        return lambda: select.select([descriptor], [], [], LOOK_EVERY_S)

    def _set_job_name(self, now_ns: int) -> None:
        """Give a task of an array, once it has run for a while, its own name in the queue.

        An array has one name, and to rename what waits would make Slurm split it into jobs.
        """
        if self._naming is not None:
            self._naming.poll()
        if self._named or now_ns - self._began_ns < NAME_AFTER_NS:
            return
        self._named = True
        if self.place.first and self.spec.title not in ("", os.environ.get("SLURM_JOB_NAME")):
            with suppress(OSError):
                self._naming = self.place.rename(self.spec.title)

    def _end_when_due(self, child: subprocess.Popen[bytes], ran_ns: int) -> None:
        most_ns, kill_ns = self.spec.most_ns, self.spec.kill_ns
        if most_ns is not None and ran_ns >= most_ns and not self.late:
            self.late = self._overdue()
            self._kill_ns = self.clock.monotonic_ns() + NOTICE_NS
            signal_group(child.pid, signal.SIGTERM)
        if kill_ns is not None and ran_ns >= kill_ns:
            self._kill(child)

    def _overdue(self) -> str:
        return f"timeout: not done after {Duration(self.spec.most_ns or 0)}"

    def _forward_signals(self, child: subprocess.Popen[bytes], now_ns: int) -> None:
        """Pass the notice on: SIGUSR2 to processes with a handler, else SIGTERM to the group."""
        if len(self.signals) > self._forwarded:
            self._forwarded = len(self.signals)
            for process in _notice_handlers():
                send(process, signal.SIGUSR2)
                self._handles_notice = True
            self._term_ns = self._term_ns or now_ns + NO_HANDLER_NS
            # Sooner than Slurm, which would end us with it before we could queue it again.
            notice_ns = max(self.spec.notice_ns - NOTICE_NS, NOTICE_NS // 2)
            self._kill_ns = self._kill_ns or now_ns + notice_ns
        if self._term_ns is not None and now_ns >= self._term_ns and not self._handles_notice:
            self._handles_notice = True  # Once is enough; and one that listens is on its way out.
            signal_group(child.pid, signal.SIGTERM)
        if self._kill_ns is not None and now_ns >= self._kill_ns:
            self._kill(child)

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        signal_group(child.pid, signal.SIGKILL)
        end_all(descendants, self.clock)


def _notice_handlers() -> list[Process]:
    """Return what is below us and has a handler for the notice."""
    return [process for process in descendants() if catches(process.pid, signal.SIGUSR2)]


def _ignore_notice() -> None:
    # Slurm signals every process of a job. torchrun knows nothing of SIGUSR2 and would die of it,
    # and its workers with it, before they could save their work; they have handlers of their own.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def main() -> None:
    """Run the job that Slurm started here, and exit as its program did.

    The list that the first word names says which spec is whose place in the array.
    """
    place = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    spec = listed_spec(Path(sys.argv[1]), place)
    sys.exit(JobRun(spec, JobAllocation.of(os.environ)).run())


if __name__ == "__main__":
    main()
