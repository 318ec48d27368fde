"""Running a plan: the harness, limits, money, devices."""

__all__ = ["detached", "devices", "harness", "sweep_guard", "sweeps"]
