"""``goodput_cache``: payloads of a remote log, cached in files or imported into a run log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

import msgspec

from outlay.account.payloads import instant_of, ns_of_seconds, parse_event
from outlay.compat.ml_goodput_measurement.goodput_utils import GoodputInfo, StepInfo
from outlay.compat.ml_goodput_measurement.recorder import Entry, EntryInfo, plain
from outlay.decoding import BadDocument, Decoder, decode_as_python, read_document, read_file
from outlay.errors import Finding, InvalidValue
from outlay.files import draft_of, open_own, seal_of, write_whole
from outlay.ledger import (
    AttemptStarted,
    Payload,
    RunIdentity,
    SegmentId,
    claim_identity,
    encode_line,
    ledger_dir,
    segment_paths,
)
from outlay.locks import FileLock

__all__ = ["GoodputCache", "GoodputInfo", "StepInfo"]

# GoodputCache: entries of a remote log, so that a restarted calculator continues from them.
#
# ``<cache_dir>/<job>_timeline.jsonl`` has one payload per line, ``<job>_metadata.json`` has the
# position up to which the log was read. Entries are written before the position: after a crash in
# between some are read twice, which is harmless, since duplicates count once. A torn last line is
# skipped, and its entry is read again.

_decoder = Decoder[Entry](Entry)
LARGEST_FILE: Final = 1 << 30
_APPENDING: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW  # No symbolic links.
_encoder = msgspec.json.Encoder(enc_hook=plain)


class _Metadata(msgspec.Struct):
    """The position up to which the log was read."""

    last_entry_timestamp: datetime | None = None
    last_entry_id: str | None = None


class GoodputCache:
    """One job's entries, in files, and latest results, in memory.

    Args:
        job_name: The full name of the job.
        cache_dir: Directory of the files; created if missing.
        gcs_path: Not supported: mount the bucket and pass it as ``cache_dir``.

    Raises:
        InvalidValue: A ``gcs_path`` was given.
    """

    def __init__(
        self,
        job_name: str,
        cache_dir: str | Path = "/tmp",  # noqa: S108 - documented; symbolic links are not followed
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
        """Append entries, then store the position up to which the log was read."""
        if entries:
            self._timeline.parent.mkdir(parents=True, exist_ok=True)
            with (
                os.fdopen(open_own(self._timeline, _APPENDING), "ab+") as stream,
                # The uploaders of a job share its cache.
                FileLock(os.dup(stream.fileno()), patience_s=None),
            ):
                stream.write(seal_of(stream.fileno()) + _encoded(entries))
                stream.flush()
        if last_entry_info is not None:
            self.update_last_entry_info(last_entry_info)

    def update_last_entry_info(self, last_entry_info: EntryInfo) -> None:
        """Store the position up to which the log was read."""
        self._metadata.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._metadata, _encoder.encode(_Metadata(*last_entry_info)))

    def update_goodput_info(self, goodput_info: GoodputInfo) -> None:
        """Keep the results of the last query."""
        self._goodput_info = goodput_info

    def update_step_info(self, step_info: StepInfo | Callable[[], StepInfo]) -> None:
        """Keep the step results of the last query, or a function that computes them."""
        self._step_info = step_info

    def get_cached_entries(self) -> list[Entry]:
        """Return every cached entry; a torn line is skipped."""
        return _decoder.decode_lines(self._content())

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
        """Return the position up to which the log was read; None if unknown."""
        try:
            found = read_document(self._metadata, _Metadata)
        except (OSError, BadDocument):
            return None
        return found.last_entry_timestamp, found.last_entry_id

    def get_goodput_info(self) -> GoodputInfo | None:
        """Return the results of the last query."""
        return self._goodput_info

    def get_step_info(self) -> StepInfo | None:
        """Return the step results of the last query."""
        if callable(self._step_info):
            self._step_info = self._step_info()
        return self._step_info

    def is_cache_empty(self) -> bool:
        """Return whether no entry is cached."""
        return b"\n" not in self._content()

    def clear_cache(self) -> None:
        """Delete all entries and results."""
        self._metadata.unlink(missing_ok=True)
        self._timeline.unlink(missing_ok=True)
        self._goodput_info = self._step_info = None

    def sync_to_gcs(self) -> None:
        """Do nothing: the files are in ``cache_dir``."""

    def _content(self) -> bytes:
        try:
            return read_file(self._timeline, largest=LARGEST_FILE)
        except (OSError, BadDocument):
            return b""


def _encoded(entries: Sequence[Entry]) -> bytes:
    """Encode entries as lines; only those with NaN or infinities are converted first."""
    lines = _encoder.encode_lines(entries)
    if b"null" in lines:  # How msgspec writes NaN and infinities.
        return _encoder.encode_lines([plain(entry) for entry in entries])
    return lines


# Import of payloads that were logged elsewhere.

_decode = Decoder[Any](object).decode


def import_payloads(path: Path, run_dir: Path) -> list[Finding]:
    """Convert a file with one payload per line into a run log, and return findings on the file.

    A line may also be an entry exported from Cloud Logging, with the payload as ``jsonPayload``.
    Importing the same file again changes nothing.

    Raises:
        InvalidValue: The file cannot be read or has no payload, or the directory has a run already.
    """
    try:
        text = read_file(path, largest=LARGEST_FILE)
    except (OSError, BadDocument) as error:
        expected = f"a file that can be read ({getattr(error, 'strerror', None) or error})"
        raise InvalidValue("payloads", str(path), expected) from None
    findings: list[Finding] = []
    entries = list(_entries(text, path.name, findings))
    if not entries:
        raise InvalidValue("payloads", str(path), "a file with one JSON payload per line")
    job_name = _job_of(entries[0], path.stem)
    start_ns = min((t for t in map(_instant, entries) if t is not None), default=0)
    segment = SegmentId(start_ns, host=f"import-{crc32(text):08x}")
    target = ledger_dir(run_dir) / segment.file_name
    if target.exists():
        message = "was imported before; nothing was added"
        return [*findings, Finding(source=path.name, message=message, severity="warning")]
    if segment_paths(run_dir):
        raise InvalidValue("dir", str(run_dir), "a directory without a run log")
    findings += _other_jobs(entries, job_name, path.name)
    mine = [entry for entry in entries if _job_of(entry, job_name) == job_name]
    _write(target, segment, job_name, mine)
    return findings


def _entries(text: bytes, source: str, findings: list[Finding]) -> Iterator[Entry]:
    for line, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip():
            continue
        entry = _decoded(raw)
        if isinstance(entry, dict) and isinstance(entry.get("jsonPayload"), dict):
            entry = entry["jsonPayload"]
        if isinstance(entry, dict):
            yield entry
        else:
            message = "is not a JSON object and was left out"
            findings.append(Finding(source=source, line=line, message=message))


def _decoded(raw: bytes) -> Any:
    with contextlib.suppress(BadDocument):
        return _decode(raw)
    with contextlib.suppress(BadDocument, UnicodeEncodeError):
        entry = plain(decode_as_python(raw))
        msgspec.json.encode(entry)  # Fails on what no log can hold, such as half a surrogate pair.
        return entry
    return None


def _instant(entry: Entry) -> int | None:
    try:
        if "step_start_time" in entry:
            return ns_of_seconds(entry["step_start_time"])
        return instant_of(parse_event(entry))
    except ValueError:
        return None


def _job_of(entry: Entry, otherwise: str) -> str:
    return str(entry.get("job_name", otherwise))


def _other_jobs(entries: list[Entry], job_name: str, source: str) -> list[Finding]:
    names = {_job_of(entry, job_name) for entry in entries} - {job_name}
    return [
        Finding(source=source, message=f"entries of job {name!r} were left out: it is another run")
        for name in sorted(names)
    ]


def _write(target: Path, segment: SegmentId, job_name: str, entries: list[Entry]) -> None:
    """Write the segment to a draft and rename it, so that it appears whole or not at all."""
    proposal = RunIdentity(
        run_id=f"{segment.start_ns:x}-{segment.host}",
        model=job_name,
        name=job_name,
        created_ns=segment.start_ns,
    )
    identity = claim_identity(target.parent.parent, proposal)
    header = AttemptStarted(
        t_ns=segment.start_ns,
        run_id=identity.run_id,
        model=job_name,
        name=job_name,
        host=segment.host,
    )
    with draft_of(target) as draft, draft.open("wb") as stream:
        stream.write(encode_line(header, 0))
        for seq, entry in enumerate(entries, start=1):
            t_ns = _instant(entry) or segment.start_ns
            stream.write(encode_line(Payload(t_ns=t_ns, data=entry), seq))
