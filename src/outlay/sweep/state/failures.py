"""What is shown of a failed run: why it failed, the name of its log, and the log's last lines."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, open_regular
from outlay.escaping import one_line
from outlay.record.redaction import Redactor
from outlay.sweep.plan.launch import LOG_NAME
from outlay.sweep.state.manifest import SweepManifest

LINES: Final = 5
LINE_LENGTH: Final = 160
_TAIL_BYTES: Final = 1 << 14
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that failed.

    Attributes:
        log: Its output, of all attempts.
        last_lines: The last ones of it that are not empty, cut if they are long.
    """

    run: str
    reason: str
    log: str
    last_lines: list[str] = []


def failed_runs(
    manifest: SweepManifest, environ: Mapping[str, str], runs: Collection[str] | None = None
) -> list[FailedRun]:
    """Return the runs that failed, or those of ``runs``; secrets of ``environ`` are redacted."""
    named = manifest.runs if runs is None else runs
    failed = [run for run in named if manifest.state(run).status == "error"]
    redact = Redactor([environ] if failed else [])
    return [_failed(manifest, run, redact) for run in failed]


def _failed(manifest: SweepManifest, run: str, redact: Redactor) -> FailedRun:
    log = (manifest.root / manifest.runs[run].run_dir / LOG_NAME).absolute()
    return FailedRun(
        run=run, reason=manifest.state(run).reason, log=str(log),
        last_lines=[_shown(redact.text(line)) for line in last_lines(log)],
    )  # fmt: skip


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a file that are not empty; of a progress bar its last state."""
    tail = b""
    with suppress(OSError, BadDocument), os.fdopen(open_regular(log), "rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
        tail = stream.read(_TAIL_BYTES)
    text = _COLOURS.sub("", tail.decode(errors="replace"))
    lines = (line.rstrip().rpartition("\r")[2] for line in text.split("\n"))
    return [line for line in lines if line.strip()][-LINES:]


def _shown(line: str) -> str:
    return one_line(line if len(line) <= LINE_LENGTH else f"{line[: LINE_LENGTH - 1]}…")
