"""Runtime budgets: when a run must stop, so that experiments stay comparable."""

__all__ = [
    "agreement", "conf", "config", "display", "fold", "gate", "history", "limits", "measurements",
    "report", "snapshots", "terms", "tracker", "usage",
]  # fmt: skip
