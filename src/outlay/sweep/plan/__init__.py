"""A plan: the runs of a grid, with ids, prices and commands. Pure."""

__all__ = ["launch", "plan", "planning"]
