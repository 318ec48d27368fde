"""The files beside a spend log: its head, and its fold as rows by table and key."""

__all__ = ["head_file", "index_file"]
