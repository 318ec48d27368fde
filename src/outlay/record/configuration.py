"""Configuration and command of a training, as recorded: plain data, without secrets, not endless.

Takes what trainings hold a configuration in (a mapping, OmegaConf, a dataclass, argparse's
namespace) and never raises for what stands in it: a value that JSON does not have is kept as its
text.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from outlay.errors import InvalidValue
from outlay.record.redaction import REDACTED, Redactor, is_secret

MOST_ENTRIES: Final = 2_000
LONGEST_TEXT: Final = 2_000
DEEPEST: Final = 12
MOST_WORDS: Final = 200
CONFIGURATION_NOTE: Final = "configuration"
"""The note that holds what was stated when the run was open already."""
_CUT: Final = "…"
_EXPECTED = "a mapping, an OmegaConf node, a dataclass or an argparse namespace"


def recorded_config(config: object, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration as it may be written down; {} for None.

    Values of variables that are named like secrets are removed.

    Raises:
        InvalidValue: It is nothing that has named settings.
    """
    if config is None:
        return {}
    settings = _settings(config)
    if settings is None:
        raise InvalidValue("config", type(config).__name__, _EXPECTED)
    plain = _Plain().of(settings, DEEPEST)
    cleaned: dict[str, Any] = Redactor([environ]).data(plain)
    return cleaned


def recorded_command(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command as it may be written down; what is left out of it stands as ``…``."""
    cleaned = Redactor([environ]).command(words[:MOST_WORDS])
    shown = (word if len(word) <= LONGEST_TEXT else word[:LONGEST_TEXT] + _CUT for word in cleaned)
    return (*shown, *([_CUT] if len(words) > MOST_WORDS else []))


def _settings(value: object) -> Mapping[Any, Any] | None:
    """Return what has named settings as a mapping; None for anything else."""
    if type(value).__module__.startswith("omegaconf"):
        omegaconf: Any = sys.modules["omegaconf"]  # Loaded by whoever made the value.
        try:
            value = omegaconf.OmegaConf.to_container(value, resolve=True)
        except omegaconf.errors.OmegaConfBaseException:  # An interpolation that leads nowhere.
            value = omegaconf.OmegaConf.to_container(value, resolve=False)
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    if type(value).__name__ == "Namespace":
        return vars(value)
    return None


class _Plain:
    """Turns settings into JSON-like data, up to a number of entries."""

    def __init__(self) -> None:
        self._left = MOST_ENTRIES

    def of(self, value: object, depth: int) -> Any:
        """Return a value as plain data."""
        self._left -= 1
        settings = _settings(value)
        match value:
            case _ if depth == 0:
                return _text(value)
            case _ if settings is not None:
                pairs = ((_text(key), item) for key, item in settings.items())
                return {key: self._item(key, item, depth) for key, item in pairs if self._left > 0}
            case None | bool():
                return value
            case int() if type(value) is int and abs(value) < 2**62:
                return value
            case float() if type(value) is float and math.isfinite(value):
                return value
            case Sequence() if not isinstance(value, str | bytes | bytearray):
                return [self.of(item, depth - 1) for item in value if self._left > 0]
            case _:
                return _text(value)

    def _item(self, key: str, item: object, depth: int) -> Any:
        # A number may be a secret, too: that under ``password`` is.
        is_number = isinstance(item, int | float) and not isinstance(item, bool)
        return REDACTED if is_number and is_secret(key, _text(item)) else self.of(item, depth - 1)


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - the text of an object is code of others
        return f"<{type(value).__name__}>"
    return text.encode(errors="replace").decode()[:LONGEST_TEXT]
