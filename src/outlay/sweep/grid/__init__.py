"""A grid: read, checked, and turned into a plan."""
