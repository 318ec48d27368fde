"""Writing down what happens to runs: into the journal first, then into the manifest."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from outlay.sweep.engines.base import Ended
from outlay.sweep.errors import SweepNotRecorded
from outlay.sweep.journal import Event, Journal, Status
from outlay.sweep.manifest import Manifest
from outlay.sweep.outcomes import Verdict
from outlay.units import Money


def record(manifest: Manifest, journal: Journal, run: str, status: Status, **facts: object) -> None:
    """Write an event down.

    Raises:
        SweepNotRecorded: The journal cannot be written.
    """
    about = {"t_ns": journal.now_ns(), "run": run, "status": status, **facts}
    event = msgspec.convert(about, Event)
    # A start that cannot be written down does not happen; an end has happened all the same.
    journal.append(event, keep=status != "running")
    manifest.state(run).apply(event)
    with suppress(SweepNotRecorded):  # The journal has it; the manifest follows when it can.
        manifest.refresh()


def record_end(
    manifest: Manifest,
    journal: Journal,
    run: str,
    verdict: Verdict,
    ended: Ended,
    cost: Money | None,
) -> None:
    """Write down how an attempt ended and what it cost.

    Raises:
        SweepNotRecorded: The journal cannot be written.
    """
    record(
        manifest, journal, run, verdict.status, reason=verdict.reason, returncode=ended.returncode,
        elapsed_ns=ended.elapsed_ns, cost_micros=None if cost is None else cost.micros,
        currency="" if cost is None else cost.currency,
    )  # fmt: skip
