"""A run's log read once for everything that cost and advice are computed from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from outlay.goodput.follower import GoodputFollower, RunView
from outlay.goodput.timeline import Timeline
from outlay.ledger import (
    BudgetEvent,
    Heartbeat,
    Metric,
    Record,
    RunIdentity,
    SegmentId,
    Step,
    energy_of,
    read_identity,
)

# The names under which trainings report the same thing, the most telling first.
ACCURACY = ("test_accuracy", "accuracy", "eval_accuracy", "val_accuracy", "validation_accuracy")
LOSS = ("validation_loss", "val_loss", "eval_loss", "test_loss", "loss")
EPOCHS = ("epochs", "epoch")
LEARNING_RATE = ("learning_rate", "lr")
_STEPS_OF_A_SIZE = 1000  # Enough for a median, and bounded however long the run is.


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One reported number, when it was reported, and by which rank."""

    t_ns: int
    rank: int
    value: float


@dataclass(slots=True)
class Told:
    """What a training said about itself: metrics by name, energy, the length of an epoch.

    Attributes:
        energy_mj: Of the whole run, known once all of it was read.
        energies_mj: What each process recorded.
        durations: Nanoseconds of single steps by their samples; the first thousand of each.
    """

    metrics: dict[str, list[MetricPoint]] = field(default_factory=dict)
    energy_mj: int = 0
    energies_mj: dict[SegmentId, int] = field(default_factory=dict)
    steps_per_epoch: int | None = None
    durations: dict[int, list[int]] = field(default_factory=dict)

    def fold(self, segment: SegmentId, records: Iterable[Record]) -> None:
        """Take note of more records of a segment, in any order."""
        for record in records:
            match record:
                case Step():
                    self._note_energy(segment, record.energy_mj)
                    if record.samples > 0:
                        self._note_duration(record)
                case Heartbeat():
                    self._note_energy(segment, record.energy_mj)
                case Metric():
                    point = MetricPoint(record.t_ns, segment.rank, record.number)
                    self.metrics.setdefault(record.name, []).append(point)
                case BudgetEvent(data={"steps_per_epoch": int(steps)}):
                    self.steps_per_epoch = steps
                case _:
                    pass

    def _note_energy(self, segment: SegmentId, energy_mj: int) -> None:
        self.energies_mj[segment] = self.energies_mj.get(segment, 0) + energy_mj

    def _note_duration(self, step: Step) -> None:
        each = self.durations.setdefault(step.samples // step.count, [])
        if len(each) < _STEPS_OF_A_SIZE:
            each.append(step.dur_ns // step.count)

    def series(self, names: Sequence[str]) -> list[MetricPoint]:
        """Return the finite points of the first name that was reported, in order of time.

        Ranks that train together report the same curve: of several, the lowest speaks for all.
        """
        found = next((self.metrics[name] for name in names if name in self.metrics), [])
        finite = [point for point in found if math.isfinite(point.value)]
        speaker = min((point.rank for point in finite), default=0)
        return sorted((p for p in finite if p.rank == speaker), key=lambda point: point.t_ns)

    def best_accuracy(self) -> float | None:
        """Return the highest accuracy that was reported; None when none was."""
        return max((point.value for point in self.series(ACCURACY)), default=None)

    def best_loss(self) -> float | None:
        """Return the lowest loss that was reported; None when none was."""
        return min((point.value for point in self.series(LOSS)), default=None)


@dataclass(frozen=True, slots=True)
class RunReading:
    """A run as it stands, with what it said about itself."""

    dir: Path
    identity: RunIdentity
    view: RunView
    told: Told


def read_whole_run(run_dir: Path | str, now_ns: int) -> RunReading:
    """Read a run's log.

    Raises:
        NotARun: There is no run log.
    """
    directory = Path(run_dir)
    told = Told()
    view = GoodputFollower(directory, beside=told.fold).view(now_ns)
    told.energy_mj = energy_of(view.timeline.attempts, told.energies_mj)
    return RunReading(directory, _identity(directory, view.timeline), view, told)


def _identity(directory: Path, timeline: Timeline) -> RunIdentity:
    """Return who a run is; what its file cannot say comes from its attempts.

    Where a supervisor was first, the file has no model. A command that never names one is a model
    of its own: its cost must be found under something.
    """
    header = timeline.attempts[0].header
    identity = read_identity(directory) or RunIdentity(
        run_id=header.run_id or f"{timeline.start_ns:x}",
        model=header.model,
        name=header.name,
        created_ns=timeline.start_ns,
    )
    models = (identity.model, *(attempt.header.model for attempt in timeline.attempts))
    return replace(identity, model=next(filter(None, models), identity.name))
