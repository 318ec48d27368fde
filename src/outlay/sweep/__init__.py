"""Sweeps: many runs under the same budget, from a grid to a plan, runs and a summary."""

__all__ = ["aggregate", "engines", "errors", "grid", "plan", "run", "search", "state"]
