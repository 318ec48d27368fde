"""A grid from the words of a command line: ``train.py lr=0.1,0.2 width=64:512``. Pure.

It becomes the text of a grid, which is then read like any other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from outlay.budget.config import read_budget
from outlay.budget.terms import Budget
from outlay.decoding import BadYaml, parse_yaml
from outlay.errors import Finding, InvalidValue
from outlay.runs.command_budget import CommandTerms, refuse_uncounted
from outlay.sweep.grid.parsing import arguments, command

SOURCE: Final = "command line"
"""The source of findings about it."""
DEFAULT_STYLE: Final = "equals"
GRID_SUFFIXES: Final = (".yaml", ".yml", ".json")
_HEADER: Final = "# Written by outlay from a command line.\n"
_MISSING_BUDGET: Final = (
    'no --budget: state what each run may use, such as --budget "iso_cost=2 USD" or '
    "--budget iso_time=10m"
)
_MISSING_PRICE: Final = (
    'no --price for a limit on money: state --price "1.50 USD/h" per GPU-hour, or set OUTLAY_PRICE'
)
_NAME = re.compile(r"[^\s=,{}\[\]\"'-][^\s=,{}\[\]\"']*")
_SIMPLE = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./ -]*")
_LOG: Final = "log"
_QUOTES: Final = "\"'"
_MARKS: Final = "&*!|>%@`"
"""What begins something else than a value in YAML."""


def is_grid(word: str) -> bool:
    """Say whether the first word names a grid; else it is a program."""
    return word.lower().endswith(GRID_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """The options that state what a grid states, as typed; None where they are not given.

    Attributes:
        budget: Of each run, such as ``iso_cost=2 USD``.
        style: One of ``parsing.STYLES``.
        maximize: The metric to compare runs by, if more is better.
        minimize: The same, if less is better.
        method: Of the search: ``grid``, ``random``, ``sobol`` or ``tpe``.
        seed: Of the search.
        records: Whether the program calls ``outlay.run()``, and so stops itself.
    """

    budget: str | None = None
    ceiling: str | None = None
    price: str | None = None
    timeout: str | None = None
    style: str | None = None
    maximize: str | None = None
    minimize: str | None = None
    method: str | None = None
    trials: int | None = None
    seed: int | None = None
    records: bool | None = None

    @property
    def given(self) -> list[str]:
        """The names of those that are given."""
        return [name for name in self.__slots__ if getattr(self, name) is not None]


@dataclass(slots=True)
class CommandGrid:
    """The grid that a command line stands for, and all problems of its words."""

    tree: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The grid as YAML."""
        return _HEADER + "".join(f"{line}\n" for line in _lines(self.tree))


def read_command(program: str, words: Sequence[str], options: GridOptions) -> CommandGrid:
    """Return the grid of a program, its parameters and options."""
    grid = CommandGrid({})
    entrypoint: Sequence[str] = ()
    with _reporting(grid):
        entrypoint = command(program)
    style = DEFAULT_STYLE
    with _reporting(grid):
        style = arguments(options.style or DEFAULT_STYLE)
    if options.ceiling and not options.price:
        _report(grid, _MISSING_PRICE)
    name = program_name(entrypoint)
    search = {key: getattr(options, key) for key in ("method", "trials", "seed")}
    stated: dict[str, Any] = {
        "name": name,
        "engine": "process",
        "arguments": style,
        "entrypoint": list(entrypoint),
        "price": options.price,
        "ceiling": options.ceiling,
        "timeout": options.timeout,
        "budget": _read_budget(options, grid),
        "search": {key: value for key, value in search.items() if value is not None},
        "grid": [{"name": name, "params": _read_params(words, grid)}],
    }
    grid.tree = {key: value for key, value in stated.items() if value}
    return grid


@contextmanager
def _reporting(grid: CommandGrid) -> Iterator[None]:
    """Report an invalid value as a problem of a grid."""
    try:
        yield
    except InvalidValue as error:
        _report(grid, str(error))


def _report(grid: CommandGrid, message: str) -> None:
    grid.findings.append(Finding(source=SOURCE, message=message))


def program_name(words: Sequence[str]) -> str:
    """Return the name of a program: of the script or module that it runs, without its directory."""
    chosen = next((word for word in words if word.endswith(".py")), "")
    if not chosen and "-m" in words[:-1]:
        chosen = words[list(words).index("-m") + 1].rpartition(".")[2]
    last = (chosen or next(iter(words), "")).rpartition("/")[2].removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9_-]", "", last) or "program"


def _read_budget(options: GridOptions, grid: CommandGrid) -> dict[str, Any]:
    """Return the block ``budget``; without --budget that is a problem."""
    if options.maximize and options.minimize:
        _report(grid, "--maximize and --minimize: state one of them")
    block: dict[str, Any] = {}
    with _reporting(grid):
        budget = read_budget(options.budget or None)
        if budget is None:
            _report(grid, _MISSING_BUDGET)
            return {}
        block = _budget_block(budget, options)
        if budget.limits_money and not options.price:
            _report(grid, _MISSING_PRICE)
            block.pop("enforce", None)  # It would be said again: to enforce needs the price.
    metric = options.maximize or options.minimize
    if metric and block:
        direction = "max" if options.maximize else "min"
        block |= {"target_metric": metric, "target_direction": direction}
    return block


