"""Cost reports, spending, allocation and forecasts."""

__all__ = [
    "allocation", "billed_time", "charges", "commitments", "compare", "cost_book", "focus",
    "forecast", "machines", "run_cost", "spending", "thresholds",
]  # fmt: skip
