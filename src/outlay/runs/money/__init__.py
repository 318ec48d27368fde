"""What was spent, and what is used of every limit, read from all that knows of it."""

__all__ = ["limit_use", "spending_reader"]
