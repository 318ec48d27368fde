"""Waiting for other processes: look again and again, give up late and say what was waited for."""

from __future__ import annotations

from collections.abc import Callable

from outlay.clock import SYSTEM

PATIENCE_S = 240
"""How long anything may take on a busy machine, below the limit of a test."""


def until(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Return once the condition holds; fail with ``what`` where it does not in that time."""
    deadline_ns = SYSTEM.monotonic_ns() + PATIENCE_S * 10**9
    while not condition():
        in_time = SYSTEM.monotonic_ns() < deadline_ns
        assert in_time, what if isinstance(what, str) else what()
        SYSTEM.sleep(0.05)
