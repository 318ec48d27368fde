"""What a record of the run log means to a budget: a step's use, or the time of another clock.

Pure. The live run and its replay go through here, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from outlay.budget.clocks import CLOCK_OF_SPAN
from outlay.budget.usage import Usage
from outlay.ledger import Heartbeat, Record, SpanBegun, SpanEnded, Step


@dataclass(frozen=True, slots=True)
class StepCharge:
    """``usage.steps`` steps from number ``step`` on used this much; money is not known here."""

    step: int
    usage: Usage


class ClockCharge(msgspec.Struct, frozen=True, array_like=True):
    """Work beside the steps: on which clock, how long, and since when."""

    clock: str
    start_ns: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class EnergyCharge:
    """Energy that no step accounts for."""

    energy_mj: int


Charge = StepCharge | ClockCharge | EnergyCharge


class ClockSpan(msgspec.Struct, frozen=True, array_like=True):
    """The outermost span with a clock of its own that has not ended."""

    seq: int
    clock: str
    start_ns: int


class Ongoing(msgspec.Struct, frozen=True, array_like=True):
    """What the next record's charge depends on, of the records before it."""

    open: ClockSpan | None
    since_step: list[ClockCharge]
    last_ns: int


class Charges:
    """Reads one process's records in order and says what each of them charges.

    Evaluation, checkpoints and logging inside a step's time are taken out of it: they have clocks
    of their own. Of spans within each other the outermost counts.
    """

    def __init__(self, ongoing: Ongoing | None = None) -> None:
        self._open = None if ongoing is None else ongoing.open
        self._since_step = [] if ongoing is None else list(ongoing.since_step)
        self._last_ns = 0 if ongoing is None else ongoing.last_ns

    @property
    def ongoing(self) -> Ongoing:
        """What another ``Charges`` needs to go on from here."""
        return Ongoing(self._open, list(self._since_step), self._last_ns)

    def of(self, record: Record, seq: int) -> Charge | None:
        """Return what the record charges, if anything; ``seq`` is its place in the segment."""
        self._last_ns = max(self._last_ns, record.t_ns)
        match record:
            case Step():
                return StepCharge(record.step, self.step(record))
            case SpanBegun(overlapped=False) if self._open is None:
                if clock := CLOCK_OF_SPAN.get(record.name):
                    self._open = ClockSpan(seq, clock, record.t_ns)
            case SpanEnded() if self._open is not None and record.begun == self._open.seq:
                return self._close(record.t_ns)
            case Heartbeat() if record.energy_mj:
                return EnergyCharge(record.energy_mj)
            case _:
                pass
        return None

    def end(self) -> ClockCharge | None:
        """Return what a span that never ended charges: up to the last sign of life."""
        return self._close(self._last_ns) if self._open is not None else None

    @property
    def inside(self) -> bool:
        """Whether work with a clock of its own is going on."""
        return self._open is not None

    def _close(self, end_ns: int) -> ClockCharge:
        assert self._open is not None
        span, self._open = self._open, None
        charge = ClockCharge(span.clock, span.start_ns, end_ns - span.start_ns)
        self._since_step.append(charge)
        return charge

    def step(self, step: Step) -> Usage:
        """Return what a step used; the usual record, for those who take it a shorter way."""
        self._last_ns = max(self._last_ns, step.t_ns)
        time_ns = step.wait_ns + step.dur_ns
        if self._since_step:
            begun_ns = step.t_ns - time_ns
            for span in self._since_step:
                end_ns = span.start_ns + span.time_ns
                time_ns -= max(0, min(end_ns, step.t_ns) - max(span.start_ns, begun_ns))
            self._since_step.clear()
        return Usage(
            step.tokens,
            step.count,
            step.flops,
            time_ns,
            0,
            step.energy_mj,
            step.comm_bytes,
        )
