"""Rented machines: ordered, watched until gone, reaped."""
