"""The ``search`` section of a grid: how its points are chosen, and the rungs of its runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from outlay.budget.limits import dimension_for, dimension_of, is_number
from outlay.budget.terms import Budget
from outlay.errors import InvalidValue, choices
from outlay.sweep.grid.parsing import Block, count_from_one, count_from_zero
from outlay.units import Duration, Energy

METHODS: Final = ("grid", "random", "sobol", "tpe")
SEARCH_KEYS: Final = ("method", "trials", "seed", "halving")
HALVING_KEYS: Final = ("first", "last", "factor", "resumable", "repeat")
_MOST_RUNGS: Final = 20
_EXPECTED_RUNG: Final = 'an amount with its unit: "0.50 USD", "20min", "2e9tok" or "1e18FLOP"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """Successive halving: of the runs at each rung, one of ``factor`` goes on to the next.

    Attributes:
        rungs: The budget of a run at each rung, from its start; each is ``factor`` times the one
            before.
        resumable: Whether a run is paused at its rung and continues in a new attempt; else it goes
            on, and is ended once others are certain to be better.
        repeat: Whether a run without a committed checkpoint goes on too, and repeats its work.
    """

    rungs: tuple[Budget, ...]
    factor: int
    resumable: bool = True
    repeat: bool = False

    @property
    def increments(self) -> tuple[Budget, ...]:
        """What each rung adds to the one before."""
        first = self.rungs[0]
        dimension = dimension_of(first.own_key)
        assert dimension is not None
        amounts = [dimension.read(rung.limits[dimension.key]) for rung in self.rungs]
        return tuple(
            replace(rung, limits={dimension.key: dimension.number(amount - below)})
            for rung, amount, below in zip(self.rungs, amounts, (0, *amounts), strict=False)
        )

    def text_at(self, rung: int) -> str:
        """Return the budget of a rung in words."""
        return ", ".join(bound.dimension.text(bound.limit) for bound in self.rungs[rung].bounds)

    def budget_at(self, rung: int) -> Budget:
        """Return the budget of an attempt at a rung."""
        if not self.resumable:
            return self.rungs[-1]
        last = len(self.rungs) - 1
        return replace(self.rungs[rung], pauses=rung < last, allow_change=rung > 0)

    def sizes(self, configurations: int) -> list[int]:
        """Return how many configurations reach each rung."""
        sizes = [configurations]
        for _ in self.rungs[1:]:
            sizes.append(max(1, sizes[-1] // self.factor))
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How the runs of an entry are chosen.

    Attributes:
        trials: How many configurations are tried; None for all of a grid.
    """

    method: str = "grid"
    trials: int | None = None
    seed: int = 0
    halving: Halving | None = None

    @property
    def is_adaptive(self) -> bool:
        """Whether later points depend on the results of earlier ones."""
        return self.method == "tpe"

    @property
    def needs_metric(self) -> bool:
        """Whether the results of runs are compared while it runs."""
        return self.is_adaptive or self.halving is not None


ALL_POINTS: Final = Search()


def read_search(block: Block, shared: Search) -> Search:
    """Return the search that a block of a grid states, on top of the shared one."""
    inner = block.block("search")
    if not inner.values:
        return shared
    inner.allow(SEARCH_KEYS)
    halving = shared.halving
    if "halving" in inner.values:
        halving = _read_halving(inner.block("halving"))
    found = Search(
        method=inner.read("method", _method, shared.method),
        trials=inner.read("trials", count_from_one, shared.trials),
        seed=inner.read("seed", count_from_zero, shared.seed),
        halving=halving,
    )
    if found.method == "grid" and found.trials is not None:
        inner.report(("trials",), "a grid tries all of its points; trials needs another method")
    if found.method != "grid" and found.trials is None:
        inner.report((), f"method {found.method} needs `trials`, the number of points to try")
    return found


def _method(value: object) -> str:
    if not isinstance(value, str) or value not in METHODS:
        raise InvalidValue("method", value, choices(METHODS))
    return value


def _read_halving(block: Block) -> Halving | None:
    block.allow(HALVING_KEYS)
    for key in ("first", "last"):
        if block.values.get(key) is None:
            block.report((), f"expected `{key}`, {_EXPECTED_RUNG}")
    first, last = (block.read(key, _read_rung, None) for key in ("first", "last"))
    factor = block.read("factor", count_from_one, 3)
    flags = {key: block.read(key, _flag, key == "resumable") for key in ("resumable", "repeat")}
    if factor < 2:
        block.report(("factor",), f"factor: got {factor}, expected 2 or more")
    if first is None or last is None or factor < 2:
        return None
    try:
        return Halving(rungs=rungs_between(first, last, factor), factor=factor, **flags)
    except InvalidValue as error:
        block.report(("last",), str(error))
        return None


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("value", value, "true or false")
    return value


def _read_rung(value: object) -> Budget:
    """Return the budget of a rung; its unit says what is limited."""
    if not isinstance(value, str):
        raise InvalidValue("value", value, _EXPECTED_RUNG)
    mode = _mode_of(value)
    return Budget.of(mode, {dimension_for(mode, value).key: value})


def _mode_of(text: str) -> str:
    """Return the budget mode of an amount, by its unit."""
    for quantity, mode in ((Duration, "iso_time"), (Energy, "energy_cap")):
        try:
            quantity.parse(text)
        except InvalidValue:
            continue
        return mode
    lower = text.lower()
    if "tok" in lower or "flop" in lower:
        return "iso_tokens" if "tok" in lower else "iso_flops"
    if is_number(text):
        raise InvalidValue("value", text, _EXPECTED_RUNG)
    return "iso_cost"


def rungs_between(first: Budget, last: Budget, factor: int) -> tuple[Budget, ...]:
    """Return the rungs from ``first`` to ``last``, each ``factor`` times the one before.

    Raises:
        InvalidValue: ``last`` is none of them, or of another unit.
    """
    key = first.own_key
    dimension = dimension_of(key)
    assert dimension is not None
    if last.own_key != key:
        raise InvalidValue("last", last.own_key, f"the unit of first, {key}")
    amount, most = dimension.read(first.limits[key]), dimension.read(last.limits[key])
    amounts = [amount]
    while amounts[-1] < most and len(amounts) <= _MOST_RUNGS:
        amounts.append(amounts[-1] * factor)
    if amounts[-1] != most or len(amounts) < 2:
        near = [one for one in amounts[-2:] if one > amount] or [amount * factor]
        texts = " or ".join(map(dimension.text, near))
        expected = f"first times a power of factor {factor}, such as {texts}"
        raise InvalidValue("last", dimension.text(most), expected)
    return tuple(Budget.of(first.mode, {key: dimension.number(one)}) for one in amounts)
