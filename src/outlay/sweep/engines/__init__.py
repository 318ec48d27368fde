"""Engines, which start and end runs: one protocol and its implementations."""

__all__ = ["base"]
