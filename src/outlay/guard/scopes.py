"""Scopes of limits: for whom money is counted, and in which period. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

from outlay.errors import InvalidValue, choices
from outlay.units import Money

BUFFER: Final = "buffer"
_LAB = re.compile(r"lab[ _]?(\d+)", re.IGNORECASE)

Of = Literal["whole", "lab", "user", "team"]
OFS: tuple[Of, ...] = get_args(Of)
Period = Literal["", "day", "month", "hour"]
PERIODS: tuple[Period, ...] = get_args(Period)
HOUR: Final = "hour"
"""The period of a limit on what open holds cost per hour, by the rates that they state."""
EACH: Final = "*"
"""The name in a limit of each user, team or project that has none of its own."""
_SHOWN = {"whole": "", "lab": "project"}  # The spend log says "lab", the user interface "project".


def lab_of(op_label: str, lab: str | None = None) -> str:
    """Return the lab that pays: ``lab``, else the label's ``labNN``, else the buffer.

    ``lab02`` and ``02`` are the same lab; the manifest writes ``02``.
    """
    name = op_label.split("-", 1)[0] if lab is None else lab
    if match := _LAB.fullmatch(name.strip()):
        return match[1]
    return BUFFER if lab is None else lab.strip()


def read_of(text: str) -> Of:
    """Return what a limit is of, as lines state it."""
    found = next((of for of in OFS if of == text), None)
    if found is None:
        raise InvalidValue("of", text, choices(OFS))
    return found


def read_period(text: str) -> Period:
    """Return a kind of period, as lines state it."""
    found = next((period for period in PERIODS if period == text), None)
    if found is None:
        raise InvalidValue("period", text, choices(PERIODS[1:]))
    return found


class Payer(NamedTuple):
    """Who pays; an empty user or team is unknown."""

    lab: str
    user: str = ""
    team: str = ""


class Scope(NamedTuple):
    """What a limit applies to: the whole log, a lab, a user or a team, at all times or in a period.

    Attributes:
        period: Empty, a UTC day, a UTC month, or ``HOUR``.
    """

    of: Of
    name: str = ""
    period: str = ""

    def __str__(self) -> str:
        return _text(self.of, self.name, self.period_kind, self.period)

    @property
    def period_kind(self) -> Period:
        """The kind of its period."""
        match len(self.period):
            case 10:
                return "day"
            case 7:
                return "month"
            case _:
                return "hour" if self.period == HOUR else ""


WHOLE = Scope("whole")


class ScopePattern(NamedTuple):
    """The scopes of a limit: those of every day or month, or of each name."""

    of: Of = "whole"
    name: str = ""
    period: Period = ""

    def __str__(self) -> str:
        return _text(self.of, self.name, self.period)

    def on(self, day: str) -> Scope:
        """Return its scope on a UTC day."""
        return Scope(self.of, self.name, _periods(day)[self.period])

    @classmethod
    def of_scope(cls, scope: Scope) -> ScopePattern:
        """Return the pattern of a scope's own limit."""
        return cls(scope.of, scope.name, scope.period_kind)


def _text(of: Of, name: str, period: Period, dated: str = "") -> str:
    who = f"{_SHOWN.get(of, of)} {name}".strip()
    when = f"{period} {dated if dated != HOUR else ''}".strip()
    return f"{who} {when}".strip() or "whole"


def _periods(day: str) -> dict[Period, str]:
    return {"": "", "day": day, "month": day[:7], "hour": HOUR}


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a scope.

    Attributes:
        amount: In the period; of ``HOUR``, per hour.
        refuses: Whether what exceeds it is refused; else it is only reported.
        by: Who or what set it.
    """

    amount: Money
    refuses: bool = True
    by: str = ""


@lru_cache(maxsize=1024)
def scopes_of(payer: Payer, day: str) -> tuple[Scope, ...]:
    """Return every scope in which money of this payer and day counts."""
    periods = tuple(_periods(day)[each] for each in ("", "day", "month"))
    names: tuple[tuple[Of, str], ...] = (
        ("whole", ""), ("lab", payer.lab), ("user", payer.user), ("team", payer.team),
    )  # fmt: skip
    known = [(of, name) for of, name in names if name or of in ("whole", "lab")]
    return tuple(Scope(of, name, period) for period in periods for of, name in known)


@lru_cache(maxsize=1024)
def all_scopes_of(payer: Payer, day: str) -> tuple[Scope, ...]:
    """Return the scopes of a payer and day, with those of hourly limits."""
    counted = scopes_of(payer, day)
    return (*counted, *(scope._replace(period=HOUR) for scope in counted if not scope.period))


@lru_cache(maxsize=4096)
def patterns_of(scope: Scope) -> tuple[ScopePattern, ScopePattern]:
    """Return the pattern of a scope's own limit, and that of each which has none of its own."""
    own = ScopePattern.of_scope(scope)
    return own, own._replace(name=EACH) if scope.name else own
