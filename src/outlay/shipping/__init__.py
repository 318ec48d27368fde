"""Ships a run's files from its node to storage, and fetches them from there."""

__all__ = ["apart", "shipper", "storage"]
