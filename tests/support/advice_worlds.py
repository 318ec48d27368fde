"""Worlds for advice: trainings with one known problem, or none, drawn anew for each seed.

A world has a name and draws a case from a random generator. A case is a training, whose log is all
that advice sees, and the same training with the problem solved: the difference of their costs is
the true saving. Failures hit both alike, after the same uptimes; the saving is the mean over those
of the log and of a few other runs. None of outlay's arithmetic is used. How much of a problem a
remedy leaves is drawn: 0 to 20 % of waits for data, 5 to 40 % of compilation, 2 to 40 % of down
time, 2 to 30 % of saves, 0 to 30 % of stalls.

There are four generations of worlds. Anything may be tuned on the first three, a half of which was
reported before. Of the fourth, whose figures are drawn anew, anything may be tuned on one half of
the worlds of each kind, by a hash of the names; the other one is only reported.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgers import START_NS, Segment, dollars, numbered
from offer_builder import offer
from outlay.account.run import RunAccount
from outlay.advise.run_advice import Circumstances
from outlay.goodput.follower import RunView, view_of
from outlay.goodput.timeline import TimelineBuilder
from outlay.ledger import Metric

Floats = NDArray[np.float64]
_ABOUT = {"run_id": "r", "model": "m", "gpu": "H100", "instance_id": "i-1", "boot_id": "b"}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training: how long its parts take and how often they come; times in seconds.

    Attributes:
        step_s: Own time of each step.
        losses: True value at each evaluation; ``noise`` is added when it is logged.
        rates: The learning rate at each evaluation; empty if it is not logged.
        uptimes: After how long the first attempts are killed; the last one is not.
        stop_after: Steps after which the log is read, while the training continues.
        is_logged_each_step: A noisy training loss is logged at each step, too.
        compiles_in_span: It compiles in a span before the first step, not in that step.
    """

    step_s: Floats
    load_s: float = 0.0
    save_every: int = 0
    save_s: float = 0.0
    eval_every: int = 10
    eval_s: float = 0.0
    start_s: float = 5.0
    compile_s: float = 0.0
    recompile_s: float | None = None
    compiles_in_span: bool = False
    down_s: float = 30.0
    uptimes: tuple[float, ...] = ()
    price: float = 36.0
    losses: Floats = field(default_factory=lambda: np.empty(0))
    metric: str = "val_loss"
    noise: float = 0.0
    rates: Floats = field(default_factory=lambda: np.empty(0))
    stop_after: int | None = None
    is_logged_each_step: bool = False
    seed: int = 0

    @property
    def cost(self) -> float:
        """The cost of the whole training."""
        return run_through(replace(self, stop_after=None)) * self.price / 3600

    def shorter(self, evaluations: int) -> Training:
        """Return the training with fewer evaluations, and the steps up to the last of them."""
        return replace(self, step_s=self.step_s[: evaluations * self.eval_every])


class _Log:
    """Writes what happens; segments are kept in memory."""

    def __init__(self, training: Training) -> None:
        self.training, self.segments = training, list[Segment]()
        g = np.random.default_rng(training.seed + 1)
        self._off = training.noise * g.standard_normal(len(training.losses))
        self._jitter = g.standard_normal(len(training.step_s))

    def attempt(self, start_s: float) -> None:
        about = _ABOUT | {"price": dollars(self.training.price)}
        self.segments.append(Segment(start=start_s, about=about))

    def step(self, number: int, seconds: float) -> None:
        segment, of = self.segments[-1], self.training
        segment.step(seconds, wait=of.load_s, number=number)
        if of.is_logged_each_step:
            at = min((number + 1) / of.eval_every, len(of.losses)) - 1
            low = float(np.interp(at, np.arange(len(of.losses)), of.losses))
            self._metric("loss", low * (1 + 0.1 * float(self._jitter[number])))

    def span(self, name: str, seconds: float) -> None:
        self.segments[-1].span(name, seconds)

    def evaluated(self, index: int) -> None:
        if index < len(self.training.losses):
            value = float(self.training.losses[index] + self._off[index])
            self._metric(self.training.metric, value)
            if len(self.training.rates):
                self._metric("learning_rate", float(self.training.rates[index]))

    def _metric(self, name: str, value: float) -> None:
        segment = self.segments[-1]
        segment.add(Metric(t_ns=segment.now_ns, name=name, value=value))


def run_through(training: Training, log: _Log | None = None) -> float:
    """Return the duration of a training with its failures; write it to a log, if there is one."""
    last = len(training.step_s) if training.stop_after is None else training.stop_after
    now_s, safe = 0.0, 0
    for attempt in range(len(training.uptimes) + 1):
        until = now_s + training.uptimes[attempt] if attempt < len(training.uptimes) else math.inf
        now_s, safe, is_done = _attempt(training, attempt, safe, last, now_s, until, log)
        if is_done:
            return now_s
        now_s = until + training.down_s
    raise AssertionError("the last attempt is not killed")


