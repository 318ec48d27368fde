"""``outlay exec``: runs any unmodified command and records its time, exit code, cost and GPU load.

The command keeps its terminal, its signals and its exit code. Without step data it is known to be
busy or idle, never productive.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from outlay.budget.config import VARIABLE, as_text
from outlay.budget.gate import drop_budget
from outlay.budget.history import History, has_terms, read_since_statements
from outlay.budget.terms import DISABLED
from outlay.clock import SYSTEM, Clock
from outlay.errors import NotARun, Refused, RunInUse
from outlay.handlers import handling
from outlay.ledger import SUPERVISOR, EndStatus, SegmentWriter, gpu_count_of
from outlay.ledger.price import handed_on
from outlay.proc.exit_record import shell_code
from outlay.proc.identity import (
    PATIENCE_NS,
    Process,
    all_processes,
    below,
    is_alive,
    read_process,
    send,
)
from outlay.proc.keeper import KeeperTerms, Launch
from outlay.proc.keeper_process import MessagePipe
from outlay.proc.orphaned_tree import OrphanedTree, write_record
from outlay.proc.supervisor import CommandNotStarted, KeeperKilled, KeptEvent, ProcessSupervisor
from outlay.record import Recorder
from outlay.record.lock import RankLock
from outlay.record.meters.energy import NvmlSource, Quality, worst_quality
from outlay.record.supervision import BY_BUDGET, SupervisedRun, Supervision
from outlay.runs.attempt_start import in_free_directory, start_shipping
from outlay.runs.command_budget import BudgetUsedUp, CommandBudget, CommandTerms, settle_terms
from outlay.runs.inbox import leave_notice
from outlay.runs.options import RunOptions
from outlay.runs.preemption import JobEndWatch, ReclaimWatch
from outlay.slurm import SlurmJob
from outlay.store import outlay_home
from outlay.store.run_row import RunRow


def _environment(options: RunOptions) -> dict[str, str]:
    """Return the command's environment, with which ``outlay.run()`` inside it joins the run.

    GPUs are passed on only if they were stated: the process detects them itself, and its launcher
    may know better.
    """
    environment = dict(os.environ) | {"OUTLAY_RUN_DIR": str(options.dir)}
    if options.gpus_source == "stated":
        environment["OUTLAY_GPUS"] = str(options.gpus)
    if options.price is not None:
        environment["OUTLAY_PRICE"] = handed_on(options.price)
    if options.stopped_price is not None:
        environment["OUTLAY_STOPPED_PRICE"] = str(options.stopped_price.stated)
    if options.budget is not None:
        is_off = options.budget is DISABLED
        environment[VARIABLE] = "enabled=false" if is_off else as_text(options.budget)
    return environment


def outcome_of(returncode: int, received: signal.Signals | None = None) -> tuple[EndStatus, str]:
    """Return the end status and reason of a process.

    A SIGTERM to a whole job reaches the command and this process in any order.
    """
    name = f"exit code {returncode}" if returncode >= 0 else signal.Signals(-returncode).name
    if received is signal.SIGTERM or returncode == -signal.SIGTERM:
        return "terminated", name if returncode else "SIGTERM"
    if returncode == 0:
        return "completed", ""
    return ("interrupted" if received is signal.SIGINT else "failed"), name


# GPU load, sampled from outside the command


def find_gpus() -> list[NvmlSource]:
    """Return the GPUs visible to the command; none if NVML cannot be read."""
    try:
        return NvmlSource.detect(os.environ)
    except OSError:
        return []


class GpuLoad:
    """Accumulates the GPUs' busy time and energy between two heartbeats."""

    def __init__(self, recorder: Recorder, gpus: Sequence[NvmlSource]) -> None:
        self._recorder = recorder
        self._gpus = gpus
        self._at_ns = recorder.now_ns()
        self._busy_ns = 0
        self._energy_uj = 0

    def sample(self) -> None:
        """Sample every GPU once; one that does not answer counts as idle."""
        now_ns = self._recorder.now_ns()
        elapsed_ns, self._at_ns = now_ns - self._at_ns, now_ns
        for gpu in self._gpus:
            try:
                self._busy_ns += round(gpu.busy() * elapsed_ns) // len(self._gpus)
                self._energy_uj += gpu.take_uj()
            except OSError:
                continue

    def record(self) -> None:
        """Record a heartbeat with what was accumulated since the last one."""
        used_mj, self._energy_uj = divmod(self._energy_uj, 1000)
        self._recorder.heartbeat(gpu_busy_ns=self._busy_ns, energy_mj=used_mj)
        self._busy_ns = 0


FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
TICKET = "command"
BEAT_S = 15
_NO_SUCCESSOR = KeeperTerms(session="", leftovers="leave", cgroup=False)
_SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The result of a wrapped command.

    Attributes:
        exit_code: As a shell reports it; 3 if a budget ended the command.
        figures: None if recording is disabled or nothing could be written.
        budget: The limits that were enforced on the command; None without a budget.
        energy_quality: How the GPUs' energy was measured: by counters, or sampled.
    """

    exit_code: int
    figures: RunRow | None
    sampled_gpus: bool
    budget: CommandBudget | None = None
    energy_quality: Quality = Quality.UNAVAILABLE


def execute(
    command: Sequence[str],
    options: RunOptions,
    terms: CommandTerms | None = None,
    clock: Clock = SYSTEM,
) -> ExecResult:
    """Run a command until it exits or its budget ends it, recording it in ``options.dir``.

    Raises:
        CommandNotStarted: There is no such program, or it may not be executed.
        RunInUse: Another ``outlay exec`` records the same directory.
        BudgetUsedUp: The run has used a limit up.
        BudgetChanged: The run was started under other limits.
    """
    forwarder = _SignalForwarder()
    with handling(FORWARDED, forwarder.handle):
        processes = ProcessSupervisor(_NO_SUCCESSOR, own_session=False, replaces=True)
        try:
            processes.begin()  # Before the run begins: starting the keeper is not charged.
        except OSError as error:
            raise CommandNotStarted(command[0], error) from None
        try:
            begun = in_free_directory(options, lambda chosen: _begin(command, chosen, terms, clock))
        except BaseException:
            processes.close()
            raise
        log, options, budget = begun.log, begun.options, begun.budget
        _name_successor(processes, options, log.recorder)
        if budget is not None:
            # What the command leaves behind is reported, so that the budget can end it, too.
            notice_ns = budget.terms.notice.ns
            processes.terms = replace(processes.terms, leftovers="report", notice_ns=notice_ns)
            _connect(budget, processes)
            budget.poll()  # The keeper knows the deadline before the command starts.
        launch = Launch(
            ticket=TICKET, command=command, env=_environment(options), stdin=True,
            group=os.getpgrp(),
        )  # fmt: skip
        shipping = start_shipping(options)  # Before the command, which else ships itself.
        try:
            processes.start(launch)
        except OSError as error:
            processes.close()
            log.end("failed", f"not started: {error.strerror}")
            if shipping is not None:
                shipping.finish()
            raise CommandNotStarted(command[0], error) from None
        forwarder.forward_to(processes)
        gpus = find_gpus()
        job_end = _EndNotifier(processes, options)
        ended = watch(processes, GpuLoad(log.recorder, gpus), job_end.poll, budget)
        _end_rest(processes, budget, ended)
        forwarder.stop()
        job_end.stop()
        code = shell_code(ended.returncode)
        status, reason = outcome_of(ended.returncode, forwarder.received)
        if job_end.reason:
            status, reason = "preempted", job_end.reason
        if budget is not None and budget.reason is not None:
            status, reason, code = "terminated", f"{BY_BUDGET}{budget.reason}", Refused.exit_code
        log.end(status, reason, exit_code=shell_code(ended.returncode))
        if shipping is not None:
            shipping.finish()
    processes.close()
    return ExecResult(
        exit_code=code,
        figures=_figures(options, clock.wall_ns()),
        sampled_gpus=bool(gpus),
        budget=budget,
        energy_quality=worst_quality(gpus),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """An attempt that has begun: its log, its directory and its budget."""

    log: Supervision
    options: RunOptions
    budget: CommandBudget | None


def _begin(
    command: Sequence[str], options: RunOptions, stated: CommandTerms | None, clock: Clock
) -> _Begun:
    """Record the start of the attempt in ``options.dir``, unless its budget forbids it."""
    history = History(spends=[])
    if stated is not None or has_terms(options.dir):
        currency = "" if stated is None else stated.budget.currency
        history = read_since_statements(options.dir, currency)
    terms = settle_terms(stated, history, options.price)
    what = SupervisedRun(
        run_dir=options.dir, name=options.name, is_named=options.is_named, price=options.price,
        gpus=gpu_count_of(options.gpus), gpus_source=options.gpus_source, gpu=options.gpu,
        stopped_price=options.stopped_price, world_size=options.place.world_size, command=command,
    )  # fmt: skip
    log = Supervision(what, os.environ, clock=clock, exclusive=True)
    if log.is_recorded:
        leave_notice(log.run_id, options.dir, log.start_ns)
    budget = None
    if stated is not None and stated.budget is DISABLED:
        drop_budget(options.dir, log.recorder)
    elif terms is not None and log.header is not None:
        try:
            budget = CommandBudget.begin(terms, options.dir, log.recorder, log.header, history)
        except BudgetUsedUp as error:
            log.end("terminated", str(error))
            raise
    log.recorder.writer.sync()
    return _Begun(log=log, options=options, budget=budget)


def _connect(budget: CommandBudget, processes: ProcessSupervisor) -> None:
    """Let a budget signal the command and its descendants, and set the keeper's deadline."""
    budget.send = lambda number: processes.signal(TICKET, number, "tree")
    budget.set_deadline = processes.set_deadline


