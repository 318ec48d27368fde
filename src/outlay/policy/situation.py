"""A training that can be paused, and what is known of it when a policy decides. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from outlay.errors import InvalidValue, UnitMismatch
from outlay.units import Rate, Unit


class Action(StrEnum):
    """What a training does, or is to do next."""

    RUN = "run"
    """It runs on the offer whose price is watched."""
    WAIT = "wait"
    """It is paused, has not started, or is done."""
    ON_DEMAND = "on_demand"
    """It runs on a machine that nobody takes back, at the on-demand price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseCost:
    """Machine time that a pause costs and that is no progress.

    Attributes:
        save_ns: Saving before it ends.
        start_ns: From the start of an attempt until its first new step.
        repeated_ns: Work that is done again.
        assumed: What was not measured, in words.
    """

    save_ns: int = 0
    start_ns: int = 0
    repeated_ns: int = 0
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("save_ns", "start_ns", "repeated_ns"):
            if getattr(self, name) < 0:
                raise InvalidValue(name, getattr(self, name), "a time of zero or more")

    @property
    def restart_ns(self) -> int:
        """From a start until the work is as far as it was."""
        return self.start_ns + self.repeated_ns

    @property
    def total_ns(self) -> int:
        """All of it: the delay of a changeover."""
        return self.save_ns + self.start_ns + self.repeated_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBounds:
    """The lowest and the highest price per hour that is expected; guarantees hold within them."""

    low: Rate
    high: Rate

    def __post_init__(self) -> None:
        if self.low.unit != self.high.unit:
            raise UnitMismatch(self.low, self.high)
        if not 0 < self.low.micros_per_hour <= self.high.micros_per_hour:
            seen = f"{self.low} to {self.high}"
            raise InvalidValue("bounds", seen, "a lowest price above zero, and none below it")

    def __contains__(self, price: Rate) -> bool:
        if price.unit != self.low.unit:
            raise UnitMismatch(price, self.low)
        return self.low.micros_per_hour <= price.micros_per_hour <= self.high.micros_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """The work, the time for it, and what a pause costs.

    Attributes:
        work_ns: Machine time of the work itself, without starts and saves.
        time_ns: From the first decision to the deadline.
        on_demand: The price of a machine that is not taken back; None if there is none to fall
            back to.
    """

    work_ns: int
    time_ns: int
    pause: PauseCost = field(default_factory=PauseCost)
    on_demand: Rate | None = None

    def __post_init__(self) -> None:
        for name in ("work_ns", "time_ns"):
            if getattr(self, name) <= 0:
                raise InvalidValue(name, getattr(self, name), "a time above zero")

    @property
    def is_feasible(self) -> bool:
        """Whether it can be done in time if it starts at once and is never interrupted."""
        return self.work_ns + self.pause.start_ns <= self.time_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known at the instant of a decision.

    Attributes:
        price: Of the watched offer, per hour; None if it is not available.
        doing: What the training does at present.
        setup_left_ns: Of a start that is under way.
    """

    job: JobTerms
    work_left_ns: int
    time_left_ns: int
    price: Rate | None
    doing: Action = Action.WAIT
    setup_left_ns: int = 0

    @property
    def spare_ns(self) -> int:
        """Time left beyond the work left; negative if the deadline can no longer be met."""
        return self.time_left_ns - self.work_left_ns

    @property
    def late_ns(self) -> int:
        """How late it will be at least, if it runs without interruption from now on; 0 in time."""
        setup_ns = self.job.pause.start_ns if self.doing is Action.WAIT else self.setup_left_ns
        return max(0, setup_ns - self.spare_ns)

    @property
    def done_ns(self) -> int:
        """Work done so far."""
        return self.job.work_ns - self.work_left_ns

    @property
    def elapsed_ns(self) -> int:
        """Time since the first decision."""
        return self.job.time_ns - self.time_left_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """What to do next, and why.

    Attributes:
        review_ns: Decide again after this time even if the price has not changed; None: only then.
        late_ns: The forecast miss of the deadline; 0 if it can be met.
    """

    action: Action
    reason: str
    review_ns: int | None = None
    late_ns: int = 0


def unit_of(price: Rate | None, job: JobTerms) -> Unit:
    """Return the unit of a job's prices; USD if there is none.

    Raises:
        UnitMismatch: The watched and the on-demand price differ in it.
    """
    known = [rate for rate in (price, job.on_demand) if rate is not None]
    if len(known) == 2 and known[0].unit != known[1].unit:
        raise UnitMismatch(*known)
    return known[0].unit if known else Unit()
