"""A sweep's state on disk: journal, manifest, lock."""

__all__ = ["failures", "manifest", "outcomes", "setup"]
