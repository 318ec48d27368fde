"""Where goodput payloads are written and read: a small protocol, and the run log as its default.

Needs no account and no network, and loads no numpy: a training process imports this. What payloads
mean is the subject of ``outlay.account.payloads``.
"""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from outlay._version import __version__
from outlay.clock import SYSTEM, Clock, utc_datetime, wall_ns_of
from outlay.errors import InvalidValue
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    LedgerReader,
    Payload,
    Price,
    RunIdentity,
    SegmentId,
    SegmentWriter,
    claim_identity,
    ledger_dir,
)
from outlay.ledger.price import is_price_name, typed_price
from outlay.record import facts
from outlay.store import outlay_home

Entry = dict[str, Any]
EntryInfo = tuple[datetime | None, str | None]


class GoodputLogger(Protocol):
    """Keeps entries and gives them back in order."""

    def write_cloud_logging_entry(self, entry: Entry | None) -> None:
        """Keep an entry."""

    def flush(self) -> None:
        """Make sure that everything written so far is kept."""

    def read_cloud_logging_entries(
        self,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        last_entry_info: EntryInfo | None = None,
    ) -> tuple[list[Entry], EntryInfo]:
        """Return the entries in an interval, or after the last one that was seen, and the last."""


def run_dir_of_job(job_name: str) -> Path:
    """Return where a job's log is: ``$OUTLAY_RUN_DIR``, else ``$OUTLAY_HOME/runs/<job_name>``.

    Raises:
        InvalidValue: The job has no name.
    """
    if not str(job_name).strip():
        raise InvalidValue("job_name", job_name, "a non-empty name")
    if chosen := os.environ.get("OUTLAY_RUN_DIR"):
        return Path(chosen).expanduser().absolute()
    name = quote(job_name, safe=" ")
    return outlay_home() / "runs" / (name.replace(".", "%2E") if name.strip(".") == "" else name)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; NaN and infinities stand as their names."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__index__"):
        return int(value)
    if isinstance(value, float) or hasattr(value, "__float__"):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    return str(value)


class LocalRunLog:
    """A job's entries in a run log on this machine.

    Args:
        job_name: Entries of other jobs are dropped.
        run_dir: Where the run log is; default: where the job's name leads.
        clock: Says when an entry was written.

    Raises:
        InvalidValue: The job has no name, or ``OUTLAY_PRICE`` or ``OUTLAY_GPUS`` make no sense.
    """

    def __init__(
        self, job_name: str, run_dir: Path | str | None = None, *, clock: Clock = SYSTEM
    ) -> None:
        self.job_name = job_name
        self.run_dir = run_dir_of_job(job_name) if run_dir is None else Path(run_dir)
        self._clock = clock
        self._price = _price_from(os.environ)
        self._gpus = _gpus_from(os.environ)
        self._writer: SegmentWriter | None = None

    def write_cloud_logging_entry(self, entry: Entry | None) -> None:
        """Keep an entry; it is safe from the death of this process when the call returns."""
        if entry is None or not self._is_mine(entry):
            return
        writer = self._writer = self._writer or self._new_segment()
        now_ns = self._clock.wall_ns()
        writer.append(Payload(t_ns=now_ns, data=plain(entry)))
        if "job_end_time" in entry:
            writer.append(AttemptEnded(t_ns=now_ns, status="completed"))
            writer.sync()

    def flush(self) -> None:
        """Make everything written so far survive a power loss."""
        if self._writer is not None:
            self._writer.sync()

    def read_cloud_logging_entries(
        self,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        last_entry_info: EntryInfo | None = None,
    ) -> tuple[list[Entry], EntryInfo]:
        """Return the entries written after ``start_time`` and up to ``end_time``, and the last one.

        ``last_entry_info`` is where an earlier answer ended; what follows it is returned.
        """
        after = _place(start_time, "~") if last_entry_info is None else _place(*last_entry_info)
        until = (math.inf, "") if end_time is None else _place(end_time, "~")
        found = sorted(
            ((record.t_ns // 1000, f"{chunk.segment.file_name}:{record.seq:012d}"), record.data)
            for chunk in LedgerReader(self.run_dir).poll()
            for record in chunk.records
            if isinstance(record, Payload) and self._is_mine(record.data)
        )
        chosen = [(place, data) for place, data in found if after < place <= until]
        if not chosen:
            return [], last_entry_info or (None, None)
        micros, entry_id = chosen[-1][0]
        return [data for _, data in chosen], (utc_datetime(micros * 1000), entry_id)

    def _is_mine(self, entry: Entry) -> bool:
        return bool(entry.get("job_name", self.job_name) == self.job_name)

    def _new_segment(self) -> SegmentWriter:
        about = facts.gather(os.environ, outlay_version=__version__)
        now_ns = self._clock.wall_ns()
        identity = RunIdentity(
            run_id=uuid.uuid4().hex, model=self.job_name, name=self.job_name, created_ns=now_ns
        )
        with contextlib.suppress(OSError):  # The writer meets the same error and reports it.
            identity = claim_identity(self.run_dir, identity)
        header = AttemptStarted(
            t_ns=now_ns,
            run_id=identity.run_id,
            model=identity.model,
            name=identity.name,
            gpus=self._gpus,
            price=self._price,
            **{name: getattr(about, name) for name in facts.Facts.__slots__},
        )
        segment = SegmentId(now_ns, about.rank, about.host, about.pid)
        path = ledger_dir(self.run_dir) / segment.file_name
        return SegmentWriter(path, header, self._clock)


def _place(moment: datetime | None, entry_id: str | None) -> tuple[float, str]:
    """Return where an instant and an entry lie in the order of the log, in microseconds."""
    return (-1.0 if moment is None else wall_ns_of(moment) // 1000, entry_id or "")


def _price_from(environ: Mapping[str, str]) -> Price | None:
    text = environ.get("OUTLAY_PRICE")
    if not text:
        return None
    if is_price_name(text):
        from outlay.prices.current import resolve_price  # Loaded only where a price is a name.

        gpu, gpus = facts.gpu_model(), facts.visible_gpus(environ)
        name = "OUTLAY_PRICE"
        return resolve_price(text, name=name, environ=environ, gpu=gpu, gpus=gpus).price
    return typed_price(text, name="OUTLAY_PRICE", source="environment")


def _gpus_from(environ: Mapping[str, str]) -> int:
    text = environ.get("OUTLAY_GPUS")
    if not text:
        return facts.world_size(environ)
    if not text.isdecimal() or not int(text):
        raise InvalidValue("OUTLAY_GPUS", text, "a whole number of GPUs for the whole run")
    return int(text)
