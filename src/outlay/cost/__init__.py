"""Cost reports, spending, allocation and forecasts."""

__all__ = [
    "allocation", "charges", "closing", "compare", "cost_book", "daily_cost", "focus", "forecast",
    "machines", "month_forecast", "prediction", "run_cost", "spending", "thresholds",
]  # fmt: skip
