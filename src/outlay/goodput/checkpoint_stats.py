"""How long checkpoints took, from the entries that Orbax's checkpoint logger writes.

Hosts of one job log the same save, so that a step's durations are averaged first, apart for local
and persistent storage; then steps are summed and compared. An entry without a duration, because its
save was killed, counts where it has one. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationStats:
    """Seconds over steps; all zero when no step has this duration."""

    total: float = 0.0
    average: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0
    standard_deviation: float = 0.0


def is_save(entry: Entry) -> bool:
    """Say whether an entry tells of a save."""
    return entry.get("event_type") == "save"


def is_restore(entry: Entry) -> bool:
    """Say whether an entry tells of a restore, from persistent storage or in an emergency."""
    return entry.get("event_type") in ("restore", "emergency_restore")


def is_local(entry: Entry) -> bool:
    """Say whether a checkpoint is on local storage: not in a bucket, or an emergency restore."""
    if is_restore(entry):
        return bool(entry["event_type"] == "emergency_restore")
    return not str(entry.get("directory", "")).startswith("gs://")


def duration_stats(entries: Iterable[Entry], key: str) -> DurationStats:
    """Return what the durations under ``key`` come to over the steps of some entries."""
    by_step: dict[tuple[object, bool], list[float]] = {}
    for entry in entries:
        seconds = _seconds(entry.get(key))
        if seconds is not None:
            by_step.setdefault((entry.get("step"), is_local(entry)), []).append(seconds)
    means = [statistics.fmean(seconds) for seconds in by_step.values()]
    if not means:
        return DurationStats()
    return DurationStats(
        total=math.fsum(means),
        average=statistics.fmean(means),
        minimum=min(means),
        maximum=max(means),
        standard_deviation=statistics.stdev(means) if len(means) > 1 else 0.0,
    )


def _seconds(value: Any) -> float | None:
    """Return a duration, which Orbax may write as text; None when it is none."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
