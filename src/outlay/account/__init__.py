"""A run's log, read once and by column; every other figure of the run is computed from it."""
