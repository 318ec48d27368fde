"""How a documented function is called: its positional arguments, in order."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def positional_names(method: Callable[..., object]) -> list[str]:
    """Return the names of what may be given by position, without ``self``."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
