"""Importing payloads that were logged elsewhere into a run log of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

from outlay.account.payload_events import instant_of, parse_event
from outlay.account.payload_steps import ns_of_seconds
from outlay.decoding import BadDocument, Decoder, decode_as_python, read_file
from outlay.errors import Finding, InvalidValue
from outlay.files import draft_of
from outlay.goodput.logs import Entry, plain
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

LARGEST_FILE: Final = 1 << 30
_decode = Decoder[Any](object).decode


def import_payloads(path: Path, run_dir: Path) -> list[Finding]:
    """Make a run log of a file with one payload per line, and return what is wrong in the file.

    A line may also be an entry as Cloud Logging exports it, with the payload as ``jsonPayload``.
    Importing the same file again changes nothing.

    Raises:
        InvalidValue: The file cannot be read or holds no payload, or the directory holds a run
            already.
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
        msgspec.json.encode(entry)  # What no log can hold, such as half a surrogate pair.
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
    """Write the segment beside its place and move it there, so that it appears whole or not."""
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
