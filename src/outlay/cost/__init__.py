"""Cost reports, spending, allocation and forecasts."""

__all__ = [
    "allocation", "burn_down", "charges", "closing", "compare", "cost_book", "daily_cost", "focus",
    "forecast", "machines", "month_forecast", "prediction", "run_cost", "spending", "thresholds",
]  # fmt: skip