def _end_rest(processes: ProcessSupervisor, budget: CommandBudget | None, ended: KeptEvent) -> None:
    """End what a command left behind if its budget ended it; else leave it running."""
    if budget is None:
        return
    budget.finish(asked=ended.asked)
    left, until_ns = ended.left, SYSTEM.monotonic_ns() + budget.terms.notice.ns + PATIENCE_NS
    while budget.reason is not None and left and SYSTEM.monotonic_ns() < until_ns:
        budget.poll()
        if any(event.event == "gone" for event in processes.wait(budget.pause_s(_SAMPLE_S))):
            left = 0
    processes.leave_rest()


def _figures(options: RunOptions, now_ns: int) -> RunRow | None:
    from outlay.runs.reading import read_figures  # Loads NumPy, which a command need not wait for.

    try:
        return read_figures(options.dir, now_ns)
    except NotARun:
        return None


def _name_successor(processes: ProcessSupervisor, options: RunOptions, recorder: Recorder) -> None:
    """Name the command that continues the recording if this process is killed."""
    if not isinstance(recorder.writer, SegmentWriter):
        return  # Nothing is recorded.
    session, segment = secrets.token_hex(8), str(recorder.writer.path.absolute())
    module = (sys.executable, "-m", "outlay.runs.exec")
    successor = (*module, segment, str(recorder.wall_offset_ns), session)
    processes.terms = replace(
        _NO_SUCCESSOR,
        session=session,
        successor=(*successor, "line"),
        record=str(record_path(session)),
    )
    processes.about = {"kind": "exec", "run_dir": str(options.dir), "heir": list(successor)}


def record_path(session: str) -> Path:
    """Return the file that names the processes of a session, for the next ``outlay`` command."""
    return outlay_home() / "kept" / f"{session}.json"


def watch(
    processes: ProcessSupervisor,
    load: GpuLoad,
    on_sample: Callable[[], None] = lambda: None,
    budget: CommandBudget | None = None,
) -> KeptEvent:
    """Wait for the command, recording heartbeats and GPU load; return how it ended.

    ``on_sample`` is called about once a second.

    Raises:
        KeeperKilled: The command's return code cannot be learnt any more.
    """
    samples = 0
    while True:
        pause_s = _SAMPLE_S if budget is None else budget.pause_s(_SAMPLE_S)
        ended = [event for event in processes.wait(pause_s) if event.event == "exited"]
        load.sample()
        on_sample()
        samples += 1
        if ended or samples % BEAT_S == 0:
            load.record()
        if ended:
            return ended[0]
        if budget is not None:
            budget.poll()


