"""What the meters saw, written into the step during which they saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from outlay.ledger import KnownRecord, Step
from outlay.record.meters.collectives import CollectiveMeter
from outlay.record.meters.energy import EnergyMeter
from outlay.record.writers import Writer


@dataclass(slots=True, kw_only=True)
class StepMeters:
    """The meters of one process; None where one is not wanted.

    Attributes:
        flops: The operations of a step by its tokens, where the step does not state them.
    """

    collectives: CollectiveMeter | None = None
    energy: EnergyMeter | None = None
    flops: Callable[[int], int] | None = None

    def fill(self, step: Step) -> Step:
        """Return the step with what was used since the last one; what it states itself stays."""
        comm_bytes = self.collectives.take() if self.collectives is not None else 0
        energy_mj = self.energy.take().energy_mj if self.energy is not None else 0
        flops = self.flops(step.tokens) if self.flops is not None else 0
        if not (comm_bytes or energy_mj or flops):
            return step
        return replace(
            step,
            comm_bytes=step.comm_bytes or comm_bytes,
            energy_mj=step.energy_mj or energy_mj,
            flops=step.flops or flops,
        )

    def stop(self) -> int:
        """Stop metering; return the millijoules that no step accounts for."""
        if self.collectives is not None:
            self.collectives.stop()
        return 0 if self.energy is None else self.energy.take(at_once=True).energy_mj


class MeteredWriter:
    """Writes through to a segment, metering each step first."""

    def __init__(self, inner: Writer, meters: StepMeters) -> None:
        self._inner = inner
        self._meters = meters
        self.gap_numbers = inner.gap_numbers
        self.sync = inner.sync
        self.check_place = inner.check_place
        self.close = inner.close

    @property
    def lost(self) -> int:
        """How many records could not be written."""
        return self._inner.lost

    @lost.setter
    def lost(self, count: int) -> None:
        self._inner.lost = count

    def append(self, record: KnownRecord) -> int:
        """Write one record and return its sequence number."""
        return self._inner.append(self._meters.fill(record) if type(record) is Step else record)
