"""The segment of a supervisor: a process that starts a command and waits for it.

It bounds the attempt, from spawn to reap, whether or not the command records anything itself. It
starts and ends no process; its owner does.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from outlay.clock import SYSTEM, Clock, since_boot_ns
from outlay.ledger import (
    SUPERVISOR,
    AttemptEnded,
    AttemptStarted,
    EndStatus,
    GpuCount,
    Note,
    Price,
    RunIdentity,
    SegmentId,
    SegmentWriter,
    ledger_dir,
)
from outlay.ledger.segments import id_from_name, segment_paths
from outlay.record import facts
from outlay.record.lock import RankLock, claim_rank
from outlay.record.recorder import NullWriter, Recorder, Writer

BEAT_EVERY_NS = 15 * 10**9
BY_BUDGET = "budget: "
"""Begins the reason of an end that a budget brought about from outside of the program."""
STARTS, PAUSES = "starts: ", "pauses: "
WAITS, UNAVAILABLE, KEPT = "waits: ", "unavailable: ", "kept: "
DECISIONS = (STARTS, PAUSES, WAITS, UNAVAILABLE, KEPT)
"""Begin the notes in a supervisor's segment that say why the command starts, pauses, or does not
start yet: its price is waited for, no machine can be created, or the last one is not verified gone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRun:
    """The command that is started, and what it is recorded as.

    Attributes:
        is_named: Whether the user chose the name; else the program may set another.
        price: Per GPU-hour.
        gpus: Of the whole run.
        gpus_source: As in ``attempt_started``.
        stopped_price: Of the whole machine between attempts.
        world_size: None if the environment has it.
    """

    run_dir: Path
    name: str
    is_named: bool = True
    price: Price | None = None
    gpus: GpuCount = 1
    gpus_source: str = "stated"
    gpu: str = ""
    stopped_price: Price | None = None
    world_size: int | None = None
    command: Sequence[str] = ()


class Supervision:
    """Writes a supervisor's segment; disk errors never raise.

    ``environ`` is that of the command: it names the launcher's job. ``start_ns`` is when the
    command began, if in the past. Only one ``exclusive`` supervision may record a directory.

    Attributes:
        start_ns: When the attempt began, UTC nanoseconds.
        end_ns: When it ended; equal to ``start_ns`` until then.
        header: The segment's first record; None if nothing is recorded.

    Raises:
        RunInUse: Another exclusive supervision records the directory.
    """

    def __init__(
        self,
        what: SupervisedRun,
        environ: Mapping[str, str],
        *,
        clock: Clock = SYSTEM,
        start_ns: int | None = None,
        exclusive: bool = False,
    ) -> None:
        now_ns = clock.wall_ns()
        wall_offset_ns = now_ns - clock.monotonic_ns()
        self.start_ns = now_ns if start_ns is None else start_ns
        self._beat_ns = self.end_ns = self.start_ns
        self.segment = SegmentId(self.start_ns, SUPERVISOR)
        self.run_id = uuid.uuid4().hex
        self._lock: RankLock | None = None
        self._ended = False
        self._disabled = facts.is_disabled(environ)
        writer: Writer = NullWriter()
        self.header: AttemptStarted | None = None
        if not self._disabled:
            self.header = self._begin(what, environ, exclusive=exclusive)
            if (boot_ns := since_boot_ns(clock)) is not None:
                recorded_ns = boot_ns - (now_ns - self.start_ns)
                self.header = replace(self.header, since_boot_ns=recorded_ns)
            path = ledger_dir(what.run_dir) / self.segment.file_name
            writer = SegmentWriter(path, self.header, clock)
        self.recorder = Recorder(writer, clock, wall_offset_ns=wall_offset_ns)

    def _begin(
        self, what: SupervisedRun, environ: Mapping[str, str], *, exclusive: bool
    ) -> AttemptStarted:
        """Claim the run's directory and return the segment's first record."""
        about = facts.gather(environ, what.command)
        about = replace(about, rank=SUPERVISOR, world_size=what.world_size or about.world_size)
        name = what.name if what.is_named else ""  # The program may set one.
        proposal = RunIdentity(run_id=self.run_id, model="", name=name, created_ns=self.start_ns)
        self.run_id, self._lock = claim_rank(what.run_dir, proposal, about, exclusive=exclusive)
        header = replace(
            about, t_ns=self.start_ns, run_id=self.run_id, name=what.name,
            gpu=what.gpu, gpus=what.gpus, gpus_source=what.gpus_source,
            price=what.price, stopped_machine_price=what.stopped_price,
        )  # fmt: skip
        self.segment = SegmentId.of(header)
        return header

    @property
    def is_recorded(self) -> bool:
        """Whether every record was written."""
        return not self._disabled and not self.recorder.writer.lost

    def now_ns(self) -> int:
        """Return the present time on the attempt's axis."""
        return self.recorder.now_ns()

    def beat(self) -> None:
        """Record a heartbeat if the last one is older than ``BEAT_EVERY_NS``."""
        now_ns = self.now_ns()
        if now_ns - self._beat_ns >= BEAT_EVERY_NS:
            self._beat_ns = now_ns
            self.recorder.heartbeat()

    def note(self, text: str) -> None:
        """Record a note about the start, timed then, so that it is not a sign of life."""
        self.recorder.append(Note(t_ns=self.start_ns, text=text))

    def end(
        self,
        status: EndStatus,
        reason: str = "",
        *,
        exit_code: int | None = None,
        t_ns: int | None = None,
        synced: bool = True,
    ) -> None:
        """Record the end; further calls do nothing.

        ``t_ns`` is when the last process was reaped (default: now). ``synced`` flushes to disk, so
        that the end survives a power failure.
        """
        if self._ended:
            return
        self._ended = True
        self.end_ns = self.now_ns() if t_ns is None else t_ns
        writer = self.recorder.writer
        writer.check_place()  # Recreates a deleted segment, so that the end is written.
        writer.append(
            AttemptEnded(t_ns=self.end_ns, status=status, reason=reason, exit_code=exit_code)
        )
        if synced:
            writer.sync()
        writer.close()
        if self._lock is not None:
            self._lock.release()


def latest_supervision(run_dir: Path) -> tuple[Path, SegmentId] | None:
    """Return the newest supervisor's segment of a run, or None."""
    for path in reversed(segment_paths(run_dir)):
        segment = id_from_name(path)
        if segment is not None and segment.rank == SUPERVISOR:
            return path, segment
    return None