class _EndNotifier:
    """Signals the command shortly before its Slurm job's limit, or at a cloud's notice.

    Sends SIGUSR2 to processes with a handler for it, else SIGTERM to the command. ``reason`` is set
    once a signal was sent.
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
        source = options.reclaim
        self._reclaim = None if source is None else ReclaimWatch(source, self._due.append)

    def poll(self) -> None:
        """Signal the command, once, if its end is near."""
        if self._due and not self.reason:
            self.reason = self._due[0]
            listening = self._processes.with_handler(TICKET, signal.SIGUSR2)
            for process in listening or ():
                send(process, signal.SIGUSR2)
            if not listening:
                self._processes.signal(TICKET, signal.SIGTERM, "command")

    def stop(self) -> None:
        """Stop watching."""
        for watch in (self._watch, self._reclaim):
            if watch is not None:
                watch.stop()


class _SignalForwarder:
    """Forwards signals to the command, and keeps the last one."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._processes: ProcessSupervisor | None = None

    def forward_to(self, processes: ProcessSupervisor) -> None:
        """Start forwarding; a signal received before the command started is delivered now."""
        self._processes = processes
        if self.received is not None:
            processes.signal(TICKET, self.received, "command")

    def stop(self) -> None:
        """Stop forwarding."""
        self._processes = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: keep it, and forward it if the command runs."""
        del frame
        self.received = signal.Signals(number)
        if self._processes is not None and not (number == signal.SIGINT and _has_terminal()):
            # On a terminal, Ctrl-C reaches the command directly: it shares our process group.
            self._processes.signal(TICKET, number, "command")


def _has_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


# The successor: continues the recording of a command whose ``outlay exec`` was killed
#
# Started by the command's keeper as ``python -m outlay.runs.exec``, or by the next ``outlay``
# command if the keeper was killed as well. It continues the same attempt in the same segment:
# training is not disturbed, and its cost is counted to its end.

UNKNOWN_END: Final = "outlay and its keeper were killed; how the command ended is not known"
_POLL_S: Final = 0.2


def continue_recording() -> None:
    """Record a command to its end: as its keeper reports it, or by polling its process."""
    segment, offset_ns, session, kind, *numbers = sys.argv[1:]
    terms = KeeperTerms(session=session, record=str(record_path(session)))
    path = Path(segment)
    try:
        lock = RankLock(path.parent, SUPERVISOR, holder=f"pid {os.getpid()}")
    except RunInUse:
        return  # Another attempt has begun; this one ends with its last record.
    recorder = Recorder(SegmentWriter.resumed(path, SYSTEM), SYSTEM, wall_offset_ns=int(offset_ns))
    first, second = map(int, numbers)
    if kind == "line":
        recorder.note("outlay exec was killed; its keeper started another recorder")
        processes = ProcessSupervisor.as_successor(terms, MessagePipe(first, second))
        _record_through_keeper(processes, recorder, CommandBudget.resumed(path, recorder))
    else:
        recorder.note("outlay exec and its keeper were killed; the command was found running")
        process = Process(first, second)
        _record_by_polling(process, recorder, CommandBudget.resumed(path, recorder))
    record_path(session).unlink(missing_ok=True)
    lock.release()


def _record_through_keeper(
    processes: ProcessSupervisor, recorder: Recorder, budget: CommandBudget | None
) -> None:
    """Record until the keeper reports the exit; poll the process if the keeper is killed too."""
    load = GpuLoad(recorder, find_gpus())
    load.record()
    if budget is not None:
        _connect(budget, processes)
    try:
        ended = watch(processes, load, budget=budget)
        _end_rest(processes, budget, ended)
    except KeeperKilled:
        if (process := processes.process_of(TICKET)) is not None:
            _record_by_polling(process, recorder, budget)
        return
    processes.close()
    status, reason = outcome_of(ended.returncode)
    if budget is not None and budget.reason is not None:
        status, reason = "terminated", f"{BY_BUDGET}{budget.reason}"
    recorder.close(status, reason, shell_code(ended.returncode))


def _record_by_polling(
    process: Process, recorder: Recorder, budget: CommandBudget | None = None
) -> None:
    """Record a process that is not our child until it is gone."""
    load = GpuLoad(recorder, find_gpus())
    load.record()
    if budget is not None:
        budget.send = lambda number: _signal_tree(process, number)
        budget.set_deadline = lambda _: None
    beat_ns = SYSTEM.monotonic_ns()
    while is_alive(process.pid, process.start):
        SYSTEM.sleep(_POLL_S)
        if budget is not None:
            budget.poll()
        if SYSTEM.monotonic_ns() - beat_ns >= BEAT_S * 10**9:
            beat_ns = SYSTEM.monotonic_ns()
            load.sample()
            load.record()
    if budget is not None and budget.reason is not None:
        budget.finish(asked=True)
        recorder.close("terminated", f"{BY_BUDGET}{budget.reason}", None)
    else:
        recorder.close("failed", UNKNOWN_END, None)


def _signal_tree(process: Process, number: int) -> None:
    """Signal a process that is not our child, and its descendants."""
    table = all_processes()
    if is_alive(process.pid, process.start):
        for pid in below(table, [process.pid]):
            send(table[pid], number)


def take_over(orphaned: OrphanedTree) -> None:
    """Start a successor for a command whose supervisor and keeper were both killed."""
    process = orphaned.record.commands[0]
    successor = subprocess.Popen(
        [*orphaned.record.about["heir"], "process", str(process.pid), str(process.start)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    successor.returncode = 0  # It outlives us: Popen must not warn that nobody waited.
    found = read_process(successor.pid)
    if found is not None:
        write_record(orphaned.path, replace(orphaned.record, supervisor=found, keeper=found))


if __name__ == "__main__":
    continue_recording()
