"""The spend guard: which launches are allowed, what is held for them, and what they cost.

Decisions are pure functions; every figure is a fold of the spend log. No network and no prices:
callers pass rates and vendor commands.
"""

__all__ = [
    "away", "balance", "budget_guard", "captures", "ceilings", "chain", "checklist", "entries",
    "errors", "gate", "index", "lease", "rental", "scopes", "spend_log", "supervise",
]  # fmt: skip
