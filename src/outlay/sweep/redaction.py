"""Keeping secrets out of what a sweep writes: by their names, their looks and their values.

Pure. A secret that was found under one name is also removed wherever else its value stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

REDACTED: Final = "<redacted>"
_SECRET_NAME = re.compile(
    r"SECRET|TOKEN(?!I[SZ])|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|ACCESSKEY|PRIVATE|WEBHOOK|BEARER"
    r"|(?:^|_)(?:KEY|KEYS|PASS|PW|AUTH|PAT|DSN|COOKIE|COOKIES|SALT|SIGNATURE|OAUTH|JWT)(?:_|$)",
    re.IGNORECASE,
)
"""A tokenizer has no token."""
_SECRET_LOOK = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}"
    r"|(?:sk|pk|rk|ghp|gho|ghs|glpat|xox[abprs]|AKIA|ASIA|AIza|npm|pypi)[-_]?[A-Za-z0-9_-]{16,})"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_SHORTEST_SECRET: Final = 4
_SWITCHES: Final = frozenset(["true", "false", "none", "null"])
"""Values that no secret has, whatever its name says; other texts are full of them."""
_HARMLESS: Final = ("budget_limit_key",)
"""Names that sound secret and are the documented ones of something that is not."""


def is_secret_name(name: str) -> bool:
    """Say whether a variable of this name usually holds a secret."""
    return _SECRET_NAME.search(name) is not None


def _is_telling(value: str) -> bool:
    """Say whether a secret's value is one that stands nowhere by chance."""
    return len(value) >= _SHORTEST_SECRET and value.lower() not in _SWITCHES


class Redactor:
    """Removes the secrets of some environments from anything that is written.

    Args:
        environments: Where secrets may stand; all of them are searched.
    """

    def __init__(self, environments: Iterable[Mapping[str, str]]) -> None:
        values = {
            value
            for environment in environments
            for name, value in environment.items()
            if is_secret_name(name) and _is_telling(value)
        }
        longest_first = sorted(values, key=lambda value: (-len(value), value))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        text = _IN_ADDRESS.sub(REDACTED, _SECRET_LOOK.sub(REDACTED, text))
        # Variables may hold bytes that are no UTF-8, and what is written is.
        return text if text.isascii() else text.encode(errors="backslashreplace").decode()

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables without the values that are secret."""
        return {
            self.text(name): REDACTED if is_secret_name(name) else self.text(value)
            for name, value in sorted(environment.items())
        }

    def data(self, value: Any) -> Any:
        """Return JSON-like data without secrets, in keys and values."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(str(key)): self._item(key, item) for key, item in value.items()}
            case list() | tuple():
                return [self.data(item) for item in value]
            case _:
                return value

    def _item(self, key: object, item: Any) -> Any:
        if isinstance(item, str) and key not in _HARMLESS and is_secret_name(str(key)):
            return REDACTED
        return self.data(item)
