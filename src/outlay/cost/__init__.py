"""Cost reports, spending, allocation and forecasts."""

__all__ = [
    "allocation", "billed_time", "charges", "closing", "commitments", "compare", "cost_book",
    "focus", "forecast", "machines", "month_forecast", "run_cost", "spending", "thresholds",
]  # fmt: skip
