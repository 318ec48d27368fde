"""Ceilings: from the caller, the environment, ``manifest.json`` beside the log and its lines.

The environment overrides the caller; both can only tighten the manifest. A setting that can't be
parsed refuses everything. The manifest also holds the hash of the log's first line, so that a log
started over is not taken for the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from outlay.decoding import BadDocument, Decoder
from outlay.errors import InvalidValue, choices
from outlay.files import read_own, write_whole
from outlay.guard.balance import (
    Books,
    unit_of,
)
from outlay.guard.entries import LARGEST, Noted, amount_of, micros_of
from outlay.guard.errors import CeilingUnusable
from outlay.guard.scopes import (
    BUFFER,
    EACH,
    HOUR,
    PERIODS,
    WHOLE,
    Limit,
    Of,
    Payer,
    Scope,
    ScopePattern,
    all_scopes_of,
    lab_of,
    patterns_of,
    read_of,
    read_period,
)
from outlay.units import Money, Unit
from outlay.units.money import MICROS

MANIFEST_NAME = "manifest.json"
_NAMES: Final[dict[Of, str]] = {"user": "user", "team": "team", "lab": "project"}
OVERRIDES = ("LYNX_CLOUD_BUDGET_USD", "OUTLAY_CEILING_USD")
_AMOUNT = "an amount of zero or more, such as 5.00"


class ScopedCeiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one user, team or project, or of the whole log without these; ``*`` is each.

    Attributes:
        all: At all times.
        hour: Of what open holds cost per hour.
        enforce: Whether what exceeds them is refused, or only reported.
    """

    user: str = ""
    team: str = ""
    project: str = ""
    all: Decimal | None = None
    day: Decimal | None = None
    month: Decimal | None = None
    hour: Decimal | None = None
    enforce: Literal["refuse", "warn"] = "refuse"


class CeilingManifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``: the documented keys, more caps, and the logs' first lines."""

    seed: int = 35000
    lab: str = "00-cloud-budget-and-tooling"
    hardware_target: str = "to be filled in lab 02"
    vendor: str = "<chosen>"
    currency: str
    ceiling_usd: Decimal
    ceiling_per_lab: dict[str, Decimal] = {}
    spend_log_path: str = "spend.jsonl"
    vendor_snapshot_date: str = ""
    vendor_snapshot_prices: dict[str, str | float] = {}
    ceiling_per_day_usd: Decimal | None = None
    ceiling_per_month_usd: Decimal | None = None
    ceiling_scopes: tuple[ScopedCeiling, ...] = ()
    first_lines: dict[str, str] | None = None


_decoder = Decoder[CeilingManifest](CeilingManifest)
_names_decoder = Decoder[dict[str, object]](dict[str, object])


def manifest_path(log_path: Path) -> Path:
    """Return the path of a log's manifest: beside the file itself, links resolved."""
    return log_path.resolve().parent / MANIFEST_NAME


def first_line_of(manifest: Path, log_name: str) -> str | None:
    """Return the hash of a log's first line in a manifest, "" if it names none.

    None without a manifest, or with one that can't be parsed: authorising refuses that.
    """
    try:
        stated = read_manifest(manifest)
    except CeilingUnusable:
        return None
    return None if stated is None else (stated.first_lines or {}).get(log_name, "")


def write_first_line(path: Path, log_name: str, first: str) -> None:
    """Write the hash of a log's first line into the manifest, if there is one."""
    manifest = read_manifest(path)
    if manifest is not None:
        _rewrite(path, first_lines={**(manifest.first_lines or {}), log_name: first})


def write_ceiling(path: Path | None, ceiling: Money) -> bool:
    """Write a new ceiling into the manifest; return whether there is one."""
    if path is None or read_manifest(path) is None:
        return False
    _rewrite(path, ceiling_usd=amount_of(ceiling.micros))
    return True


def _rewrite(path: Path, **changes: object) -> None:
    """Replace keys of a manifest; the text of the other values is unchanged."""
    encoder = msgspec.json.Encoder(decimal_format="number")
    keys = _names_decoder.decode(read_own(path))
    keys |= {name: msgspec.Raw(encoder.encode(value)) for name, value in changes.items()}
    text = msgspec.json.format(encoder.encode(keys), indent=2)
    write_whole(path, text + b"\n", synced=True)


def read_manifest(path: Path) -> CeilingManifest | None:
    """Return the manifest, or None when there is none.

    Raises:
        CeilingUnusable: It can't be read, or has an unknown ceiling key.
    """
    raw = _read_bytes(path)
    return None if raw is None else _parse_manifest(raw, str(path))


