"""What pages show of spending: by day, limits, the last day, and what is behind each amount."""

__all__ = ["drawings", "last_day", "limit_rows", "month_reader", "spent"]
