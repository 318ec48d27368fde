"""How a documented function is called: its positional arguments, in order."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def positional(method: Callable[..., object]) -> list[inspect.Parameter]:
    """Return what may be given by position, without ``self`` and annotations."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [
        each.replace(annotation=each.empty)
        for each in parameters
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]


def positional_names(method: Callable[..., object]) -> list[str]:
    """Return the names alone."""
    return [each.name for each in positional(method)]
