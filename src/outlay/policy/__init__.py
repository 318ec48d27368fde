"""When to run, wait or fall back to on-demand while prices or spot capacity move.

Policies decide on values that are given to them; nothing here starts, stops or pays.
"""

__all__ = ["hindsight", "pauses", "policies", "price_history", "simulation", "situation"]
