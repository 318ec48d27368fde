"""A budget's mode and limits, as its user states them. Pure.

``outlay.budget.config`` reads budgets from files, the environment and Hydra;
``outlay.budget.limits`` compares use with limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from outlay.budget.limits import (
    CARBON,
    COST,
    DIMENSIONS,
    EPOCHS,
    EXPECTED_STEPS,
    KEYS,
    MICRO_EPOCHS,
    MODES,
    TIME,
    Bound,
    Dimension,
    carbon_at,
    cost_in,
    currency_in,
    dimension_for,
    dimension_of,
    is_number,
    read_steps,
)
from outlay.errors import InvalidValue, choices

CHARGES: Final = ("training", "all")
LIMIT_KEYS: Final = (*KEYS, "steps_per_epoch")
SHOWN_KEYS: Final = (*LIMIT_KEYS, "max_cost_<currency>", CARBON.key)
_ORDER: Final = [dimension.name for dimension in DIMENSIONS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one run. Every limit that is set binds; the mode names the one that must be.

    Attributes:
        mode: ``iso_time``, ``iso_tokens``, ``iso_epochs``, ``comm_cap``, ``energy_cap``,
            ``carbon_cap``, ``iso_cost`` or ``iso_flops``.
        limits: The limits that are set, under their configuration keys and in those keys' units.
        steps_per_epoch: Micro-batches in an epoch; needed where ``max_epochs`` is set.
        charge: What counts as time: ``training``, or ``all`` clocks.
        charge_cost: What counts as cost: ``all`` that the run costs, or ``training`` alone.
        allow_change: Whether a resumed run may have other limits than it started with.
        pauses: Whether a run that reaches a limit is paused, to continue with a larger one, rather
            than completed.
    """

    mode: str
    limits: Mapping[str, int | float]
    steps_per_epoch: int | None = None
    charge: str = "training"
    charge_cost: str = "all"
    allow_change: bool = False
    pauses: bool = False

    @classmethod
    def of(
        cls,
        mode: str,
        limits: Mapping[str, object],
        *,
        charge: str | None = None,
        allow_change: bool = False,
        pauses: bool = False,
    ) -> Self:
        """Return the budget with these limits; ``None`` leaves a limit unset.

        Without a ``charge``, time counts training alone, and cost everything.

        Raises:
            InvalidValue: An unknown mode or key, a mode without its limit, or a limit that is not a
                finite amount above zero.
        """
        mode = next((known for known in MODES if known == str(mode).lower()), mode)
        _check_words(mode, limits, charge)
        given = {_with_factor(key): value for key, value in limits.items() if value is not None}
        steps_per_epoch = given.pop("steps_per_epoch", None)
        _check_limits(mode, given)
        ordered = sorted(given, key=lambda key: _ORDER.index(_limited(key).name))
        return cls(
            mode=mode,
            limits={key: _canonical(key, given[key]) for key in ordered},
            steps_per_epoch=None if steps_per_epoch is None else read_steps(steps_per_epoch),
            charge=charge or "training",
            charge_cost=charge or "all",
            allow_change=allow_change,
            pauses=pauses,
        )

    @classmethod
    def stated_in(cls, terms: Mapping[str, Any]) -> Self:
        """Return the budget of recorded terms; the oldest ones charge all cost."""
        limits = terms.get("limits")
        if not isinstance(limits, Mapping) or "mode" not in terms:
            raise InvalidValue("budget", terms, "a mode and its limits, as a run records them")
        limits = {**limits, "steps_per_epoch": terms.get("steps_per_epoch")}
        return replace(
            cls.of(terms["mode"], limits),
            charge=terms.get("charge", "training"),
            charge_cost=terms.get("charge_cost", "all"),
        )

    def document(self) -> dict[str, Any]:
        """Return the terms as a run records them, for ``stated_in``."""
        terms: dict[str, Any] = {"mode": self.mode, "limits": dict(self.limits)}
        terms |= {"charge": self.charge, "charge_cost": self.charge_cost}
        return terms | {"steps_per_epoch": self.steps_per_epoch}

    def stated_after(self, before: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
        """Return the event and terms of a start; ``before`` is the budget of the start before."""
        changes = {} if before is None else self.changed_from(before["mode"], before["limits"])
        if not changes:
            return "set", self.document()
        was = {key: then for key, (then, _now) in changes.items()}
        return "changed", self.document() | {"was": was}

    @property
    def stated_charge(self) -> str | None:
        """The ``charge`` argument of ``of`` that gives this budget."""
        return self.charge if self.charge == self.charge_cost else None

    @property
    def own_key(self) -> str:
        """The key of the limit that the mode requires."""
        return next(key for key in self.limits if _limited(key).mode == self.mode)

    @property
    def currency(self) -> str:
        """The currency of the limit on money, else USD."""
        return currency_in(self.limits)

    @property
    def limits_money(self) -> bool:
        """Whether there is a limit on money."""
        return cost_in(self.currency).key in self.limits

    def for_epochs_of(self, steps_per_epoch: int) -> Budget:
        """Return the budget with this epoch length, unless the user stated one."""
        if self.steps_per_epoch is not None:
            return self
        return replace(self, steps_per_epoch=read_steps(steps_per_epoch))

    @property
    def needs_steps_per_epoch(self) -> bool:
        """Whether epochs are limited but their length is not known."""
        return EPOCHS.key in self.limits and self.steps_per_epoch is None

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The limits in the units of ``Usage``, the mode's own first.

        Raises:
            InvalidValue: Epochs are limited and their length is not known.
        """
        bounds = [Bound(_limited(key), self._amount(key)) for key in self.limits]
        return tuple(sorted(bounds, key=lambda bound: bound.dimension.mode != self.mode))

    @property
    def bounds_known(self) -> tuple[Bound, ...]:
        """The same without a limit on epochs of unknown length."""
        if not self.needs_steps_per_epoch:
            return self.bounds
        rest = {key: limit for key, limit in self.limits.items() if key != EPOCHS.key}
        return replace(self, limits=rest).bounds

    def _amount(self, key: str) -> int:
        amount = _limited(key).read(self.limits[key])
        if key != EPOCHS.key:
            return amount
        if self.steps_per_epoch is None:
            raise InvalidValue("steps_per_epoch", None, f"{EXPECTED_STEPS}, as {key!r} is set")
        # Rounded down: 2.5 steps allow two.
        steps = amount * self.steps_per_epoch // MICRO_EPOCHS
        if not steps:
            raise InvalidValue(key, self.limits[key], "at least one step's worth of an epoch")
        return steps

    def changed_from(self, mode: object, limits: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the differences from an earlier budget: key → (then, now)."""
        stated = (key for key in (*limits, *self.limits) if dimension_of(key) is not None)
        keys = dict.fromkeys((*KEYS, *stated))
        then = {"mode": mode} | {key: limits.get(key) for key in keys}
        now = {"mode": self.mode} | {key: self.limits.get(key) for key in keys}
        return {key: (then[key], now[key]) for key in then if then[key] != now[key]}


DISABLED: Final = Budget(mode="", limits={}, allow_change=True)
"""The budget of ``enabled: false``: no limits, whatever the run was started with."""


def _check_words(mode: str, limits: Mapping[str, object], charge: str | None) -> None:
    if mode not in MODES:
        raise InvalidValue("budget mode", mode, choices(MODES))
    if charge is not None and charge not in CHARGES:
        raise InvalidValue("charge", charge, choices(CHARGES))
    for key in limits:
        if not is_limit_key(key):
            raise InvalidValue("budget limit", key, choices(SHOWN_KEYS))


def is_limit_key(key: str) -> bool:
    """Return whether a key states a limit or the length of an epoch."""
    return key in LIMIT_KEYS or dimension_of(key) is not None


def _check_limits(mode: str, given: Iterable[str]) -> None:
    """Refuse a mode without its limit, and limits on money in two currencies."""
    money = sorted(key for key in given if _limited(key).name == COST.name)
    if len(money) > 1:
        raise InvalidValue("budget limits", ", ".join(money), "one limit on money, not two")
    if not any(_limited(key).mode == mode for key in given):
        required = MODES[mode].key
        other = ", or that of another currency" if MODES[mode] is COST else ""
        raise InvalidValue(required, None, f"a limit: mode {mode!r} requires {required!r}{other}")


def _with_factor(key: str) -> str:
    """Return the key of a limit; that of emissions with the factor that ``outlay.toml`` states."""
    if key != CARBON.key:
        return key
    from outlay.prices.energy_factors import read_factors  # Few runs limit emissions.

    mg_per_kwh = read_factors().emitted_mg_per_kwh
    if not mg_per_kwh:
        raise InvalidValue(key, None, 'a factor in outlay.toml: carbon = "350 g/kWh"')
    return carbon_at(mg_per_kwh).key


def _limited(key: str) -> Dimension:
    dimension = dimension_of(key)
    assert dimension is not None
    return dimension


def _canonical(key: str, value: object) -> int | float:
    dimension = _limited(key)
    return dimension.number(dimension.read(value))


def refuse_bare_time(mode: str, limit: object) -> None:
    """Refuse a time without a unit: it could mean minutes or hours."""
    if MODES[mode] is TIME and is_number(limit):
        readings = f'"{limit}min" for minutes or "{limit}h" for hours'
        raise InvalidValue(mode, limit, f"a duration with its unit: {readings}")


def iso_time(limit: object, **caps: object) -> Budget:
    """Return a budget that stops after a training time: ``iso_time("2h")``.

    A number without a unit is refused. Every constructor takes further limits as keywords:
    ``iso_time("2h", max_cost_usd=5)``.
    """
    refuse_bare_time("iso_time", limit)
    return _with_caps("iso_time", limit, caps)


def iso_tokens(limit: object, **caps: object) -> Budget:
    """Return a budget that stops after a number of tokens: ``iso_tokens("50k")``."""
    return _with_caps("iso_tokens", limit, caps)


def iso_epochs(limit: object, **caps: object) -> Budget:
    """Return a budget that stops after a number of epochs: ``iso_epochs(3)``."""
    return _with_caps("iso_epochs", limit, caps)


def iso_cost(limit: object, **caps: object) -> Budget:
    """Return a budget that stops at a cost: ``iso_cost("5 USD")``.

    The currency must be that of the run's price. All cost counts, start-up included; with
    ``charge="training"``, only that of steps and their data wait.
    """
    return _with_caps("iso_cost", limit, caps)


def iso_flops(limit: object, **caps: object) -> Budget:
    """Return a budget that stops after a number of FLOPs: ``iso_flops("1.5 EFLOP")``."""
    return _with_caps("iso_flops", limit, caps)


def comm_cap(limit: object, **caps: object) -> Budget:
    """Return a budget that stops after a number of collectives' bytes: ``comm_cap("10GB")``."""
    return _with_caps("comm_cap", limit, caps)


def energy_cap(limit: object, **caps: object) -> Budget:
    """Return a budget that stops after an amount of energy: ``energy_cap("1.2 kWh")``."""
    return _with_caps("energy_cap", limit, caps)


def carbon_cap(limit: object, **caps: object) -> Budget:
    """Return a budget that stops after emissions: ``carbon_cap("1.2 kg")``.

    They are those of measured energy, by ``carbon`` and ``pue`` in ``outlay.toml``.
    """
    return _with_caps("carbon_cap", limit, caps)


def _with_caps(mode: str, limit: object, caps: dict[str, object]) -> Budget:
    stated = caps.pop("charge", None)
    charge = None if stated is None else str(stated)
    allow_change = bool(caps.pop("allow_change", False))
    limits = {**caps, dimension_for(mode, limit).key: limit}
    return Budget.of(mode, limits, charge=charge, allow_change=allow_change)
