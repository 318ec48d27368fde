"""GoodputCache: entries of a remote log kept in files, so that a restarted calculator reads on.

``<cache_dir>/<job>_timeline.jsonl`` holds one payload per line and ``<job>_metadata.json`` how far
the log was read. Entries are written before the mark: after a crash in between some are read twice,
which does no harm, since identical payloads count once. A torn last line is dropped and read again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

import msgspec

from outlay.decoding import BadDocument, Decoder, read_document, read_file
from outlay.errors import InvalidValue
from outlay.files import write_whole
from outlay.goodput.logs import Entry, EntryInfo, plain
from outlay.goodput.types import BadputParts

_decode = Decoder[Entry](Entry).decode
_LARGEST: Final = 1 << 30
_encoder = msgspec.json.Encoder(enc_hook=plain)


@dataclass(slots=True)
class GoodputInfo:
    """What the last query found, in seconds."""

    total_productive_time: float = 0.0
    total_elapsed_time: float = 0.0
    total_unproductive_time: BadputParts = field(default_factory=dict)
    max_productive_step: int = 0
    last_recorded_step: int = 0
    last_updated_timestamp: datetime | None = None
    number_of_disruptions: int = 0
    total_excluded_time: float = 0.0


@dataclass(slots=True)
class StepInfo:
    """How long a step ideally takes, and how far each was off, in seconds."""

    ideal_step_time: float
    step_deviations: dict[int, float]


class _Metadata(msgspec.Struct):
    """How far the log was read."""

    last_entry_timestamp: datetime | None = None
    last_entry_id: str | None = None


class GoodputCache:
    """One job's entries and latest results; the entries survive the process.

    Args:
        job_name: Whose entries these are.
        cache_dir: Where the files go; made when missing.
        gcs_path: Not supported: mount the bucket and name it as ``cache_dir``.

    Raises:
        InvalidValue: A ``gcs_path`` was given.
    """

    def __init__(
        self,
        job_name: str,
        cache_dir: str | Path = "/tmp",  # noqa: S108 - documented; no link is followed there
        gcs_path: str | None = None,
    ) -> None:
        if gcs_path is not None:
            expected = "None; mount the bucket and name it as cache_dir"
            raise InvalidValue("gcs_path", gcs_path, expected)
        stem = quote(job_name, safe=" ")
        self._timeline = Path(cache_dir) / f"{stem}_timeline.jsonl"
        self._metadata = Path(cache_dir) / f"{stem}_metadata.json"
        self._goodput_info: GoodputInfo | None = None
        self._step_info: StepInfo | Callable[[], StepInfo] | None = None

    def update_cached_entries(
        self, entries: Sequence[Entry], last_entry_info: EntryInfo | None = None
    ) -> None:
        """Append entries, and then note how far the log was read."""
        if entries:
            self._timeline.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(_open_own(self._timeline), "ab+") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)  # The uploaders of a job share its cache.
                _drop_torn_line(stream)
                stream.write(_encoded(entries))
        if last_entry_info is not None:
            self.update_last_entry_info(last_entry_info)

    def update_last_entry_info(self, last_entry_info: EntryInfo) -> None:
        """Note how far the log was read."""
        self._metadata.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._metadata, _encoder.encode(_Metadata(*last_entry_info)))

    def update_goodput_info(self, goodput_info: GoodputInfo) -> None:
        """Keep what the last query found."""
        self._goodput_info = goodput_info

    def update_step_info(self, step_info: StepInfo | Callable[[], StepInfo]) -> None:
        """Keep what the last query found about steps, or what computes it."""
        self._step_info = step_info

    def get_cached_entries(self) -> list[Entry]:
        """Return every entry that is kept and whole."""
        return [entry for line in self._lines() if (entry := _entry(line)) is not None]

    def get_step_entries(self) -> list[Entry]:
        """Return the entries that are step starts."""
        return [entry for entry in self.get_cached_entries() if "step_start_time" in entry]

    def get_job_start_time(self) -> float | None:
        """Return the first job start, in POSIX seconds."""
        starts = [e["job_start_time"] for e in self.get_cached_entries() if "job_start_time" in e]
        return starts[0] if starts else None

    def get_job_end_time(self) -> float | None:
        """Return the last job end, in POSIX seconds."""
        ends = [e["job_end_time"] for e in self.get_cached_entries() if "job_end_time" in e]
        return ends[-1] if ends else None

    def get_last_entry_info(self) -> EntryInfo | None:
        """Return how far the log was read; None when nothing says so."""
        try:
            found = read_document(self._metadata, _Metadata)
        except (OSError, BadDocument):
            return None
        return found.last_entry_timestamp, found.last_entry_id

    def get_goodput_info(self) -> GoodputInfo | None:
        """Return what the last query found."""
        return self._goodput_info

    def get_step_info(self) -> StepInfo | None:
        """Return what the last query found about steps."""
        if callable(self._step_info):
            self._step_info = self._step_info()
        return self._step_info

    def is_cache_empty(self) -> bool:
        """Say whether no entry is kept."""
        return not self._lines()

    def clear_cache(self) -> None:
        """Forget everything."""
        self._metadata.unlink(missing_ok=True)
        self._timeline.unlink(missing_ok=True)
        self._goodput_info = self._step_info = None

    def sync_to_gcs(self) -> None:
        """Do nothing: the files are where ``cache_dir`` says."""

    def _lines(self) -> list[bytes]:
        try:
            return read_file(self._timeline, largest=_LARGEST).split(b"\n")[:-1]
        except (OSError, BadDocument):
            return []


def _open_own(path: Path) -> int:
    """Open a file to append to: for its owner alone, and not where a link leads."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _encoded(entries: Sequence[Entry]) -> bytes:
    """Return entries as lines; the usual ones are plain already."""
    lines = _encoder.encode_lines(entries)
    if b"null" in lines:  # What msgspec makes of NaN and infinities.
        return _encoder.encode_lines([plain(entry) for entry in entries])
    return lines


def _drop_torn_line(stream: BinaryIO) -> None:
    length = stream.seek(0, os.SEEK_END)
    stream.seek(max(length - 1, 0))
    if stream.read(1) not in (b"\n", b""):
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)


def _entry(line: bytes) -> Entry | None:
    try:
        return _decode(line)
    except BadDocument:
        return None
