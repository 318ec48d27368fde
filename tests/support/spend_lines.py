"""Lines of a spend log, as many as wanted."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from outlay.clock import SYSTEM
from outlay.guard.entries import SCHEMA, AnyEntry, Captured, Held, timestamp
from outlay.guard.spend_log import SpendLog


def held_now(log: SpendLog, hold: str, amount: str = "1") -> Held:
    """Return a hold of whoever uses a log, at its time."""
    ts = timestamp(log.wall_ns(SYSTEM))
    return Held(
        v=SCHEMA, ts=ts, op_label="op", currency="USD", estimated=Decimal(amount), hold=hold,
        lab="buffer", day=ts[:10], user=log.login("").user,
    )  # fmt: skip


def pairs_of_lines(lines: int) -> Iterator[AnyEntry]:
    """Yield holds with a key, each followed by its capture."""
    for number in range(lines // 2):
        month, date = divmod(number * 672 // lines, 28)
        day = f"2025-{1 + month:02d}-{1 + date:02d}"
        hold, ts, label = f"{number:012x}", f"{day}T10:00:00.000000Z", f"lab02-op{number % 50}"
        half, some = Decimal("0.50"), Decimal("0.40")
        yield Held(
            v=SCHEMA, ts=ts, op_label=label, currency="USD", estimated=half, hold=hold, lab="02",
            day=day, key=f"key-{number}", by="host:1:2",
        )  # fmt: skip
        yield Captured(
            v=SCHEMA, ts=ts, op_label=label, currency="USD", estimated=half, actual=some,
            hold=hold, lab="02", day=day,
        )  # fmt: skip
