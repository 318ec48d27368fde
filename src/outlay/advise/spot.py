"""Training on machines that may be taken back: the chance to finish, time and cost with intervals.

A machine is lost after an exponential time. Work since the last checkpoint is done again, after a
restart. Times are drawn; their mean is that of ``overhead.expected_ratio``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlay.advise.overhead import Reliability, expected_ratio
from outlay.advise.tiers import SPOT_MTTF_HOURS, Option
from outlay.errors import InvalidValue
from outlay.ledger import Attempt, Price
from outlay.prices.gpus import matching_names, resolve
from outlay.prices.names import parse_name
from outlay.prices.offer import Offer, Tier
from outlay.units.quantity import NS_PER_HOUR
from outlay.units.shown import counted

DRAWS = 2000
CONFIDENCE = 0.9
_ENDLESS = 100.0  # Beyond this many times the work, it is said that it will not finish.
_SEED = 37


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimRate:
    """How often a machine is taken back.

    Attributes:
        reclaims: How often it was, in ``uptime_hours``; None if the mean is stated.
        source: Where it is from, in words.
    """

    mttf_hours: float
    reclaims: int | None = None
    uptime_hours: float = 0.0
    source: str = "stated"

    def __post_init__(self) -> None:
        if not 0 < self.mttf_hours < math.inf:
            raise InvalidValue("mttf", self.mttf_hours, "a finite time above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedWork:
    """Work on one machine, in hours.

    Attributes:
        interval: Work between two checkpoints; None if there are none.
        deadline: The longest that it may take.
    """

    hours: float
    interval: float | None
    save: float = 0.0
    restart: float = 0.0
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOutlook:
    """What is to be expected of the work on one machine.

    Attributes:
        chance: To finish by the deadline, or at all, 0 to 1.
        hours: Expected; infinite if it will not finish. ``hours_low`` to ``hours_high`` is the
            interval of ``confidence``. Likewise for cost, in currency units.
        lost_hours: Expected time that is lost when the machine is taken back, in ``hours``.
        losses: How often that is expected to happen.
        reclaim: How often it is taken back; None if it never is.
    """

    name: str
    price_per_hour: float
    chance: float
    hours: float
    hours_low: float
    hours_high: float
    lost_hours: float = 0.0
    losses: float = 0.0
    confidence: float = CONFIDENCE
    seen: str = ""
    reclaim: ReclaimRate | None = None

    @property
    def cost(self) -> float:
        """The expected cost."""
        return self.hours * self.price_per_hour

    @property
    def cost_low(self) -> float:
        """The lower end of its interval."""
        return self.hours_low * self.price_per_hour

    @property
    def cost_high(self) -> float:
        """The upper end of its interval."""
        return self.hours_high * self.price_per_hour

    @property
    def finishes(self) -> bool:
        """Whether it is likely to finish at all."""
        return math.isfinite(self.hours)


def outlook(option: Option, work: CheckpointedWork, rate: ReclaimRate | None) -> SpotOutlook:
    """Return what is to be expected; without a rate the machine is never taken back."""
    needed = work.hours / option.speed
    interval = needed if work.interval is None else min(work.interval, needed)
    save = 0.0 if work.interval is None else work.save
    undisturbed = work.restart + needed + (math.ceil(needed / interval) - 1) * save
    lost = np.zeros(1)
    if rate is not None:
        of = Reliability(save=save, mttf=rate.mttf_hours, restart=work.restart)
        if expected_ratio(of, interval) > _ENDLESS:
            return _endless(option, rate)
        lost = _drawn_losses(needed, interval, of, rate)
    hours = undisturbed + lost
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(hours, [tail, 1 - tail])
    deadline = math.inf if work.deadline is None else work.deadline
    return SpotOutlook(
        name=option.name,
        price_per_hour=option.price_per_hour,
        chance=float(np.mean(hours <= deadline)),
        hours=float(np.mean(hours)),
        hours_low=float(low),
        hours_high=float(high),
        lost_hours=float(np.mean(lost)),
        losses=0.0 if rate is None else float(np.mean(hours)) / rate.mttf_hours,
        seen=option.seen,
        reclaim=rate,
    )


def ranked_outlooks(
    options: Iterable[tuple[Option, ReclaimRate | None]], work: CheckpointedWork
) -> list[SpotOutlook]:
    """Return an outlook per option: likely to finish in time first, then the cheapest.

    With each is how often it is taken back; None if it never is.
    """
    found = [outlook(option, work, rate) for option, rate in options]
    return sorted(found, key=lambda f: (f.chance < 0.5, f.cost, f.hours, f.name))


def _endless(option: Option, rate: ReclaimRate) -> SpotOutlook:
    return SpotOutlook(
        name=option.name, price_per_hour=option.price_per_hour, chance=0.0,
        hours=math.inf, hours_low=math.inf, hours_high=math.inf, lost_hours=math.inf,
        losses=math.inf, seen=option.seen, reclaim=rate,
    )  # fmt: skip


def _drawn_losses(
    needed: float, interval: float, of: Reliability, rate: ReclaimRate
) -> NDArray[np.float64]:
    """Return the hours that ``DRAWS`` trainings lose; the same every time.

    A cycle of work and save fails at first with one probability, and after a restart, which can
    fail as well, with another. If the rate was recorded, its uncertainty is drawn too (Jeffreys).
    """
    draw = np.random.default_rng(_SEED)
    means = np.full(DRAWS, rate.mttf_hours)
    if rate.reclaims is not None and rate.uptime_hours > 0:
        means = 1 / draw.gamma(rate.reclaims + 0.5, 1 / rate.uptime_hours, DRAWS)
    cycles = math.ceil(needed / interval)
    first, again = interval + of.save, of.restart + interval + of.save
    failed = draw.binomial(cycles, -np.expm1(-first / means))
    succeeds = np.maximum(np.exp(-again / means), 1e-6)
    more = np.where(failed > 0, draw.negative_binomial(np.maximum(failed, 1), succeeds), 0)
    lost = _time_lost(draw, failed, first, means) + _time_lost(draw, more, again, means)
    return lost + failed * of.restart


def _time_lost(
    draw: np.random.Generator, counts: NDArray[np.int64], length: float, means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sum of ``counts`` exponential times, each shorter than ``length``.

    Where there are many, their sum is normal.
    """
    share = -np.expm1(-length / means)
    mean = means - length * (1 - share) / share
    variance = means**2 - length**2 * (1 - share) / share**2
    few = np.minimum(counts, 50)
    owner = np.repeat(np.arange(len(counts)), few)
    uniform = draw.random(len(owner))
    times = -means[owner] * np.log1p(-uniform * share[owner])
    total = np.bincount(owner, weights=times, minlength=len(counts))
    rest = counts - few
    spread = draw.normal(size=len(counts)) * np.sqrt(rest * np.maximum(variance, 0.0))
    return np.asarray(total + rest * mean + np.where(rest > 0, spread, 0.0))


