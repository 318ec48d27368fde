"""Simulated trainings, for which the best change and its saving are known.

A world describes a training. The same simulation writes its log, which is all that advice sees, and
computes its cost before and after a change, which gives the true saving of that change. The true
saving uses none of outlay's arithmetic.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgers import START_NS, Segment, dollars
from offer_builder import offer
from outlay.advise.run_advice import Circumstances
from outlay.ledger import Metric
from outlay.prices.offer import Tier

MACHINE = {"run_id": "r", "model": "m", "gpu": "H100", "instance_id": "i-1", "boot_id": "b"}


class Event(NamedTuple):
    """Something that takes time (``span``, ``step``, ``killed``), or an instant."""

    kind: str
    seconds: float = 0.0
    wait: float = 0.0
    name: str = ""
    number: int = 0
    value: float = 0.0


def power_law(step: float) -> float:
    """A loss that keeps falling."""
    return 1.7 + 6.0 * math.pow(step, -0.28)


@dataclass(frozen=True, kw_only=True)
class World:
    """A training: duration and frequency of its parts, its loss, its price per hour.

    Attributes:
        load_s: Time to load a batch; before the step, unless it is prefetched.
        save_every: Steps between two checkpoints; ``eval_every`` likewise.
        mttf_s: Mean uptime until it is killed.
        down_s: From a kill until the restart, on a machine that is still paid for.
        stop_after: Steps after which the log is read; the training continues.
    """

    steps: int = 900
    step_s: float = 40.0
    load_s: float = 0.4
    prefetch: bool = False
    save_every: int = 90
    save_s: float = 6.0
    eval_every: int = 30
    eval_s: float = 8.0
    start_s: float = 20.0
    compile_s: float = 60.0
    mttf_s: float = math.inf
    down_s: float = 60.0
    price: float = 3.0
    loss: Callable[[float], float] = power_law
    noise: float = 0.002
    jitter: float = 0.02
    stop_after: int | None = None
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict, hash=False)

    @property
    def wait_s(self) -> float:
        """The time that a step waits for its batch."""
        return max(0.0, self.load_s - self.step_s) if self.prefetch else self.load_s

    def cost(self, seeds: int = 1) -> float:
        """Return the cost of the whole training, as the mean over seeds."""
        whole = replace(self, stop_after=None)
        return self.price / 3600 * float(np.mean([seconds_of(whole, s) for s in range(seeds)]))


@functools.cache
def seconds_of(world: World, seed: int) -> float:
    """Return the duration of the training, with down time: the sum over ``simulate``."""
    generator = np.random.default_rng(seed)
    first, total_s = 0, 0.0
    while True:
        uptime_s = generator.exponential(world.mttf_s)
        numbers, step_s = _steps(world, generator, first)
        is_saved = (numbers + 1) % world.save_every == 0
        eval_s = np.where((numbers + 1) % world.eval_every == 0, world.eval_s, 0.0)
        each_s = world.wait_s + step_s + np.where(is_saved, world.save_s, 0.0) + eval_s
        end_s = world.start_s + np.cumsum(each_s)
        attempt_s = float(end_s[-1]) if len(end_s) else world.start_s
        if attempt_s <= uptime_s:
            return total_s + attempt_s
        total_s += uptime_s + world.down_s
        safe = numbers[is_saved & (end_s - eval_s <= uptime_s)]
        first = int(safe[-1]) + 1 if len(safe) else first


def _steps(
    world: World, generator: np.random.Generator, first: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers and the seconds of the steps of an attempt that is not killed."""
    last = world.steps if world.stop_after is None else world.stop_after
    numbers = np.arange(first, last)
    seconds = world.step_s * (1 + world.jitter * generator.standard_normal(len(numbers)))
    return numbers, seconds + np.where(numbers == first, world.compile_s, 0.0)


def simulate(world: World, seed: int) -> Iterator[Event]:
    """Yield the events of the training, in order of time."""
    generator = np.random.default_rng(seed)
    safe = 0
    while True:
        yield Event("attempt")
        left = generator.exponential(world.mttf_s)
        for event in _attempt(world, generator, safe):
            left -= event.seconds + event.wait
            if left < 0:  # The event that was interrupted is not recorded.
                yield Event("killed", event.seconds + event.wait + left + world.down_s)
                break
            if event.kind == "checkpoint":
                safe = event.number + 1
            yield event
        else:
            return


