"""What to change: recommendations computed from measured facts, with their evidence."""

__all__ = [
    "advice_book", "advice_followed", "batch_size", "curves", "dataset", "overhead",
    "recommendation", "run_advice", "spot", "stopping", "tiers", "what_if",
]  # fmt: skip
