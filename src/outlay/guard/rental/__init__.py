"""Rented machines: ordering, watching and termination."""
