"""How single values of a grid are read: text, numbers, lists, node ranges, durations. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from outlay.errors import InvalidValue, choices
from outlay.sweep.engines.names import ENGINES, engine_names
from outlay.units import Duration

STYLES: Final = ("overrides", "flags", "none")
LAUNCHERS: Final = ("none", "torchrun")
_NODES = re.compile(r"([1-9]\d*)(?::([1-9]\d*))?")


def text(value: object) -> str:
    """Return a non-empty text."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue("value", value, "a non-empty text")
    return value


def file_name(value: object) -> str:
    """Return a text that names a directory where it is put, and none elsewhere."""
    name = text(value)
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
    """Return a program and its arguments, stated as a list or as a shell would read it."""
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
    """Return variables; numbers and booleans become text, as a shell would have them."""
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


def launcher(value: object) -> str:
    """Return what starts the processes of a run."""
    return _one_of(value, LAUNCHERS, "launcher")


def arguments(value: object) -> str:
    """Return how parameters reach the program."""
    return _one_of(value, STYLES, "arguments")


def _one_of(value: object, names: tuple[str, ...], name: str) -> str:
    if not isinstance(value, str) or value not in names:
        raise InvalidValue(name, value, choices(names))
    return value


def count_from_zero(value: object) -> int:
    """Return a whole number, zero or more."""
    return _count(value, least=0)


def count_from_one(value: object) -> int:
    """Return a whole number, one or more."""
    return _count(value, least=1)


def _count(value: object, *, least: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValue("value", value, f"a whole number, {least} or more")
    return value


def counts_from_one(value: object) -> tuple[int, ...]:
    """Return one or several whole numbers from one up, as an axis."""
    return tuple(_count(item, least=1) for item in axis(value))


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


def axis(value: object) -> tuple[Any, ...]:
    """Return the values of a parameter: a list is an axis, anything else is one value.

    A value that is a list itself is written ``[[1, 2]]`` or ``{value: [1, 2]}``.
    """
    if isinstance(value, Mapping) and set(value) == {"value"}:
        return (value["value"],)
    if not isinstance(value, list):
        return (value,)
    if not value:
        raise InvalidValue("parameter", value, "a value, or a list of one or more")
    return tuple(item["value"] if _is_wrapped(item) else item for item in value)


def _is_wrapped(item: object) -> bool:
    return isinstance(item, Mapping) and set(item) == {"value"}


def exclusions(value: object) -> tuple[Mapping[str, tuple[Any, ...]], ...]:
    """Return combinations to leave out: mappings of parameters to one value or several."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and item for item in value):
        raise InvalidValue("exclude", value, "a list of mappings of parameters to values")
    return tuple({str(name): axis(values) for name, values in item.items()} for item in value)


def timeout(value: object) -> Duration:
    """Return how long an attempt may take."""
    duration = Duration.parse(value, name="timeout")
    if not duration:
        raise InvalidValue("timeout", value, 'a duration above zero, such as "2h"')
    return duration
