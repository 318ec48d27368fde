"""Samplers: the points of a space that a search tries, each a pure function of what is known.

The same space, method, seed and results give the same points, whatever was killed in between: no
sampler has a state of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final

from outlay.errors import MissingExtra
from outlay.sweep.search.search_options import Search
from outlay.sweep.search.space import Point, Range, Space, all_points, point_at, point_count

_DRAWS: Final = 1_000
"""How many points in a row may be repeated or excluded before no more are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A point that was suggested, and what is known of it.

    Attributes:
        values: The metric at each rung that it reached, the last being its latest; empty without.
        ended: Whether it is not going to report more.
        whole: Whether the last value is of its whole budget.
    """

    point: Point
    values: Sequence[float] = ()
    ended: bool = False
    whole: bool = True


def planned_points(space: Space, search: Search) -> Iterator[Point]:
    """Yield the points of a method that needs no results, each once; there may be fewer."""
    if search.method == "grid":
        yield from all_points(space)
        return
    drawn = _sobol(space, search) if search.method == "sobol" else _random(space, search)
    yield from _unique(drawn)


def _unique(drawn: Iterator[Point]) -> Iterator[Point]:
    seen: set[tuple[Any, ...]] = set()
    repeated = 0
    for point in drawn:
        key = tuple(point.values())
        repeated = repeated + 1 if key in seen else 0
        if repeated > _DRAWS:
            return
        if key not in seen:
            seen.add(key)
            yield point


def _random(space: Space, search: Search) -> Iterator[Point]:
    for number in count():
        # Of a generator's methods, only random() is the same in every version of Python.
        draw = random.Random(f"{search.seed} {number}").random  # noqa: S311 - no secret
        yield point_at(space, {name: draw() for name in space})


def _sobol(space: Space, search: Search) -> Iterator[Point]:
    try:
        from scipy.stats import qmc
    except ImportError:
        raise MissingExtra("search method sobol", "advise") from None
    engine = qmc.Sobol(len(space), scramble=True, seed=search.seed)
    # A power of two at a time keeps the points balanced.
    size = 1 << ((search.trials or 1) - 1).bit_length()
    while True:
        for shares in engine.random(size):
            yield point_at(space, dict(zip(space, map(float, shares), strict=True)))


def points_if_too_few(space: Space, search: Search) -> int | None:
    """Return how many points a space has if that is fewer than the trials; else None."""
    found = point_count(space)
    return found if found is not None and found < (search.trials or 0) else None


def check_method(search: Search) -> None:
    """Refuse a method whose library is not installed.

    Raises:
        MissingExtra: It is not.
    """
    if search.method == "tpe":
        _optuna()
    if search.method == "sobol":
        next(_sobol({"x": Range(low=0.0, high=1.0)}, search))


# Optuna's tree-structured Parzen estimator (Bergstra et al., 2011).


def tpe_point(
    space: Space, search: Search, trials: Sequence[Trial], *, more_is_better: bool
) -> Point:
    """Return the next point by what earlier trials reported.

    The study is rebuilt for each point, with a sampler seeded by the number of the trial: so it is
    the same after a restart. A point that was tried before is replaced by a random one.
    """
    optuna = _optuna()
    study = optuna.create_study(
        direction="maximize" if more_is_better else "minimize",
        sampler=_sampler(optuna, search.seed + len(trials)),
        storage=optuna.storages.InMemoryStorage(),
    )
    distributions = {name: _distribution(optuna, axis) for name, axis in space.items()}
    for trial in trials:
        study.add_trial(_frozen(optuna, trial, distributions))
    asked = study.ask(distributions).params
    point = {
        name: axis.near(asked[name]) if isinstance(axis, Range) else asked[name]
        for name, axis in space.items()
    }
    seen = {tuple(trial.point[name] for name in space) for trial in trials}
    if tuple(point.values()) in seen:
        fresh = Search(method="random", seed=search.seed)
        others = (one for one in islice(_random(space, fresh), _DRAWS))
        return next((one for one in others if tuple(one.values()) not in seen), point)
    return point


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtra("search method tpe", "optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _sampler(optuna: Any, seed: int) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of version 4, where these two are experimental.
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


def _distribution(optuna: Any, axis: Range | tuple[Any, ...]) -> Any:
    kinds = optuna.distributions
    if not isinstance(axis, Range):
        return kinds.CategoricalDistribution(range(len(axis)))
    kind = kinds.IntDistribution if axis.whole else kinds.FloatDistribution
    if axis.step is None:
        return kind(axis.low, axis.high, log=axis.log)
    return kind(axis.low, axis.value((axis.count or 1) - 1), step=axis.step)


def _frozen(optuna: Any, trial: Trial, distributions: Mapping[str, Any]) -> Any:
    state, values = optuna.trial.TrialState, dict(enumerate(trial.values))
    about: dict[str, Any] = {"params": dict(trial.point), "distributions": distributions}
    if trial.values and trial.ended and trial.whole:
        return optuna.trial.create_trial(state=state.COMPLETE, value=trial.values[-1], **about)
    if trial.values:
        return optuna.trial.create_trial(state=state.PRUNED, intermediate_values=values, **about)
    return optuna.trial.create_trial(state=state.FAIL if trial.ended else state.RUNNING, **about)
