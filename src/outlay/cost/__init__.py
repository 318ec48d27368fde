"""Cost reports, spending, allocation and forecasts."""
