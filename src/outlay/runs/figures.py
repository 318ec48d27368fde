"""A run at a glance, followed incrementally: status, progress, cost, findings.

Light enough to be asked inside training. How its time was spent is the subject of
``outlay.goodput``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from outlay.errors import Finding, NotARun
from outlay.ledger import (
    Attempt,
    Heartbeat,
    LedgerReader,
    Record,
    RunIdentity,
    SegmentId,
    SegmentLife,
    Step,
    alive_until,
    derive_attempts,
    energy_of,
    read_identity,
    segment_paths,
)
from outlay.ledger.attempts import DEAD_AFTER_NS
from outlay.rates import RateFunction, run_rates
from outlay.record.liveness import seems_alive
from outlay.units import Money


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """How a run stands. Instants are UTC nanoseconds.

    Attributes:
        status: ``running``, ``dead`` (no end, no sign of life), or how the last attempt ended.
        steps: The number of the last step plus one: how far the run has come.
        tokens: Over all ranks and attempts, repeated work included.
        wall_ns: From the first start to the end, without what lies after a completed attempt.
        burn_micros_per_hour: What it costs now; 0 unless it runs, None without a price.
    """

    run_id: str
    model: str
    name: str
    dir: str
    status: str
    attempts: int
    steps: int
    tokens: int
    samples: int
    started_ns: int
    last_seen_ns: int
    ended_ns: int | None
    wall_ns: int
    step_ns: int
    wait_ns: int
    energy_mj: int
    gpu_busy_ns: int
    user: str
    host: str
    gpu: str
    gpus: int
    tags: dict[str, str]
    cost: Money | None
    burn_micros_per_hour: int | None
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]

    def flat(self) -> dict[str, str | int | float | None]:
        """Return the figures that an experiment tracker can take."""
        seconds = self.wall_ns / 1e9
        return {
            "outlay/run_id": self.run_id,
            "outlay/attempts": self.attempts,
            "outlay/steps": self.steps,
            "outlay/tokens": self.tokens,
            "outlay/samples": self.samples,
            "outlay/wall_s": seconds,
            "outlay/step_s": self.step_ns / 1e9,
            "outlay/data_wait_s": self.wait_ns / 1e9,
            "outlay/tokens_per_s": self.tokens / seconds if seconds else None,
            "outlay/cost": None if self.cost is None else float(self.cost.amount),
            "outlay/currency": None if self.cost is None else self.cost.currency,
        }


@dataclass(slots=True)
class _Segment:
    """One process's life and what its records add up to."""

    life: SegmentLife
    last_step: int = -1
    tokens: int = 0
    samples: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    energy_mj: int = 0
    gpu_busy_ns: int = 0

    def fold_steps(self, steps: list[Step]) -> None:
        """Add the steps of one chunk."""
        self.last_step = steps[-1].step + steps[-1].count - 1
        self.tokens += sum(step.tokens for step in steps)
        self.samples += sum(step.samples for step in steps)
        self.step_ns += sum(step.dur_ns for step in steps)
        self.wait_ns += sum(step.wait_ns for step in steps)
        self.energy_mj += sum(step.energy_mj for step in steps)

    def fold_heartbeats(self, records: Sequence[Record]) -> None:
        """Add what the accelerators were seen to do."""
        for record in records:
            if type(record) is Heartbeat:
                self.energy_mj += record.energy_mj
                self.gpu_busy_ns += record.gpu_busy_ns


