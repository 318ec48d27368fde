"""A sweep's state on disk: journal, manifest, lock."""
