"""The segment of a process that starts a command and waits for it, from spawn to reap.

It bounds the attempt that the command is, whether or not the command records anything itself. It
starts and ends nothing; that is its owner's work.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlay._version import __version__
from outlay.clock import SYSTEM, Clock
from outlay.ledger import (
    SUPERVISOR,
    AttemptEnded,
    AttemptStarted,
    EndStatus,
    GpuCount,
    Heartbeat,
    Note,
    Price,
    RunIdentity,
    SegmentId,
    SegmentWriter,
    claim_identity,
    ledger_dir,
)
from outlay.ledger.segments import id_from_name, segment_paths
from outlay.record import facts
from outlay.record.recorder import NullWriter, Writer

BEAT_EVERY_NS = 15 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """What is started.

    Attributes:
        price: Per GPU-hour; None where none was stated.
        gpus: Of the whole run.
        stopped_price: Of the whole machine between attempts, where that is known.
        command: Its words; recorded without secrets.
    """

    run_dir: Path
    name: str
    price: Price | None = None
    gpus: GpuCount = 1
    stopped_price: Price | None = None
    command: Sequence[str] = ()


class Supervision:
    """Writes a supervisor's segment; never raises for what the disk does.

    ``environ`` is that of what is started: its launcher's variables say which job it belongs to.
    ``start_ns`` is when it began, where that is in the past.

    Attributes:
        start_ns: When the attempt began, UTC nanoseconds.
        end_ns: When it ended, once that is recorded; until then as ``start_ns``.
    """

    def __init__(
        self,
        what: Supervised,
        environ: Mapping[str, str],
        *,
        clock: Clock = SYSTEM,
        start_ns: int | None = None,
    ) -> None:
        now_ns = clock.wall_ns()
        self._clock = clock
        self._offset_ns = now_ns - clock.monotonic_ns()
        self.start_ns = now_ns if start_ns is None else start_ns
        self._beat_ns = self.end_ns = self.start_ns
        self.segment = SegmentId(self.start_ns, SUPERVISOR)
        self.run_id = uuid.uuid4().hex
        self._ended = False
        self._disabled = facts.is_disabled(environ)
        self._writer: Writer = NullWriter() if self._disabled else self._open(what, environ)

    def _open(self, what: Supervised, environ: Mapping[str, str]) -> SegmentWriter:
        about = facts.gather(environ, outlay_version=__version__)
        command = facts.command_of(what.command, environ)
        about = replace(about, rank=SUPERVISOR, command=command)
        proposal = RunIdentity(
            run_id=self.run_id, model="", name=what.name, created_ns=self.start_ns
        )
        with contextlib.suppress(OSError):  # The writer meets the same trouble, and counts it.
            self.run_id = claim_identity(what.run_dir, proposal).run_id
        header = AttemptStarted(
            t_ns=self.start_ns, run_id=self.run_id, name=what.name, gpus=what.gpus,
            gpus_source="stated", price=what.price, stopped_machine_price=what.stopped_price,
            **{name: getattr(about, name) for name in facts.Facts.__slots__},
        )  # fmt: skip
        self.segment = SegmentId(self.start_ns, SUPERVISOR, about.host, about.pid)
        path = ledger_dir(what.run_dir) / self.segment.file_name
        return SegmentWriter(path, header, self._clock)

    @property
    def is_recorded(self) -> bool:
        """Whether the log holds everything that was to be written."""
        return not self._disabled and not self._writer.lost

    def now_ns(self) -> int:
        """Return the present on the attempt's axis."""
        return self._offset_ns + self._clock.monotonic_ns()

    def beat(self) -> None:
        """Record a sign of life if the last one is old."""
        now_ns = self.now_ns()
        if now_ns - self._beat_ns >= BEAT_EVERY_NS:
            self._beat_ns = now_ns
            self._writer.append(Heartbeat(t_ns=now_ns))

    def note(self, text: str) -> None:
        """Record what a reader should know about the start: as of then, and no sign of life."""
        self._writer.append(Note(t_ns=self.start_ns, text=text))

    def end(
        self,
        status: EndStatus,
        reason: str = "",
        *,
        exit_code: int | None = None,
        t_ns: int | None = None,
        synced: bool = True,
    ) -> None:
        """Record the end, on disk when this returns; further calls do nothing.

        ``t_ns`` is when the last of its processes was reaped (default: now); what need not be
        ``synced`` a power failure may take.
        """
        if self._ended:
            return
        self._ended = True
        self.end_ns = self.now_ns() if t_ns is None else t_ns
        self._writer.append(
            AttemptEnded(t_ns=self.end_ns, status=status, reason=reason, exit_code=exit_code)
        )
        if synced:
            self._writer.sync()
        self._writer.close()


def latest_supervision(run_dir: Path) -> tuple[Path, SegmentId] | None:
    """Return the newest segment that a supervisor of a run wrote, if one did."""
    for path in reversed(segment_paths(run_dir)):
        segment = id_from_name(path)
        if segment is not None and segment.rank == SUPERVISOR:
            return path, segment
    return None
