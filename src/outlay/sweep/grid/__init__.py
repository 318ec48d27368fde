"""A grid: what its user states, read and checked."""
