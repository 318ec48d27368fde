"""Alerts: rules in ``outlay.toml``, their evaluation, and delivery; each alert is sent once."""

__all__ = ["rounds", "rules"]
