"""How parameters reach a program: Hydra overrides, command-line flags, placeholders. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from outlay.budget.terms import Budget
from outlay.errors import InvalidValue

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
AMP_DTYPES: Final = ("fp16", "bf16", "fp32")
AMP_VARIABLE: Final = "MFCL_AMP_DTYPE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """What a parameter's name stands for: a configuration key, or a group to select from."""

    key: str
    group: bool = False


ALIASES: Final[Mapping[str, Alias]] = {
    "model": Alias(key="model", group=True),
    "method": Alias(key="method", group=True),
    "batch_size": Alias(key="data.batch_size"),
    "tau": Alias(key="method.tau"),
}


def read_alias(value: object) -> Alias:
    """Return ``"optim.lr"`` or ``{group: optimizer}`` as an alias.

    Raises:
        InvalidValue: It is neither.
    """
    if isinstance(value, str) and value.strip():
        return Alias(key=value)
    if isinstance(value, Mapping) and set(value) == {"group"} and isinstance(value["group"], str):
        return Alias(key=value["group"], group=True)
    raise InvalidValue("alias", value, 'a key such as "optim.lr", or {group: optimizer}')


def literal(value: object) -> str:
    """Return a value as Hydra reads it: numbers and words plain, text and lists as JSON."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def overrides(
    stated: Iterable[str], params: Mapping[str, Any], aliases: Mapping[str, Alias]
) -> tuple[str, ...]:
    """Return what a grid adds and then its parameters as overrides; ``world_size`` is none."""
    own = (_override(*item, aliases) for item in params.items() if item[0] != "world_size")
    return (*stated, *own)


def _override(name: str, value: object, aliases: Mapping[str, Alias]) -> str:
    if name == "amp_dtype":
        return f"train.loss_fp32={literal(value == 'fp32')}"
    alias = aliases.get(name, Alias(key=name))
    return f"{alias.key}={value if alias.group else literal(value)}"


def budget_overrides(budget: Budget | None) -> list[str]:
    """Return the overrides that switch the budget on in the program's own configuration."""
    if budget is None:
        return []
    stated = {"mode": budget.mode, **budget.limits}
    if budget.steps_per_epoch is not None:
        stated["steps_per_epoch"] = budget.steps_per_epoch
    words = [f"runtime.budget.{key}={_bare(value)}" for key, value in stated.items()]
    return ["runtime.budget.enabled=true", *words]


def _bare(value: object) -> str:
    return value if isinstance(value, str) else literal(value)


def flags(params: Mapping[str, Any], aliases: Mapping[str, Alias]) -> list[str]:
    """Return parameters as ``--name value``; true is ``--name``, false ``--no-name``."""
    words: list[str] = []
    for name, value in params.items():
        alias = aliases.get(name)
        # What a name stands for in Hydra's configuration, unless the grid says so, is no flag.
        key = name if alias is None or alias == ALIASES.get(name) else alias.key
        words += _flag(key.replace("_", "-"), value)
    return words


def _flag(name: str, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    items = value if isinstance(value, list) else [value]
    return [f"--{name}", *(item if isinstance(item, str) else literal(item) for item in items)]


def placeholders(words: Iterable[str]) -> set[str]:
    """Return the names that stand in braces in a command."""
    return {name for text in words for name in _PLACEHOLDER.findall(text)}


def filled(words: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return a command with every ``{name}`` replaced."""

    def value_of(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value if isinstance(value, str) else literal(value)

    return [_PLACEHOLDER.sub(value_of, text) for text in words]
