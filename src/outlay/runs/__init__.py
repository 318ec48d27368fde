"""One run, joined: recorder, price, budget and guard behind ``outlay.run()``."""

__all__ = [
    "accounting", "collect", "command_budget", "exec", "figures", "inbox", "inventory", "live",
    "money", "options", "past_attempts", "reading", "run_poller",
]  # fmt: skip
