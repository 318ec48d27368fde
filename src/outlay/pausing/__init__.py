"""A guarded command that pauses and resumes as the price of its offer moves.

Policies decide (``outlay.policy``) and the guard pays; this package reads prices and acts.
"""

__all__ = ["expectation", "machines", "pause_plan", "pausing_run", "price_readings"]