def _read_bytes(path: Path) -> bytes | None:
    try:
        return read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CeilingUnusable(str(path), str(error), "a readable manifest.json") from error


# A manifest is read for every decision and seldom changes. The cache is keyed by content: an edit
# may leave a file's size and times unchanged.
@lru_cache(maxsize=16)
def _parse_manifest(raw: bytes, where: str) -> CeilingManifest:
    try:
        manifest = _decoder.decode(raw)
        names = _names_decoder.decode(raw)
    except BadDocument as error:
        raise CeilingUnusable(where, str(error), "a readable manifest.json") from error
    known = [name for name in CeilingManifest.__struct_fields__ if name.startswith("ceiling")]
    for name in names:
        # Any other key is the user's own; a misspelt ceiling would silently not apply.
        if name.startswith("ceiling") and name not in known:
            raise CeilingUnusable(where, name, choices(known))
    return manifest


def stated_ceiling(
    path: Path | None, books: Books, environ: Mapping[str, str], *, log: str
) -> Money | None:
    """Return the ceiling from the manifest, else the log's last line, else the environment.

    None where lines of the log set its limits: no other ceiling is needed then.
    """
    if books.limited:
        return None
    manifest, currency = None if path is None else read_manifest(path), books.currency or "USD"
    if manifest is not None:
        where = f"{path}: ceiling_usd"
        return parse_limit(manifest.ceiling_usd, where=where, currency=manifest.currency)
    if books.ceiling_micros is not None:
        return books.unit.money(books.ceiling_micros)
    for name in OVERRIDES:
        if name in environ:
            return parse_limit(environ[name], where=name, currency=currency)
    manifest_hint = "" if path is None else ", or write a manifest with `outlay guard init`"
    raise CeilingUnusable(log, None, f"a ceiling: name one{manifest_hint}")


def parse_limit(value: object, *, where: str, currency: str) -> Money:
    """Return a limit as Money of a unit, rounded to the micro-unit."""
    unit = unit_of(currency)
    try:
        parsed = Money.parse(value, name=where, currency=unit.currency)
    except InvalidValue:
        raise CeilingUnusable(where, value, _AMOUNT) from None
    if parsed.currency != unit.currency or (parsed.kind != "cash" and parsed.unit != unit):
        raise CeilingUnusable(where, value, f"an amount in {currency}")
    return parsed.as_kind(unit.kind)


def parse_cap(value: object, *, where: str, currency: str) -> Money | None:
    """Return an optional limit."""
    return None if value is None else parse_limit(value, where=where, currency=currency)


def parse_lab_caps(caps: Mapping[str, object], *, where: str, currency: str) -> dict[str, Money]:
    """Return the cap of each lab."""
    limits: dict[str, Money] = {}
    for name, cap in caps.items():
        lab = lab_of("", name)
        if lab in limits:
            raise CeilingUnusable(where, sorted(caps), f"one cap for project {lab}")
        limits[lab] = parse_limit(cap, where=where, currency=currency)
    return limits


def manifest_ceilings(path: Path | None, currency: str) -> Ceilings | None:
    """Return the ceilings of a manifest, or None when there is no manifest."""
    raw = None if path is None else _read_bytes(path)
    return None if raw is None else _parse_ceilings(raw, str(path), currency)


@lru_cache(maxsize=16)
def _parse_ceilings(raw: bytes, where: str, currency: str) -> Ceilings:
    manifest = _parse_manifest(raw, where)
    if manifest.currency != currency:
        raise CeilingUnusable(where, manifest.currency, f"currency {currency}")

    labs, day, month = (f"{where}: ceiling_per_{name}" for name in ("lab", "day_usd", "month_usd"))
    return Ceilings(
        whole=parse_limit(manifest.ceiling_usd, where=f"{where}: ceiling_usd", currency=currency),
        labs=parse_lab_caps(manifest.ceiling_per_lab, where=labs, currency=currency),
        day=parse_cap(manifest.ceiling_per_day_usd, where=day, currency=currency),
        month=parse_cap(manifest.ceiling_per_month_usd, where=month, currency=currency),
        by=MANIFEST_NAME,
        scoped=_parse_scopes(manifest.ceiling_scopes, where, currency),
        unit=unit_of(currency),
    )


