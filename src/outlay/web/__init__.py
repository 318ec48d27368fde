"""The same answers in a browser, while they change: read-only, offline, without a build step."""

__all__ = ["access", "book_reader", "page", "server", "viewer"]
