"""Limits: what can be limited, how a limit is parsed, thresholds, pace and forecast. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cache
from typing import TYPE_CHECKING, Final

from outlay.budget.usage import Usage
from outlay.errors import Finding, InvalidValue
from outlay.rates import units_of
from outlay.units import Duration, Energy, Flops, Money, Tokens
from outlay.units.money import MICROS, PERCENTS, percents_reached
from outlay.units.quantity import EXACT, MILLIJOULES_PER_WH, exact_decimal, split_unit, whole

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

# Bounds and reasons to stop

TENTH: Final = 10
"""A start-up of more than a tenth of a limit causes a warning."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit, in the unit of its field of ``Usage``."""

    dimension: Dimension
    limit: int

    def used(self, usage: Usage) -> int:
        """Return how much of this limit's dimension was used."""
        amount: int = getattr(usage, self.dimension.name)
        return amount

    def left(self, usage: Usage) -> int:
        """Return what is left; negative once the limit is exceeded."""
        return self.limit - self.used(usage)

    def share(self, usage: Usage) -> float:
        """Return the used share of the limit; above 1 once it is exceeded."""
        return self.used(usage) / self.limit

    def text(self, used: int) -> str:
        """Return an amount of the limit for people: ``3.00 USD of 5.00 USD``."""
        return f"{self.dimension.text(used)} of {self.dimension.text(self.limit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """The limit that stops the run.

    Attributes:
        asked: What the refused step would have used; 0 if the limit was reached.
        before_start: Whether it was reached before this attempt's first step.
        down: The part of a cost that is due to the time between attempts.
    """

    bound: Bound
    used: int
    asked: int = 0
    before_start: bool = False
    down: int = 0

    @property
    def over(self) -> int:
        """How far the use exceeds the limit, including that of the refused step."""
        return self.used + self.asked - self.bound.limit

    @property
    def key(self) -> str:
        """The configuration key of the limit."""
        return self.bound.dimension.key

    def __str__(self) -> str:
        dimension = self.bound.dimension
        text, used = dimension.text, f"{dimension.label}: {self.bound.text(self.used)} used"
        if self.before_start:
            down = f", of which {text(self.down)} while down between attempts" if self.down else ""
            return f"budget was exhausted before this start: {used}{down}"
        if self.asked:
            return f"{used}, the next step would pass it by {text(self.over)}"
        return f"{used}, {text(self.over)} over" if self.over else used


def reached(total: Usage, bounds: Iterable[Bound]) -> StopReason | None:
    """Return the first limit that is reached: total ≥ limit."""
    for bound in bounds:
        used = bound.used(total)
        if used >= bound.limit:
            return StopReason(bound=bound, used=used)
    return None


def would_pass(total: Usage, step: Usage, bounds: Iterable[Bound]) -> StopReason | None:
    """Return the first limit that a step of this size would exceed: total + step > limit."""
    for bound in bounds:
        used, asked = bound.used(total), bound.used(step)
        if used + asked > bound.limit:
            return StopReason(bound=bound, used=used, asked=asked)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """The start-up before the first step, measured on earlier attempts.

    Attributes:
        ns: The median time.
        units: Its exact cost; 0 without a price in the counted currency.
        attempts: How many attempts were measured.
    """

    ns: int
    units: int = 0
    attempts: int

    def too_long_for(self, bounds: Iterable[Bound]) -> list[Finding]:
        """Return a warning for each limit of which start-up takes more than a tenth."""
        findings = []
        for bound in bounds:
            amounts = {TIME.name: self.ns, COST.name: self.units}
            amount = amounts.get(bound.dimension.name, 0)
            if amount > bound.limit // TENTH:
                text = bound.dimension.text
                message = (
                    f"start-up takes {text(amount)}, {amount / bound.limit:.0%} of "
                    f"{bound.dimension.key} {text(bound.limit)}"
                )
                findings.append(Finding(source="plan", message=message, severity="warning"))
        return findings


# Parsing of a limit's amount: exact, finite and above zero

NS_PER_MINUTE: Final = 60 * 10**9
MICRO_EPOCHS: Final = 1_000_000
CURRENCY: Final = "USD"
"""The currency of money unless a limit names another."""
_COST_KEY: Final = re.compile("max_cost_([a-z]{3})")
_CARBON_KEY: Final = re.compile("max_carbon_g_at_([1-9][0-9]{0,9})")
_EXPECTED_GRAMS = 'grams of CO2-equivalent such as 500, or "1.2 kg"; more than zero'
_GRAMS = {"g": 1, "kg": 1000, "t": 10**6}
EXPECTED_STEPS: Final = "a whole number of steps, more than zero"
_EXPECTED_MINUTES = 'minutes such as 90 or 2.5, or a duration such as "2h"; more than zero'
_EXPECTED_BYTES = 'a whole number of bytes, such as 10**9, "10GB" or "5GiB"; more than zero'
_EXPECTED_WH = 'watt-hours such as 50 or 0.5, or an energy such as "1.2 kWh"; more than zero'
_EXPECTED_EPOCHS = "a number of epochs, such as 3 or 2.5, at least a millionth"
_BYTES = {"": 1, "B": 1}
_BYTES |= {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)}
_BYTES |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)}


def _number(value: object, *, name: str, expected: str) -> Decimal:
    number = exact_decimal(value, name=name, expected=expected)
    if number <= 0 or number.adjusted() > 30:
        raise InvalidValue(name, value, expected)
    return number


def is_number(value: object) -> bool:
    """Return whether a value has no unit, also as text (``OUTLAY_BUDGET``, ``50_000``)."""
    if not isinstance(value, str):
        return isinstance(value, int | float | Decimal)
    try:
        Decimal(value.replace("_", ""))
    except ArithmeticError:
        return False
    return True


def _above_zero(amount: int, *, name: str, seen: object, expected: str) -> int:
    if not amount:
        raise InvalidValue(name, seen, expected)
    return amount


def _read_scaled(
    name: str, unit: int, expected: str, quantity: type[Duration | Energy] | None = None
) -> Callable[[object], int]:
    """Return a parser of ``2.5`` (times ``unit``) or of a ``quantity`` such as ``"2h"``."""

    def read(value: object) -> int:
        if quantity is not None and not is_number(value):
            amount = quantity.parse(value, name=name).value
        else:
            number = _number(value, name=name, expected=expected)
            amount = int(EXACT.multiply(number, unit).to_integral_value(ROUND_HALF_EVEN))
        return _above_zero(amount, name=name, seen=value, expected=expected)

    return read


def _read_bytes(value: object) -> int:
    """Parse a whole number of bytes, or ``"10GB"`` or ``"5GiB"``."""
    name, expected, count = COMM.key, _EXPECTED_BYTES, value
    if isinstance(value, str):
        number, unit = split_unit(value, name=name, expected=expected)
        if unit not in _BYTES:
            raise InvalidValue(name, value, expected)
        count = EXACT.multiply(number, _BYTES[unit])
    exact = _number(count, name=name, expected=expected)
    return whole(exact, name=name, seen=value, expected=expected)


def _read_count(quantity: type[Tokens | Flops], name: str) -> Callable[[object], int]:
    """Return a parser of ``50_000``, ``"50k"`` or ``"1.5 EFLOP"`` to a whole number above zero."""

    def read(value: object) -> int:
        count = quantity.parse(value, name=name).value
        expected = f"{quantity.EXPECTED}, more than zero"
        return _above_zero(count, name=name, seen=value, expected=expected)

    return read


def _read_money(value: object, *, key: str, currency: str) -> int:
    """Parse ``5`` or ``"5 USD"`` to exact units; another currency than the key's is refused."""
    expected = f'an amount in {currency} such as 5 or "5 {currency}", more than zero'
    money = Money.parse(value, name=key, currency=currency)
    if money.currency != currency:
        other = f"{expected}; {cost_in(money.currency).key} limits {money.currency}"
        raise InvalidValue(key, str(money), other)
    return _above_zero(units_of(money), name=key, seen=value, expected=expected)


