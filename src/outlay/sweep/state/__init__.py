"""A sweep's state on disk: journal, manifest, lock."""

__all__ = ["manifest", "outcomes", "setup"]