def _budget_block(budget: Budget, options: GridOptions) -> dict[str, Any]:
    """Return a budget as a grid states it; one of a program that does not record is enforced."""
    if budget.allow_change:
        raise InvalidValue("--budget", options.budget, "a budget without allow_change")
    enforce = not options.records and options.style != "overrides"
    if enforce:
        refuse_uncounted(CommandTerms(budget=budget), name="--budget")
    block = {
        "mode": budget.mode, **budget.limits, "charge": budget.stated_charge,
        "steps_per_epoch": budget.steps_per_epoch, "enforce": enforce or None,
    }  # fmt: skip
    return {key: value for key, value in block.items() if value is not None}


# Parameters: values are typed as YAML scalars, a range is ``low:high``.


def _read_params(words: Sequence[str], grid: CommandGrid) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            _report(grid, str(InvalidValue("argument", word, _expected(name, equals))))
        elif name in params:
            _report(grid, f"{name} is stated twice; several values are {name}=1,2")
        else:
            params[name] = None
            with _reporting(grid):
                params[name] = parse_values(name, text)
    return params


def _expected(name: str, equals: str) -> str:
    if name.startswith("-") and equals:
        return f"key=value without hyphens: {name.lstrip('-')}=...; --style says how it is passed"
    return 'key=value; the arguments of a program are quoted with it: "train.py --epochs 3"'


def parse_values(name: str, text: str) -> Any:
    """Return the values of a parameter as a grid states them: an axis, or a range.

    Raises:
        InvalidValue: There is none, or one is not valid.
    """
    items = list(_items(text))
    if len(items) == 1 and _is_range(text):
        return _range(name, text)
    return [_value(name, item) for item in items]


def _is_range(text: str) -> bool:
    """Say whether a text begins as a range does; cuda:0 is a text."""
    parts = text.split(":")
    return len(parts) in (2, 3) and _number(parts[0]) is not None


def _items(text: str) -> Iterator[str]:
    """Yield the parts between commas that are outside quotes and brackets."""
    depth, quote, start = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES and not text[start:at].strip():
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and depth <= 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _value(name: str, text: str) -> Any:
    if not text:
        raise InvalidValue(name, text, f"a value, such as {name}=0.1, or several: {name}=0.1,0.2")
    if _is_range(text):
        raise InvalidValue(name, text, "either a range or values; a text with a colon is quoted")
    values = [] if text[0] in _MARKS else _in_list(text)
    if len(values) != 1 or isinstance(values[0], dict):
        expected = "a number, a text, true, false or null, or a list; other text is quoted twice"
        raise InvalidValue(name, text, f"{expected}: {name}='\"...\"'")
    return values[0]


def _range(name: str, text: str) -> dict[str, Any]:
    """Return ``low:high``, ``low:high:step`` or ``low:high:log`` as a grid states a range."""
    low, high, *more = text.split(":")
    stated: dict[str, Any] = {"low": _number(low), "high": _number(high)}
    if more and more[0].strip() == _LOG:
        stated["log"] = True
    elif more:
        stated["step"] = _number(more[0])
    _check_range(name, text, stated)
    return stated


def _check_range(name: str, text: str, stated: dict[str, Any]) -> None:
    low, high, step = stated["low"], stated["high"], stated.get("step", 0.0)
    if high is None:
        raise InvalidValue(name, text, f"a range of numbers, such as {name}=64:512")
    if not low < high:
        raise InvalidValue(name, text, "a range whose low end is below its high end")
    if stated.get("log") and low <= 0:
        raise InvalidValue(name, text, "a logarithmic range above zero")
    if step is None or ("step" in stated and not 0 < step <= high - low):
        raise InvalidValue(name, text, "a step above zero within the range, or `log`")


def _number(text: str) -> int | float | None:
    match _in_list(text):
        case [int() | float() as value] if not isinstance(value, bool) and math.isfinite(value):
            return value
    return None


def _in_list(text: str) -> list[Any]:
    """Return a text as the items of a YAML list; empty if it cannot be."""
    try:
        values = parse_yaml(f"[{text}]").tree
    except BadYaml:
        return []
    return values if isinstance(values, list) else []


# The text of a grid.


def _lines(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a grid: a line for each key and each parameter."""
    for key, value in tree.items():
        if key != "grid":
            yield f"{key}: {_yaml(value)}"
    yield "grid:"
    for entry in tree["grid"]:
        yield f"  - name: {_yaml(entry['name'])}"
        if entry["params"]:
            yield "    params:"
        for name, values in entry["params"].items():
            yield f"      {_yaml(name)}: {_yaml(values)}"


def _yaml(value: Any) -> str:
    """Return a value in one line of YAML that reads as the same value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf"
    if isinstance(value, str) and _SIMPLE.fullmatch(value) and _in_list(value) == [value]:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in text)
