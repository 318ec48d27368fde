"""What there is: machines, jobs and runs that cost money now, and asking for them."""

__all__ = ["asking", "machine_hours", "machines_now", "watch_settings"]