def read_steps(value: object) -> int:
    """Parse a number of steps per epoch."""
    name = "steps_per_epoch"
    count = _number(value, name=name, expected=EXPECTED_STEPS)
    return whole(count, name=name, seen=value, expected=EXPECTED_STEPS)


# Dimensions: everything that can be limited


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One quantity that can be limited.

    Attributes:
        name: The field of ``Usage`` that counts it.
        label: Its name for people.
        key: The configuration key of its limit.
        mode: The budget mode that requires that limit.
        progress: Whether it counts surviving work, which a rollback takes back, rather than a
            resource, which is never refunded.
        predictable: Whether a step's use is known before it runs.
        read: Parses a limit to the unit of ``name``.
        number: Converts an amount to the unit of ``key``.
        text: Formats an amount.
    """

    name: str
    label: str
    key: str
    mode: str
    progress: bool = False
    predictable: bool = False
    read: Callable[[object], int] = field(repr=False)
    number: Callable[[int], int | float] = field(repr=False)
    text: Callable[[int], str] = field(repr=False)


def _ratio(amount: int, unit: int) -> int | float:
    return amount / unit if amount % unit else amount // unit


TIME: Final = Dimension(
    name="time_ns",
    label="time",
    key="max_minutes",
    mode="iso_time",
    read=_read_scaled("max_minutes", NS_PER_MINUTE, _EXPECTED_MINUTES, Duration),
    number=lambda ns: _ratio(ns, NS_PER_MINUTE),
    text=lambda ns: str(Duration(ns)),
)
TOKENS: Final = Dimension(
    name="tokens",
    label="tokens",
    key="max_tokens",
    mode="iso_tokens",
    progress=True,
    predictable=True,
    read=_read_count(Tokens, "max_tokens"),
    number=int,
    text=lambda count: str(Tokens(count)),
)
EPOCHS: Final = Dimension(
    name="steps",
    label="epochs",
    key="max_epochs",
    mode="iso_epochs",
    progress=True,
    predictable=True,
    read=_read_scaled("max_epochs", MICRO_EPOCHS, _EXPECTED_EPOCHS),
    number=lambda micro_epochs: _ratio(micro_epochs, MICRO_EPOCHS),
    text=lambda count: f"{count:,} steps",
)
COMM: Final = Dimension(
    name="comm_bytes",
    label="collectives",
    key="max_comm_bytes",
    mode="comm_cap",
    read=_read_bytes,
    number=int,
    text=lambda count: f"{count:,} B",
)
ENERGY: Final = Dimension(
    name="energy_mj",
    label="energy",
    key="max_energy_Wh",
    mode="energy_cap",
    read=_read_scaled("max_energy_Wh", MILLIJOULES_PER_WH, _EXPECTED_WH, Energy),
    number=lambda mj: _ratio(mj, MILLIJOULES_PER_WH),
    text=lambda mj: str(Energy(mj)),
)


def _read_grams(value: object, *, key: str, mg_per_kwh: int) -> int:
    """Parse ``500`` (grams) or ``"1.2 kg"`` to the energy that emits as much."""
    number, unit = value, "g"
    if isinstance(value, str) and not is_number(value):
        number, unit = split_unit(value, name=key, expected=_EXPECTED_GRAMS)
    if unit not in _GRAMS:
        raise InvalidValue(key, value, _EXPECTED_GRAMS)
    grams = _number(number, name=key, expected=_EXPECTED_GRAMS) * _GRAMS[unit]
    energy_mj = round(grams * (1000 * _MJ_PER_KWH) / mg_per_kwh)
    return _above_zero(energy_mj, name=key, seen=value, expected=_EXPECTED_GRAMS)


@cache
def carbon_at(mg_per_kwh: int) -> Dimension:
    """Return the dimension of emissions at a factor, which the key states: that of energy."""
    key = f"max_carbon_g_at_{mg_per_kwh}"

    def grams(energy_mj: int) -> float:
        return energy_mj * mg_per_kwh / (1000 * _MJ_PER_KWH)

    return Dimension(
        name=ENERGY.name,
        label="emissions",
        key=key,
        mode="carbon_cap",
        read=lambda value: _read_grams(value, key=key, mg_per_kwh=mg_per_kwh),
        number=grams,
        text=lambda energy_mj: f"{grams(energy_mj):,.3f} gCO2e",
    )


CARBON: Final = replace(carbon_at(1), key="max_carbon_g")
"""Emissions by the factor that ``outlay.toml`` states; a budget has the key with the factor."""
_MJ_PER_KWH: Final = 1000 * MILLIJOULES_PER_WH


@cache
def cost_in(currency: str) -> Dimension:
    """Return the dimension of money in a currency."""
    key = f"max_cost_{currency.lower()}"
    return Dimension(
        name="cost_units",
        label="cost",
        key=key,
        mode="iso_cost",
        read=lambda value: _read_money(value, key=key, currency=currency),
        number=lambda units: _ratio(Usage(cost_units=units).cost_micros, MICROS),
        text=lambda units: str(Money(Usage(cost_units=units).cost_micros, currency)),
    )


COST: Final = cost_in(CURRENCY)
FLOPS: Final = Dimension(
    name="flops",
    label="FLOPs",
    key="max_flops",
    mode="iso_flops",
    progress=True,
    read=_read_count(Flops, "max_flops"),
    number=int,
    text=lambda count: str(Flops(count)),
)

DIMENSIONS: Final = (TIME, TOKENS, EPOCHS, COMM, ENERGY, COST, FLOPS)
MODES: Final = {dimension.mode: dimension for dimension in (*DIMENSIONS, CARBON)}
KEYS: Final = {dimension.key: dimension for dimension in DIMENSIONS}


def dimension_of(key: str) -> Dimension | None:
    """Return the dimension of a configuration key, or None.

    Besides ``KEYS``, money has a key for each currency: ``max_cost_eur``; emissions have one for
    each factor, in milligrams per kWh: ``max_carbon_g_at_420000``.
    """
    if found := KEYS.get(key):
        return found
    if key == CARBON.key:
        return CARBON
    if match := _CARBON_KEY.fullmatch(str(key)):  # A key in YAML may be a number.
        return carbon_at(int(match[1]))
    match = _COST_KEY.fullmatch(str(key))
    return cost_in(match[1].upper()) if match else None


def dimension_for(mode: str, limit: object) -> Dimension:
    """Return the dimension of a mode; that of money depends on the currency of ``limit``."""
    own = MODES[mode]
    return cost_in(Money.parse(limit, name=own.key).currency) if own is COST else own


def currency_in(keys: Iterable[str]) -> str:
    """Return the currency of the limit on money among these keys, or ``CURRENCY``."""
    found = filter(None, map(_COST_KEY.fullmatch, keys))
    return next((match[1].upper() for match in found), CURRENCY)


def total_key(currency: str) -> str:
    """Return the name of a total of money in documents: ``cost_usd``."""
    return f"cost_{currency.lower()}"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit of which ``percent`` % is used for the first time."""

    bound: Bound
    percent: int
    used: int

    def __str__(self) -> str:
        label, used = self.bound.dimension.label, self.bound.text(self.used)
        return f"{self.percent}% of the limit on {label} is used: {used}"


