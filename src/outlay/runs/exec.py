"""``outlay exec``: any unmodified command, wrapped: wall time, exit code, cost, GPU load.

The command keeps its terminal, its signals and its exit code. It is watched from outside, so that
without step data it is known to be busy or idle, never productive.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from errno import ENOENT
from pathlib import Path
from types import FrameType

from outlay.clock import SYSTEM, Clock
from outlay.errors import NOT_EXECUTABLE, NOT_FOUND, NotARun, OutlayError
from outlay.handlers import handling
from outlay.ledger import SUPERVISOR, EndStatus, SegmentWriter
from outlay.ledger.price import handed_on
from outlay.proc.identity import all_processes, below, catches, send
from outlay.proc.keeper import KeeperTerms
from outlay.proc.strays import shell_code
from outlay.proc.supervisor import Launch, ProcessSupervisor
from outlay.record import Recorder
from outlay.record.meters.energy import NvmlSource, Quality, worst_quality
from outlay.record.slurm import SlurmJob
from outlay.runs.figures import RunFigures, read_figures
from outlay.runs.opening import open_attempt
from outlay.runs.options import RunOptions
from outlay.runs.preemption import JobEndWatch
from outlay.store import outlay_home

# The supervisor's own segment of an attempt: begun before the spawn, ended after the reap.
#
# Whoever starts a training from outside (``outlay exec``, ``guard run``, a sweep, a Slurm job)
# writes one. Its two instants bound the attempt, whether or not the training records itself. It
# starts and watches nothing.


class SupervisedAttempt:
    """One attempt as its supervisor records it; make it right before the process is started.

    ``options`` come from ``resolve(Arguments(model=None, dir=..., gpus=..., price=...), ...)``: a
    supervisor does not know the model.

    Raises:
        RunInUse: Another supervisor records the same directory.
    """

    def __init__(self, command: Sequence[str], options: RunOptions, clock: Clock = SYSTEM) -> None:
        self._opening = open_attempt(options, clock, rank=SUPERVISOR, command=command)
        self.options = self._opening.options
        self._ended = False

    @property
    def run_id(self) -> str:
        """The run, as in its directory's ``run.json``."""
        return self._opening.run_id

    @property
    def recorder(self) -> Recorder:
        """What writes the segment, for signs of life and notes."""
        return self._opening.recorder

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with which a process that records itself joins the run.

        GPUs are handed on where somebody stated them: what was found or guessed out here, the
        process finds by itself, and its launcher may know better.
        """
        options = self.options
        environment = dict(inherited) | {"OUTLAY_RUN_DIR": str(options.dir)}
        if options.gpus_source == "stated":
            environment["OUTLAY_GPUS"] = str(options.gpus)
        if options.price is not None:
            environment["OUTLAY_PRICE"] = handed_on(options.price)
        if options.stopped_price is not None:
            environment["OUTLAY_STOPPED_PRICE"] = str(options.stopped_price.rate)
        return environment

    def reaped(self, returncode: int, *, received: signal.Signals | None = None) -> None:
        """Record how the process ended, right after it was reaped.

        Args:
            returncode: As ``subprocess`` gives it: negative for the signal that killed it.
            received: The signal that the supervisor was sent and passed on, if any.
        """
        status, reason = outcome_of(returncode, received)
        self.end(status, reason, exit_code=shell_code(returncode))

    def end(self, status: EndStatus, reason: str = "", *, exit_code: int | None = None) -> None:
        """Record an end that says more than an exit code (or less); further calls do nothing."""
        if self._ended:
            return
        self._ended = True
        self.recorder.close(status, reason, exit_code)
        if self._opening.lock is not None:
            self._opening.lock.release()


def outcome_of(returncode: int, received: signal.Signals | None = None) -> tuple[EndStatus, str]:
    """Return how a process ended, and by what.

    Whoever ends a whole job sends SIGTERM to the command and to its supervisor, in any order.
    """
    name = f"exit code {returncode}" if returncode >= 0 else signal.Signals(-returncode).name
    if received is signal.SIGTERM or returncode == -signal.SIGTERM:
        return "terminated", name if returncode else "SIGTERM"
    if returncode == 0:
        return "completed", ""
    return ("interrupted" if received is signal.SIGINT else "failed"), name


# What the GPUs of a wrapped command do, sampled from outside.


def find_gpus() -> list[NvmlSource]:
    """Return the GPUs that the command may use; none where NVML cannot be read."""
    try:
        return NvmlSource.detect(os.environ)
    except OSError:
        return []


class GpuLoad:
    """Adds up how long GPUs were busy and what they used since the last record."""

    def __init__(self, recorder: Recorder, gpus: Sequence[NvmlSource]) -> None:
        self._recorder = recorder
        self._gpus = gpus
        self._at_ns = recorder.now_ns()
        self._busy_ns = 0
        self._energy_uj = 0

    def sample(self) -> None:
        """Look once; a GPU that does not answer is not seen to do anything."""
        now_ns = self._recorder.now_ns()
        elapsed_ns, self._at_ns = now_ns - self._at_ns, now_ns
        for gpu in self._gpus:
            try:
                self._busy_ns += round(gpu.busy() * elapsed_ns) // len(self._gpus)
                self._energy_uj += gpu.take_uj()
            except OSError:
                continue

    def record(self) -> None:
        """Write what was seen since the last record, as a sign of life."""
        used_mj, self._energy_uj = divmod(self._energy_uj, 1000)
        self._recorder.heartbeat(gpu_busy_ns=self._busy_ns, energy_mj=used_mj)
        self._busy_ns = 0


FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
TICKET = "command"
BEAT_S = 15
_NO_HEIR = KeeperTerms(session="", leftovers="leave", cgroup=False)
_SAMPLE_S = 1.0


class CommandNotStarted(OutlayError):
    """The wrapped command could not be started; exits as a shell does."""

    exit_code = NOT_FOUND

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"cannot start {command!r}: {error.strerror or error}")
        if error.errno != ENOENT:
            self.exit_code = NOT_EXECUTABLE


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


def execute(command: Sequence[str], options: RunOptions, clock: Clock = SYSTEM) -> ExecResult:
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
            raise CommandNotStarted(command[0], error) from None
        try:
            attempt = SupervisedAttempt(command, options, clock)
        except BaseException:
            processes.close()
            raise
        _name_heir(processes, attempt.options, attempt.recorder)
        try:
            processes.start(_launch(command, attempt.environment(os.environ)))
        except OSError as error:
            processes.close()
            attempt.end("failed", f"not started: {error.strerror}")
            raise CommandNotStarted(command[0], error) from None
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


def _figures(options: RunOptions, now_ns: int) -> RunFigures | None:
    try:
        return read_figures(options.dir, now_ns)
    except NotARun:
        return None


def _name_heir(processes: ProcessSupervisor, options: RunOptions, recorder: Recorder) -> None:
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

    def __init__(self, processes: ProcessSupervisor, options: RunOptions) -> None:
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
