"""How a vendor bills the time of a machine: increments, a minimum, set-up time. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from outlay.errors import InvalidValue
from outlay.units.quantity import Duration

_Ns = Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)]


class BillingTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a vendor bills the time of a machine, from each start to its end.

    Attributes:
        increment_ns: A started increment is billed whole; 0 if time is billed as it is.
        minimum_ns: The least that a start is billed.
        setup_ns: Billed before the machine can be used.
    """

    increment_ns: _Ns = 0
    minimum_ns: _Ns = 0
    setup_ns: _Ns = 0

    def billed_ns(self, used_ns: int) -> int:
        """Return how long a machine is billed that was used for ``used_ns`` after one start."""
        time_ns = max(used_ns + self.setup_ns, self.minimum_ns)
        return (
            -(-time_ns // self.increment_ns) * self.increment_ns if self.increment_ns else time_ns
        )

    def usable_ns(self, paid_ns: int) -> int:
        """Return how long a machine can be used after one start if ``paid_ns`` may be billed."""
        if self.increment_ns:
            paid_ns -= paid_ns % self.increment_ns
        return paid_ns - self.setup_ns if paid_ns >= self.minimum_ns else 0


TERMS = ("increment", "minimum", "setup")
"""The names of billing terms, as a price states them."""


def parse_terms(parts: Iterable[str], *, name: str) -> BillingTerms | None:
    """Parse terms such as ``increment 1h``; None if there are none.

    Raises:
        InvalidValue: One is unknown, stated twice, or no duration.
    """
    found: dict[str, int] = {}
    for part in parts:
        term, _, text = part.strip().partition(" ")
        if term not in TERMS or f"{term}_ns" in found:
            raise InvalidValue(
                name, part.strip(), f"each once of {', '.join(TERMS)} and a duration"
            )
        found[f"{term}_ns"] = Duration.parse(text, name=f"{term} of {name}").ns
    return BillingTerms(**found) if any(found.values()) else None
