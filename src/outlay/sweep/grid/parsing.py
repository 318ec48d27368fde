"""Parsing a grid: its text, blocks, values and budgets, and how parameters are passed. Pure."""

from __future__ import annotations

import json
import pkgutil
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from outlay import plugins
from outlay.budget.limits import MODES, dimension_for
from outlay.budget.terms import LIMIT_KEYS, Budget, is_limit_key
from outlay.decoding import BadYaml, YamlPath, parse_yaml
from outlay.errors import Finding, InvalidValue, choices
from outlay.sweep.engines.base import ENGINES, EngineOptions, PlainOptions, engine_names
from outlay.sweep.errors import InvalidGrid
from outlay.units import Duration
from outlay.units.quantity import exact_decimal

# Blocks: mappings that report every problem, not only the first.

T = TypeVar("T")
D = TypeVar("D")
Parsers = Mapping[str, Callable[[object], Any]]
"""The parser of each key of a block; one that fails raises InvalidValue."""


class Block:
    """A mapping at a path of a document; anything else is reported and read as empty."""

    def __init__(self, value: object, path: Path, document: GridDocument) -> None:
        self._path = path
        self.document = document
        self.values: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        if value is not None and not isinstance(value, Mapping):
            self.report((), f"expected a mapping, got {value!r}")

    def report(self, below: Path, message: str) -> None:
        """Report a problem at a path within this block."""
        self.document.report((*self._path, *below), message)

    def allow(self, known: Collection[str]) -> None:
        """Report every unknown key."""
        for key in self.values:
            if str(key) not in known:
                self.report((key,), f"unknown key {key!r}; expected {choices(known)}")

    def read(self, key: str, convert: Callable[[object], T], default: D) -> T | D:
        """Return a converted value; the default if it is missing or null, or wrong and reported."""
        value = self.values.get(key)
        if value is None:
            return default
        try:
            return convert(value)
        except InvalidValue as error:
            name = str(key) if error.name == "value" else error.name
            self.report((key,), str(InvalidValue(name, error.seen, error.expected)))
            return default

    def read_all(self, parsers: Parsers, shared: object) -> dict[str, Any]:
        """Return the value of every key, and report others; what is missing is as in ``shared``."""
        self.allow(parsers)
        return {key: self.read(key, parse, getattr(shared, key)) for key, parse in parsers.items()}

    def block(self, key: str) -> Block:
        """Return the mapping under a key; empty if missing."""
        return Block(self.values.get(key), (*self._path, key), self.document)


# Parsers of single values.

_NODES = re.compile(r"([1-9]\d*)(?::([1-9]\d*))?")


def text(value: object) -> str:
    """Return a non-empty text."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue("value", value, "a non-empty text")
    return value


def file_name(value: object) -> str:
    """Return a text or number that is safe as a directory name."""
    name = text(word(value))
    if "/" in name or "\0" in name or name.strip(". ") == "" or len(name.encode()) > 200:
        raise InvalidValue("name", value, "a name without slashes, of 200 bytes or fewer")
    return name


def word(value: object) -> str:
    """Return a scalar as text: ``id: 7`` means ``"7"``."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidValue("value", value, "text or a number")
    return str(value)


def texts(value: object) -> tuple[str, ...]:
    """Return a list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidValue("value", value, "a list of texts")
    return tuple(value)


def command(value: object) -> tuple[str, ...]:
    """Return a program and its arguments, from a list or a shell command line."""
    if isinstance(value, list):
        words = tuple(word(item) for item in value)
    else:
        try:
            words = tuple(shlex.split(text(value)))
        except ValueError as error:
            raise InvalidValue("entrypoint", value, f"a command ({error})") from None
    if not words:
        raise InvalidValue("entrypoint", value, "a program and its arguments")
    return words


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping with text keys."""
    if not isinstance(value, Mapping):
        raise InvalidValue("value", value, "a mapping")
    return {str(key): item for key, item in value.items()}


