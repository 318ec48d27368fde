"""How much of a run was productive: every nanosecond of its wall time has one phase."""

__all__ = [
    "attempt", "failure_rate", "follower", "phases", "readings", "reliability", "scheduling",
    "steps", "throughput", "timeline",
]  # fmt: skip
