"""``outlay exec``: any unmodified command, wrapped: wall time, exit code, cost, GPU load.

The command keeps its terminal, its signals and its exit code. It is watched from outside, so that
without step data it is known to be busy or idle, never productive. Should outlay be killed, the
command goes on, and so do its books: its keeper starts an heir (``outlay.runs.heir``).
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from outlay.clock import SYSTEM, Clock
from outlay.errors import NotARun, OutlayError
from outlay.handlers import handling
from outlay.ledger import SegmentWriter
from outlay.proc.identity import all_processes, below, catches, send
from outlay.proc.keeper import KeeperTerms
from outlay.proc.supervisor import Launch, ProcessSupervisor
from outlay.record import Recorder
from outlay.record.meters.energy import worst_quality
from outlay.record.meters.quality import Quality
from outlay.record.slurm import SlurmJob
from outlay.runs.figures import RunFigures, read_figures
from outlay.runs.gpus import GpuLoad, find_gpus
from outlay.runs.job_end import JobEndWatch
from outlay.runs.options import Options
from outlay.runs.supervised import SupervisedAttempt, shell_code
from outlay.store import outlay_home

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
TICKET = "command"
BEAT_S = 15
_NO_HEIR = KeeperTerms(session="", leftovers="leave", cgroup=False)
_SAMPLE_S = 1.0


class CommandNotStarted(OutlayError):
    """The wrapped command could not be started."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"cannot start {command!r}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a wrapped command went: its exit code as a shell would give it, and the run's figures.

    There are no figures when recording is switched off or nothing could be written.

    Attributes:
        energy_quality: How the GPUs' energy is known: by counters, or sampled.
    """

    exit_code: int
    figures: RunFigures | None
    sampled_gpus: bool
    energy_quality: Quality = Quality.UNAVAILABLE


def execute(command: Sequence[str], options: Options, clock: Clock = SYSTEM) -> ExecResult:
    """Run the command to its end, recording it in ``options.dir``.

    Raises:
        CommandNotStarted: There is no such program, or it may not be executed.
        RunInUse: Another ``outlay exec`` records the same directory.
    """
    forwarder = _Forwarder()
    with handling(FORWARDED, forwarder.handle):
        processes = ProcessSupervisor(_NO_HEIR, own_session=False, replaces=True)
        try:
            processes.begin()  # Before the run: what the keeper takes is not the command's time.
        except OSError as error:
            raise CommandNotStarted(command[0], error.strerror or str(error)) from None
        try:
            attempt = SupervisedAttempt(options, clock)
        except BaseException:
            processes.close()
            raise
        _name_heir(processes, attempt.options, attempt.recorder)
        try:
            processes.start(_launch(command, attempt.environment(os.environ)))
        except OSError as error:
            processes.close()
            attempt.end("failed", f"not started: {error.strerror}")
            raise CommandNotStarted(command[0], error.strerror or str(error)) from None
        forwarder.forward_to(processes)
        gpus = find_gpus()
        due = _JobEnd(processes, options)
        returncode = watch(processes, GpuLoad(attempt.recorder, gpus), due.look)
        forwarder.stop()
        due.stop()
        if due.told:
            attempt.end("preempted", due.told, exit_code=shell_code(returncode))
        attempt.reaped(returncode, received=forwarder.received)
    processes.close()
    return ExecResult(
        exit_code=shell_code(returncode),
        figures=_figures(attempt.options, clock.wall_ns()),
        sampled_gpus=bool(gpus),
        energy_quality=worst_quality(gpus),
    )


def _figures(options: Options, now_ns: int) -> RunFigures | None:
    try:
        return read_figures(options.dir, now_ns)
    except NotARun:
        return None


def _name_heir(processes: ProcessSupervisor, options: Options, recorder: Recorder) -> None:
    """Have somebody else record on should we die; where nothing is recorded there is nobody."""
    if not isinstance(recorder.writer, SegmentWriter):
        return
    session, segment = secrets.token_hex(8), str(recorder.writer.path.absolute())
    module = (sys.executable, "-m", "outlay.runs.heir")
    heir = (*module, segment, str(recorder.wall_offset_ns), session)
    processes.terms = replace(
        _NO_HEIR, session=session, heir=(*heir, "line"), record=str(record_path(session))
    )
    processes.about = {"kind": "exec", "run_dir": str(options.dir), "heir": list(heir)}


def record_path(session: str) -> Path:
    """Return where a family is named for the next command."""
    return outlay_home() / "kept" / f"{session}.json"


def _launch(command: Sequence[str], env: dict[str, str]) -> Launch:
    return Launch(ticket=TICKET, command=command, env=env, stdin=True, group=os.getpgrp())


def watch(
    processes: ProcessSupervisor, load: GpuLoad, look: Callable[[], None] = lambda: None
) -> int:
    """Wait for the command, recording signs of life and what its GPUs do.

    Args:
        processes: Who has the command.
        load: What records.
        look: Called about once a second.

    Raises:
        KeeperKilled: How the command ends cannot be learnt any more.
    """
    samples = 0
    while True:
        ended = [event for event in processes.wait(_SAMPLE_S) if event.event == "exited"]
        load.sample()
        look()
        samples += 1
        if ended or samples % BEAT_S == 0:
            load.record()
        if ended:
            return ended[0].returncode


class _JobEnd:
    """Tells the command that the time of its Slurm job is nearly up; outside of one, nothing.

    What has a handler for SIGUSR2 hears that; a command without any is sent SIGTERM.

    Attributes:
        told: Why the command was told to end, once it was.
    """

    def __init__(self, processes: ProcessSupervisor, options: Options) -> None:
        self.told = ""
        self._processes = processes
        self._due: list[str] = []
        job = SlurmJob.of(os.environ)
        self._watch = (
            JobEndWatch(job, self._due.append, grace=options.grace)
            if job is not None and options.notice is None
            else None
        )

    def look(self) -> None:
        """Tell the command when it is time."""
        if self._due and not self.told:
            self.told = self._due[0]
            command = self._processes.process_of(TICKET)
            table = all_processes()
            family = below(table, [command.pid]) if command is not None else set()
            listening = [pid for pid in family if pid in table and catches(pid, signal.SIGUSR2)]
            for pid in listening:
                send(table[pid], signal.SIGUSR2)
            if not listening:
                self._processes.signal(TICKET, signal.SIGTERM, "command")

    def stop(self) -> None:
        """Tell nobody any more."""
        if self._watch is not None:
            self._watch.stop()


class _Forwarder:
    """Hands the signals that reach outlay to the command, and remembers the last one."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._processes: ProcessSupervisor | None = None

    def forward_to(self, processes: ProcessSupervisor) -> None:
        """Name who has the command; a signal that came before it was started is delivered now."""
        self._processes = processes
        if self.received is not None:
            processes.signal(TICKET, self.received, "command")

    def stop(self) -> None:
        """Hand nothing on any more."""
        self._processes = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal, and hand it on if the command is there to get it."""
        del frame
        self.received = signal.Signals(number)
        if self._processes is not None and not (number == signal.SIGINT and _has_terminal()):
            # With a terminal, Ctrl-C reaches the command directly: it shares our group.
            self._processes.signal(TICKET, number, "command")


def _has_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