def _attempt(world: World, generator: np.random.Generator, first: int) -> Iterator[Event]:
    yield Event("span", world.start_s, name="accelerator_init")
    numbers, seconds = _steps(world, generator, first)
    for number, step_s in zip(numbers.tolist(), seconds.tolist(), strict=True):
        yield Event("step", step_s, wait=world.wait_s, number=number)
        if (number + 1) % world.save_every == 0:
            yield Event("span", world.save_s, name="checkpoint_save")
            yield Event("checkpoint", number=number)
        if (number + 1) % world.eval_every == 0:
            yield Event("span", world.eval_s, name="evaluation")
            yield Event("metric", name="val_loss", number=number, value=world.loss(number + 1))
    yield Event("alive" if world.stop_after is not None else "end")


def write_log(world: World, run_dir: Path, seed: int = 0) -> int:
    """Write the log of the training; return the time of its last record, in ns."""
    about = MACHINE | {"price": dollars(world.price)}
    segment, now_ns = None, START_NS
    for event in simulate(world, seed):
        if event.kind == "attempt":
            segment = Segment(start=(now_ns - START_NS) / 1e9, about=about)
        assert segment is not None
        if event.kind == "span":
            segment.span(event.name, event.seconds)
        elif event.kind == "step":
            extra = {"samples": world.samples} if world.samples else {}
            segment.step(event.seconds, wait=event.wait, number=event.number, **extra)
        elif event.kind == "checkpoint":
            segment.checkpoint(event.number)
        elif event.kind == "metric":
            off = world.noise * np.random.default_rng(event.number).standard_normal()
            segment.add(Metric(t_ns=segment.now_ns, name=event.name, value=event.value + off))
        elif event.kind == "killed":
            segment.write(run_dir)
            now_ns = segment.now_ns + round(event.seconds * 1e9)
        elif event.kind in ("end", "alive"):
            for name, value in world.metrics.items():
                segment.add(Metric(t_ns=segment.now_ns, name=name, value=value))
            if event.kind == "end":
                segment.end()
            segment.write(run_dir)
            now_ns = segment.now_ns
    return now_ns


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training with one problem, the best change to it, and the saving of that change.

    Attributes:
        category: Of the best recommendation; ``title`` is a part of its title.
        saving: The saving of the change, by simulation.
    """

    name: str
    world: World
    category: str
    title: str
    saving: Callable[[], float]
    around: dict[str, Any] = field(default_factory=dict)
    log: Callable[[Path], int] | None = None

    def circumstances(self) -> Circumstances:
        """Facts that the log does not have."""
        return Circumstances(**self.around)


def _changed(world: World, seeds: int = 1, **changes: Any) -> Callable[[], float]:
    """Return a function that simulates the saving of changes."""
    return lambda: world.cost(seeds) - replace(world, **changes).cost(seeds)


def _saturating(rate: float) -> Callable[[float], float]:
    return lambda step: 0.4 + 2.0 * math.exp(-rate * step)


def _overfitting(step: float) -> float:
    return 0.4 + 1.5 * math.exp(-step / 60) + 0.0012 * step


def _enough(world: World) -> int:
    """Return the first evaluation that is as good as the best: within 0.1 % of what was gained."""
    instants = range(world.eval_every, world.steps + 1, world.eval_every)
    best = min(world.loss(step) for step in instants)
    within = 0.001 * (world.loss(world.eval_every) - best)
    return next(step for step in instants if world.loss(step) <= best + within)


def _shorter(world: World) -> Callable[[], float]:
    return lambda: world.cost() - replace(world, steps=_enough(world)).cost()


def _best_interval(world: World, seeds: int) -> Callable[[], float]:
    """Return a function that simulates the saving of the best of ten checkpoint intervals."""

    def saved() -> float:
        tried = [replace(world, save_every=n) for n in (5, 10, 20, 30, 45, 60, 90, 150, 300, 450)]
        return world.cost(seeds) - min(each.cost(seeds) for each in tried)

    return saved


def _on_spot(world: World, price: float, mttf_s: float) -> Callable[[], float]:
    """Return a function that simulates the saving of a spot machine with the best interval."""

    def saved() -> float:
        spot = replace(world, price=price, mttf_s=mttf_s, down_s=0.0)
        tried = [replace(spot, save_every=n) for n in (5, 10, 20, 45)]
        return world.cost() - min(each.cost(20) for each in tried)

    return saved


@dataclass(frozen=True, kw_only=True)
class Batches:
    """A training whose batch size can be chosen: throughput by size, and a gradient noise scale."""

    half: float
    critical: float
    batch: int
    tried: tuple[int, ...]
    peak: float = 40.0

    def step_s(self, batch: int) -> float:
        """Seconds of a step."""
        return (batch + self.half) / self.peak

    def hours(self, batch: int) -> float:
        """Hours to reach the same loss: 1.5 million samples with tiny batches, more with larger."""
        samples = 1.5e6 * (1 + batch / self.critical)
        return samples / batch * self.step_s(batch) / 3600

    def log(self, run_dir: Path) -> int:
        """Write a log in which most steps have one size, and a few have others."""
        run = Segment(about=MACHINE | {"price": dollars(3)})
        for batch in self.tried:
            for _ in range(6):
                run.step(self.step_s(batch), samples=batch)
        wall_s = self.hours(self.batch) * 3600
        each = self.step_s(self.batch) * 40
        for index in range(round(wall_s / each)):
            run.step(each, samples=self.batch * 40, count=40, number=100 + 40 * index)
        for name, value in (("parameters", 1e8), ("gradient_noise_scale", self.critical)):
            run.add(Metric(t_ns=run.now_ns, name=name, value=value))
        run.end().write(run_dir)
        return run.now_ns

    def saved(self) -> float:
        """Return the saving of the best batch size up to twice the largest that was tried."""
        sizes = [2**n for n in range(11) if 2**n <= 2 * max(self.tried)]
        return 3.0 * (self.hours(self.batch) - min(map(self.hours, sizes)))


_LOADS = [World(load_s=12.0), World(step_s=30, load_s=25.0), World(step_s=15, load_s=28.0)]
_OFTEN = [
    World(save_every=8, save_s=60, mttf_s=40 * 3600),
    World(save_every=4, save_s=35, mttf_s=8 * 3600),
    World(save_every=6, save_s=70, mttf_s=60 * 3600),
]
_SELDOM = World(steps=1800, save_every=300, save_s=10, mttf_s=2 * 3600, down_s=30, start_s=10,
                compile_s=10)  # fmt: skip
_EVALUATING = World(eval_every=10, eval_s=220)
_COMPILING = World(steps=700, mttf_s=3600, save_every=10, save_s=1, compile_s=420, down_s=1.0)
_DOWN = World(steps=1800, mttf_s=1.5 * 3600, save_every=12, save_s=4, down_s=1500)
_SAVING = World(step_s=20, save_every=45, save_s=150, mttf_s=1.1 * 3600, down_s=5, start_s=5,
                compile_s=5)  # fmt: skip
_CONVERGED = [
    World(loss=_saturating(0.02), noise=0.0005),
    World(loss=_saturating(0.012), steps=1200, noise=0.001),
]
_LIVE = World(loss=_saturating(0.05), stop_after=450, noise=0.0005)
_OVERFIT = World(loss=_overfitting, stop_after=400, noise=0.002)
_PLAIN = World()
_SMALL = Batches(half=60, critical=4000, batch=16, tried=(16, 32, 64))
_TINY = Batches(half=20, critical=600, batch=8, tried=(8, 16, 32))


# Changes that apply to any world, by category and title part of the recommendation.
REMEDIES: dict[tuple[str, str], Callable[[World], dict[str, Any]]] = {
    ("badput", "data_loading"): lambda _: {"prefetch": True},
    ("badput", "evaluation"): lambda world: {"eval_every": 2 * world.eval_every},
    ("badput", "program_startup"): lambda world: {"compile_s": min(60.0, world.compile_s)},
    ("badput", "recovery"): lambda world: {"down_s": min(60.0, world.down_s)},
    ("badput", "checkpoint_save"): lambda world: {"save_s": min(8.0, world.save_s)},
    ("epochs", "evaluations instead of"): lambda world: {"steps": _enough(world)},
}
_INTERVAL = ("checkpoint", "checkpoint")


def best_remedy(world: World) -> tuple[tuple[str, str], float]:
    """Return the change that saves most in a world, and its saving, by simulation."""
    seeds = 1 if world.mttf_s == math.inf else 20
    before = world.cost(seeds)
    saved = {
        name: before - replace(world, **change(world)).cost(seeds)
        for name, change in REMEDIES.items()
    }
    saved[_INTERVAL] = _best_interval(world, seeds)()
    best = max(saved, key=lambda name: saved[name])
    return best, saved[best]


def random_world(seed: int) -> World:
    """Return a world with one random problem of random size."""
    g = np.random.default_rng(1000 + seed)
    world = World(step_s=g.uniform(10, 60), steps=int(g.integers(600, 1500)))
    every = int(g.integers(4, 12))
    wrong: list[dict[str, Any]] = [
        {"load_s": world.step_s * g.uniform(0.2, 1.5)},
        {"eval_every": 10, "eval_s": world.step_s * g.uniform(2, 6)},
        {"loss": _saturating(g.uniform(0.008, 0.03)), "noise": g.uniform(0.0003, 0.002)},
        {"save_every": every, "save_s": every * world.step_s * g.uniform(0.15, 0.4),
         "mttf_s": g.uniform(10, 60) * 3600},
        {"mttf_s": 3600 * g.uniform(0.8, 1.5), "save_every": 10, "save_s": 1,
         "compile_s": g.uniform(300, 600), "down_s": 1.0},
        {"mttf_s": 3600 * g.uniform(1, 3), "save_every": 12, "save_s": 4,
         "down_s": g.uniform(900, 3000)},
    ]  # fmt: skip
    return replace(world, **wrong[seed % len(wrong)])


def _rest(world: World) -> Callable[[], float]:
    return lambda: world.cost() * (1 - (world.stop_after or 0) / world.steps)


TRIALS = [
    *(
        Trial(name=f"waits for data {n}", world=world, category="badput", title="data_loading",
              saving=_changed(world, prefetch=True))
        for n, world in enumerate(_LOADS, 1)
    ),
    *(
        Trial(name=f"saves too often {n}", world=world, category="checkpoint", title="checkpoint",
              saving=_best_interval(world, 1 if world.mttf_s == math.inf else 20))
        for n, world in enumerate(_OFTEN, 1)
    ),
    Trial(name="saves too seldom", world=_SELDOM, category="checkpoint", title="checkpoint",
          saving=_best_interval(_SELDOM, 20)),
    Trial(name="evaluates too often", world=_EVALUATING, category="badput", title="evaluation",
          saving=_changed(_EVALUATING, eval_every=20)),
    Trial(name="compiles at each start", world=_COMPILING, category="badput",
          title="program_startup", saving=_changed(_COMPILING, 20, compile_s=60.0)),
    Trial(name="is down for long", world=_DOWN, category="badput", title="recovery",
          saving=_changed(_DOWN, 20, down_s=60.0)),
    Trial(name="saves while training waits", world=_SAVING, category="badput",
          title="checkpoint_save", saving=_changed(_SAVING, 20, save_s=8.0)),
    *(
        Trial(name=f"converged long before its end {n}", world=world, category="epochs",
              title="evaluations instead of", saving=_shorter(world))
        for n, world in enumerate(_CONVERGED, 1)
    ),
    Trial(name="runs on a plateau", world=_LIVE, category="early_stopping", title="Stop",
          saving=_rest(_LIVE), around={"total_evaluations": 30}),
    Trial(name="overfits", world=_OVERFIT, category="early_stopping", title="Stop",
          saving=_rest(_OVERFIT), around={"total_evaluations": 30}),
    Trial(name="is cheaper elsewhere", world=_PLAIN, category="compute", title="acme",
          saving=_changed(_PLAIN, price=1.9), around={"offers": [offer("1.90"), offer("2.60")]}),
    Trial(name="could run on spot", world=_PLAIN, category="compute", title="spot",
          saving=_on_spot(_PLAIN, 1.2, 6 * 3600),
          around={"offers": [offer("1.20", tier=Tier.SPOT)]}),
    Trial(name="is cheaper on a faster GPU", world=_PLAIN, category="compute", title="B200",
          saving=_changed(_PLAIN, price=5.0, step_s=40 / 2.5, eval_s=8 / 2.5),
          around={"offers": [offer("5.00", gpu="B200", memory_gb=180)], "speeds": {"B200": 2.5}}),
    Trial(name="has a batch too small", world=_PLAIN, category="batch_size", title="batch size",
          saving=_SMALL.saved, log=_SMALL.log),
    Trial(name="has a tiny batch", world=_PLAIN, category="batch_size", title="batch size",
          saving=_TINY.saved, log=_TINY.log),
]  # fmt: skip

HEALTHY = {
    "still learns": _PLAIN,
    "still learns, noisily": World(noise=0.03),
    "learns by the logarithm": World(loss=lambda step: 4.0 - 0.4 * math.log(step), noise=0.01),
    "fails and saves as is best": World(mttf_s=6 * 3600, save_every=13, save_s=6, down_s=60),
    "evaluates and loads a little": World(load_s=1.2, eval_s=25.0, steps=1500),
}
