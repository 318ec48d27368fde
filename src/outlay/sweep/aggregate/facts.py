"""What one run got for its budget, whatever it was read from; and its place in a cache."""

from __future__ import annotations

import msgspec


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One value of the metric: after how much of the run's real time, and at which step."""

    value: float
    elapsed_ns: int | None = None
    step: int | None = None
    epoch: float | None = None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one run, all attempts and ranks; None where nothing says.

    Attributes:
        source: ``ledger`` or ``csv``.
        steps: Steps that were executed, repeated ones included.
        step_ns: Their time together, the wait for data included.
        items: Samples (tokens where no samples were counted) over all ranks.
        metrics: The values of each metric, in the order in which they came.
        phases: Wall time by phase.
        stop_reason: Which limit ended it, in words.
        trained: Whether the training itself recorded; otherwise its supervisor alone did.
    """

    source: str
    steps: int = 0
    step_ns: int = 0
    items: float = 0.0
    tokens: int | None = None
    comm_bytes: int | None = None
    energy_mj: int | None = None
    flops: int | None = None
    fidelity_mean: float | None = None
    cost_micros: int | None = None
    currency: str = ""
    goodput: float | None = None
    wall_ns: int | None = None
    started_ns: int | None = None
    attempts: int = 1
    stop_reason: str = ""
    trained: bool = True
    metrics: dict[str, list[Seen]] = {}
    phases: dict[str, int] = {}
    phase_micros: dict[str, int] = {}
    assumptions: list[str] = []
    findings: list[str] = []

    @property
    def items_per_second(self) -> float | None:
        """Throughput: everything over all the time, never a mean of rates."""
        return self.items / self.step_ns * 1e9 if self.step_ns and self.items else None

    @property
    def step_ms(self) -> float | None:
        """The mean time of a step."""
        return self.step_ns / self.steps / 1e6 if self.steps and self.step_ns else None

    @property
    def bytes_per_step(self) -> float | None:
        """The mean of what collectives moved in a step."""
        return self.comm_bytes / self.steps if self.steps and self.comm_bytes is not None else None
