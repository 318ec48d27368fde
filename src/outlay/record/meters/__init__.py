"""Meters of what a step uses besides time: bytes of collectives, energy, FLOPs.

Imports the standard library only; meters that need torch or NVML import them on use.
"""

__all__ = ["batches", "collectives", "energy", "step_meters"]