def _parse_scopes(
    stated: tuple[ScopedCeiling, ...], where: str, currency: str
) -> tuple[dict[ScopePattern, Limit], ...]:
    where = f"{where}: ceiling_scopes"
    found: dict[ScopePattern, Limit] = {}
    for each in stated:
        named = [(of, getattr(each, key)) for of, key in _NAMES.items() if getattr(each, key)]
        if len(named) > 1:
            raise CeilingUnusable(where, [name for _, name in named], "one of user, team, project")
        of, name = named[0] if named else (WHOLE.of, "")
        for period in PERIODS:
            if (amount := getattr(each, period or "all")) is None:
                continue
            pattern = ScopePattern(of, lab_of("", name) if of == "lab" else name, period)
            if pattern in found:
                raise CeilingUnusable(where, str(pattern), "one limit of it")
            limit = parse_limit(amount, where=where, currency=currency)
            found[pattern] = Limit(limit, each.enforce == "refuse", MANIFEST_NAME)
    return (found,) if found else ()


def resolve_ceilings(
    given: Ceilings, manifest: Ceilings | None, environ: Mapping[str, str]
) -> Ceilings:
    """Return the ceilings in force: the environment overrides ``given``, the manifest tightens."""
    found = {
        name: parse_limit(environ[name], where=name, currency=str(given.unit))
        for name in OVERRIDES
        if name in environ
    }
    if len(set(found.values())) > 1:
        raise CeilingUnusable(" and ".join(found), [str(x) for x in found.values()], "one value")
    if found:
        by, whole = next(iter(found.items()))
        given = replace(given, whole=whole, by=by, over=given.whole)
    return given if manifest is None else given.tightened_by(manifest)


