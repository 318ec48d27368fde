"""The summary of a sweep: what each run achieved for its budget."""

__all__ = ["aggregator", "comparison", "losing", "rows"]
