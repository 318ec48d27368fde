"""How much of a run was productive: every nanosecond of its wall time has one phase."""
