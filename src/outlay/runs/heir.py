"""Who goes on recording a wrapped command whose ``outlay exec`` was killed.

Started by the command's keeper as ``python -m outlay.runs.heir``, or by the next command where the
keeper was killed as well. It goes on with the same attempt, in the same segment: training is not
disturbed, and its cost does not stop while it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from outlay.clock import SYSTEM
from outlay.errors import RunInUse
from outlay.ledger import SUPERVISOR, SegmentWriter
from outlay.proc.identity import Process, is_alive, read_process
from outlay.proc.keeper import KeeperTerms
from outlay.proc.keeper_process import MessagePipe
from outlay.proc.strays import StrayFamily, shell_code, write_record
from outlay.proc.supervisor import KeeperKilled, ProcessSupervisor
from outlay.record import Recorder
from outlay.record.lock import RankLock
from outlay.runs.exec import (
    BEAT_S,
    TICKET,
    GpuLoad,
    find_gpus,
    outcome_of,
    record_path,
    watch,
)

UNKNOWN_END: Final = "outlay and its keeper were killed; how the command ended is not known"
_LOOK_EVERY_S: Final = 0.2


def main() -> None:
    """Record a command to its end: as a keeper tells it, or as its process is seen to live."""
    segment, offset_ns, session, kind, *numbers = sys.argv[1:]
    terms = KeeperTerms(session=session, record=str(record_path(session)))
    path = Path(segment)
    try:
        lock = RankLock(path.parent, SUPERVISOR, holder=f"pid {os.getpid()}")
    except RunInUse:
        return  # Another attempt has begun meanwhile; this one ends with its last sign of life.
    recorder = Recorder(SegmentWriter.resumed(path, SYSTEM), SYSTEM, wall_offset_ns=int(offset_ns))
    first, second = map(int, numbers)
    if kind == "line":
        recorder.note("outlay exec was killed; its keeper has somebody else record")
        _record_kept(ProcessSupervisor.as_heir(terms, MessagePipe(first, second)), recorder)
    else:
        recorder.note("outlay exec and its keeper were killed; the command was found running")
        _record_seen(Process(first, second), recorder)
    record_path(session).unlink(missing_ok=True)
    lock.release()


def _record_kept(processes: ProcessSupervisor, recorder: Recorder) -> None:
    """Record what a keeper keeps; should that be killed too, what is seen to live."""
    load = GpuLoad(recorder, find_gpus())
    load.record()
    try:
        returncode = watch(processes, load)
    except KeeperKilled:
        if (process := processes.process_of(TICKET)) is not None:
            _record_seen(process, recorder)
        return
    processes.close()
    status, reason = outcome_of(returncode)
    recorder.close(status, reason, shell_code(returncode))


def _record_seen(process: Process, recorder: Recorder) -> None:
    """Record a process that is not our child, until it is gone."""
    load = GpuLoad(recorder, find_gpus())
    load.record()
    beat_ns = SYSTEM.monotonic_ns()
    while is_alive(process.pid, process.start):
        SYSTEM.sleep(_LOOK_EVERY_S)
        if SYSTEM.monotonic_ns() - beat_ns >= BEAT_S * 10**9:
            beat_ns = SYSTEM.monotonic_ns()
            load.sample()
            load.record()
    recorder.close("failed", UNKNOWN_END, None)


def take_over(stray: StrayFamily) -> None:
    """Have a command recorded again whose supervisor and keeper were both killed."""
    process = stray.record.commands[0]
    heir = subprocess.Popen(
        [*stray.record.about["heir"], "process", str(process.pid), str(process.start)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    heir.returncode = 0  # It outlives us, and nobody waits for it.
    found = read_process(heir.pid)
    if found is not None:
        write_record(stray.path, replace(stray.record, supervisor=found, keeper=found))


if __name__ == "__main__":
    main()