class Thresholds:
    """The thresholds that a total has not crossed yet.

    Attributes:
        nearest: For each limit, the field of ``Usage`` and the amount of its next threshold.
    """

    def __init__(self, bounds: Iterable[Bound], total: Usage) -> None:
        marks = [(bound, percent) for bound in bounds for percent in PERCENTS]
        self._keep_ahead(marks, total)

    def _keep_ahead(self, marks: list[tuple[Bound, int]], total: Usage) -> None:
        self._ahead = [mark for mark in marks if not _is_reached(*mark, total)]
        least: dict[str, int] = {}
        for bound, percent in self._ahead:
            amount, name = -(-bound.limit * percent // 100), bound.dimension.name
            least[name] = min(amount, least.get(name, amount))  # Emissions are limits on energy.
        self.nearest = list(least.items())

    def cross(self, total: Usage) -> list[Threshold]:
        """Return the thresholds crossed since the last call."""
        crossed = [mark for mark in self._ahead if _is_reached(*mark, total)]
        if crossed:
            self._keep_ahead(self._ahead, total)
        return [Threshold(bound, percent, bound.used(total)) for bound, percent in crossed]


def _is_reached(bound: Bound, percent: int, total: Usage) -> bool:
    return percent in percents_reached(bound.used(total), bound.limit)


# The present pace: what the steps of the last minutes used, in how much time
#
# The time is wall time, of steps and of what is between them. Start-up is before the first step,
# which itself compiles and allocates: it counts only while there are fewer than three.

PACE_NS: Final = 5 * NS_PER_MINUTE
PACE_STEPS: Final = 20
_MARK_NS: Final = 10**9
"""How far apart totals are kept, so that there are few of them however short the steps are."""


def pace_start(ends_ns: SupportsLenAndGetItem[int]) -> int:
    """Return the step at whose end the present pace begins, given the ends of all steps.

    The last one that is ``PACE_NS`` and ``PACE_STEPS`` ago, else the first.
    """
    last = len(ends_ns) - 1
    return max(0, min(bisect_right(ends_ns, ends_ns[last] - PACE_NS) - 1, last - PACE_STEPS))


class RecentUse:
    """What the steps of the last minutes used, while they run."""

    def __init__(self) -> None:
        self._steps = 0
        self._total = Usage()
        self._marks: deque[tuple[int, Usage]] = deque()
        self._end = (0, self._total)

    def add(self, usage: Usage) -> None:
        """Add what was used outside of steps."""
        self._total += usage

    def add_step(self, end_ns: int, usage: Usage, own: Usage) -> None:
        """Add a step's use since the last one; ``own`` is without that before it."""
        self._steps += 1
        if self._steps == 1:
            self._total, usage = Usage(), own
            self._marks.append((end_ns - own.time_ns, self._total))
        elif self._steps == 3:
            self._marks.popleft()
        self._total += usage
        self._end = (end_ns, self._total)
        if self._steps == 1 or end_ns - self._marks[-1][0] >= _MARK_NS:
            self._marks.append(self._end)
            if self._steps >= 3:
                for _ in range(pace_start([mark_ns for mark_ns, _ in self._marks])):
                    self._marks.popleft()

    @property
    def pace(self) -> tuple[int, Usage]:
        """The nanoseconds of the last minutes, and what was used in them; zero without a step."""
        end_ns, total = self._end
        begin_ns, before = self._marks[0] if self._marks else self._end
        return end_ns - begin_ns, total - before


# Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The limit that will stop the run first, estimated from the present pace.

    Attributes:
        time_left_ns: The wall time until then.
        at_step: The total number of steps at the stop.
    """

    bound: Bound
    steps_left: int
    time_left_ns: int
    at_step: int


def forecast(
    total: Usage, measured: Usage, measured_ns: int, bounds: Iterable[Bound]
) -> Forecast | None:
    """Return when a run reaches its first limit, or None if no limited amount was measured.

    ``measured`` was used in ``measured_ns`` of wall time; that is the pace.
    """
    if not measured.steps:
        return None
    forecasts = []
    for bound in bounds:
        pace = bound.used(measured)
        if pace <= 0:
            continue
        left = max(0, bound.left(total))
        if bound.dimension.predictable:  # Never exceeded: the last step still fits.
            steps = left * measured.steps // pace
            left_ns = steps * measured_ns // measured.steps
        else:
            steps = -(-left * measured.steps // pace)
            left_ns = left * measured_ns // pace
        forecasts.append(
            Forecast(
                bound=bound, steps_left=steps, time_left_ns=left_ns, at_step=total.steps + steps
            )
        )
    return min(forecasts, key=lambda each: (each.steps_left, each.time_left_ns), default=None)
