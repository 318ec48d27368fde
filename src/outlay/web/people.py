"""Names of people, shown or hidden: with ``--hide-people`` each is a number. No file is changed."""

from __future__ import annotations

import re
from typing import Final

_HOME: Final = re.compile(r"(?<=/home/)[^/\s]+|(?<=/Users/)[^/\s]+")


class People:
    """Hides names of people where that was asked for; the same person has one number."""

    def __init__(self, *, hidden: bool) -> None:
        self.hidden = hidden
        self._numbers: dict[str, int] = {}

    def name(self, user: str) -> str:
        """Return how a user is called on a page."""
        if not self.hidden or not user:
            return user
        return f"user {self._numbers.setdefault(user, len(self._numbers) + 1)}"

    def text(self, text: str) -> str:
        """Return a path or a command without the names of those in whose homes it is."""
        if not self.hidden:
            return text
        shown = _HOME.sub(lambda found: self.name(found[0]).replace(" ", "-"), text)
        for user in self._numbers:
            shown = re.sub(rf"\b{re.escape(user)}\b", self.name(user), shown)
        return shown

    def user_of(self, shown: str) -> str:
        """Return the user that a page calls so, for a filter that names it."""
        return next((user for user in self._numbers if self.name(user) == shown), shown)
