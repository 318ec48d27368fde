"""What several of the guard's tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from outlay.clock import SYSTEM


def wait_until(condition: Callable[[], bool], *, what: str, seconds: float = 60.0) -> None:
    """Look again and again until something holds; fail when it does not in time."""
    deadline_ns = SYSTEM.monotonic_ns() + round(seconds * 1e9)
    while not condition():
        assert SYSTEM.monotonic_ns() < deadline_ns, f"{what}: not within {seconds:g} s"
        threading.Event().wait(0.02)
