"""The spend log's fold as rows by table and key, and the file of them beside the log."""

__all__ = ["index_file"]