def _attempt(
    of: Training, attempt: int, first: int, last: int, now_s: float, until: float, log: _Log | None
) -> tuple[float, int, bool]:
    safe = first
    if log:
        log.attempt(now_s)
    compile_s = of.compile_s if attempt == 0 or of.recompile_s is None else of.recompile_s
    begun = [(of.start_s, "accelerator_init")] if of.start_s else []
    if of.compiles_in_span:
        begun, compile_s = [*begun, (compile_s, "compile")], 0.0
    for seconds, name in begun:
        now_s += seconds
        if now_s > until:
            return now_s, safe, False
        if log:
            log.span(name, seconds)
    for number in range(first, last):
        own_s = float(of.step_s[number]) + (compile_s if number == first else 0.0)
        now_s += own_s + of.load_s
        if now_s > until:
            return now_s, safe, False
        if log:
            log.step(number, own_s)
        if of.save_every and (number + 1) % of.save_every == 0:
            now_s += of.save_s
            if now_s > until:
                return now_s, safe, False
            safe = number + 1
            if log:
                log.span("checkpoint_save", of.save_s)
                log.segments[-1].checkpoint(number)
        if (number + 1) % of.eval_every == 0:
            now_s += of.eval_s
            if now_s > until:
                return now_s, safe, False
            if log:
                if of.eval_s:
                    log.span("evaluation", of.eval_s)
                log.evaluated((number + 1) // of.eval_every - 1)
    return now_s, safe, True


def view(training: Training) -> RunView:
    """Return the view of a training's log, which is in memory only."""
    log = _Log(training)
    run_through(training, log)
    is_alive = training.stop_after is not None
    if not is_alive:
        log.segments[-1].end()
    account = RunAccount()
    for segment in log.segments:
        account.fold(segment.id, numbered(segment.records))
    timeline = TimelineBuilder(account).build(log.segments[-1].now_ns, alive=is_alive)
    assert timeline is not None
    assert timeline.start_ns == START_NS
    return view_of(timeline, account)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training, and what should be advised.

    Attributes:
        solved: The training with its problem solved in different ways; the cheapest counts.
        category: Of the right recommendation, with ``title`` as a part of its title; "" of a
            healthy training, for which no saving may be recommended.
        saving: The true saving, if it is not that of ``solved``.
        failures: Uptimes of other runs like this one.
    """

    training: Training
    solved: tuple[Training, ...] = ()
    category: str = ""
    title: str = ""
    saving: float | None = None
    around: Circumstances = field(default_factory=Circumstances)
    failures: tuple[tuple[float, ...], ...] = ()

    def true_saving(self) -> float:
        """Return what the best change would save, on average over this run's and other failures."""
        if self.saving is not None:
            return self.saving
        drawn = (self.training.uptimes, *self.failures)
        before, *after = (
            sum(replace(each, uptimes=uptimes).cost for uptimes in drawn) / len(drawn)
            for each in (self.training, *self.solved)
        )
        return before - min(after)


Drawer = Callable[[np.random.Generator], Case]
Draw = Callable[[np.random.Generator, Floats], Floats]


@dataclass(frozen=True, kw_only=True)
class AdviceWorld:
    """A training with given figures, of which each seed draws another case.

    Attributes:
        is_tuned_on: Whether anything may be tuned on it; else it is only reported.
    """

    name: str
    kind: str
    draw: Callable[[np.random.Generator], Case]
    is_healthy: bool = False
    is_tuned_on: bool = True

    def case(self, seed: int) -> Case:
        """Return the case of one seed."""
        start = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")
        case = self.draw(np.random.default_rng([start, seed]))
        return replace(case, training=replace(case.training, seed=seed))


# Failures

_OTHERS = 4


def trace_gaps(path: Path | None, servers: int = 40, seed: int = 1) -> Floats:
    """Return the times between faults of a job on some servers, with a mean of 1.

    The file has a fault per line, with ``node`` and ``start_h``, as in the trace of a cluster that
    pretrains language models (stepfun-ai/InfiniteHBD-Trace, Apache-2.0, arXiv:2502.03885). Without
    one, gaps of a similar dispersion are drawn.
    """
    g = np.random.default_rng(seed)
    if path is None:
        gaps = g.lognormal(0, 1.4, 400)
    else:
        with path.open(newline="") as file:
            rows = [(int(row["node"]), float(row["start_h"])) for row in csv.DictReader(file)]
        chosen = g.choice(sorted({node for node, _ in rows}), servers, replace=False)
        starts = np.sort([start for node, start in rows if node in chosen])
        gaps = np.diff(starts)
    gaps = gaps[gaps > 0]
    scaled: Floats = gaps / gaps.mean()
    return scaled


def _exponential(g: np.random.Generator, count: int, mean_s: float) -> tuple[float, ...]:
    return tuple(float(each) for each in np.maximum(g.exponential(mean_s, count), 120.0))


def _traced(gaps: Floats, g: np.random.Generator, count: int, mean_s: float) -> tuple[float, ...]:
    first = int(g.integers(0, len(gaps) - count))
    part = gaps[first : first + count]
    return tuple(float(each) for each in np.maximum(part / part.mean() * mean_s, 120.0))


def _others(draw: Callable[[], tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """Return the failures of other runs like a training."""
    return tuple(draw() for _ in range(_OTHERS))


# Parts of trainings

_STEPS = 400


def _steps(g: np.random.Generator, count: int = _STEPS, jitter: float = 0.02) -> Floats:
    each: Floats = g.uniform(15, 50) * (1 + jitter * g.standard_normal(count))
    return each


def _falling(g: np.random.Generator, count: int) -> Floats:
    t = np.arange(1.0, count + 1)
    losses: Floats = g.uniform(1.2, 2.2) + g.uniform(3, 7) * np.power(t, -g.uniform(0.2, 0.6))
    return losses


def _plain(g: np.random.Generator, count: int = _STEPS, **facts: Any) -> Training:
    """Return a training that learns until its end, with little overhead."""
    step_s = _steps(g, count)
    typical = float(step_s.mean())
    usual: dict[str, Any] = {
        "step_s": step_s,
        "load_s": 0.01 * typical,
        "save_every": 40,
        "save_s": 0.2 * typical,
        "eval_s": 0.1 * typical,
        "start_s": typical,
        "compile_s": typical,
        "losses": _falling(g, count // 10),
        "noise": 0.01,
    }
    return Training(**usual | facts)


def _typical(training: Training) -> float:
    return float(np.median(training.step_s))


# Problems

_INTERVALS = (2, 3, 5, 8, 12, 20, 30, 45, 70, 100, 150, 200)


def _intervals(training: Training) -> tuple[Training, ...]:
    return tuple(replace(training, save_every=each) for each in _INTERVALS)


def _loads(ratio: float, g: np.random.Generator) -> Case:
    training = _plain(g)
    step_s = _typical(training)
    training = replace(training, load_s=ratio * step_s * g.uniform(0.9, 1.1))
    solved = replace(training, load_s=g.uniform(0.0, 0.2) * training.load_s)
    return Case(training=training, solved=(solved,), category="badput", title="data_loading")


def _saves_often(share: float, g: np.random.Generator) -> Case:
    training = _plain(g)
    every = int(g.integers(3, 9))
    step_s = _typical(training)
    save_s = share * every * step_s
    uptimes = _exponential(g, 2, 200 * step_s)
    training = replace(training, save_every=every, save_s=save_s, uptimes=uptimes)
    others = _others(lambda: _exponential(g, 2, 200 * step_s))
    return Case(
        training=training, solved=_intervals(training), category="checkpoint", failures=others
    )


def _saves_seldom(
    count: int,
    uptimes_of: Callable[[np.random.Generator, int, float], tuple[float, ...]],
    g: np.random.Generator,
) -> Case:
    training = _plain(g)
    step_s = _typical(training)
    uptimes = uptimes_of(g, count, 320 * step_s / count)
    every = max(10, int(g.uniform(0.6, 1.2) * 320 / count))
    training = replace(
        training, save_every=every, save_s=0.15 * step_s, uptimes=uptimes, compile_s=0.5 * step_s,
        start_s=0.2 * step_s, down_s=0.3 * step_s,
    )  # fmt: skip
    others = _others(lambda: uptimes_of(g, count, 320 * step_s / count))
    return Case(
        training=training, solved=_intervals(training), category="checkpoint", failures=others
    )


def _burst(count: int, clean: float, g: np.random.Generator) -> Case:
    """A long clean time, then failures in short order."""
    training = _plain(g)
    step_s = _typical(training)
    first = clean * _STEPS * step_s

    def failures() -> tuple[float, ...]:
        return (first, *(float(each) for each in g.uniform(5, 25, count) * step_s))

    training = replace(
        training, save_every=int(g.integers(60, 120)), save_s=g.uniform(0.2, 1.0) * step_s,
        uptimes=failures(), start_s=0.2 * step_s, compile_s=0.3 * step_s, down_s=0.2 * step_s,
    )  # fmt: skip
    return Case(
        training=training,
        solved=_intervals(training),
        category="checkpoint",
        failures=_others(failures),
    )


def _evaluates(share: float, g: np.random.Generator) -> Case:
    training = _plain(g)
    eval_s = share * 10 * _typical(training) * g.uniform(0.9, 1.1)
    training = replace(training, eval_s=eval_s)
    solved = replace(training, eval_every=20, losses=training.losses[1::2])
    return Case(training=training, solved=(solved,), category="badput", title="evaluation")


def _compiles(restarts: int, share: float, g: np.random.Generator) -> Case:
    training = _plain(g)
    total_s, step_s = _STEPS * _typical(training), _typical(training)
    compile_s = share * total_s / (restarts + 1)
    training = replace(
        training, compile_s=compile_s, save_every=10, save_s=0.05 * step_s, down_s=0.1 * step_s,
        start_s=0.1 * step_s, uptimes=_restarts(g, restarts, compile_s, total_s),
    )  # fmt: skip
    solved = replace(training, compile_s=compile_s * g.uniform(0.05, 0.4))
    others = _others(lambda: _restarts(g, restarts, compile_s, total_s))
    return Case(
        training=training,
        solved=(solved,),
        category="badput",
        title="program_startup",
        failures=others,
    )


def _compiles_in_span(restarts: int, share: float, g: np.random.Generator) -> Case:
    case = _compiles(restarts, share, g)
    return replace(
        case,
        training=replace(case.training, compiles_in_span=True),
        solved=tuple(replace(each, compiles_in_span=True) for each in case.solved),
        title="custom:compile",
    )


def _restarts(
    g: np.random.Generator, count: int, start_s: float, total_s: float
) -> tuple[float, ...]:
    parts = total_s / (count + 1) * g.uniform(0.6, 1.2, count)
    return tuple(float(start_s + each) for each in parts)


def _is_down(count: int, share: float, g: np.random.Generator) -> Case:
    training = _plain(g)
    step_s = _typical(training)
    total_s = _STEPS * step_s
    training = replace(
        training, save_every=10, save_s=0.05 * step_s, start_s=0.2 * step_s,
        compile_s=0.3 * step_s, down_s=share * total_s / count,
        uptimes=_restarts(g, count, 0.0, total_s),
    )  # fmt: skip
    solved = replace(training, down_s=training.down_s * g.uniform(0.02, 0.4))
    others = _others(lambda: _restarts(g, count, 0.0, total_s))
    return Case(
        training=training, solved=(solved,), category="badput", title="recovery", failures=others
    )


def _stalls(share: float, times: float, g: np.random.Generator) -> Case:
    training = _plain(g)
    stalled = g.random(_STEPS) < share
    longer = training.step_s * np.where(stalled, times * g.uniform(0.6, 1.4, _STEPS), 1.0)
    left = g.uniform(0, 0.3) * (longer - training.step_s)
    return Case(
        training=replace(training, step_s=longer),
        solved=(replace(training, step_s=training.step_s + left),),
        category="badput",
        title="stall",
    )


def _blocks_on_saves(share: float, g: np.random.Generator) -> Case:
    """Saves as often as its many failures require, and waits for each save."""
    training = _plain(g)
    step_s = _typical(training)
    every = int(g.integers(6, 12))
    save_s = share * every * step_s
    # By Young's formula this interval is the best one.
    mttf_s = (every * step_s) ** 2 / (2 * save_s)
    count = max(4, round(_STEPS * step_s * (1 + 2 * share) / mttf_s))
    training = replace(
        training, save_every=every, save_s=save_s, uptimes=_exponential(g, count, mttf_s),
        start_s=0.1 * step_s, compile_s=0.1 * step_s, down_s=0.1 * step_s,
    )  # fmt: skip
    solved = replace(training, save_s=save_s * g.uniform(0.02, 0.3))
    others = _others(lambda: _exponential(g, count, mttf_s))
    return Case(
        training=training,
        solved=(solved,),
        category="badput",
        title="checkpoint_save",
        failures=others,
    )


def _enough(losses: Floats, noise: float) -> int:
    """Return after how many evaluations a loss is as good as its best, within a small tolerance."""
    best = float(losses.min())
    within = max(0.001 * float(losses[0] - best), 0.1 * noise)
    return int(np.argmax(losses <= best + within)) + 1


def _ends_late(losses: Callable[[np.random.Generator, Floats], Floats], noise: float,
               g: np.random.Generator) -> Case:  # fmt: skip
    t = np.arange(1.0, _STEPS // 10 + 1)
    true = losses(g, t)
    sigma = noise * float(true[0] - true.min())
    training = _plain(g, losses=true, noise=sigma)
    solved = training.shorter(_enough(true, sigma))
    return Case(training=training, solved=(solved,), category="epochs", title="instead of")


def _saturating(rate: float, g: np.random.Generator, t: Floats) -> Floats:
    losses: Floats = g.uniform(0.3, 0.8) + 2 * np.exp(-rate * g.uniform(0.85, 1.15) * t)
    return losses


def _overfitting(turn: float, steep: float, power: float, g: np.random.Generator,
                 t: Floats) -> Floats:  # fmt: skip
    """A loss that falls until about a part of the training, and then rises."""
    end = len(t)
    tau = turn * end / 3.5 * g.uniform(0.9, 1.1)
    falls = g.uniform(0.3, 0.6) + 1.5 * np.exp(-t / tau)
    rises: Floats = steep * np.maximum(t / end - turn / 2, 0) ** power
    return falls + rises


def _by_stages(stages: int, rate: float, g: np.random.Generator) -> Case:
    """A learning rate that falls in steps; the loss gets level in each stage."""
    count = _STEPS // 10
    edges = [round(count * each / stages) for each in range(stages + 1)]
    losses, rates, level, kept = np.empty(count), np.empty(count), 2.5, 0
    for stage in range(stages):
        part = slice(edges[stage], edges[stage + 1])
        t = np.arange(1, part.stop - part.start + 1)
        floor = level * g.uniform(0.4, 0.6)
        losses[part] = floor + (level - floor) * np.exp(-rate * g.uniform(0.9, 1.2) * t)
        rates[part] = 0.1 * 0.1**stage
        kept += _enough(losses[part], 0.0)
        level = float(losses[part][-1])
    training = _plain(g, losses=losses, rates=rates, noise=0.002)
    whole = training.cost
    # Stages can be shortened without a change to the others, because each of them is level.
    saving = whole * (count - kept) / count
    return Case(training=training, saving=saving, category="epochs", title="instead of")


def _live(losses: Callable[[np.random.Generator, Floats], Floats], seen: float, noise: float,
          g: np.random.Generator, *, should_stop: bool) -> Case:  # fmt: skip
    t = np.arange(1.0, _STEPS // 10 + 1)
    true = losses(g, t)
    sigma = noise * float(true[0] - true.min())
    evaluated = round(seen * len(t))
    training = _plain(g, losses=true, noise=sigma, stop_after=evaluated * 10)
    around = Circumstances(total_evaluations=len(t))
    if not should_stop:
        return Case(training=training, around=around)
    saving = training.cost * (1 - evaluated / len(t))
    return Case(training=training, saving=saving, category="early_stopping", title="Stop",
                around=around)  # fmt: skip


def _cheaper(price: float, g: np.random.Generator) -> Case:
    training = _plain(g)
    elsewhere = training.price * price * g.uniform(0.9, 1.1)
    offers = [offer(f"{elsewhere:.4f}"), offer(f"{training.price * 0.97:.4f}")]
    solved = replace(training, price=elsewhere)
    return Case(training=training, solved=(solved,), category="compute",
                around=Circumstances(offers=offers))  # fmt: skip


# Healthy trainings


def _power(alpha: float, noise: float, count: int, g: np.random.Generator) -> Case:
    t = np.arange(1, count // 10 + 1)
    true = g.uniform(0.5, 2.0) + 5 * t ** -(alpha * g.uniform(0.9, 1.1))
    return Case(training=_plain(g, count, losses=true, noise=noise * float(true[0] - true[-1])))


def _logarithmic(g: np.random.Generator) -> Case:
    t = np.arange(1, _STEPS // 10 + 1)
    return Case(training=_plain(g, losses=5 - g.uniform(0.5, 1.2) * np.log(t), noise=0.02))


def _accurate(g: np.random.Generator) -> Case:
    t = np.arange(1, _STEPS // 10 + 1)
    true = 0.95 - 0.6 * t ** -g.uniform(0.3, 0.6)
    return Case(training=_plain(g, losses=true, metric="val_accuracy", noise=0.003))


def _squared_error(g: np.random.Generator) -> Case:
    t = np.arange(1, _STEPS // 10 + 1)
    return Case(training=_plain(g, losses=2.0 * t ** -g.uniform(0.8, 1.2), noise=0.001))


def _descends_twice(where: float, g: np.random.Generator, t: Floats) -> Floats:
    """A loss that falls, rises to a bump and falls again, further than before."""
    end = len(t)
    middle, width = where * end * g.uniform(0.95, 1.05), 0.12 * end * g.uniform(0.9, 1.1)
    falls = 0.5 + 1.5 * (t / 2) ** -g.uniform(0.5, 0.8)
    bump: Floats = g.uniform(0.25, 0.5) * np.exp(-(((t - middle) / width) ** 2))
    return falls + bump


def _ended_twice(g: np.random.Generator) -> Case:
    t = np.arange(1.0, _STEPS // 10 + 1)
    return Case(training=_plain(g, losses=_descends_twice(0.4, g, t), noise=0.01))


def _cosine(seen: float, g: np.random.Generator) -> Case:
    """A learning rate that falls to zero; the loss falls most at the end."""
    count = _STEPS // 10
    part = np.arange(1, count + 1) / count
    rates = 0.5 * (1 + np.cos(np.pi * part))
    losses = 1.0 + 2 * np.arange(1, count + 1) ** -0.7 + 0.6 * rates * g.uniform(0.8, 1.2)
    stop_after = None if seen == 1 else round(seen * count) * 10
    training = _plain(g, losses=losses, rates=rates, noise=0.01, stop_after=stop_after)
    return Case(training=training, around=Circumstances(total_evaluations=count))


def _decays_soon(g: np.random.Generator) -> Case:
    """Level, because its learning rate is about to fall for the first time."""
    count = _STEPS // 10
    half = count // 2
    t = np.arange(1, half + 1)
    first = 1.0 + 1.5 * np.exp(-0.4 * t)
    losses = np.concatenate([first, 0.5 + 0.5 * np.exp(-0.2 * t)])
    rates = np.where(np.arange(count) < half, 0.1, 0.01)
    training = _plain(g, losses=losses, rates=rates, noise=0.003, stop_after=(half - 1) * 10)
    return Case(training=training, around=Circumstances(total_evaluations=count))


def _fails_well(count: int, uptimes_of: Callable[[np.random.Generator, int, float],
                tuple[float, ...]], g: np.random.Generator) -> Case:  # fmt: skip
    """Fails, and saves about as often as is best."""
    training = _plain(g)
    step_s = _typical(training)
    mttf_s = 380 * step_s / count
    save_s = g.uniform(0.1, 0.3) * step_s
    every = max(1, round(math.sqrt(2 * save_s * mttf_s) / step_s * g.uniform(0.8, 1.25)))
    training = replace(
        training, save_every=every, save_s=save_s, uptimes=uptimes_of(g, count, mttf_s),
        start_s=0.1 * step_s, compile_s=0.2 * step_s, down_s=0.1 * step_s,
    )  # fmt: skip
    return Case(training=training)


def _a_little(share: float, g: np.random.Generator) -> Case:
    """A little of each overhead."""
    training = _plain(g)
    step_s = _typical(training)
    return Case(
        training=replace(
            training, load_s=share * step_s, eval_s=10 * share * step_s, save_s=2 * share * step_s
        )
    )


def _varies(jitter: float, g: np.random.Generator) -> Case:
    """Steps of very different length, none of them stalled."""
    training = _plain(g)
    lengths = _typical(training) * g.lognormal(0, jitter, _STEPS)
    return Case(training=replace(training, step_s=lengths))


def _logs_each_step(g: np.random.Generator) -> Case:
    return Case(training=_plain(g, is_logged_each_step=True))


def worlds(trace: Path | None = None) -> list[AdviceWorld]:
    """Return all worlds; failures of some are drawn from a trace of faults."""
    traced = partial(_traced, trace_gaps(trace))
    second = _kinds(np.random.default_rng(20261119), traced)
    third = _later_kinds(20261120, traced)
    fourth = _later_kinds(20261122, traced)
    return [
        *_first_worlds(traced),
        *_second_worlds(second),
        *(replace(each, is_tuned_on=True) for each in _halved(third, "abcdefgh")),
        *_halved(fourth, "ijklmnop"),
    ]


Uptimes = Callable[[np.random.Generator, int, float], tuple[float, ...]]


def _first_worlds(traced: Uptimes) -> list[AdviceWorld]:
    problems: dict[str, Callable[[np.random.Generator], Case]] = {}
    for ratio in (0.2, 0.35, 0.6, 0.9, 1.5, 2.2, 3.0):
        problems[f"waits for data, {ratio} of a step"] = partial(_loads, ratio)
    for share in (0.15, 0.25, 0.4, 0.6):
        problems[f"saves too often, {share} of training"] = partial(_saves_often, share)
    for count in (4, 6, 9, 14):
        problems[f"saves too seldom, {count} failures"] = partial(
            _saves_seldom, count, _exponential
        )
    for count in (4, 7, 12):
        problems[f"saves too seldom, {count} traced failures"] = partial(
            _saves_seldom, count, traced
        )
    for count, clean in ((3, 0.8), (5, 0.9), (5, 0.5), (8, 0.7)):
        problems[f"{count} failures after {clean} of a clean run"] = partial(_burst, count, clean)
    for share in (0.15, 0.25, 0.4, 0.6):
        problems[f"evaluates for {share} of training"] = partial(_evaluates, share)
    for restarts, share in ((0, 0.2), (3, 0.2), (6, 0.3), (12, 0.5)):
        problems[f"compiles at each of {restarts} restarts, {share}"] = partial(
            _compiles, restarts, share
        )
    for count, share in ((3, 0.2), (6, 0.3), (10, 0.2), (15, 0.5)):
        problems[f"is down {count} times, {share} in all"] = partial(_is_down, count, share)
    for share, times in ((0.02, 20.0), (0.05, 8.0), (0.1, 5.0), (0.2, 4.0)):
        problems[f"{share} of steps take {times:g} times as long"] = partial(_stalls, share, times)
    for share in (0.08, 0.12, 0.18):
        problems[f"waits for saves, {share} of training"] = partial(_blocks_on_saves, share)
    for rate in (0.3, 0.45, 0.7, 1.0):
        problems[f"converges, rate {rate}"] = partial(
            _ends_late, partial(_saturating, rate), 0.0005
        )
    for rate, noise in ((0.4, 0.02), (0.5, 0.04), (0.8, 0.03), (1.0, 0.06)):
        problems[f"converges, rate {rate}, noise {noise}"] = partial(
            _ends_late, partial(_saturating, rate), noise
        )
    for turn, steep, power in ((0.25, 0.8, 1.0), (0.4, 1.5, 1.0), (0.3, 1.0, 2.0), (0.5, 2.0, 1.5),
                               (0.2, 2.5, 1.0)):  # fmt: skip
        problems[f"overfits from {turn}, {steep:g} times t to the {power:g}"] = partial(
            _ends_late, partial(_overfitting, turn, steep, power), 0.01
        )
    for stages, rate in ((2, 0.6), (3, 0.9), (3, 1.2), (4, 1.2)):
        problems[f"{stages} stages of the learning rate, {rate}"] = partial(
            _by_stages, stages, rate
        )
    for rate, seen in ((0.6, 0.5), (1.0, 0.4), (0.8, 0.7)):
        problems[f"runs on a plateau, rate {rate}, {seen} seen"] = partial(
            _live, partial(_saturating, rate), seen, 0.0005, should_stop=True
        )
    for turn, seen in ((0.15, 0.6), (0.2, 0.7), (0.1, 0.5)):
        problems[f"overfits from {turn} on, {seen} seen"] = partial(
            _live, partial(_overfitting, turn, 2.0, 1.0), seen, 0.005, should_stop=True
        )
    for price in (0.5, 0.7, 0.85):
        problems[f"is cheaper elsewhere, {price}"] = partial(_cheaper, price)
    healthy: dict[str, Callable[[np.random.Generator], Case]] = {
        **{
            f"power law {alpha}, noise {noise}, {count} steps": partial(_power, alpha, noise, count)
            for alpha, noise, count in (
                (0.3, 0.0, 400),
                (0.3, 0.02, 400),
                (0.5, 0.05, 400),
                (0.6, 0.005, 400),
                (0.4, 0.01, 3000),
                (0.5, 0.001, 3000),
                (0.25, 0.1, 400),
            )
        },
        "learns by the logarithm": _logarithmic,
        "gets more accurate": _accurate,
        "squared error": _squared_error,
        "descended twice": _ended_twice,
        **{
            f"descends twice, {seen} seen": partial(
                _live, partial(_descends_twice, 0.5), seen, 0.005, should_stop=False
            )
            for seen in (0.4, 0.45, 0.5, 0.55)
        },
        **{f"cosine schedule, {seen} seen": partial(_cosine, seen) for seen in (0.5, 0.8, 1.0)},
        "its learning rate is about to fall": _decays_soon,
        **{
            f"fails {n} times and saves well": partial(_fails_well, n, _exponential)
            for n in (2, 5, 12)
        },
        **{
            f"fails {n} times in a trace and saves well": partial(_fails_well, n, traced)
            for n in (3, 8)
        },
        **{f"a little of all, {share}": partial(_a_little, share) for share in (0.01, 0.03)},
        **{f"steps vary by {jitter}": partial(_varies, jitter) for jitter in (0.1, 0.25)},
        "logs its loss at each step": _logs_each_step,
    }
    return [
        AdviceWorld(name=name, kind=name.partition(",")[0], draw=draw, is_healthy=is_healthy)
        for is_healthy, each in ((False, problems), (True, healthy))
        for name, draw in each.items()
    ]


# The later generations: figures are drawn, once for each world, from a little more than the range
# of the first.


@dataclass(frozen=True, kw_only=True)
class WorldKind:
    """A kind of world, of which there are several with different figures."""

    name: str
    is_healthy: bool
    drawers: Sequence[Drawer]


def _second_worlds(kinds: Sequence[WorldKind]) -> list[AdviceWorld]:
    return [
        AdviceWorld(
            name=f"{kind.name}, {number}", kind=kind.name, draw=draw, is_healthy=kind.is_healthy
        )
        for kind in kinds
        for number, draw in enumerate(kind.drawers, 1)
    ]


def _later_kinds(seed: int, traced: Uptimes) -> list[WorldKind]:
    """Return the kinds of the second generation, and what was added with the third."""
    g = np.random.default_rng(seed + 1)
    spans = [
        partial(_compiles_in_span, int(g.integers(0, 11)), float(g.uniform(0.15, 0.5)))
        for _ in range(4)
    ]
    kinds = _kinds(np.random.default_rng(seed), traced)
    return [*kinds, WorldKind(name="compiles in a span", is_healthy=False, drawers=spans)]


def _halved(kinds: Sequence[WorldKind], letters: str) -> list[AdviceWorld]:
    """Return worlds of which at least one of each kind is only reported, and one is tuned on."""
    found = []
    for kind in kinds:
        # A kind without figures has as many worlds as it needs.
        drawers = kind.drawers if len(kind.drawers) > 1 else [*kind.drawers, *kind.drawers]
        names = [f"{kind.name}, {letter}" for letter, _ in zip(letters, drawers, strict=False)]
        by_hash = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        tuned_on = by_hash[: len(names) // 2]
        found += [
            AdviceWorld(
                name=name, kind=kind.name, draw=draw, is_healthy=kind.is_healthy,
                is_tuned_on=name in tuned_on,
            )
            for name, draw in zip(names, drawers, strict=True)
        ]  # fmt: skip
    return found


def _kinds(g: np.random.Generator, traced: Uptimes) -> list[WorldKind]:
    def some(low: float, high: float) -> float:
        return round(float(g.uniform(low, high)), 3)

    def often(low: float, high: float) -> float:
        return float(f"{math.exp(g.uniform(math.log(low), math.log(high))):.2g}")

    def count(low: int, high: int) -> int:
        return int(g.integers(low, high + 1))

    def live(losses: Draw, noise: float, *, stop: bool, seen: tuple[float, float]) -> Drawer:
        return partial(_live, losses, some(*seen), noise, should_stop=stop)

    problems: list[tuple[str, int, Callable[[], Drawer]]] = [
        ("waits for data", 7, lambda: partial(_loads, often(0.15, 3.5))),
        ("saves too often", 4, lambda: partial(_saves_often, some(0.12, 0.6))),
        ("saves too seldom", 4, lambda: partial(_saves_seldom, count(4, 14), _exponential)),
        ("saves too seldom in a trace", 3, lambda: partial(_saves_seldom, count(4, 12), traced)),
        ("fails in a burst", 4, lambda: partial(_burst, count(3, 8), some(0.5, 0.9))),
        ("evaluates", 4, lambda: partial(_evaluates, some(0.13, 0.6))),
        ("compiles", 4, lambda: partial(_compiles, count(0, 10), some(0.15, 0.5))),
        ("is down", 4, lambda: partial(_is_down, count(3, 15), some(0.18, 0.5))),
        ("stalls", 4, lambda: partial(_stalls, some(0.03, 0.2), some(5, 15))),
        ("waits for saves", 3, lambda: partial(_blocks_on_saves, some(0.08, 0.2))),
        (
            "converges", 4,
            lambda: partial(_ends_late, partial(_saturating, some(0.35, 1.1)), 0.0005),
        ),
        (
            "converges noisily", 4,
            lambda: partial(_ends_late, partial(_saturating, some(0.4, 1.1)), some(0.01, 0.05)),
        ),
        ("an accuracy converges", 3, lambda: partial(_accuracy_converges, some(0.4, 1.0))),
        (
            "learns late and converges", 3,
            lambda: partial(_ends_late, partial(_learns_late, some(0.1, 0.3)), some(0.001, 0.01)),
        ),
        (
            "overfits", 5,
            lambda: partial(
                _ends_late,
                partial(_overfitting, some(0.2, 0.5), some(0.8, 2.5), some(1, 2)),
                some(0.005, 0.015),
            ),
        ),
        ("has stages", 4, lambda: partial(_by_stages, count(2, 4), some(0.6, 1.2))),
        (
            "runs on a plateau", 3,
            lambda: live(partial(_saturating, some(0.6, 1.1)), 0.0005, stop=True, seen=(0.4, 0.7)),
        ),
        (
            "runs on and overfits", 3,
            lambda: live(
                partial(_overfitting, some(0.1, 0.2), 2.0, 1.0), 0.005, stop=True, seen=(0.5, 0.7)
            ),
        ),
        ("is cheaper elsewhere", 3, lambda: partial(_cheaper, some(0.45, 0.88))),
    ]  # fmt: skip
    healthy: list[tuple[str, int, Callable[[], Drawer]]] = [
        ("a power law", 6, lambda: partial(_power, some(0.25, 0.6), often(0.0005, 0.1), 400)),
        ("a long power law", 2, lambda: partial(_power, some(0.3, 0.5), often(0.001, 0.01), 3000)),
        ("a logarithm", 2, lambda: _logarithmic),
        ("an accuracy", 2, lambda: _accurate),
        ("a squared error", 2, lambda: _squared_error),
        ("descended twice", 2, lambda: _ended_twice),
        (
            "descends twice", 4,
            lambda: live(
                partial(_descends_twice, some(0.45, 0.55)), 0.005, stop=False, seen=(0.38, 0.56)
            ),
        ),
        ("a cosine schedule", 3, lambda: partial(_cosine, some(0.4, 1.0))),
        ("a linear schedule", 3, lambda: partial(_linear, some(0.4, 1.0))),
        ("its learning rate is about to fall", 2, lambda: _decays_soon),
        ("fails and saves well", 5, lambda: partial(_fails_well, count(1, 14), _exponential)),
        ("fails in a trace and saves well", 5, lambda: partial(_fails_well, count(2, 10), traced)),
        ("a little of all", 3, lambda: partial(_a_little, some(0.005, 0.03))),
        ("steps vary", 3, lambda: partial(_varies, some(0.05, 0.25))),
        ("logs its loss at each step", 1, lambda: _logs_each_step),
        ("gets better in a jump", 2, lambda: partial(_jumps, some(0.6, 0.85))),
    ]  # fmt: skip
    return [
        WorldKind(name=name, is_healthy=is_healthy, drawers=[make() for _ in range(many)])
        for is_healthy, each in ((False, problems), (True, healthy))
        for name, many, make in each
    ]


def _accuracy_converges(rate: float, g: np.random.Generator) -> Case:
    t = np.arange(1.0, _STEPS // 10 + 1)
    true = g.uniform(0.7, 0.95) - 0.5 * np.exp(-rate * g.uniform(0.85, 1.15) * t)
    sigma = 0.002
    training = _plain(g, losses=true, metric="val_accuracy", noise=sigma)
    solved = training.shorter(_enough(-true, sigma))
    return Case(training=training, solved=(solved,), category="epochs", title="instead of")


def _learns_late(middle: float, g: np.random.Generator, t: Floats) -> Floats:
    """A loss that hardly falls at first, then fast, and then no more."""
    width = 0.04 * len(t) * g.uniform(0.8, 1.2)
    losses: Floats = 0.5 + 2 / (1 + np.exp((t - middle * len(t)) / width))
    return losses


def _linear(seen: float, g: np.random.Generator) -> Case:
    """A learning rate that warms up and falls linearly to zero."""
    count = _STEPS // 10
    part = np.arange(1, count + 1) / count
    rates = np.minimum(part / 0.05, (1 - part) / 0.95)
    losses = 1.0 + 2 * np.arange(1, count + 1) ** -0.7 + 0.6 * rates * g.uniform(0.8, 1.2)
    stop_after = None if seen > 0.95 else round(seen * count) * 10
    training = _plain(g, losses=losses, rates=rates, noise=0.01, stop_after=stop_after)
    return Case(training=training, around=Circumstances(total_evaluations=count))


def _jumps(where: float, g: np.random.Generator) -> Case:
    """Ends well, because its loss falls again late."""
    t = np.arange(1.0, _STEPS // 10 + 1)
    falls = 1.0 + 2 * np.power(t, -g.uniform(0.4, 0.7))
    jump = 0.6 / (1 + np.exp(-(t - where * len(t)) / 1.5))
    return Case(training=_plain(g, losses=falls - jump, noise=0.005))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How advice did in one case.

    Attributes:
        cause: Of the first saving, by which its confidence is looked up; "" if there was none.
        truth: The true saving; 0 of a healthy training.
    """

    world: str
    is_healthy: bool
    cause: str
    title: str
    estimate: float
    low: float
    high: float
    confidence: float
    truth: float
    is_right: bool

    @property
    def is_close(self) -> bool:
        """Whether the estimate is within a factor of the truth."""
        return self.is_right and self.truth / 1.3 <= self.estimate <= 1.3 * self.truth

    @property
    def held(self) -> bool:
        """Whether the interval of the right recommendation contains the truth."""
        slack = 0.01 * self.truth  # Two runs never take the same time.
        return self.is_right and self.low - slack <= self.truth <= self.high + slack


def judge(world: AdviceWorld, seed: int, advise: Callable[..., Sequence[Any]]) -> Outcome:
    """Return how advice does in one case of a world."""
    case = world.case(seed)
    found = [each for each in advise(view(case.training), case.around) if each.kind == "saving"]
    if not found:
        truth = 0.0 if world.is_healthy else case.true_saving()
        return Outcome(world=world.name, is_healthy=world.is_healthy, cause="", title="",
                       estimate=0.0, low=0.0, high=0.0, confidence=0.0, truth=truth,
                       is_right=False)  # fmt: skip
    first = found[0]
    is_right = not world.is_healthy and first.category == case.category and (
        case.title in first.title
    )  # fmt: skip
    return Outcome(
        world=world.name, is_healthy=world.is_healthy, cause=first.cause, title=first.title,
        estimate=first.estimated_savings, low=first.savings_low or 0.0,
        high=first.savings_high or 0.0, confidence=first.confidence,
        truth=0.0 if world.is_healthy else case.true_saving(), is_right=is_right,
    )  # fmt: skip
