"""``outlay exec``: any unmodified command, wrapped: wall time, exit code, cost, GPU load.

The command keeps its terminal, its signals and its exit code. It is watched from outside, so that
without step data it is known to be busy or idle, never productive.
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
from outlay.errors import NotARun
from outlay.handlers import handling
from outlay.ledger import EndStatus, SegmentWriter, gpu_count_of
from outlay.ledger.price import handed_on
from outlay.proc.identity import send
from outlay.proc.keeper import KeeperTerms, Launch
from outlay.proc.strays import shell_code
from outlay.proc.supervisor import CommandNotStarted, ProcessSupervisor
from outlay.record import Recorder
from outlay.record.machine import SlurmJob
from outlay.record.meters.energy import NvmlSource, Quality, worst_quality
from outlay.record.supervision import SupervisedRun, Supervision
from outlay.runs.directories import leave_notice
from outlay.runs.figures import RunFigures, read_figures
from outlay.runs.opening import in_free_directory
from outlay.runs.options import RunOptions
from outlay.runs.preemption import JobEndWatch
from outlay.store import outlay_home


def _environment(options: RunOptions) -> dict[str, str]:
    """Return the environment with which a process that records itself joins the run.

    GPUs are handed on where somebody stated them: what was found or guessed out here, the
    process finds by itself, and its launcher may know better.
    """
    environment = dict(os.environ) | {"OUTLAY_RUN_DIR": str(options.dir)}
    if options.gpus_source == "stated":
        environment["OUTLAY_GPUS"] = str(options.gpus)
    if options.price is not None:
        environment["OUTLAY_PRICE"] = handed_on(options.price)
    if options.stopped_price is not None:
        environment["OUTLAY_STOPPED_PRICE"] = str(options.stopped_price.rate)
    return environment


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
            log, options = in_free_directory(options, lambda chosen: _begin(command, chosen, clock))
        except BaseException:
            processes.close()
            raise
        _name_heir(processes, options, log.recorder)
        launch = Launch(
            ticket=TICKET, command=command, env=_environment(options), stdin=True,
            group=os.getpgrp(),
        )  # fmt: skip
        try:
            processes.start(launch)
        except OSError as error:
            processes.close()
            log.end("failed", f"not started: {error.strerror}")
            raise CommandNotStarted(command[0], error) from None
        forwarder.forward_to(processes)
        gpus = find_gpus()
        due = _JobEnd(processes, options)
        returncode = watch(processes, GpuLoad(log.recorder, gpus), due.look)
        forwarder.stop()
        due.stop()
        status, reason = outcome_of(returncode, forwarder.received)
        if due.reason:
            status, reason = "preempted", due.reason
        log.end(status, reason, exit_code=shell_code(returncode))
    processes.close()
    return ExecResult(
        exit_code=shell_code(returncode),
        figures=_figures(options, clock.wall_ns()),
        sampled_gpus=bool(gpus),
        energy_quality=worst_quality(gpus),
    )


def _begin(
    command: Sequence[str], options: RunOptions, clock: Clock
) -> tuple[Supervision, RunOptions]:
    """Write down that the attempt begins in ``options.dir``; return that with its options."""
    what = SupervisedRun(
        run_dir=options.dir, name=options.name, is_named=options.is_named, price=options.price,
        gpus=gpu_count_of(options.gpus), gpus_source=options.gpus_source, gpu=options.gpu,
        stopped_price=options.stopped_price, world_size=options.place.world_size, command=command,
    )  # fmt: skip
    log = Supervision(what, os.environ, clock=clock, exclusive=True)
    if log.is_recorded:
        leave_notice(log.run_id, options.dir, log.start_ns)
    log.recorder.writer.sync()
    return log, options


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


def watch(
    processes: ProcessSupervisor, load: GpuLoad, look: Callable[[], None] = lambda: None
) -> int:
    """Wait for the command, recording signs of life and what its GPUs do.

    ``look`` is called about once a second.

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

    What has a handler for SIGUSR2 is sent that; a command without any is sent SIGTERM. ``reason``
    says why, once it was.
    """

    def __init__(self, processes: ProcessSupervisor, options: RunOptions) -> None:
        self.reason = ""
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
        if self._due and not self.reason:
            self.reason = self._due[0]
            listening = self._processes.with_handler(TICKET, signal.SIGUSR2)
            for process in listening or ():
                send(process, signal.SIGUSR2)
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
