"""A run's figures from its own log; of a log that has not changed, from a file beside it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from outlay.decoding import BadDocument, Decoder, read_file
from outlay.errors import NotARun
from outlay.files import write_whole
from outlay.goodput.follower import GoodputFollower, RunView
from outlay.goodput.summary import known_goodput
from outlay.ledger import SUPERVISOR, segment_paths
from outlay.sweep.aggregate.facts import RunFacts, Seen

CACHE: Final = "outlay_facts.json"
_VERSION: Final = 3


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


def _fold(run_dir: Path, now_ns: int) -> RunFacts | None:
    try:
        return _facts(GoodputFollower(run_dir).view(now_ns, alive=False))
    except NotARun:
        return None


def _facts(view: RunView) -> RunFacts:
    parts, account = view.break_down(), view.account
    work, start_ns = account.work, view.timeline.start_ns
    leading = [s for s in account.shown() if s.life.segment.rank <= 0]
    stops = [event for event in account.budget_events() if event.event == "stopped"]
    return RunFacts(
        source="ledger",
        steps=sum(segment.work.steps for segment in leading),
        step_ns=sum(segment.work.step_ns + segment.work.wait_ns for segment in leading),
        items=work.samples or work.tokens,
        tokens=work.tokens or None,
        comm_bytes=work.comm_bytes or None,
        energy_mj=view.energy_mj() or None,
        flops=work.flops or None,
        cost_micros=None if parts.cost is None else parts.cost.micros,
        currency="" if parts.cost is None else parts.cost.currency,
        goodput=known_goodput(view, parts),
        wall_ns=parts.wall_ns,
        started_ns=start_ns,
        attempts=len(view.timeline.attempts),
        trained=any(s.rank != SUPERVISOR for a in view.timeline.attempts for s in a.ranks),
        stop_reason=str(stops[-1].data.get("text", "")) if stops else "",
        metrics={
            name: [Seen(point.value, point.t_ns - start_ns, point.step) for point in series]
            for name in account.metric_names()
            if (series := account.series(name))
        },
        phases=dict(parts.phases),
        phase_micros={name: money.micros for name, money in parts.cost_by_phase.items()},
        assumptions=list(parts.assumptions),
        findings=[str(finding) for finding in view.findings],
    )
