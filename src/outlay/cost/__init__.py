"""Cost reports, spending, allocation and forecasts."""

__all__ = [
    "allocation", "charges", "compare", "cost_book", "focus", "forecast", "machines", "prediction",
    "run_cost", "spending", "thresholds",
]  # fmt: skip
