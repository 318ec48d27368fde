"""The ``[alerts]`` table of ``outlay.toml``: rules and targets, parsed and checked.

The file holds no secret: a webhook's address is in an environment variable, which the file names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, get_args

import msgspec

from outlay.decoding import BadDocument, read_toml
from outlay.errors import InvalidValue, OutlayError, choices
from outlay.store.home import settings_path
from outlay.units import Duration, Rate
from outlay.units.quantity import exact_decimal

When = Literal[
    "budget", "forecast", "burn", "silent", "stall", "goodput", "gpus_idle", "no_run",
    "unclaimed", "price_drop", "overdue", "ceiling", "digest",
]  # fmt: skip
Shape = Literal["json", "slack", "discord"]

# The keys of each rule with their defaults; None is required.
_TAKES: dict[When, dict[str, object]] = {
    "budget": {"at": ["50%", "75%", "90%", "100%"]},
    "forecast": {},
    "burn": {"above": None},
    "silent": {"for": "10m"},
    "stall": {"for": "15m"},
    "goodput": {"below": "60%", "for": "30m"},
    "gpus_idle": {"below": "5%", "for": "15m"},
    "no_run": {"for": "30m"},
    "unclaimed": {"for": "10m"},
    "price_drop": {"by": "10%", "gpu": ""},
    "overdue": {},
    "ceiling": {"at": ["80%", "95%", "100%"]},
    "digest": {"every": "7d"},
}
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_PERCENTAGE = 'a percentage above 0, such as "75%"'


class SettingsUnusable(OutlayError):
    """``outlay.toml`` cannot be read or parsed."""

    exit_code = 2

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRule:
    """One rule.

    Attributes:
        percents: Thresholds, ascending.
        lasting: How long the condition must hold; of ``digest``, the interval.
        rate: The limit per hour of ``burn``.
        gpu: Of ``price_drop``: part of the GPU's name; "" for all.
        to: Names of targets.
    """

    when: When
    lasting: Duration
    percents: tuple[Decimal, ...] = ()
    rate: Rate | None = None
    gpu: str = ""
    to: tuple[str, ...]

    @property
    def terms(self) -> str:
        """``when`` and its parameters: what identifies the rule in keys of alerts."""
        percents = (f"{percent.normalize():f}%" for percent in self.percents)
        stated = [*percents, *(map(str, filter(None, (self.lasting, self.rate)))), self.gpu]
        return " ".join([self.when, *filter(None, stated)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTarget:
    """Where alerts are sent: standard error, a file, a webhook, or an apprise service.

    Attributes:
        address: The file, or the name of the environment variable with the address.
    """

    name: str
    kind: Literal["stderr", "file", "webhook", "apprise"]
    address: str = ""
    shape: Shape = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """The rules, and the targets by name."""

    rules: tuple[WatchRule, ...] = ()
    targets: Mapping[str, AlertTarget]


class _Target(msgspec.Struct, forbid_unknown_fields=True):
    stderr: bool = False
    file: str = ""
    webhook: str = ""
    apprise: str = ""
    shape: str = "json"


class _Alerts(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[dict[str, str | int | float | list[str | int | float]]] = []
    to: dict[str, _Target] = {}


class _SettingsFile(msgspec.Struct):  # Other tables belong to other packages.
    alerts: _Alerts = msgspec.field(default_factory=_Alerts)


STDERR = AlertTarget(name="stderr", kind="stderr")


def read_alert_settings(path: Path | None = None) -> AlertSettings:
    """Return the rules of a file (default: the user's ``outlay.toml``); none without a file.

    Raises:
        SettingsUnusable: The file cannot be read or parsed.
        InvalidValue: A rule or a target is invalid.
    """
    path = settings_path() if path is None else path
    try:
        found = read_toml(path, _SettingsFile).alerts
    except FileNotFoundError:
        return AlertSettings(targets={STDERR.name: STDERR})
    except (OSError, BadDocument) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise SettingsUnusable(path, problem) from None
    targets = {name: _target(name, each) for name, each in found.to.items()}
    targets = targets or {STDERR.name: STDERR}
    rules = tuple(_rule(each, place, targets) for place, each in enumerate(found.rule, 1))
    return AlertSettings(rules=rules, targets=targets)


def _target(name: str, stated: _Target) -> AlertTarget:
    where = f"[alerts.to.{name}]"
    chosen = {
        kind: value
        for kind, value in (
            ("stderr", stated.stderr), ("file", stated.file),
            ("webhook", stated.webhook), ("apprise", stated.apprise),
        )
        if value
    }  # fmt: skip
    if len(chosen) != 1:
        raise InvalidValue(where, sorted(chosen), "one of apprise, file, stderr = true, webhook")
    if stated.shape not in get_args(Shape):
        raise InvalidValue(f"{where} shape", stated.shape, choices(get_args(Shape)))
    ((kind, address),) = chosen.items()
    if kind in ("webhook", "apprise"):
        variable = _VARIABLE.fullmatch(str(address))
        if variable is None:  # The value may be the secret itself: it is not shown.
            expected = 'a variable such as "$TEAM_WEBHOOK"; the file must not hold the secret'
            raise InvalidValue(f"{where} {kind}", "an address", expected)
        address = variable[1]
    return AlertTarget(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        address="" if kind == "stderr" else str(address),
        shape=stated.shape,  # type: ignore[arg-type]
    )


def _rule(
    stated: Mapping[str, object], place: int, targets: Mapping[str, AlertTarget]
) -> WatchRule:
    where = f"[[alerts.rule]] {place}"
    when = stated.get("when")
    if when not in _TAKES:
        raise InvalidValue(f"{where} when", when, choices(_TAKES))
    takes = _TAKES[when]
    for key in stated:
        if key not in (*takes, "when", "to"):
            raise InvalidValue(f"{where} ({when})", key, choices([*takes, "to", "when"]))
    given = {**takes, **stated}
    if missing := [key for key, value in given.items() if value is None]:
        raise InvalidValue(f"{where} ({when})", None, f"{missing[0]} = ...")
    to = tuple(map(str, _list(given.get("to", list(targets)))))
    for name in to:
        if name not in targets:
            raise InvalidValue(f"{where} to", name, choices(targets))
    shares = given.get("at", given.get("below", given.get("by", [])))
    lasting = given.get("for", given.get("every", 0))
    return WatchRule(
        when=when,
        percents=tuple(sorted(_percentage(each, where) for each in _list(shares))),
        lasting=Duration.parse(lasting, name=f"{where} for") if lasting else Duration(0),
        rate=Rate.parse(given["above"], name=f"{where} above") if "above" in given else None,
        gpu=str(given.get("gpu", "")),
        to=to,
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _percentage(value: object, where: str) -> Decimal:
    text = value.removesuffix("%").strip() if isinstance(value, str) else value
    percent = exact_decimal(text, name=where, expected=_PERCENTAGE)
    if percent <= 0:
        raise InvalidValue(where, value, _PERCENTAGE)
    return percent