# The limits in force, and what is left of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The limits in force; ``None`` means no limit of that kind.

    Attributes:
        labs: A cap per lab. Once there is one, a lab without a cap may spend nothing.
        by: What set the ceiling of the whole: ``ceiling_usd``, a variable, or ``manifest.json``.
        over: The caller's ceiling, if a variable overrides it.
        scoped: Limits of further scopes, from each source of them; all of them apply.
        unit: Of every amount.
    """

    whole: Money | None
    labs: Mapping[str, Money] = field(default_factory=dict)
    day: Money | None = None
    month: Money | None = None
    by: str = "ceiling_usd"
    over: Money | None = None
    scoped: tuple[Mapping[ScopePattern, Limit], ...] = ()
    unit: Unit = field(default_factory=Unit)

    def tightened_by(self, other: Ceilings) -> Ceilings:
        """Return the tighter of each limit; where both cap labs, a lab needs a cap in both."""
        shared = {
            lab: min(self.labs[lab], other.labs[lab]) for lab in self.labs.keys() & other.labs
        }
        if self.labs and other.labs and not shared:
            shared = {BUFFER: self.unit.money(0)}  # no lab may spend anything
        whole = _tighter(self.whole, other.whole)
        return Ceilings(
            whole=whole,
            labs=shared or self.labs or other.labs,
            day=_tighter(self.day, other.day),
            month=_tighter(self.month, other.month),
            by=other.by if other.whole is not None and other.whole == whole else self.by,
            over=self.over,
            scoped=(*self.scoped, *other.scoped),
            unit=self.unit,
        )

    def on(self, payer: Payer, day: str) -> tuple[tuple[Scope, Limit], ...]:
        """Return the limits of every scope in which money of a payer and a day counts."""
        scopes = all_scopes_of(payer, day) if self.scoped else _plain_scopes_of(payer.lab, day)
        return tuple((scope, limit) for scope in scopes for limit in self.of(scope))

    def of(self, scope: Scope) -> tuple[Limit, ...]:
        """Return the tightest limit of a scope that refuses, and one that warns before it."""
        own, each = patterns_of(scope)
        plain = self._plain(own)
        found = [] if plain is None else [Limit(plain)]
        for limits in self.scoped:
            if limit := limits.get(own) or limits.get(each):
                found.append(limit)
        if len(found) < 2:
            return tuple(found)
        refusing = min((x for x in found if x.refuses), key=_amount, default=None)
        warning = min((x for x in found if not x.refuses), key=_amount, default=None)
        if refusing and warning and warning.amount >= refusing.amount:
            warning = None
        return tuple(limit for limit in (refusing, warning) if limit is not None)

    def _plain(self, pattern: ScopePattern) -> Money | None:
        of, name, period = pattern
        if of == "whole":
            return {"": self.whole, "day": self.day, "month": self.month}.get(period)
        if of == "lab" and not period and self.labs:
            return self.labs.get(name, self.unit.money(0))
        return None


@lru_cache(maxsize=1024)
def _plain_scopes_of(lab: str, day: str) -> tuple[Scope, ...]:
    """Return the scopes of a lab and a day that have a limit without a pattern."""
    return (WHOLE, Scope("lab", lab), Scope("whole", "", day), Scope("whole", "", day[:7]))


def _tighter(a: Money | None, b: Money | None) -> Money | None:
    return min((x for x in (a, b) if x is not None), default=None)


def _amount(limit: Limit) -> Money:
    return limit.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeStanding:
    """The limit, spend and holds of one scope; of an hourly limit, the rates of open holds.

    Attributes:
        refuses: Whether what exceeds it is refused; else it is only reported.
    """

    scope: Scope
    limit: Money
    captured: Money
    held: Money
    refuses: bool = True

    @property
    def remaining(self) -> Money:
        """What is left; negative once the limit is exceeded."""
        return self.limit - self.captured - self.held


def standings_of(
    books: Books, limits: Iterable[tuple[Scope, Limit]], *, at_ns: int
) -> tuple[ScopeStanding, ...]:
    """Return the standings of limited scopes, with rentals' cost at ``at_ns``."""
    return tuple(
        ScopeStanding(
            scope=scope,
            limit=limit.amount,
            captured=limit.amount.unit.money(books.captured(scope)),
            held=limit.amount.unit.money(books.held(scope, at_ns=at_ns)),
            refuses=limit.refuses,
        )
        for scope, limit in limits
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An amount that somebody asks for; ``rate`` is what it pays for per hour, if known."""

    payer: Payer
    day: str
    amount: Money
    rate: Money | None = None


def shortfalls(
    books: Books, limits: Iterable[tuple[Scope, Limit]], asked: Request, *, at_ns: int
) -> tuple[ScopeStanding, ...]:
    """Return every limited scope in which a request does not fit; empty means allowed."""
    rows = standings_of(books, limits, at_ns=at_ns)
    return tuple(row for row in rows if row.refuses and _asked_in(row, asked) > row.remaining)


def _asked_in(row: ScopeStanding, asked: Request) -> Money:
    if row.scope.period != HOUR:
        return asked.amount
    nothing = row.limit.unit.money(0)
    # What costs nothing per hour fits, also where others exceed the limit.
    return min(row.remaining, nothing) if not asked.rate else asked.rate


def room(books: Books, ceilings: Ceilings, payer: Payer, day: str, *, at_ns: int) -> Money:
    """Return how much more can be held: the remainder of the tightest scope."""
    limits = ((scope, limit) for scope, limit in ceilings.on(payer, day) if scope.period != HOUR)
    rows = standings_of(books, limits, at_ns=at_ns)
    most = ceilings.unit.money(LARGEST * MICROS)
    return min((row.remaining for row in rows if row.refuses), default=most)


def standings(
    books: Books, ceilings: Ceilings, *, day: str, at_ns: int, lab: str | None = None
) -> tuple[ScopeStanding, ...]:
    """Return every scope that has a limit, the whole first; ``lab`` is included even if unused."""
    named = {Scope("lab", name) for name in (*ceilings.labs, *([] if lab is None else [lab]))}
    stated = [pattern for limits in ceilings.scoped for pattern in limits]
    named |= {Scope(one.of, one.name) for one in stated if one.name not in ("", EACH)}
    others = sorted(named | set(books.scopes()) - {WHOLE}, key=_place)
    periods = [ScopePattern(period=each).on(day).period for each in ("", "day", "month", "hour")]
    scopes = [Scope("whole", "", periods[0]), *others]
    scopes += [Scope("whole", "", period) for period in periods[1:]]
    scopes += [one._replace(period=period) for one in others for period in periods[1:]]
    limits = ((scope, limit) for scope in scopes for limit in ceilings.of(scope))
    return standings_of(books, limits, at_ns=at_ns)


def _place(scope: Scope) -> tuple[int, str]:
    return ("lab", "team", "user").index(scope.of), scope.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """A limit to be set; ``amount`` is None to remove it, ``until`` empty if it lasts."""

    pattern: ScopePattern
    amount: Money | None
    refuses: bool = True
    until: str = ""


def requested_change(line: Noted) -> LimitChange:
    """Return what a request asks for."""
    told = line.detail
    of, period = told.get("of", "whole"), told.get("period", "")
    return LimitChange(
        pattern=ScopePattern(read_of(of), told.get("name", ""), read_period(period)),
        amount=unit_of(line.currency).money(micros_of(Decimal(told["limit"]))),
        until=told.get("until", ""),
    )
