"""A run's log, read once and by column; every other figure of the run is computed from it."""

__all__ = ["columns", "payloads", "run", "step_blocks"]
