"""Prediction of a run's cost from its configuration, learned from recorded runs. Pure.

A Bayesian linear regression of the logarithm of cost on the logarithms of tokens (else samples,
else steps), parameters, sequence length and GPUs, with an effect for each model and each kind of
GPU that is drawn towards zero (partial pooling). Before any run is seen, cost is proportional to
tokens and parameters, and does not depend on the number of GPUs; runs correct that. The noise and
how much is pooled are averaged over a grid by their likelihood. Extrapolates, and says from where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from outlay.errors import InvalidValue
from outlay.ledger import exact_gpus
from outlay.rates import NS_PER_HOUR
from outlay.store.run_row import RunRow
from outlay.units.shown import counted, number_text

Floats = NDArray[np.float64]

CONFIDENCE = 0.8
LEAST_RUNS = 3
_LEAST_TESTED = 4  # With fewer runs, being better than the median says little.
_NAMED = 5
_ID = 32  # The digits of an id that nobody stated; eight of them are shown.
_DRAWS = 4000
_SEED = 20261118
_WORKS = ("tokens", "samples", "steps")
_SIZES = ("parameters", "sequence_length", "gpus")
# Mean and standard deviation of each exponent, before any run is seen.
_PRIORS = {
    "work": (1.0, 0.2),
    "parameters": (1.0, 0.4),
    "sequence_length": (0.0, 0.4),
    "gpus": (0.0, 0.25),
}
_LEVEL = 10.0
_OF_MODELS, _OF_GPUS = 0.7, 0.7  # Standard deviations of the effects, as logarithms,
_POOLINGS = (0.15, 0.35, 0.9)  # times one of these.
_NOISES = np.geomspace(0.05, 0.7, 12)
_UNLIKELY = 7.0  # So much less likely, as a logarithm, than the likeliest.
_MOST_RUNS = 200  # Older runs are left out: prices and programs change.
_BEYOND = 1.5  # So many times the largest run seen, or below the smallest, is an extrapolation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is known of a run before it starts; None where it is not."""

    model: str = ""
    gpu: str = ""
    tokens: float | None = None
    samples: float | None = None
    steps: float | None = None
    parameters: float | None = None
    sequence_length: float | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        for name in (*_WORKS, *_SIZES):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidValue(name, value, "a finite number above zero")

    def log(self, name: str) -> float | None:
        """Return the logarithm of a figure, if it is known."""
        value = getattr(self, name)
        return None if value is None else math.log(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A recorded run: its configuration, and its cost in currency units or in GPU-hours."""

    run_id: str
    of: Configuration
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPrediction:
    """The predicted cost of a run, in the unit of the past ones.

    Attributes:
        low: The lower end of an 80 % interval; ``high`` the upper.
        runs: The runs that it rests on.
        features: The figures that it depends on.
        beyond: What it extrapolates, as text.
    """

    cost: float
    low: float
    high: float
    runs: tuple[str, ...]
    features: tuple[str, ...]
    beyond: tuple[str, ...]
    confidence: float = CONFIDENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTest:
    """Errors of predictions of each run from all others, beside the median of its model's others.

    Attributes:
        error: The median of |log(predicted / true)|; ``median_error`` that of the median.
        held: How many of the intervals contained the cost.
    """

    runs: int
    error: float
    median_error: float
    held: int

    @property
    def is_better(self) -> bool:
        """Whether predictions are better than the median."""
        return self.error < self.median_error


def past_runs(rows: Iterable[RunRow]) -> list[PastRun]:
    """Return the finished runs with a cost, as far as they recorded their configuration."""
    return [
        PastRun(run_id=row.run_id, of=configuration_of(row), cost=float(row.paid.amount))
        for row in rows
        if row.status == "completed" and row.cost is not None and row.cost.micros > 0
    ]


def past_gpu_hours(rows: Iterable[RunRow]) -> list[PastRun]:
    """Return the finished runs with their GPU-hours, which do not depend on a price."""
    return [
        PastRun(run_id=row.run_id, of=configuration_of(row), cost=row.gpu_ns / NS_PER_HOUR)
        for row in rows
        if row.status == "completed" and row.gpu_ns > 0
    ]


def configuration_of(row: RunRow) -> Configuration:
    """Return the configuration of a recorded run."""
    return Configuration(
        model=row.model,
        gpu=row.gpu,
        tokens=row.tokens or None,
        samples=row.samples or None,
        steps=row.steps or None,
        parameters=row.parameters,
        sequence_length=row.sequence_length,
        gpus=float(exact_gpus(row.gpus)) or None,
    )


def predict_cost(asked: Configuration, past: Sequence[PastRun]) -> CostPrediction | None:
    """Predict the cost of a run; None with fewer than three runs that recorded the same figures."""
    learned = _Learned.of(asked, past)
    return None if learned is None else learned.predict(asked)


def backtest_prediction(asked: Configuration, past: Sequence[PastRun]) -> PredictionTest | None:
    """Predict each run from all others, by the figures that a prediction would use.

    None if there are too few runs, or none has another of its model.
    """
    learned = _Learned.of(asked, past)
    return None if learned is None else _tested(learned)


def _tested(learned: _Learned) -> PredictionTest | None:
    if len(learned.used) <= LEAST_RUNS:
        return None
    errors, naive, held = [], [], 0
    for index, (run, (off, chance)) in enumerate(
        zip(learned.used, learned.left_out(), strict=True)
    ):
        others = [*learned.used[:index], *learned.used[index + 1 :]]
        alike = [each.cost for each in others if each.of.model == run.of.model]
        if not alike:
            continue
        errors.append(abs(off))
        naive.append(abs(math.log(median(alike) / run.cost)))
        held += (1 - CONFIDENCE) / 2 <= chance <= (1 + CONFIDENCE) / 2
    if not errors:
        return None
    return PredictionTest(
        runs=len(errors), error=median(errors), median_error=median(naive), held=held
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenPrediction:
    """A prediction that is better than the median of a model on the runs that it rests on."""

    prediction: CostPrediction
    test: PredictionTest

    @property
    def basis(self) -> str:
        """What it rests on and what it extrapolates, in one line."""
        beyond = "; ".join(self.prediction.beyond)
        return (
            f"{rests_on(self.prediction)}: median error {self.test.error:.0%}, of the median "
            f"{self.test.median_error:.0%}" + (f"; extrapolates {beyond}" if beyond else "")
        )


def proven_prediction(asked: Configuration, past: Sequence[PastRun]) -> ProvenPrediction | None:
    """Predict the cost of a run if that is known to be better than the median of its model."""
    return proven_predictions([asked], past)[0]


def proven_predictions(
    asked: Sequence[Configuration], past: Sequence[PastRun]
) -> list[ProvenPrediction | None]:
    """Predict the cost of each run as ``proven_prediction`` does; learns once for all."""
    known: dict[tuple[str, ...], tuple[_Learned, PredictionTest | None]] = {}
    found: list[ProvenPrediction | None] = []
    for each in asked:
        features = _features_of(each, past)
        if features and features not in known:
            learned = _Learned.by(features, past)
            known[features] = learned, _tested(learned)
        learned_by = known.get(features)
        test = None if learned_by is None else learned_by[1]
        if learned_by is None or test is None or test.runs < _LEAST_TESTED or not test.is_better:
            found.append(None)
        else:
            found.append(ProvenPrediction(prediction=learned_by[0].predict(each), test=test))
    return found


def rests_on(found: CostPrediction) -> str:
    """Return the runs that a prediction rests on, and the figures that it depends on."""
    shown = (each[:8] if len(each) == _ID else each for each in found.runs[-_NAMED:])
    named = ", ".join(shown)
    more = f" and {len(found.runs) - _NAMED:,} more" if len(found.runs) > _NAMED else ""
    by = ", ".join(name.replace("_", " ") for name in found.features)
    return f"from {counted(len(found.runs), 'run')} ({named}{more}), by {by}"


def changed(of: Configuration, **figures: float | str | None) -> Configuration:
    """Return a configuration with some figures replaced; steps and samples follow the tokens.

    What is not stated stays. If tokens are stated, samples and steps are unknown, and so on.
    """
    stated = {name: value for name, value in figures.items() if value is not None}
    works = [name for name in _WORKS if name in stated]
    unknown = dict.fromkeys(_WORKS) if works else {}
    return replace(of, **(unknown | stated))  # type: ignore[arg-type]


def _features_of(asked: Configuration, past: Sequence[PastRun]) -> tuple[str, ...]:
    """Return the work and the sizes that were asked for and that enough runs recorded, or ()."""
    for work in _WORKS:
        used = _recorded(work, past)
        if asked.log(work) is not None and len(used) >= LEAST_RUNS:
            sizes = (
                name
                for name in _SIZES
                if asked.log(name) is not None
                and all(each.of.log(name) is not None for each in used)
            )
            return (work, *sizes)
    return ()


def _recorded(work: str, past: Sequence[PastRun]) -> list[PastRun]:
    """Return the newest runs that recorded a measure of work."""
    return [each for each in past if each.of.log(work) is not None][-_MOST_RUNS:]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighted:
    """The regression with one noise and one pooling, and how likely these are.

    Attributes:
        pooling: The factor of the deviations of the effects of models and of GPUs.
        inverse: Of the covariance of the runs; ``solved`` is it times their costs.
    """

    weight: float
    noise: float
    pooling: float
    inverse: Floats
    solved: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """The regression on some runs; costs and figures are logarithms, costs without the priors."""

    features: tuple[str, ...]
    used: tuple[PastRun, ...]
    rows: Floats
    level: float
    costs: Floats
    weighted: tuple[_Weighted, ...]

    @classmethod
    def of(cls, asked: Configuration, past: Sequence[PastRun]) -> _Learned | None:
        """Learn from the runs that recorded what is asked for; None if too few did."""
        features = _features_of(asked, past)
        return cls.by(features, past) if features else None

    @classmethod
    def by(cls, features: tuple[str, ...], past: Sequence[PastRun]) -> _Learned:
        """Learn by some figures, the first of which is the work."""
        used = _recorded(features[0], past)
        rows, logs = _logs(features, used), np.log([each.cost for each in used])
        level = float(logs.mean())
        means = np.array([_prior(name)[0] for name in features])
        costs = logs - level - (rows - rows.mean(axis=0)) @ means
        return cls(
            features=features, used=tuple(used), rows=rows, level=level, costs=costs,
            weighted=tuple(_weighted(features, rows, used, costs)),
        )  # fmt: skip

    def predict(self, asked: Configuration) -> CostPrediction:
        """Predict the cost of a run."""
        tail = (1 - CONFIDENCE) / 2
        ends = np.exp(np.quantile(self.draw(asked), [tail, 0.5, 1 - tail]))
        low, point, high = (float(each) for each in ends)
        return CostPrediction(
            cost=point,
            low=low,
            high=high,
            runs=tuple(each.run_id for each in self.used),
            features=self.features,
            beyond=tuple(_beyond(asked, self.features, [each.of for each in self.used])),
        )

    def draw(self, asked: Configuration) -> Floats:
        """Return draws of the logarithm of the asked run's cost."""
        new = [PastRun(run_id="", of=asked, cost=1.0)]
        centre = self.rows.mean(axis=0)
        row = _logs(self.features, new)
        means = np.array([_prior(name)[0] for name in self.features])
        own = _covariance(self.features, row - centre, row - centre)
        reach = _covariance(self.features, self.rows - centre, row - centre)
        alike, same = _pooled(self.used, new), _pooled(new, new)
        found, variances = [], []
        for each in self.weighted:
            near = (reach + each.pooling**2 * alike)[:, 0]
            whole = float((own + each.pooling**2 * same)[0, 0])
            found.append(float(near @ each.solved))
            variances.append(max(0.0, whole - float(near @ each.inverse @ near)) + each.noise**2)
        generator = np.random.default_rng(_SEED)
        chosen = generator.choice(len(found), _DRAWS, p=[each.weight for each in self.weighted])
        off = generator.standard_normal(_DRAWS) * np.sqrt(np.array(variances))[chosen]
        expected = self.level + float(((row - centre) @ means)[0])
        drawn: Floats = expected + np.array(found)[chosen] + off
        return drawn

    def left_out(self) -> list[tuple[float, float]]:
        """Return, of each run predicted from the others, the error and the chance of less.

        In closed form, from the inverse of the covariance of all (Sundararajan & Keerthi 2001).
        """
        offs, chances = np.zeros(len(self.used)), np.zeros(len(self.used))
        for each in self.weighted:
            spread = np.diag(each.inverse)
            off = each.solved / spread  # What was seen, less what the others predict.
            offs += each.weight * off
            below = [0.5 * math.erfc(-z / math.sqrt(2)) for z in off * np.sqrt(spread)]
            chances += each.weight * np.array(below)
        return [(float(off), float(chance)) for off, chance in zip(offs, chances, strict=True)]


def _prior(name: str) -> tuple[float, float]:
    return _PRIORS["work" if name in _WORKS else name]


def _logs(features: Sequence[str], runs: Sequence[PastRun]) -> Floats:
    return np.array([[each.of.log(name) or 0.0 for name in features] for each in runs])


def _covariance(features: Sequence[str], rows: Floats, others: Floats) -> Floats:
    """Return the prior covariance of costs by level and figures."""
    wide = np.array([_prior(name)[1] for name in features])
    found: Floats = _LEVEL**2 + (rows * wide**2) @ others.T
    return found


def _pooled(runs: Sequence[PastRun], others: Sequence[PastRun]) -> Floats:
    """Return the prior covariance of costs by model and GPU, with a pooling of 1."""
    return np.array(
        [
            [
                _OF_MODELS**2 * (run.of.model == other.of.model)
                + _OF_GPUS**2 * (run.of.gpu == other.of.gpu)
                for other in others
            ]
            for run in runs
        ],
        dtype=np.float64,
    )


def _weighted(
    features: Sequence[str], rows: Floats, used: Sequence[PastRun], costs: Floats
) -> Iterable[_Weighted]:
    """Yield the regressions whose noise and pooling are not unlikely."""
    away = rows - rows.mean(axis=0)
    prior, alike = _covariance(features, away, away), _pooled(used, used)
    found = []
    for noise, pooling in product(_NOISES, _POOLINGS):
        covariance = prior + pooling**2 * alike + noise**2 * np.eye(len(used))
        inverse = np.linalg.inv(covariance)
        solved = inverse @ costs
        _, size = np.linalg.slogdet(covariance)
        likelihood = -0.5 * (float(costs @ solved) + float(size))
        found.append((likelihood, noise, pooling, inverse, solved))
    best = max(likelihood for likelihood, *_ in found)
    kept = [each for each in found if each[0] > best - _UNLIKELY]
    total = sum(math.exp(likelihood - best) for likelihood, *_ in kept)
    for likelihood, noise, pooling, inverse, solved in kept:
        yield _Weighted(
            weight=math.exp(likelihood - best) / total, noise=float(noise), pooling=pooling,
            inverse=inverse, solved=solved,
        )  # fmt: skip


def _beyond(
    asked: Configuration, features: Sequence[str], runs: Sequence[Configuration]
) -> Iterable[str]:
    """Yield what lies beyond all runs that were seen."""
    for name in features:
        seen = [value for each in runs if (value := getattr(each, name)) is not None]
        value, text = getattr(asked, name), name.replace("_", " ")
        if value > _BEYOND * max(seen):
            yield f"{text}: {value / max(seen):.3g} times the largest ({number_text(max(seen))})"
        elif value * _BEYOND < min(seen):
            yield f"{text}: {value / min(seen):.2g} of the smallest ({number_text(min(seen))})"
    for name in ("model", "gpu"):
        known = {getattr(each, name) for each in runs}
        value = getattr(asked, name)
        if value and value not in known:
            yield f"no run of {name} {value} is known, only {counted(len(known), 'other')}"
