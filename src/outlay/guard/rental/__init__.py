"""Rented machines: ordering, watching and termination."""

__all__ = ["rental", "vendor_commands", "watch"]
