"""The demo: a small real training, and the sweep, faults and overhead test around it."""

__all__ = ["mlp", "training"]
