"""The prices that a run had: of which kind they are, where they came from, how old they were.

A run's cost is of one kind, that of its first price: cash and showback are never added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlay.errors import Finding
from outlay.ledger import Price
from outlay.ledger.attempts import Attempt
from outlay.ledger.price import Kind


def prices_of(attempts: Sequence[Attempt]) -> tuple[Price, ...]:
    """Return every price that was in force, each once, in the order of time."""
    return tuple(dict.fromkeys(price for _, price in _dated(attempts)))


def kind_of_cost(attempts: Sequence[Attempt]) -> Kind:
    """Return of which kind a run's cost is: that of its first price."""
    return next((price.kind for _, price in _dated(attempts)), "cash")


def price_findings(attempts: Sequence[Attempt]) -> Iterator[Finding]:
    """Yield which prices are of a kind that is not counted, and which were old when they began."""
    kind = kind_of_cost(attempts)
    for other in sorted({price.kind for _, price in _dated(attempts)} - {kind}):
        message = f"a {other} price is not counted: the run's cost is {kind}"
        yield Finding(source="prices", message=message)
    warned: dict[str, str | None] = {}
    for t_ns, price in _dated(attempts):
        warned.setdefault(price.offer, price.age_warning(t_ns))
    for message in filter(None, warned.values()):
        yield Finding(source="prices", message=message, severity="warning")


def _dated(attempts: Sequence[Attempt]) -> Iterator[tuple[int, Price]]:
    """Yield every price with the instant from which it was in force."""
    for attempt in attempts:
        if attempt.header.price is not None:
            yield attempt.start_ns, attempt.header.price
        for change in sorted(attempt.prices, key=lambda change: (change.t_ns, change.seq)):
            yield change.t_ns, change.price