class RunFollower:
    """Follows one run's log; each refresh reads only what is new."""

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._reader = LedgerReader(run_dir)
        self._segments: dict[SegmentId, _Segment] = {}

    def refresh(self, now_ns: int) -> RunFigures:
        """Return how the run stands at ``now_ns``.

        Raises:
            NotARun: There is no run log.
        """
        self._read()
        if not self._segments:
            raise NotARun(str(self._dir))
        attempts = derive_attempts(segment.life for segment in self._segments.values())
        return self._figures(attempts, now_ns)

    def _read(self) -> None:
        for chunk in self._reader.poll():
            segment = self._segments.get(chunk.segment)
            if segment is None:
                segment = self._segments[chunk.segment] = _Segment(SegmentLife(chunk.segment))
            segment.life.fold(chunk.records)
            segment.fold_heartbeats(chunk.records)
            if steps := [record for record in chunk.records if type(record) is Step]:
                segment.fold_steps(steps)

    def _figures(self, attempts: list[Attempt], now_ns: int) -> RunFigures:
        last = attempts[-1]
        alive = seems_alive(self._dir, last)
        if alive is None:
            alive = now_ns - last.last_sign_ns <= DEAD_AFTER_NS
        present = alive_until(attempts, now_ns) if alive else attempts
        until_ns = present[-1].last_sign_ns
        # An instant beyond the present, so that there is a rate now, too.
        rates = run_rates(alive_until(present, until_ns + 1) if alive else attempts, until_ns)
        identity = read_identity(self._dir) or _identity_of(attempts[0])
        timeline = [self._segments[attempt.segment] for attempt in attempts]
        every = self._segments.values()
        energies = {segment: each.energy_mj for segment, each in self._segments.items()}
        return RunFigures(
            run_id=identity.run_id,
            model=identity.model or last.header.model,
            name=identity.name or last.header.name,
            dir=str(self._dir),
            status=_status(last, alive=alive),
            attempts=len(attempts),
            steps=1 + next((s.last_step for s in reversed(timeline) if s.last_step >= 0), -1),
            tokens=sum(segment.tokens for segment in every),
            samples=sum(segment.samples for segment in every),
            started_ns=attempts[0].start_ns,
            last_seen_ns=last.last_sign_ns,
            ended_ns=None if last.end is None else last.end.t_ns,
            wall_ns=until_ns - attempts[0].start_ns - _idle_ns(attempts),
            step_ns=sum(segment.step_ns for segment in timeline),
            wait_ns=sum(segment.wait_ns for segment in timeline),
            energy_mj=energy_of(attempts, energies),
            gpu_busy_ns=sum(segment.gpu_busy_ns for segment in every),
            user=last.header.user,
            host=last.header.host,
            gpu=last.header.gpu,
            gpus=last.header.gpus,
            tags=last.header.tags,
            cost=_cost(rates.function, attempts[0].start_ns, until_ns),
            burn_micros_per_hour=_burn(rates.function, until_ns, alive=alive),
            assumptions=_assumptions(rates.function),
            findings=(*self._reader.findings(), *rates.findings),
        )


def is_run(run_dir: Path) -> bool:
    """Say whether a directory holds a run log."""
    return bool(segment_paths(run_dir))


def _status(last: Attempt, *, alive: bool) -> str:
    if last.end is not None:
        return last.end.status
    return "running" if alive else "dead"


def _idle_ns(attempts: list[Attempt]) -> int:
    return sum(
        following.start_ns - attempt.last_sign_ns
        for attempt, following in pairwise(attempts)
        if attempt.completed
    )


def _cost(rates: RateFunction | None, start_ns: int, end_ns: int) -> Money | None:
    return None if rates is None else rates.cost_between(start_ns, end_ns)


def _burn(rates: RateFunction | None, until_ns: int, *, alive: bool) -> int | None:
    if rates is None:
        return None
    return rates.rate_at(until_ns) if alive else 0


def _assumptions(rates: RateFunction | None) -> tuple[str, ...]:
    return () if rates is None else tuple(sorted({a.text for a in rates.assumptions}))


def _identity_of(attempt: Attempt) -> RunIdentity:
    header = attempt.header
    return RunIdentity(
        run_id=header.run_id or f"{attempt.start_ns:x}",
        model=header.model,
        name=header.name,
        created_ns=attempt.start_ns,
    )
