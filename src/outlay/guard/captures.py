"""Captures compared with the cost in their runs' logs.

The cost is that of ``outlay.rates`` over the run log, as in every report. Without a log, the holder
of the money estimates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outlay.clock import wall_ns_of
from outlay.errors import Finding
from outlay.guard.balance import unit_of
from outlay.guard.entries import (
    AnyLine,
    Captured,
    Corrected,
    RunPart,
    micros_of,
    parse_timestamp,
)
from outlay.ledger import SegmentId, alive_until, derive_attempts, read_lives
from outlay.rates import gpu_time, run_rates
from outlay.units import Money, Unit
from outlay.units.money import GPU_TIME

LATE: Final = "its log was written to after the capture"


def cost_of_attempt(
    run_dir: Path, segment: SegmentId, end_ns: int, unit: Unit | None = None
) -> Money | None:
    """Return the cost of one process's part of a run; None if the log has no cost.

    It starts at the end of the previous attempt, so that the parts of a run sum to its cost to the
    micro-unit: each is the difference of two rounded totals. ``segment`` is that of the capturing
    process, a supervisor or the first rank; ``end_ns`` is its end, logged or not.

    If ``unit`` is that of GPU time, the time of its attempts times their GPUs is returned.
    """
    attempts = derive_attempts(read_lives(run_dir))
    ours = [place for place, attempt in enumerate(attempts) if segment in attempt.ranks]
    if not ours:
        return None
    counted = alive_until(attempts[: ours[-1] + 1], end_ns + attempts[ours[-1]].moved_ns)
    if unit == GPU_TIME:
        return gpu_time(counted) - gpu_time(attempts[: ours[0]])
    until_ns, start_ns = counted[-1].last_sign_ns, attempts[0].start_ns
    function = run_rates(counted, until_ns).function
    if function is None:
        return None
    before_ns = attempts[ours[0] - 1].last_sign_ns if ours[0] else start_ns
    earlier = function.cost_between(start_ns, before_ns)
    return function.cost_between(start_ns, until_ns) - earlier


def run_part(run: str, segment: SegmentId) -> RunPart:
    """Return the part of a run that a process's segment records."""
    return RunPart(run=run, segment=segment.file_name)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A capture that is below the cost in the run's log, corrections included."""

    number: int
    line: Captured
    part: RunPart
    captured: Money
    cost: Money


def captured_below_cost(
    lines: Iterable[tuple[int, AnyLine]], runs: Mapping[str, Path], *, source: str
) -> Iterator[Finding]:
    """Yield a finding for every capture that is below the cost in its run's log.

    ``runs`` maps run ids to directories; captures of other runs are skipped.
    """
    for short in _shortfalls(lines, runs):
        message = f"it captures {short.captured}; the log of run {short.part.run} says {short.cost}"
        yield Finding(source=source, line=short.number, message=message)


def correct_late(
    lines: Sequence[AnyLine],
    runs: Mapping[str, Path],
    correct: Callable[[str, Money, str], None],
) -> list[Finding]:
    """Correct every capture whose run was recorded after it, by a rank that ended later.

    A capture that is too low for another reason is left to ``captured_below_cost``. ``correct``
    takes a label, the difference and the reason. Returns a finding for each correction.
    """
    found = []
    for short in _shortfalls(enumerate(lines, start=1), runs):
        captured_ns = wall_ns_of(parse_timestamp(short.line.ts))
        if _last_sign_ns(runs[short.part.run], short.part) <= captured_ns:
            continue
        more = short.cost - short.captured
        correct(short.line.op_label, more, LATE)
        message = f"{short.line.op_label}: {more} more than was captured, since {LATE}"
        found.append(Finding(source=short.part.run, message=message, severity="warning"))
    return found


def _shortfalls(
    lines: Iterable[tuple[int, AnyLine]], runs: Mapping[str, Path]
) -> Iterator[Shortfall]:
    """Yield captures that are below the cost in their runs' logs.

    Later positive corrections of the same label count; negative ones, which a person made with a
    reason, do not make a capture wrong.
    """
    added, captures = defaultdict[str, int](int), list[tuple[int, Captured, RunPart]]()
    for number, line in lines:
        if isinstance(line, Corrected):
            added[line.op_label] += max(micros_of(line.actual), 0)
        elif isinstance(line, Captured) and line.part is not None and line.part.run in runs:
            captures.append((number, line, line.part))
    for number, line, part in captures:
        unit = unit_of(line.currency)
        cost = _cost_of_part(runs[part.run], part, unit)
        if cost is None or cost.unit != unit:
            continue
        short = cost.micros - micros_of(line.actual)
        covered = min(max(short, 0), added[line.op_label])
        added[line.op_label] -= covered
        if short > covered:
            captured = unit.money(micros_of(line.actual) + covered)
            yield Shortfall(number, line, part, captured, cost)


def _last_sign_ns(run_dir: Path, part: RunPart) -> int:
    return max(
        attempt.last_sign_ns - attempt.moved_ns
        for attempt in derive_attempts(read_lives(run_dir))
        if part.segment in [rank.file_name for rank in attempt.ranks]
    )


def _cost_of_part(run_dir: Path, part: RunPart, unit: Unit) -> Money | None:
    """Return the cost of a part by its log; None if the log has no cost."""
    ranks = (rank for attempt in derive_attempts(read_lives(run_dir)) for rank in attempt.ranks)
    segment = next((rank for rank in ranks if rank.file_name == part.segment), None)
    return None if segment is None else cost_of_attempt(run_dir, segment, 0, unit)
