"""A grid: read, checked, and turned into a plan."""

__all__ = ["files", "parsing"]
