"""A grid: read, checked, and turned into a plan."""

__all__ = ["command_grid", "files", "parsing"]
