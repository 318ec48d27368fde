"""A run's log, read once and by column: what every other figure of the run is computed from."""