def environment(value: object) -> dict[str, str]:
    """Return variables; numbers become text, booleans 1 and 0."""
    return {name: _variable(name, item) for name, item in mapping(value).items()}


def _variable(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if not isinstance(value, str | int | float) or "=" in name or "\0" in f"{name}{value}":
        raise InvalidValue(name, value, "a variable's name and its text or number")
    return str(value)


def engine(value: object) -> str:
    """Return the name of an engine."""
    if isinstance(value, str) and value in ENGINES:
        return value
    return _one_of(value, engine_names(), "engine")


_OPTION_BLOCKS: Final = tuple(name for name, entry in ENGINES.items() if entry.options)


def option_blocks(block: Block, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of engine option blocks here; plug-ins are searched only if needed."""
    if all(key in known or key in _OPTION_BLOCKS for key in block.values):
        return _OPTION_BLOCKS
    names = plugins.names(plugins.ENGINES)
    return (*_OPTION_BLOCKS, *(name for name in names if name in block.values))


def engine_options(
    block: Block, names: Collection[str], shared: Mapping[str, EngineOptions]
) -> dict[str, EngineOptions]:
    """Return the options of each engine that has a block, on top of the shared ones."""
    return {
        name: _options_of(name, block, shared.get(name))
        for name in {**shared, **dict.fromkeys(names)}
    }


def _options_of(name: str, block: Block, shared: EngineOptions | None) -> EngineOptions:
    if shared is not None and name not in block.values:
        return shared
    if name in ENGINES:
        options: EngineOptions = pkgutil.resolve_name(ENGINES[name].options)(
            block.block(name), shared
        )
        return options
    inherited = shared.values if isinstance(shared, PlainOptions) else {}
    return PlainOptions({**inherited, **block.read(name, mapping, {})})


def _one_of(value: object, names: tuple[str, ...], name: str) -> str:
    if not isinstance(value, str) or value not in names:
        raise InvalidValue(name, value, choices(names))
    return value


launcher = partial(_one_of, names=("none", "torchrun"), name="launcher")

STYLES: Final[Mapping[str, str]] = {
    "overrides": "as Hydra overrides, with the keys of the budget and the directory",
    "pairs": "as key=value",
    "equals": "as --key=value",
    "flags": "as --key value with hyphens; true is --key, false --no-key",
    "switches": "as --key value; true is --key, false is left out",
    "none": "only where the command has {key}",
}
"""How parameters are passed to a program, by the values of ``arguments``."""
arguments = partial(_one_of, names=tuple(STYLES), name="arguments")


def truth(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise InvalidValue("value", value, "true or false")
    return value


def _count(value: object, *, least: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValue("value", value, f"a whole number, {least} or more")
    return value


def amount(value: object) -> float:
    """Return a number, 0 or more, as it is written."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**6:
        raise InvalidValue("value", value, "a number, 0 or more")
    return value


count_from_zero = partial(_count, least=0)
count_from_one = partial(_count, least=1)


def counts_from_one(value: object) -> tuple[int, ...]:
    """Return an axis of whole numbers, 1 or more each."""
    return tuple(map(count_from_one, axis(value)))


def nodes(value: object) -> int | str:
    """Return a number of nodes, or a range such as ``"1:4"``."""
    if not isinstance(value, bool) and (match := _NODES.fullmatch(str(value))):
        least, most = int(match[1]), match[2]
        if most is None:
            return least
        if least <= int(most):
            return str(value)
    raise InvalidValue("nnodes", value, 'a number of nodes, 1 or more, or a range such as "1:4"')


def seeds(value: object) -> tuple[int, ...]:
    """Return seeds: whole numbers, each once."""
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(type(number) is int for number in numbers):
        raise InvalidValue("seeds", value, "a list of whole numbers")
    if len(set(numbers)) < len(numbers):
        raise InvalidValue("seeds", value, "each seed once")
    return tuple(numbers)


def axis(value: object, name: str = "value") -> tuple[Any, ...]:
    """Return the values of a parameter: a list is an axis, anything else is one value.

    A value that is a list itself is written ``[[1, 2]]`` or ``{value: [1, 2]}``.
    """
    if value == []:
        raise InvalidValue(name, value, "a value, or a list of one or more")
    items = value if isinstance(value, list) else [value]
    return tuple(
        item["value"] if isinstance(item, Mapping) and set(item) == {"value"} else item
        for item in items
    )


def exclusions(value: object) -> tuple[Mapping[str, tuple[Any, ...]], ...]:
    """Return combinations to leave out: mappings of parameters to values."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and item for item in value):
        raise InvalidValue("exclude", value, "a list of mappings of parameters to values")
    return tuple(
        {str(name): axis(values, str(name)) for name, values in item.items()} for item in value
    )


def timeout(value: object) -> Duration:
    """Return a time limit above zero."""
    duration = Duration.parse(value, name="timeout")
    if not duration:
        raise InvalidValue("timeout", value, 'a duration above zero, such as "2h"')
    return duration


def read_ship(block: Block, shared: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables by which runs ship themselves: ``ship: URL``, or ``{to:, every:}``."""
    from outlay.shipping.storage import check_shared_destination  # Few grids ship.

    def destination(value: object) -> str:
        return check_shared_destination(text(value), name="ship")

    if not isinstance(block.values.get("ship"), Mapping):
        to, every = block.read("ship", destination, ""), None
    else:
        inner = block.block("ship")
        inner.allow(("to", "every"))
        to, every = inner.read("to", destination, ""), inner.read("every", timeout, None)
        if "to" not in inner.values:
            inner.report((), "expected `to`, a storage URL such as s3://bucket/runs")
    stated = {"OUTLAY_SHIP_TO": to, "OUTLAY_SHIP_EVERY": "" if every is None else str(every)}
    return {name: value for name, value in stated.items() if value} if to else shared


# The text of a grid as plain data, with the line of each key.

Path = YamlPath


@dataclass(slots=True)
class GridDocument:
    """A grid file: its tree, interpolations resolved, the line of each key, and its problems.

    Attributes:
        budgets: The budgets read so far, by the text of their block: most entries state the same.
    """

    source: str
    tree: Mapping[str, Any]
    lines: Mapping[Path, int]
    referenced: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list)
    budgets: dict[str, tuple[Budget | None, Target]] = field(default_factory=dict)

    def report(self, path: Path, message: str) -> None:
        """Report a problem with a key."""
        line = self.line_of(path)
        self.findings.append(Finding(source=self.source, line=line, message=message))

    def line_of(self, path: Path) -> int:
        """Return the 1-based line of a key, or of the nearest enclosing one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


_REFERENCE = re.compile(r"\$\{\s*([^\s.:{}\[\]]+)\s*[.}\[]")
"""An interpolation of a root key, or of what is below it."""


def parse(text: str, source: str) -> GridDocument:
    """Return the document in a YAML or JSON text."""
    try:
        read = parse_yaml(text)
    except BadYaml as error:
        raise _invalid(source, error.line, f"cannot be read: {error}") from None
    if not isinstance(read.tree, dict):
        raise _invalid(source, 1, "a grid is a mapping with a list `grid` of entries")
    document = GridDocument(source, read.tree, read.lines)
    if "${" in text:
        from omegaconf import OmegaConf  # Slow to load, and few grids need it.

        document.referenced = frozenset(_REFERENCE.findall(text))
        document.tree = _resolved(OmegaConf.create(read.tree), (), document)
        if document.findings:
            raise InvalidGrid(document.findings)
    return document


def _invalid(source: str, line: int, message: str) -> InvalidGrid:
    return InvalidGrid([Finding(source=source, line=line, message=message)])


def _resolved(node: Any, path: Path, document: GridDocument) -> Any:
    """Return a node as plain data; unresolvable interpolations are reported, and None."""
    from omegaconf import DictConfig, ListConfig

    if isinstance(node, DictConfig):
        keys = list(node.keys())
        return {str(key): _child(node, key, (*path, str(key)), document) for key in keys}
    if isinstance(node, ListConfig):
        return [_child(node, i, (*path, i), document) for i in range(len(node))]
    return node


def _child(node: Any, key: Any, path: Path, document: GridDocument) -> Any:
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = node[key]
    except OmegaConfBaseException as error:
        document.report(path, str(error).splitlines()[0])
        return None
    return _resolved(value, path, document)


# The ``budget`` block: limits and the target metric.

TARGET_KEYS: Final = ("target_metric", "target_value", "target_direction")
BUDGET_KEYS: Final = ("mode", "limit", "charge", "enabled", "enforce", *LIMIT_KEYS, *TARGET_KEYS)
_LESS_IS_BETTER: Final = ("loss", "error", "perplexity", "ppl", "nll", "mse", "rmse", "mae", "wer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The metric that the runs of an entry are compared by, "" for none, and the value to reach.

    The direction is ``max`` if more is better, ``min`` if less is.
    """

    metric: str = ""
    value: float | None = None
    direction: str = "max"

    @property
    def more_is_better(self) -> bool:
        """Whether a higher value is a better one."""
        return self.direction == "max"

    def reached_by(self, number: float) -> bool:
        """Say whether a value of the metric reaches the target."""
        if self.value is None:
            return False
        return number >= self.value if self.more_is_better else number <= self.value


NO_TARGET: Final = Target()


def read_target(block: Mapping[str, Any]) -> Target:
    """Return the target metric in a budget block."""
    metric = str(block.get("target_metric") or "")
    stated = block.get("target_direction")
    if stated not in (None, "max", "min"):
        raise InvalidValue("target_direction", stated, choices(("max", "min")))
    value = block.get("target_value")
    if value is not None:
        value = float(exact_decimal(value, name="target_value", expected="a number"))
    return Target(metric=metric, value=value, direction=stated or usual_direction(metric))


def target_in(metadata: Mapping[str, Any]) -> Target:
    """Return the target metric in the metadata of a planned run."""
    metric = str(metadata.get("target_metric") or "")
    direction = metadata.get("target_direction") or usual_direction(metric)
    return Target(metric=metric, value=metadata.get("target_value"), direction=direction)


def usual_direction(metric: str) -> str:
    """Return the usual direction of a metric, by its name."""
    words = metric.lower().replace(".", "_").replace("/", "_").replace("-", "_").split("_")
    return "min" if any(word in _LESS_IS_BETTER for word in words) else "max"


def read_budget(block: Mapping[str, Any]) -> Budget | None:
    """Return the budget of a block; ``limit`` is short for the mode's own key."""
    if block.get("enabled") is False:
        return None
    mode = block.get("mode")
    limits = {key: value for key, value in block.items() if is_limit_key(key)}
    if mode is None and not limits and "limit" not in block:
        return None
    if not isinstance(mode, str) or mode.lower() not in MODES:
        raise InvalidValue("budget mode", mode, choices(MODES))
    mode = mode.lower()
    if block.get("limit") is not None:
        own = dimension_for(mode, block["limit"]).key
        if limits.get(own) is not None:
            raise InvalidValue("budget", {"limit": block["limit"], own: limits[own]}, "one of them")
        limits[own] = block["limit"]
    charge = block.get("charge")
    return Budget.of(mode, limits, charge=None if charge is None else str(charge))


# Passing parameters to a program: Hydra overrides, command-line flags, placeholders.

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
AMP_DTYPES: Final = ("fp16", "bf16", "fp32")
AMP_VARIABLE: Final = "MFCL_AMP_DTYPE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """The Hydra configuration key or group that a parameter's name stands for."""

    key: str
    group: bool = False


ALIASES: Final[Mapping[str, Alias]] = {
    "model": Alias(key="model", group=True),
    "method": Alias(key="method", group=True),
    "batch_size": Alias(key="data.batch_size"),
    "tau": Alias(key="method.tau"),
}


def read_alias(value: object) -> Alias:
    """Return ``"optim.lr"`` or ``{group: optimizer}`` as an alias."""
    if isinstance(value, str) and value.strip():
        return Alias(key=value)
    if isinstance(value, Mapping) and set(value) == {"group"} and isinstance(value["group"], str):
        return Alias(key=value["group"], group=True)
    raise InvalidValue("alias", value, 'a key such as "optim.lr", or {group: optimizer}')


def literal(value: object) -> str:
    """Return a value as a Hydra literal: numbers plain, everything else as JSON."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def overrides(
    stated: Iterable[str], params: Mapping[str, Any], aliases: Mapping[str, Alias]
) -> tuple[str, ...]:
    """Return the stated overrides, then those of parameters, without ``world_size``."""
    own = (_override(*item, aliases) for item in params.items() if item[0] != "world_size")
    return (*stated, *own)


def _override(name: str, value: object, aliases: Mapping[str, Alias]) -> str:
    if name == "amp_dtype":
        return f"train.loss_fp32={literal(str(value).lower() == 'fp32')}"
    alias = aliases.get(name)
    if alias is None:
        return f"{name}={literal(value)}"
    return f"{alias.key}={value if alias.group else literal(value)}"


def budget_overrides(budget: Budget | None) -> list[str]:
    """Return the overrides that set the budget in the program's own configuration."""
    if budget is None:
        return []
    stated = {"mode": budget.mode, **budget.limits}
    if budget.steps_per_epoch is not None:
        stated["steps_per_epoch"] = budget.steps_per_epoch
    known = ("mode", *LIMIT_KEYS)  # Other keys, such as max_cost_eur, need ++ to be added.
    words = [
        f"{'' if key in known else '++'}runtime.budget.{key}={literal(value)}"
        for key, value in stated.items()
    ]
    flags = [name for name in ("allow_change", "pauses") if getattr(budget, name)]
    return ["runtime.budget.enabled=true", *words, *(f"++runtime.budget.{f}=true" for f in flags)]


def in_style(style: str, params: Mapping[str, Any], aliases: Mapping[str, Alias]) -> list[str]:
    """Return parameters in one of ``STYLES`` that is neither ``overrides`` nor ``none``.

    Names are as written, but for ``flags``. Null is left out, but for ``pairs``.
    """
    write = {"pairs": _pair, "equals": _equals, "flags": _flag, "switches": _switch}[style]
    words: list[str] = []
    for name, value in params.items():
        alias = aliases.get(name)
        # The default aliases are for Hydra; only those that the grid states name arguments.
        key = name if alias is None or alias == ALIASES.get(name) else alias.key
        words += [] if value is None and write is not _pair else write(key, value)
    return words


def _pair(name: str, value: object) -> list[str]:
    return [f"{name}={_plain(value)}"]


def _equals(name: str, value: object) -> list[str]:
    # "True" is read by more parsers than "true", among them those that evaluate Python literals.
    return [f"--{name}={value if isinstance(value, bool) else _plain(value)}"]


def _flag(name: str, value: object) -> list[str]:
    name = name.replace("_", "-")
    return [f"--no-{name}"] if value is False else _switch(name, value)


def _switch(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    items = value if isinstance(value, list) else [value]
    return [f"--{name}", *map(_plain, items)]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else literal(value)


def placeholders(words: Iterable[str]) -> set[str]:
    """Return the names in braces in a command."""
    return {name for text in words for name in _PLACEHOLDER.findall(text)}


def filled(words: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return a command with every ``{name}`` replaced."""

    def value_of(match: re.Match[str]) -> str:
        return _plain(values[match[1]])

    return [_PLACEHOLDER.sub(value_of, text) for text in words]
