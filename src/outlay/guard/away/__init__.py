"""A spend log that may be away: what is known of it, and what waits for it."""

__all__ = ["polled_log", "waiting_settlements"]
