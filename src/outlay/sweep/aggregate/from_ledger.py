"""A run's figures from its own log; of a log that has not changed, from a file beside it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, Decoder, read_file
from outlay.errors import NotARun
from outlay.files import write_whole
from outlay.goodput.follower import GoodputFollower, RunView
from outlay.ledger import (
    BudgetEvent,
    Heartbeat,
    Metric,
    Record,
    SegmentId,
    Step,
    energy_of,
    segment_paths,
)
from outlay.sweep.aggregate.facts import RunFacts, Seen

CACHE: Final = "outlay_facts.json"
_VERSION: Final = 2


class _Cached(msgspec.Struct, frozen=True):
    """Figures, and of which files they are: name, size and time of the last change."""

    version: int
    files: list[tuple[str, int, int]]
    facts: RunFacts


_decoder = Decoder[_Cached](_Cached)


def read_ledger(run_dir: Path, now_ns: int) -> RunFacts | None:
    """Return a run's figures, or None where it has no log."""
    paths = segment_paths(run_dir)
    if not paths:
        return None
    files = [(p.name, (s := p.stat()).st_size, s.st_mtime_ns) for p in paths]
    cached = _read_cache(run_dir)
    if cached is not None and cached.version == _VERSION and cached.files == files:
        return cached.facts
    facts = _fold(run_dir, now_ns)
    if facts is not None:
        _write_cache(run_dir, _Cached(_VERSION, files, facts))
    return facts


def _read_cache(run_dir: Path) -> _Cached | None:
    try:
        return _decoder.decode(read_file(run_dir / CACHE))
    except (OSError, BadDocument):
        return None


def _write_cache(run_dir: Path, cached: _Cached) -> None:
    with contextlib.suppress(OSError):  # A directory that cannot be written to is read each time.
        write_whole(run_dir / CACHE, msgspec.json.encode(cached))


class _Tally:
    """What the records of a run add up to, besides its timeline."""

    def __init__(self) -> None:
        self.steps = self.step_ns = self.samples = self.tokens = 0
        self.comm_bytes = self.energy_mj = self.flops = 0
        self.energies_mj: dict[SegmentId, int] = {}
        self.metrics: list[Metric] = []
        self.stop_reason = ""

    def fold(self, segment: SegmentId, records: Sequence[Record]) -> None:
        """Take in more records of one segment."""
        steps = [record for record in records if type(record) is Step]
        self._steps(steps, timed=segment.rank <= 0)
        others = [record for record in records if type(record) is not Step]
        energy_mj = sum([step.energy_mj for step in steps])
        energy_mj += sum([beat.energy_mj for beat in others if isinstance(beat, Heartbeat)])
        self.energies_mj[segment] = self.energies_mj.get(segment, 0) + energy_mj
        for record in others:
            self._one(record, leading=segment.rank <= 0)

    def _one(self, record: Record, *, leading: bool) -> None:
        match record:
            case Metric() if leading:
                self.metrics.append(record)
            case BudgetEvent(event="stopped"):
                self.stop_reason = str(record.data.get("text", ""))
            case _:
                pass

    def _steps(self, steps: Sequence[Step], *, timed: bool) -> None:
        # Lists, not generators: this runs for every step there is.
        self.samples += sum([step.samples for step in steps])
        self.tokens += sum([step.tokens for step in steps])
        self.comm_bytes += sum([step.comm_bytes for step in steps])
        self.flops += sum([step.flops for step in steps])
        if timed:
            self.steps += sum([step.count for step in steps])
            self.step_ns += sum([step.dur_ns + step.wait_ns for step in steps])


def _fold(run_dir: Path, now_ns: int) -> RunFacts | None:
    tally = _Tally()
    try:
        view = GoodputFollower(run_dir, beside=tally.fold).view(now_ns, alive=False)
    except NotARun:
        return None
    tally.energy_mj = energy_of(view.timeline.attempts, tally.energies_mj)
    return _facts(view, tally)


def _facts(view: RunView, tally: _Tally) -> RunFacts:
    parts, start_ns = view.break_down(), view.timeline.start_ns
    return RunFacts(
        source="ledger",
        steps=tally.steps,
        step_ns=tally.step_ns,
        items=tally.samples or tally.tokens,
        tokens=tally.tokens or None,
        comm_bytes=tally.comm_bytes or None,
        energy_mj=tally.energy_mj or None,
        flops=tally.flops or None,
        cost_micros=None if parts.cost is None else parts.cost.micros,
        currency="" if parts.cost is None else parts.cost.currency,
        goodput=parts.goodput,
        wall_ns=parts.wall_ns,
        started_ns=start_ns,
        attempts=len(view.timeline.attempts),
        stop_reason=tally.stop_reason,
        metrics=_by_name(tally.metrics, start_ns),
        phases=dict(parts.phases),
        phase_micros={name: money.micros for name, money in parts.cost_by_phase.items()},
        assumptions=list(parts.assumptions),
        findings=[str(finding) for finding in view.findings],
    )


def _by_name(metrics: list[Metric], start_ns: int) -> dict[str, list[Seen]]:
    """Return each metric's values in time; what is no number takes no part in a comparison."""
    found: dict[str, list[Seen]] = {}
    for metric in sorted(metrics, key=lambda metric: metric.t_ns):
        if math.isfinite(metric.number):
            seen = Seen(metric.number, metric.t_ns - start_ns, metric.step)
            found.setdefault(metric.name, []).append(seen)
    return found
