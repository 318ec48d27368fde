"""Runtime budgets: when a run must stop, so that experiments stay comparable."""