# How often machines were taken back, pooled over runs by vendor, GPU and tier. Counted are recorded
# preemptions and the hours of attempts whose price is that of a spot offer: a machine that vanished
# without a notice is in no log.

ENOUGH_HOURS: Final = 4 * SPOT_MTTF_HOURS
"""So long without a reclaim says something: at the assumed rate its chance is 2 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOffer:
    """A vendor's spot machines with one GPU."""

    provider: str
    gpu: str
    community: bool = False

    @classmethod
    def of(cls, offer: Offer) -> SpotOffer | None:
        """Return it for an offer; None if that is not spot."""
        if offer.tier is not Tier.SPOT:
            return None
        return cls(
            provider=offer.provider.lower(), gpu=resolve(offer.gpu).name, community=offer.community
        )

    @classmethod
    def of_price(cls, price: Price | None) -> SpotOffer | None:
        """Return it for a recorded price; None if that is of no spot offer, or was typed."""
        if price is None or not price.offer:
            return None
        try:
            name = parse_name(price.offer.partition(" ")[0], name="offer")
        except InvalidValue:
            return None
        if name.tier is not Tier.SPOT:
            return None
        return cls(
            provider=name.provider.lower(), gpu=resolve(name.gpu).name, community=name.community
        )

    @property
    def text(self) -> str:
        """Its name for people."""
        tier = "community spot" if self.community else "spot"
        return f"{self.provider} {self.gpu} {tier}"


@dataclass(frozen=True, slots=True)
class SpotUse:
    """What runs recorded on spot machines."""

    reclaims: int = 0
    uptime_ns: int = 0
    runs: int = 0

    def __add__(self, also: SpotUse) -> SpotUse:
        return SpotUse(
            self.reclaims + also.reclaims, self.uptime_ns + also.uptime_ns, self.runs + also.runs
        )

    @property
    def hours(self) -> float:
        """How long machines were up."""
        return self.uptime_ns / NS_PER_HOUR

    @property
    def text(self) -> str:
        """What it rests on, in words."""
        return (
            f"{counted(self.reclaims, 'reclaim')} in {self.hours:.0f} h of "
            f"{counted(self.runs, 'run')}"
        )

    def rate(self, where: str) -> ReclaimRate | None:
        """Return the rate; None if that is too little to say anything.

        Without any reclaim it is that of half of one, the mean of a rate of which nothing else is
        known (Jeffreys).
        """
        if not self.uptime_ns or (not self.reclaims and self.hours < ENOUGH_HOURS):
            return None
        return ReclaimRate(
            mttf_hours=self.hours / (self.reclaims or 0.5), reclaims=self.reclaims,
            uptime_hours=self.hours, source=f"recorded: {self.text} on {where}",
        )  # fmt: skip


class SpotHistory:
    """The spot machines of all runs that were added."""

    def __init__(self) -> None:
        self._uses: dict[SpotOffer, SpotUse] = defaultdict(SpotUse)

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Add a run by its attempts."""
        found: dict[SpotOffer, SpotUse] = defaultdict(SpotUse)
        for attempt in attempts:
            if (offer := SpotOffer.of_price(attempt.header.price)) is not None:
                is_reclaimed = attempt.end is not None and attempt.end.status == "preempted"
                up_ns = attempt.last_sign_ns - attempt.start_ns
                found[offer] += SpotUse(int(is_reclaimed), up_ns)
        for offer, use in found.items():
            self._uses[offer] += use + SpotUse(runs=1)

    def of(self, offer: SpotOffer) -> SpotUse:
        """Return what was recorded on one vendor's GPU."""
        return self._uses.get(offer, SpotUse())

    def rate(self, offer: SpotOffer) -> ReclaimRate:
        """Return how often these machines are taken back; a guess if too little was recorded."""
        return self.of(offer).rate(offer.text) or guess(self.of(offer), offer.text)

    def rate_of_gpu(self, gpu: str) -> ReclaimRate | None:
        """Return that of a GPU's spot machines at any vendor; None with too little."""
        same = matching_names(gpu, {offer.gpu for offer in self._uses})
        uses = (use for offer, use in self._uses.items() if offer.gpu in same)
        return sum(uses, SpotUse()).rate(f"{gpu} spot of any vendor")


def guess(seen: SpotUse, where: str) -> ReclaimRate:
    """Return the assumed rate, and that it is a guess."""
    known = f"{seen.text} on {where} say too little" if seen.runs else f"no run was on {where}"
    return ReclaimRate(mttf_hours=SPOT_MTTF_HOURS, source=f"a guess: {known}; --mttf states it")
